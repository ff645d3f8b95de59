"""Laws of the runners: `weave` differs from `loop` in nothing but speed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from variants import (
    ALL,
    COUNT,
    PRIVATE,
    TRAIN_SIZES,
    VARIANTS,
    Recorder,
    advance,
    assert_identical,
    assert_same,
    describe,
    history,
    over_methods,
    over_variants,
    set_up,
    small_federation,
    specification,
)

from fedloom.algorithms import FedAvg
from fedloom.clients.batches import Plan
from fedloom.core.algorithm import AnyAlgorithm, Phase
from fedloom.core.records import leaves, take
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.engine import loop, weave
from fedloom.engine.job import (
    CohortDownload,
    Job,
    LocalResults,
    Participants,
    plan_phase,
    planned_steps,
)
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("g++", "clang++", "c++")),
    reason="there is no C++ compiler on the PATH, which torch.compile needs",
)


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that compiling asks for, fixed shapes and unrolling, but no compiler.

    What a compiled chunk computes, without the minutes that compiling takes.
    """
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@over_variants
def test_weave_equals_loop(algorithm: AnyAlgorithm) -> None:
    woven = history(set_up(algorithm, Weave(7)), 3)
    assert_same(woven, specification(algorithm))


def has_c_code(algorithm: AnyAlgorithm) -> bool:
    steps = (getattr(algorithm, phase.step) for phase in algorithm.phases)
    return any(getattr(step, "is_plain_descent", False) for step in steps)


@pytest.mark.parametrize(
    "algorithm",
    [
        # Others have steps in PyTorch either way.
        pytest.param(v, marks=[] if has_c_code(v) else [pytest.mark.slow])
        for v in ALL + PRIVATE
    ],
    ids=describe,
)
def test_weave_without_c_code_equals_loop(algorithm: AnyAlgorithm) -> None:
    woven = history(set_up(algorithm, Weave(7, native=False)), 3)
    assert_same(woven, specification(algorithm))


@over_methods
@pytest.mark.parametrize("chunk", [1, COUNT])
def test_the_size_of_chunks_changes_rounding_at_most(
    algorithm: AnyAlgorithm, chunk: int
) -> None:
    woven = history(set_up(algorithm, Weave(chunk)), 3)
    assert_same(woven, specification(algorithm))


def convolution(runner: Any) -> Simulation:
    """Pictures of the small federation's size, seen by a network that convolves."""
    federation, draw = small_federation(), torch.Generator().manual_seed(1)
    data = federation.dataset
    pictures = torch.randn(len(data.targets), 1, 8, 8, generator=draw)
    with seeded(0, "model"):
        module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    federation = replace(federation, dataset=replace(data, inputs=(pictures,)))
    return Simulation(VARIANTS["fedavg"][0], Task(module), federation, runner, seed=3)


def test_the_size_of_chunks_changes_convolutions_by_rounding_at_most() -> None:
    alone = history(convolution(Weave(1)), 3)
    for chunk in (4, COUNT):
        assert_same(history(convolution(Weave(chunk)), 3), alone, tolerance=1e-5)


@pytest.mark.parametrize("timing", [{"epochs": 2}, {"steps": 5}, {"passes": 2}])
def test_what_is_drawn_for_a_client_is_the_same_in_whatever_company(
    timing: dict[str, int],
) -> None:
    phase, keys = Phase(step="step", **timing), torch.arange(4) * 977
    sizes = torch.tensor([3, 12, 5, 9])
    steps = planned_steps(phase, sizes, 4)
    everyone = plan_phase(phase, keys, sizes, steps, 4)
    for n in range(4):
        one = slice(n, n + 1)
        alone = plan_phase(phase, keys[one], sizes[one], steps[one], 4)
        count = int(steps[n])
        drawn = everyone.positions[n, :count][everyone.mask[n, :count]]
        assert torch.equal(drawn, alone.positions[0][alone.mask[0]])


def test_a_batch_is_no_wider_than_the_largest_client() -> None:
    seen, largest = Recorder(Weave(4)), max(TRAIN_SIZES)
    huge = history(set_up(FedAvg(batch_size=1_000_000), seen), 2)
    job = seen.asked[0][0]
    assert job.batch_size == largest
    assert_identical(huge, history(set_up(FedAvg(batch_size=largest), Weave(4)), 2))
    usual = Recorder(Weave(4))
    advance(set_up(FedAvg(batch_size=3), usual), 1)
    assert usual.asked[0][0].batch_size == 3


@pytest.mark.slow
@over_methods
def test_weave_equals_loop_in_single_precision(algorithm: AnyAlgorithm) -> None:
    woven = history(set_up(algorithm, Weave(7), dtype=torch.float32), 3)
    assert_same(woven, specification(algorithm, torch.float32), tolerance=1e-4)


@over_methods
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("chunk", [7, 32])
def test_ghost_clients_change_nothing(algorithm: AnyAlgorithm, chunk: int) -> None:
    padded = history(set_up(algorithm, Weave(chunk, compiled=True, native=False)), 3)
    assert_same(padded, specification(algorithm))


@over_methods
@pytest.mark.usefixtures("interpreted")
def test_unrolled_steps_change_nothing(algorithm: AnyAlgorithm) -> None:
    unrolled = history(
        set_up(algorithm, Weave(5, compiled=True, unroll=3, native=False)), 3
    )
    assert_same(unrolled, specification(algorithm))


@over_methods
@pytest.mark.parametrize("module", [loop, weave], ids=["loop", "weave"])
def test_wider_batches_change_nothing(
    algorithm: AnyAlgorithm, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = module.plan_phase

    def wide(*args: Any) -> Plan:
        plan = tight(*args)
        return plan._replace(
            positions=F.pad(plan.positions, (0, 3)), mask=F.pad(plan.mask, (0, 3))
        )

    expected = specification(algorithm)
    monkeypatch.setattr(module, "plan_phase", wide)
    runner = Loop() if module is loop else Weave(COUNT)
    assert_same(history(set_up(algorithm, runner), 3), expected)


@over_methods
@pytest.mark.parametrize("runner", [Loop(), Weave(4)], ids=["loop", "weave"])
def test_the_order_of_clients_is_irrelevant_to_a_runner(
    algorithm: AnyAlgorithm, runner: Any
) -> None:
    recorder = Recorder(runner)
    advance(set_up(algorithm, recorder), 2)
    job, sent, participants = recorder.asked[-1]
    other = torch.tensor([6, 2, 9, 0, 4, 1, 8, 3, 7, 5])
    found = runner.run(job, sent.take(other), take(participants, other))
    expected = take(recorder.outcomes[-1], other)
    for one, two in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-10)


@over_methods
def test_a_client_alone_comes_to_what_it_comes_to_in_company(
    algorithm: AnyAlgorithm,
) -> None:
    recorder = Recorder(Weave(COUNT))
    advance(set_up(algorithm, recorder), 1)
    job, sent, participants = recorder.asked[-1]
    for one in (slice(0, 1), slice(6, 7)):
        alone = recorder.runner.run(job, sent.take(one), take(participants, one))
        company = take(recorder.outcomes[-1], one)
        for found, expected in zip(leaves(alone), leaves(company), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@over_methods
def test_a_runner_leaves_its_inputs_as_they_are(algorithm: AnyAlgorithm) -> None:
    class Guard(Recorder):
        def run(
            self, job: Job, sent: CohortDownload, participants: Participants
        ) -> LocalResults:
            train = job.train
            given = [
                *leaves(sent.record),
                *leaves(participants),
                *train.inputs,
                train.targets,
            ]
            given += [train.indices, train.offsets, train.sizes, job.task.start]
            before = [t.clone() for t in given]
            outcome = super().run(job, sent, participants)
            assert all(map(torch.equal, before, given))
            return outcome

    guard = Guard(Weave(7))
    history(set_up(algorithm, guard), 2)
    assert len(guard.asked) == 2 * algorithm.exchanges + 1


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        *(variants[0] for variants in VARIANTS.values()),
        *(p for p in PRIVATE if p.name in ("fedavg", "ditto")),
    ],
    ids=describe,
)
def test_compiled_weave_equals_loop(algorithm: AnyAlgorithm) -> None:
    compiled = Weave(4, compiled=True, native=False)
    assert_same(history(set_up(algorithm, compiled), 3), specification(algorithm))


@over_methods
def test_the_same_seed_gives_the_same_bits(algorithm: AnyAlgorithm) -> None:
    once = history(set_up(algorithm, Weave(4), rate=0.5), 3)
    again = history(set_up(algorithm, Weave(4), rate=0.5), 3)
    assert_identical(again, once)


@over_methods
def test_another_seed_gives_other_numbers(algorithm: AnyAlgorithm) -> None:
    one = history(set_up(algorithm, Weave(4), rate=0.5, seed=3), 3)
    two = history(set_up(algorithm, Weave(4), rate=0.5, seed=4), 3)
    assert any(
        one[name].shape != two[name].shape or not torch.equal(one[name], two[name])
        for name in one
        if name != "at"
    ), describe(algorithm)
