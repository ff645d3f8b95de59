from __future__ import annotations

import csv
import io

import pytest

from fedloom.core.files import write_csv
from fedloom.core.foreign_text import markdown_text, spreadsheet_cell, terminal_text


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "-", "=", "--1"],
)
def test_text_that_begins_like_a_formula_is_text(text: str) -> None:
    assert spreadsheet_cell(text) == f"'{text}"


@pytest.mark.parametrize(
    "value", ["ann", "", "a=1", -1.5, 3, None, True, "-1.5", "+3", "-1e-7", "-inf"]
)
def test_numbers_and_other_text_stay_as_they_are(value: object) -> None:
    assert spreadsheet_cell(value) is value


def test_names_of_columns_and_values_are_no_formulas_in_a_table() -> None:
    text = io.StringIO()
    write_csv([{"=evil": "@x", "n": -1.0}, {"n": -2.0}], text)
    text.seek(0)
    assert list(csv.reader(text)) == [["'=evil", "n"], ["'@x", "-1.0"], ["", "-2.0"]]


def test_markdown_shows_names_as_they_stand_in_one_line() -> None:
    name = "a|b <img src=x> [l](http://e) *s* _u_ `c` \\ &\n# head\x1b"
    said = markdown_text(name)
    assert said == (
        "a\\|b &lt;img src=x&gt; \\[l\\](http://e) \\*s\\* \\_u\\_ \\`c\\` \\\\ &amp; "
        "\\# head "
    )
    assert markdown_text("self-fl, ward 3 (5 %)") == "self-fl, ward 3 (5 %)"


def test_what_moves_a_terminal_is_spelled() -> None:
    assert terminal_text("\x1b]0;title\x07\x9b2J\u202eab") == (
        "\\x1b]0;title\\x07\\x9b2J\\u202eab"
    )
    assert terminal_text("\udc80") == "\\udc80"
    assert terminal_text("höpital №1\n\tok") == "höpital №1\n\tok"
