"""`fedloom tune`, and `compare --tuned`, as a user gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver import fedloom, refused

from fedloom.config import read_toml
from fedloom.tuning.trials import Trials

SMALL = (
    *("--set", "partition.name=label-skew", "--set", "partition.clients=4"),
    *("--set", "partition.classes=5", "--set", "engine.device=cpu"),
    *("--set", "algorithm.batch_size=100"),
)


def test_what_was_tuned_is_compared(tmp_path: Path) -> None:
    out = tmp_path / "tuned.toml"
    done = fedloom(
        *("tune", "fedavg", "ditto", "--data", "digits", "--model", "mlr"),
        *("--rounds", 1, "--trials", 2, "--out", out, "--space", "lr,pull", *SMALL),
    )
    assert done.exit_code == 0, done.output
    assert "kept for validation" in done.output
    assert "Local work of each method in a round: 5 epochs.\n" in done.output
    tuned = read_toml(out)["methods"]
    done = fedloom("compare", out, "--seeds", 1, "--jobs", 1, "--out", tmp_path / "a")
    assert done.exit_code == 0, done.output
    used = read_toml(tmp_path / "a" / "ditto" / "seed-0" / "config.toml")["algorithm"]
    assert used["lr"] == tuned["ditto"]["lr"]
    assert used["epochs"] == 5
    done = fedloom(
        *("compare", "ditto", "--tuned", out, "--seeds", 1, "--jobs", 1),
        *("--rounds", 1, "--out", tmp_path / "b", "--track", "csv", *SMALL),
    )
    assert done.exit_code == 0, done.output
    used = read_toml(tmp_path / "b" / "ditto" / "seed-0" / "config.toml")["algorithm"]
    assert used["pull"] == tuned["ditto"]["pull"]
    assert (tmp_path / "b" / "ditto" / "seed-0" / "rounds.csv").is_file()


def test_mistakes_are_named(tmp_path: Path) -> None:
    to = ("--out", tmp_path / "t.toml")
    assert "Did you mean 'ditto'" in refused("tune", "dito", *to)
    words = refused("tune", "ditto", "--space", "pul", *to)
    assert "Did you mean 'pull'" in words
    assert "split.validation is 0" in refused(
        "tune", "ditto", "--set", "split.validation=0.0", *to
    )
    assert list(tmp_path.iterdir()) == []


def test_stopping_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trials, "run", press)
    done = fedloom("tune", "fedavg", "--out", tmp_path / "t.toml", *SMALL)
    assert done.exit_code == 130
    assert "the same command goes on" in done.stderr
