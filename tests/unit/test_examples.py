"""Every example runs as it stands."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_every_example_runs_and_prints_something(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_own_model_and_data_take_at_most_fifteen_lines():
    text = (Path(__file__).parents[2] / "examples" / "own_model.py").read_text()
    part = text.split("# --8<-- the fifteen lines\n")[1].split("# --8<-- end")[0]
    assert len([line for line in part.splitlines() if line.strip()]) <= 15
