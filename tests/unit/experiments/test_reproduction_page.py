"""The page of the papers' rerun is what follows from the stored results."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from dataclasses import replace
from pathlib import Path

import pytest

from fedloom.experiments.page import Page
from fedloom.experiments.reproduce import reproduce
from fedloom.experiments.stored import read_stored, write_stored
from fedloom.experiments.training import Trainer

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "results"
FIGURES = ROOT / "docs" / "images" / "reproduction"

SAMPLE = (
    "self_fl/fig4_gaussian",
    "pfedmt/table1_mlr_synthetic",
    "pfedmt/table1_dnn_synthetic",
)
"""Experiments whose data are drawn, so that they can be run anywhere."""


def test_the_page_and_its_figures_are_up_to_date() -> None:
    page = Page(RESULTS)
    text = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert page.text == text, "run docs/make_reproduction.py"
    drawn = {file.name: file.read_text("utf-8") for file in FIGURES.glob("*.svg")}
    assert page.figures == drawn, "run docs/make_reproduction.py"
    for svg in drawn.values():
        assert xml.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert set(re.findall(r"reproduction/(\S+\.svg)", text)) == set(drawn)


def test_results_of_other_settings_are_not_shown(tmp_path: Path) -> None:
    page = Page(tmp_path)
    assert not page.figures
    assert "**holds**" not in page.text
    assert page.text.count("**not yet run**") > 100
    assert "| all | 42 | 0 | 0 | 0 | 42 |" in page.text


def test_the_page_says_the_opposite_when_stored_numbers_are_swapped(
    tmp_path: Path,
) -> None:
    name, claim = "self_fl/fig4_gaussian", "| PerFedAvg is as good as Self-FL"
    units = read_stored(RESULTS, name, "paper")

    def verdict() -> str:
        write_stored(tmp_path, name, "paper", units)
        lines = Page(tmp_path).text.splitlines()
        return next(line for line in lines if line.startswith(claim))

    assert "| **holds** |" in verdict()
    one, other = units["C 1/per-fedavg"], units["C 1/ditto-1"]
    units["C 1/per-fedavg"] = replace(one, values=other.values)
    assert "| **does not hold** |" in verdict()
    del units["C 1/per-fedavg"]
    assert "| **not yet run** |" in verdict()


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_small_experiment_gives_the_stored_numbers(name: str, tmp_path: Path) -> None:
    outcome = reproduce([name], "small", tmp_path, Trainer(tmp_path / "runs", "cpu"))
    assert not outcome.problems
    stored = read_stored(RESULTS, name, "small")
    again = read_stored(tmp_path, name, "small")
    assert [*again] == [*stored]
    for unit, own in stored.items():
        assert again[unit].digest == own.digest
        for number, values in own.values.items():
            assert again[unit].values[number] == pytest.approx(values, rel=1e-5)
        for number, curves in own.curves.items():
            for one, other in zip(again[unit].curves[number], curves, strict=True):
                # Other processors add in another order.
                assert one == pytest.approx(other, abs=2e-3), (unit, number)
