"""Laws of the clip: ordinary gradients keep their bits, and no default run blows up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from variants import NORMALISED, assert_identical, history, over_methods, set_up
from variants import small_federation as small

from fedloom.algorithms import FedAvg, Local
from fedloom.clients import Federation
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import NumericalError
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation


@over_methods
def test_the_default_clip_leaves_ordinary_gradients_to_the_bit(
    algorithm: AnyAlgorithm,
) -> None:
    assert algorithm.clip is not None or algorithm.name == "pfedbayes"
    free = replace(algorithm, clip=None)
    assert_identical(
        history(set_up(algorithm, Weave(7)), 2), history(set_up(free, Weave(7)), 2)
    )


def raw_units(scale: float = 1e6) -> Federation:
    """A regression whose targets are millions: the plain step is thrown far away."""
    federation = small()
    data = federation.dataset
    targets = scale * (data.inputs[0].sum(1) + data.targets)
    return replace(federation, dataset=replace(data, targets=targets, classes=None))


def regression(algorithm: AnyAlgorithm, runner: Loop | Weave) -> Simulation:
    with seeded(0, "model"):
        below, head = nn.Linear(3, 4), nn.Linear(4, 1)
    between = [nn.LayerNorm(4)] if algorithm.name in NORMALISED else []
    task = Task(nn.Sequential(below, *between, nn.ReLU(), head), "squared-error")
    return Simulation(algorithm, task, raw_units(), runner, seed=3)


@over_methods
def test_no_method_blows_up_on_raw_units(algorithm: AnyAlgorithm) -> None:
    simulation = regression(algorithm, Weave(7))
    for name, tensor in history(simulation, 4).items():
        if tensor.is_floating_point():
            assert torch.isfinite(tensor).all(), name


def test_without_the_clip_the_same_run_blows_up() -> None:
    simulation = regression(Local(clip=None, epochs=8), Weave(7))
    with pytest.raises(NumericalError, match="lr is"):
        history(simulation, 4)


@pytest.mark.parametrize("runner", [Loop(), Weave(4)], ids=["loop", "weave"])
def test_a_step_is_no_longer_than_rate_times_clip(runner: Loop | Weave) -> None:
    simulation = regression(FedAvg(lr=0.5, clip=2.0, steps=1), runner)
    start = simulation.task.start
    simulation.run_exchange()
    shared = simulation.shared()
    assert shared is not None
    assert 0.5 < float((shared - start).norm()) <= 1.0 + 1e-5


@pytest.mark.parametrize("clip", [0.1, 10.0])
def test_what_is_clipped_does_not_depend_on_the_company(clip: float) -> None:
    method = FedAvg(clip=clip, epochs=2)
    dtype = torch.float32
    alone = history(set_up(method, Weave(1), dtype=dtype), 2)
    for chunk in (3, 10):
        assert_identical(history(set_up(method, Weave(chunk), dtype=dtype), 2), alone)
