"""Tables in four formats: what stands in them, and that nothing breaks out of them."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from made_runs import steady, write_comparison

from fedloom.core.errors import ConfigError, DataError
from fedloom.reports import FORMATS, report, write_report
from fedloom.reports.markup import latex
from fedloom.reports.tables import Cell, Column, Table, to_csv
from fedloom.reports.units import count, plain, seconds, signed, size, unit_of, words
from fedloom.results.statistics import Estimate, over_seeds, within_range

ODD = Table(
    'A & B <x> "q" 5 %',
    (Column("na_me", False), Column("score")),
    (
        (Cell("a|b<c>&"), Cell("1.0 ± 0.5", 1.0, is_strong=True)),
        (Cell("d_e"), Cell("\N{MINUS SIGN}2", -2.0)),
    ),
)


def test_markdown_escapes_bars_and_marks_what_stands_out() -> None:
    lines = ODD.to_markdown().splitlines()
    assert lines[1] == "| --- | ---: |"
    assert lines[2] == r"| a\|b&lt;c&gt;&amp; | **1.0 ± 0.5** |"


def test_latex_escapes_what_latex_reads() -> None:
    text = ODD.to_latex("odd")
    assert r"\textbf{1.0 $\pm$ 0.5}" in text
    assert r"na\_me & score \\" in text
    assert r"a\textbar{}b\textless{}c\textgreater{}\&" in text
    assert r"5 \%" in text
    assert latex("\\{}$#^~") == (
        r"\textbackslash{}\{\}\$\#\textasciicircum{}\textasciitilde{}"
    )
    assert text.count(r"\\") == 3


def test_html_escapes_and_keeps_the_number_behind_the_text() -> None:
    text = ODD.to_html("odd")
    assert "<x>" not in text
    assert '<th scope="row">a|b&lt;c&gt;&amp;</th>' in text
    assert 'data-v="-2"' in text
    assert "<caption" in text


def test_csv_leaves_missing_numbers_empty() -> None:
    text = to_csv(["a", "b"], [["x, y", float("nan")], ["z", None], ["w", 0.5]])
    assert list(csv.reader(io.StringIO(text))) == [
        ["a", "b"],
        ["x, y", ""],
        ["z", ""],
        ["w", "0.5"],
    ]


def test_numbers_are_written_for_readers() -> None:
    percent = unit_of("accuracy")
    assert percent.score(0.8944) == "89.4\N{NO-BREAK SPACE}%"
    assert percent.gap(-0.047) == "\N{MINUS SIGN}4.7"
    assert percent.gap(0.00001) == "0.0"
    assert percent.estimate(over_seeds([0.5])) == "50.0"
    assert percent.estimate(over_seeds([0.4, 0.6])) == "50.0"
    assert percent.estimate(over_seeds([0.4, 0.5, 0.6])) == "50.0 ± 24.8"
    lopsided = Estimate(0.1, 0.05, 0.08, 0.3, 5)
    assert percent.gap_estimate(lopsided) == "+10.0 (+8.0 to +30.0)"
    assert percent.tick(0.2) == "20"
    assert unit_of("mse").score(0.12345) == "0.1235"
    assert unit_of("mse").gap(-0.00001) == "0.0000"
    assert [size(950), size(12345), size(4.5e6)] == ["950 B", "12.3 kB", "4.5 MB"]
    assert [count(66), count(1999)] == ["66", "2 k"]
    assert [seconds(0.04), seconds(3), seconds(600)] == ["40 ms", "3 s", "10 min"]
    assert [plain(3.0), plain(0.12345), plain(float("nan"))] == ["3", "0.123", "–"]  # noqa: RUF001
    assert [signed(0.5), signed(-0.254), signed(-0.001)] == [
        "+0.50",
        "\N{MINUS SIGN}0.25",
        "0.00",
    ]
    assert words(["a", "b", "c"]) == "a, b and c"
    assert words(["a", "b", "c", "d", "e"]) == "a, b, c and 2 others"


def test_errors_have_as_many_digits_as_they_are_large() -> None:
    prices = unit_of("mse", [11543495.0663, 9.9e6, float("nan"), 1.2e7])
    assert prices.score(11543495.0663) == "11.54e6"
    assert prices.gap(-31499.9) == "\N{MINUS SIGN}0.03e6"
    assert prices.gap(31.0) == "0.00e6"
    assert unit_of("mse", [54321.5]).score(54321.5) == "54,322"
    assert unit_of("mse", [115.4321]).score(115.4321) == "115.4"
    assert unit_of("mse", [0.3]).score(0.31234) == "0.3123"
    assert unit_of("mse", [2.345e-6]).score(2.3456e-6) == "0.000002346"
    assert unit_of("mse_worst_decile", [0.0]).score(0.0) == "0.0000"
    assert unit_of("mse", [5e5]).score(float("inf")) == "\N{EN DASH}"


def test_scores_that_are_far_apart_have_digits_of_their_own() -> None:
    blown_up = unit_of("mse", [3e21, 2e21, 1.25])
    assert [blown_up.score(v) for v in (3e21, 1.25, 0.0)] == [
        "3.000e21",
        "1.250",
        "0.000e21",
    ]
    assert unit_of("mse", [1.0, 1.2, 4e21]).score(4e21) == "4.000e21"
    assert unit_of("mse", [1.0, 1.2]).gap(0.00001) == "0.000"


def test_intervals_stay_where_a_score_can_be() -> None:
    """Worst tenths: shares near 0, errors that differ by much, and seeds all alike."""
    share = within_range(
        over_seeds([0.0, 0.1, 0.0, 0.3, 0.0]), "accuracy", is_share=True
    )
    assert 0 < share.low < share.mean < share.high < 1
    text = unit_of("accuracy").estimate(share)
    assert re.fullmatch(r"8\.0 \(\d\.\d to \d\d\.\d\)", text)
    assert (
        unit_of("accuracy").score_estimate(share).startswith("8.0\N{NO-BREAK SPACE}% (")
    )
    error = within_range(over_seeds([0.1, 9.0, 0.2]), "mse", is_share=False)
    assert 0 < error.low < error.mean < error.high
    assert "±" not in unit_of("mse").estimate(error)
    for values in ([0.5, 0.5, 0.5], [0.0, 0.0]):
        same = within_range(over_seeds(values), "accuracy", is_share=True)
        assert not same.has_interval
        assert "±" not in unit_of("accuracy").estimate(same)
    middle = within_range(over_seeds([0.5, 0.52, 0.48]), "accuracy", is_share=True)
    assert "±" in unit_of("accuracy").estimate(middle)


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    local = steady([0.50, 0.60], [0.52, 0.64], [0.48, 0.62])
    better = steady([0.70, 0.80], [0.74, 0.82], [0.70, 0.82])
    path = tmp_path_factory.mktemp("tables") / "c"
    return write_comparison(path, {"local": local, "better": better})


def test_a_report_is_a_page_with_its_tables_beside(comparison: Path) -> None:
    _, written = write_report([comparison])
    assert [path.name for path in written] == [
        "report.html",
        "report.md",
        "report.tex",
        "report.csv",
        "report-pairs.csv",
        "report-clients.csv",
    ]
    assert not list(comparison.glob("*.part"))
    rows = rows_of(comparison / "report.csv")
    assert [row["method"] for row in rows] == ["better", "local"]
    assert float(rows[0]["last_mean"]) == pytest.approx((0.75 + 0.78 + 0.76) / 3)
    assert rows[0]["gaining"] == "2"
    clients = rows_of(comparison / "report-clients.csv")
    assert len(clients) == 2 * 3 * 2
    first = next(
        r
        for r in clients
        if (r["method"], r["seed"], r["client"]) == ("better", "1", "c1")
    )
    assert float(first["accuracy"]) == pytest.approx(0.82)
    assert float(first["gain"]) == pytest.approx((0.20 + 0.18 + 0.20) / 3)
    pairs = rows_of(comparison / "report-pairs.csv")
    assert [(row["first"], row["second"]) for row in pairs] == [("better", "local")]


@pytest.mark.parametrize(
    ("format_", "words_"),
    [
        (
            "md",
            ["| **better** | 76.3 (", "Use better: it reaches", "2 of 2 clients gain"],
        ),
        ("latex", [r"\toprule", r"\label{tab:gains}", "booktabs"]),
        ("csv", ["place,method,algorithm,last_mean"]),
    ],
)
def test_one_format_writes_one_file(
    comparison: Path, tmp_path: Path, format_: str, words_: list[str]
) -> None:
    file = tmp_path / "deep" / f"out{FORMATS[format_][0]}"
    _, written = write_report([comparison], file, format_)
    assert written == [file]
    text = written[0].read_text()
    for expected in words_:
        assert expected in text


def test_from_python_one_call_writes_the_page_and_says_where(
    comparison: Path, tmp_path: Path
) -> None:
    page = report(str(comparison), tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert (tmp_path / "page-clients.csv").is_file()
    assert report([comparison], format_="md") == comparison / "report.md"


def test_mistakes_are_named(comparison: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'html'"):
        write_report([comparison], format_="htm")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        write_report([comparison], tmp_path / "file" / "report.html")
