"""Three cases in which a plausible answer is wrong, on data that are made here.

In each of them users of real data were told something that did not hold: that a method
gains, which had only worked more; that rows can be drawn at random, which belonged
together.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fedloom
from fedloom.comparison import MAIN_JOB
from fedloom.experiments.worlds import training
from fedloom.experiments.worlds.answers import Answer, read_answer
from fedloom.experiments.worlds.training import Truths, train_worlds
from fedloom.experiments.worlds.world import World, draw_world


def first_world(kind: str, outputs: int) -> World:
    worlds = map(draw_world, range(1000))
    return next(w for w in worlds if (w.kind, w.outputs) == (kind, outputs))


class Case(NamedTuple):
    """A comparison in a world: what the report says, and what is true."""

    world: World
    answer: Answer
    truths: Truths

    def mean(self, arm: str, number: str) -> float:
        """Of a truth, over clients and seeds."""
        seeds = range(training.SEEDS)
        runs = [self.truths[self.world.number, arm, seed] for seed in seeds]
        return float(np.mean([getattr(run, number) for run in runs]))


def make_case(
    world: World, arms: Mapping[str, Mapping[str, Any]], folder: Path, **job: Any
) -> Case:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "ARMS", arms)
        patch.setattr(training, "MAIN_JOB", {**MAIN_JOB, **job})
        truths = train_worlds([world], [folder])
    return Case(world, read_answer(folder), truths)


@pytest.mark.slow
def test_a_regression_where_training_alone_wins_says_so(tmp_path: Path) -> None:
    world = first_world("all different", outputs=1)
    world = replace(
        world, unit=1.0, noise=0.3, is_curved=False, sizes=np.full(world.clients, 60)
    )
    arms = {name: {"name": name} for name in ("local", "fedavg", "fedprox")}
    case = make_case(world, arms, tmp_path / "world", rounds=10)
    for arm in ("fedavg", "fedprox"):
        # Squared errors: training alone with as much work is a tenth better, or more.
        assert case.mean(arm, "score") > 1.1 * case.mean(arm, "alone")
    assert case.answer.method == "local"
    assert "alone" in case.answer.headline


@pytest.fixture(scope="module")
def more_work(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """FedRep works so much more than Local that it comes out ahead."""
    world = first_world("all different", outputs=2)
    world = replace(world, sizes=np.full(world.clients, 60))
    arms = {
        "local": {"name": "local", "epochs": 1},
        "fedrep": {"name": "fedrep", "epochs": 1, "head_epochs": 20},
    }
    folder = tmp_path_factory.mktemp("more work") / "world"
    return make_case(world, arms, folder, rounds=4, algorithm={})


@pytest.mark.slow
def test_more_work_makes_a_method_win_that_does_not_gain(more_work: Case) -> None:
    fedrep = more_work.mean("fedrep", "score")
    assert fedrep > more_work.mean("local", "score") + 0.03
    assert fedrep < more_work.mean("fedrep", "alone") - 0.01


@pytest.mark.slow
def test_a_method_that_only_works_more_is_not_recommended(more_work: Case) -> None:
    assert more_work.answer.method != "fedrep"


def visits(seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Patients' visits of six nearly equal rows; inputs do not tell the target."""
    draw = np.random.default_rng(seed)
    patients, times, rows = 8, 8, 6
    centres = draw.standard_normal((patients * times, 6))
    levels = draw.standard_normal(patients * times)
    visit = np.repeat(np.arange(patients * times), rows)
    x = centres[visit] + 0.02 * draw.standard_normal((len(visit), 6))
    y = levels[visit] + 0.02 * draw.standard_normal(len(visit))
    return x.astype(np.float32), y.astype(np.float32), visit // times, visit


def test_rows_that_belong_together_are_warned_of() -> None:
    x, y, patient, visit = visits()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grouped = fedloom.federation(x, y, clients=patient, groups=visit)
    with pytest.warns(UserWarning, match="belong together"):
        torn = fedloom.federation(x, y, clients=patient)
    method = fedloom.Local(epochs=5)
    errors = [
        fedloom.run(method, "mlp", clients, rounds=20, evaluate_every=20).scores()
        for clients in (torn, grouped)
    ]
    assert np.mean(errors[0]) < 0.5 * np.mean(errors[1])
