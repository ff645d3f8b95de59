"""The experiment on what privacy costs: its choices, its table, and that it goes on."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from fedloom.experiments import private
from fedloom.experiments.private import (
    EPSILONS,
    SEEDS,
    Row,
    Trials,
    World,
    to_markdown,
)
from fedloom.privacy.accounting import gaussian_epsilon

ROOT = Path(__file__).parents[3]
STORED = [
    ROOT / "results" / "private" / f"{name}.csv"
    for name in ("heart", "letters", "cifar10")
]

WORLD = World(
    tables={
        "rounds": 2,
        "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.5},
        "split": {"validation": 0.25},
        "model": {"name": "mlr"},
    },
    local={"batch_size": 20},
    unit="client",
    delta=1e-3,
    rates=(0.001, 0.1),
    clips=(0.3,),
)


def row(epsilon: float, seed: int, mean: float, kind: str = "personal") -> Row:
    clip = math.nan if math.isinf(epsilon) else 0.1
    noise = 0.0 if math.isinf(epsilon) else 2.5
    return Row("ditto", epsilon, clip, "lr = 0.1", noise, seed, kind, mean, mean / 2)


def test_the_table_has_means_over_seeds_and_says_what_diverged() -> None:
    rows = [row(math.inf, 1, 0.8), row(math.inf, 2, 0.9)]
    rows += [row(1.0, 1, 0.5), row(1.0, 2, math.nan), row(1.0, 1, 0.4, "shared")]
    text = to_markdown(rows)
    assert "| method | none | epsilon 1 |" in text
    assert "| ditto | 85.0 (5.0) | 50.0 (0.0), 1 diverged |" in text
    assert "| ditto | 42.5 (2.5) | 25.0 (0.0), 1 diverged |" in text
    assert "| ditto | | 40.0 (0.0) |" in text
    assert "| ditto | lr = 0.1 | clip 0.1, noise 2.5, lr = 0.1 |" in text


def test_a_candidate_that_diverged_is_never_the_best() -> None:
    good, lost = (private.Candidate(1.0, clip, {}) for clip in (0.1, 0.3))
    assert private._best([(lost, math.nan), (good, 0.2)]) == good
    assert private._best([(good, 0.2), (lost, math.nan)]) == good


@pytest.mark.slow
def test_noise_is_for_the_epsilon_and_what_is_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = private.measure(WORLD, tmp_path, 0, "fedavg")
    assert len(rows) == len(EPSILONS) * SEEDS * 2
    done = json.loads((tmp_path / "fedavg.json").read_text())
    assert private._best(done["rates"]).settings == {"lr": 0.1}
    noises = {of.epsilon: of.noise for of in rows}
    assert noises.pop(math.inf) == 0.0
    for epsilon, noise in noises.items():
        # Two rounds with everybody are one Gaussian of less noise.
        spent = gaussian_epsilon(noise / math.sqrt(2), WORLD.delta)
        assert spent == pytest.approx(epsilon, rel=5e-3)

    def refuse(*_: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(Trials, "_train", refuse)
    again = private.measure(WORLD, tmp_path, 0, "fedavg")
    assert repr(again) == repr(rows)


@pytest.mark.slow
def test_what_sends_nothing_is_scored_once(tmp_path: Path) -> None:
    rows = private.measure(WORLD, tmp_path, 0, "local")
    assert {of.epsilon for of in rows} == {math.inf}
    assert "| local | " in to_markdown(rows)


@pytest.mark.slow
def test_sums_need_their_bounds_only_where_clients_are_hidden(tmp_path: Path) -> None:
    hidden = replace(WORLD, clips=(0.1,))
    samples = replace(hidden, unit="sample", delta=1e-4)
    for world, bound in ((hidden, "weigh_by = last"), (samples, "lr = 0.1")):
        rows = private.measure(world, tmp_path / world.unit, 0, "self-fl")
        settings = {of.settings for of in rows if not math.isinf(of.epsilon)}
        assert all(bound in s for s in settings)
        assert ("weigh_by" in "".join(settings)) == (world.unit == "client")


@pytest.mark.parametrize("file", STORED, ids=[file.stem for file in STORED])
def test_the_tables_of_the_page_are_those_of_the_stored_rows(file: Path) -> None:
    with file.open(encoding="utf-8", newline="") as stored:
        numbers = {"epsilon", "clip", "noise", "mean", "worst_decile"}
        rows = [
            Row(**{k: float(v) if k in numbers else v for k, v in row.items()})
            for row in csv.DictReader(stored)
        ]
    assert len({row.seed for row in rows}) == SEEDS
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    scores, _, _ = to_markdown(rows).partition("What was chosen")
    for table in scores.strip().split("\n\n"):
        assert table.strip() in page
