"""Laws of phases that leave the base as it is: it runs once, and nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from variants import TRAIN_SIZES, Recorder, assert_same, history, small_federation

from fedloom.algorithms import FedBABU, FedRep, PFedVEM
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ContractError
from fedloom.core.messages import CohortDownload
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.engine import features
from fedloom.engine import weave as weave_module
from fedloom.engine.loop import Loop
from fedloom.engine.steps import RecordedSteps
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

METHODS: list[AnyAlgorithm] = [
    PFedVEM(epochs=1, passes=4, monte_carlo=2),
    PFedVEM(epochs=1, passes=4, monte_carlo=2, clip=0.5, weight_decay=0.01),
    FedRep(head_epochs=4, batch_size=4),
    FedBABU(tuning=4, batch_size=4, tuned="head"),
]
over_methods = pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: a.name)


class Base(nn.Module):
    """Counts the samples that all copies of it are given, if asked to."""

    seen: list[int] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        if Base.seen is not None:
            Base.seen.append(x.shape[0])
        return self.inner(x).tanh()


class Network(nn.Module):
    """A base and a head, and something between or after that others may change."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = Base(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))


class AfterHead(Network):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x)).clamp(max=0.5)


class AfterHeadInPlace(Network):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x)).mul_(2.0)


class HeadTwice(Network):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.head(self.base(x)) @ torch.ones_like(self.head.weight))


class HeadLookedInto(Network):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x) * self.head.weight.sum())


class StrictAboutOutputs(Network):
    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.base(x))
        if outputs.shape[-1] != 3:
            raise ValueError("three classes are expected")
        return outputs


class SkippedBase(Network):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x)) + x


class Random(Network):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(self.base(x)))


class Tied(Network):
    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.head.weight = self.middle.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.base(x)))


CANNOT_BE_CUT = [
    AfterHead,
    AfterHeadInPlace,
    HeadTwice,
    HeadLookedInto,
    StrictAboutOutputs,
    SkippedBase,
    Random,
    Tied,
]


def made(network: Callable[[], nn.Module], **options: Any) -> Task:
    with seeded(0, "model"):
        return Task(network(), head="head", dtype=torch.float64, **options)


def simulation(algorithm: AnyAlgorithm, runner: Any, task: Task) -> Simulation:
    return Simulation(algorithm, task, small_federation(), runner, seed=3)


def some_inputs() -> tuple[Tensor, ...]:
    return tuple(x[:2] for x in small_federation().dataset.inputs)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled steps without a compiler."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@over_methods
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    "runner",
    [lambda: Weave(4), lambda: Weave(4, compiled=True, unroll=3)],
    ids=["plain", "compiled"],
)
@pytest.mark.parametrize("at_once", [5, 512])
def test_features_change_nothing(
    algorithm: AnyAlgorithm,
    runner: Callable[[], Weave],
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "_AT_ONCE", at_once)
    expected = history(simulation(algorithm, Loop(), made(Network)), 2)
    assert_same(history(simulation(algorithm, runner(), made(Network)), 2), expected)


class Replayed(RecordedSteps):
    """Recorded steps without a GPU: a replay takes the steps anew."""

    def _record(self, *args: Any) -> None:
        super()._record(*args)
        self._graph: Any = SimpleNamespace(replay=lambda: self._advance(self._buffers))


@over_methods
@pytest.mark.usefixtures("interpreted")
def test_recorded_steps_meet_the_features_of_their_own_phase(
    algorithm: AnyAlgorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weave_module, "CompiledSteps", Replayed)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", nullcontext)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    expected = history(simulation(algorithm, Loop(), made(Network)), 2)
    woven = simulation(algorithm, Weave(4, compiled=True, unroll=2), made(Network))
    assert_same(history(woven, 2), expected)


def head_phase(algorithm: AnyAlgorithm, task: Task) -> tuple[Weave, Any, Any]:
    """A weave, and a job of the phase that trains heads with those who take part."""
    recorder = Recorder(Weave(4))
    run = simulation(algorithm, recorder, task)
    if algorithm.adaptation:
        run.personal(torch.arange(len(TRAIN_SIZES)))
    else:
        run.run_exchange()
    job, sent, participants = recorder.asked[-1]
    return Weave(4), replace(job, phases=job.phases[:1]), (sent, participants)


@over_methods
@pytest.mark.parametrize("has_rows", [False, True], ids=["shared", "own"])
def test_the_base_meets_every_sample_once(
    algorithm: AnyAlgorithm, has_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weave, job, (sent, participants) = head_phase(algorithm, made(Network))
    if has_rows:
        sent = CohortDownload.joined([sent], [len(participants.rows)])
    assert job.above_base is not None
    monkeypatch.setattr(Base, "seen", [])
    found = weave.run(job, sent, participants)
    # Chunks of 2, 4 and 4 clients; a base of each client's own sees its samples alone.
    longest = [(23, 2), (10, 4), (4, 4)]
    expected = [length * (1 if has_rows else count) for length, count in longest]
    assert Base.seen == expected
    monkeypatch.setattr(Base, "seen", None)
    loop = Loop().run(job, sent, participants)
    torch.testing.assert_close(found.report, loop.report, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("network", CANNOT_BE_CUT)
def test_a_model_that_is_not_a_head_on_a_base_is_not_cut(
    network: type[Network],
) -> None:
    assert made(network).above_base(some_inputs()) is None


@pytest.mark.parametrize("network", CANNOT_BE_CUT)
def test_a_model_that_cannot_be_cut_is_trained_as_ever(network: type[Network]) -> None:
    algorithm = FedRep(head_epochs=2, batch_size=4)
    expected = history(simulation(algorithm, Loop(), made(network)), 1)
    assert_same(history(simulation(algorithm, Weave(4), made(network)), 1), expected)


def test_a_model_without_a_head_or_without_a_base_is_not_cut() -> None:
    linear = Task(nn.Sequential(nn.Linear(3, 3)), dtype=torch.float64)
    assert linear.above_base(some_inputs()) is None
    headless = Task(nn.Sequential(nn.Conv1d(3, 3, 1)), dtype=torch.float64)
    assert headless.above_base(tuple(x[..., None] for x in some_inputs())) is None


def test_the_head_sees_features_as_it_does_in_the_model() -> None:
    task = made(Network, shift=torch.ones(3), scale=torch.full((3,), 2.0))
    above = task.above_base(some_inputs())
    assert above is not None
    base, _ = task.split(task.start)
    inputs = above.features(base, some_inputs())
    expected = task.predict(task.start, some_inputs())
    torch.testing.assert_close(above.predict(task.start, (inputs,)), expected)


def test_features_beyond_the_bound_are_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(features, "_MOST_BYTES", 4 * max(TRAIN_SIZES) * 4 * 8 - 1)
    weave, job, (sent, participants) = head_phase(METHODS[2], made(Network))
    monkeypatch.setattr(Base, "seen", [])
    weave.run(job, sent, participants)
    assert Base.seen is not None
    assert len(Base.seen) > 3


def test_one_pass_over_the_data_needs_no_features(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Task, "above_base", None)
    weave, job, asked = head_phase(FedRep(head_epochs=1), made(Network))
    weave.run(job, *asked)


class HalfBase(FedRep):
    name = "half-base"

    def received_base(self, work: Any, down: Any) -> Tensor:
        return down.base[:3]


def test_a_frozen_part_that_is_not_the_base_is_refused() -> None:
    with pytest.raises(ContractError, match=r"'received_base' must give the base"):
        simulation(HalfBase(), Weave(4), made(Network)).run_exchange()
