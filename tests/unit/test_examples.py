"""Every example runs as it stands."""

import os
import runpy
from pathlib import Path

import pytest

from fedloom.data.locations import VARIABLE

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
LONG = {"spoken_digits", "heart_disease"}
MANY_PROCESSES = {"federation"}
"""Run by `make federation`; its commands are tested in tests/flower."""


def in_time(path):
    """An example as a case of a test: among the slow proofs if it takes long."""
    marks = [pytest.mark.slow] if path.stem in LONG else []
    return pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize(
    "path", [in_time(path) for path in EXAMPLES if path.stem not in MANY_PROCESSES]
)
def test_every_example_runs_and_prints_something(path, capsys):
    if VARIABLE in path.read_text() and not os.environ.get(VARIABLE):
        pytest.skip(f"{path.name} needs data: set {VARIABLE} to run it")
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_own_model_and_data_take_at_most_fifteen_lines():
    text = (Path(__file__).parents[2] / "examples" / "own_model.py").read_text()
    part = text.split("# --8<-- the fifteen lines\n")[1].split("# --8<-- end")[0]
    assert len([line for line in part.splitlines() if line.strip()]) <= 15


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_is_short(path):
    assert len([line for line in path.read_text().splitlines() if line.strip()]) < 60
