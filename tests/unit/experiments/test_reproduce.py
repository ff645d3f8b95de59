"""Experiments are rerun: what is stored is not run again, what was stopped goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import DataError
from fedloom.experiments import catalogue, reproduce, search, training
from fedloom.experiments.experiment import Experiment, parse_experiment
from fedloom.experiments.reproduce import reproduce as run
from fedloom.experiments.stored import (
    StoredUnit,
    read_stored,
    stored_file,
    write_stored,
)
from fedloom.experiments.training import Trainer

TABLES: dict[str, Any] = {
    "title": "A trial on the digits",
    "seeds": 2,
    "numbers": {
        "PM": "personal/test/accuracy",
        "weighted": "personal/test/accuracy_weighted",
        "worst 10 %": "personal/test/accuracy_worst_decile",
    },
    "run": {
        "rounds": 2,
        "data": {"name": "digits"},
        "partition": {"name": "label-skew", "clients": 5, "classes": 4},
        "split": {"test": 0.25},
        "model": {"name": "mlr"},
        "algorithm": {"steps": 2},
        "engine": {"compile": "off"},
    },
    "arms": {
        "local": {"algorithm": {"name": "local"}},
        "fedavg": {"label": "FedAvg", "algorithm": {"name": "fedavg"}},
    },
    "figures": [
        {"title": "by clients", "kind": "histogram", "number": "weighted"},
        {"title": "by size", "kind": "sizes", "number": "PM"},
    ],
    "claims": [
        {"text": "x", "number": "PM", "order": ["local", "fedavg"]},
    ],
}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Experiment]:
    """Have an experiment that is in no file."""

    def give(**changes: Any) -> Experiment:
        experiment = parse_experiment("a/trial", {**TABLES, **changes})
        for module in (catalogue, reproduce):
            monkeypatch.setattr(module, "load_experiment", lambda name: experiment)
        monkeypatch.setattr(training, "family", lambda name: [experiment])
        return experiment

    return give


def rerun(folder: Path, **options: Any) -> reproduce.Outcome:
    trainer = Trainer(folder / "runs")
    return run(["a/trial"], "paper", folder / "results", trainer, **options)


def test_what_is_stored_is_not_run_again(given: Any, tmp_path: Path) -> None:
    given()
    assert rerun(tmp_path) == reproduce.Outcome(2, (), ())
    units = read_stored(tmp_path / "results", "a/trial", "paper")
    assert [*units] == ["local", "fedavg"]
    own = units["local"]
    assert own.seeds == (0, 1)
    assert own.rounds == (1, 2)
    assert [len(curve) for curve in own.curves["personal/test/accuracy"]] == [2, 2]
    assert "personal/test/accuracy_worst_decile" in own.curves
    assert own.spent == {"steps": [2.0, 4.0], "uploads": [1.0, 2.0]}
    assert sum(own.drawn["by clients"]["counts"]) == 10
    assert own.drawn["by size"]["sizes"] == sorted(own.drawn["by size"]["sizes"])
    assert own.environment["torch"]
    assert not list((tmp_path / "runs").rglob("checkpoint*"))
    assert rerun(tmp_path) == reproduce.Outcome(0, (), ())


def test_a_unit_with_other_settings_is_run_again(given: Any, tmp_path: Path) -> None:
    given()
    rerun(tmp_path)
    before = stored_file(tmp_path / "results", "a/trial", "paper").read_text("utf-8")
    arms = {**TABLES["arms"]}
    arms["fedavg"] = {"algorithm": {"name": "fedavg", "lr": 0.1}}
    given(arms=arms)
    assert rerun(tmp_path).done == 1
    after = stored_file(tmp_path / "results", "a/trial", "paper").read_text("utf-8")
    assert json.loads(before)["units"]["local"] == json.loads(after)["units"]["local"]


def test_a_rerun_gives_the_same_numbers(given: Any, tmp_path: Path) -> None:
    given()
    rerun(tmp_path / "a")
    rerun(tmp_path / "b")
    one, other = (
        read_stored(tmp_path / name / "results", "a/trial", "paper") for name in "ab"
    )
    assert {n: u.curves for n, u in one.items()} == {
        n: u.curves for n, u in other.items()
    }


def test_when_the_time_is_over_the_rest_is_left(given: Any, tmp_path: Path) -> None:
    given(run={**TABLES["run"], "rounds": 100_000, "evaluate_every": 50_000})
    told: list[str] = []
    outcome = rerun(tmp_path, stop_after=0.02, tell=told.append)
    assert outcome.done == 0
    assert outcome.left == ("a/trial [local]", "a/trial [fedavg]")
    assert "minutes are over" in told[-1]
    (run_directory,) = (tmp_path / "runs").rglob("seed-0")
    assert (run_directory / "checkpoint.safetensors").is_file()


def test_a_method_that_cannot_be_run_does_not_stop_the_others(
    given: Any, tmp_path: Path
) -> None:
    arms = {"fedbn": {"algorithm": {"name": "fedbn"}}, **TABLES["arms"]}
    given(arms=arms, claims=[])
    outcome = rerun(tmp_path)
    assert outcome.done == 2
    assert len(outcome.problems) == 1
    assert "a/trial [fedbn]" in outcome.problems[0]


def test_a_run_that_diverges_is_stored_as_one(given: Any, tmp_path: Path) -> None:
    arms = {"wild": {"algorithm": {"name": "fedavg", "lr": 1e6, "clip": "none"}}}
    run_tables = {**TABLES["run"], "model": {"name": "mlp", "hidden": [5]}}
    given(arms=arms, claims=[], run=run_tables)
    rerun(tmp_path)
    (own,) = read_stored(tmp_path / "results", "a/trial", "paper").values()
    assert [*own.failures] == ["0", "1"]


def test_an_arm_starts_from_another_of_its_seed(given: Any, tmp_path: Path) -> None:
    arms = {
        "first": {"algorithm": {"name": "fedavg"}},
        "on": {"start": "first", "algorithm": {"name": "fedavg"}},
    }
    given(arms=arms, claims=[], run={**TABLES["run"], "algorithm": {"epochs": 3}})
    rerun(tmp_path)
    units = read_stored(tmp_path / "results", "a/trial", "paper")
    first, on = (units[name].curves["personal/test/accuracy"] for name in arms)
    # Two rounds from zero, and two from where those ended.
    assert sum(b[1] for b in on) > sum(a[1] for a in first)


def test_what_a_search_finds_is_stored_and_taken(given: Any, tmp_path: Path) -> None:
    asked = {"setting": "all", "trials": 3, "rounds": 1, "space": ["lr"]}
    experiment = given(search=asked)
    results, out = tmp_path / "results", tmp_path / "runs"
    search.search(experiment, "small", results, out)
    stored = search.read_search(results, "a/trial", "small")
    assert (stored["trials"], stored["rounds"]) == (2, 2)
    assert [*stored["found"]] == ["local", "fedavg"]
    tuned = search.with_found(experiment, results, "small")
    for unit in experiment.units("small"):
        best = stored["found"][unit.arm]["settings"]["lr"]
        assert tuned.config(unit, "small").algorithm.lr == best
        assert experiment.config(unit, "small").algorithm.lr == 0.05
    # At the other scale nothing was searched.
    assert search.with_found(experiment, results, "paper") is experiment


def test_results_that_are_none_are_refused(given: Any, tmp_path: Path) -> None:
    given()
    file = stored_file(tmp_path / "results", "a/trial", "paper")
    file.parent.mkdir(parents=True)
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="not results of this version"):
        rerun(tmp_path)


def unit(*finals: float, **other: Any) -> StoredUnit:
    """A stored unit whose seeds end at these scores."""
    values: dict[str, Any] = {
        "digest": "",
        "seeds": tuple(range(len(finals))),
        "seconds": 1.0,
        "created": "2026-11-18",
        "environment": {},
        "rounds": (1, 2),
        "curves": {"personal/test/accuracy": [[0.0, final] for final in finals]},
    }
    return StoredUnit(**{**values, **other})


def test_stored_units_are_read_as_they_were_written(tmp_path: Path) -> None:
    units = {"a": unit(0.5, environment={"device": "x"}), "b": unit(0.25)}
    write_stored(tmp_path, "a/trial", "small", units)
    assert read_stored(tmp_path, "a/trial", "small") == units
    assert read_stored(tmp_path, "a/other", "small") == {}
