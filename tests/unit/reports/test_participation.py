"""What a report says of who took part in a federation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import write_run

from fedloom.core.digests import write_checked_json
from fedloom.reports import write_report
from fedloom.reports.summary import summary

NAMES = ["north", "south", "west"]


def federation(folder: Path, rounds: dict[int, dict[str, Any]], **options: Any) -> Path:
    """A run with three clients elsewhere, whose rows say what is given here too."""
    scores = options.pop("scores", [[0.5, 0.5, 0.5]] * 5)
    path = write_run(folder / "run", scores, names=NAMES, **options)
    file = path / "rounds.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    lines = [json.dumps(row | rounds.get(row["round"], {})) for row in rows]
    file.write_text("\n".join(lines) + "\n")
    write_checked_json(path / "federation.json", {"names": NAMES})
    return path


def first_text(path: Path) -> str:
    findings, _ = write_report([path])
    text = summary(findings)[0]
    for page in ("report.html", "report.md"):
        assert "enrolled" in (path / page).read_text()
    return text


def test_a_federation_that_went_well_says_so(tmp_path: Path) -> None:
    text = first_text(federation(tmp_path, {}))
    assert (
        text == "3 clients enrolled, and whoever was called took part in every round."
    )


def test_who_was_missing_or_refused_is_named_with_the_rounds_and_the_reason(
    tmp_path: Path,
) -> None:
    refusal = {"exchange": 0, "client": 2, "reason": "its norm is 1e9."}
    rounds = {
        1: {"missing": 1, "absent": [1]},
        2: {"missing": 3, "absent": [1, 1, 2], "refusals": [refusal]},
        4: {"missing": 1, "absent": [1]},
    }
    text = first_text(federation(tmp_path, rounds))
    assert text == (
        "3 clients enrolled; 2 of them were left out of some rounds. south was left "
        "out of rounds 1 to 2 and 4 (no answer in time). west was left out of round 2 "
        "(refused: its norm is 1e9)."
    )


def test_who_was_not_scored_is_named(tmp_path: Path) -> None:
    scores = np.full((5, 3), 0.5)
    scores[4, 0] = np.nan
    text = first_text(federation(tmp_path, {}, scores=scores))
    assert "north was not scored after round 4: scores are those of the others." in text


@pytest.mark.parametrize("damage", ["", "{"])
def test_a_damaged_list_of_clients_costs_their_names_alone(
    tmp_path: Path, damage: str
) -> None:
    path = federation(tmp_path, {1: {"missing": 1, "absent": [1]}})
    (path / "federation.json").write_text(damage)
    assert "client 1 was left out of round 1" in first_text(path)


def test_a_simulation_says_nothing_of_it(tmp_path: Path) -> None:
    path = federation(tmp_path, {})
    (path / "federation.json").unlink()
    findings, _ = write_report([path])
    assert "enrolled" not in " ".join(summary(findings))
