from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from fedloom.algorithms import Ditto, FedAvg, FedProx, Local, ditto
from fedloom.core.algorithm import Cohort, Phase, Population
from fedloom.core.errors import ConfigError
from fedloom.core.records import Empty
from fedloom.core.task import Batch, Task
from fedloom.core.watched import watch


@pytest.mark.parametrize(
    "lengths",
    [
        {},
        {"epochs": 1, "steps": 1},
        {"epochs": 1, "passes": 1},
        {"epochs": 1, "steps": 1, "passes": 1},
        {"epochs": -1},
        {"steps": -1},
        {"passes": -1},
    ],
    ids=str,
)
def test_a_phase_has_one_length(lengths: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"Phase 'step': exactly one of epochs"):
        Phase(step="step", **lengths)


@pytest.mark.parametrize(
    "lengths", [{"epochs": 2}, {"steps": 0}, {"passes": 3}], ids=str
)
def test_a_phase_may_be_given_in_any_unit(lengths: dict[str, Any]) -> None:
    phase = Phase(step="step", **lengths)
    given = (phase.epochs, phase.steps, phase.passes)
    assert [n for n in given if n is not None] == list(lengths.values())


def test_a_phase_needs_at_least_one_batch_per_step() -> None:
    with pytest.raises(ConfigError, match="batches must be at least 1; found 0"):
        Phase(step="step", epochs=1, batches=0)


def test_steps_when_given_replace_epochs() -> None:
    assert FedAvg(epochs=3).phases == (Phase(step="step", epochs=3),)
    assert FedAvg(epochs=3, steps=7).phases == (Phase(step="step", steps=7),)


def test_the_record_types_are_read_off_the_class() -> None:
    assert Ditto.records == (
        ditto.Server,
        ditto.Memory,
        ditto.Download,
        ditto.Work,
        ditto.Upload,
    )
    assert (Local.records[0], Local.records[4]) == (Empty, Empty)


def test_algorithms_are_values() -> None:
    assert FedAvg(lr=0.1) == FedAvg(lr=0.1)
    assert FedAvg(lr=0.1) != FedAvg(lr=0.2)
    assert hash(FedAvg()) == hash(FedAvg())
    with pytest.raises(AttributeError):
        FedAvg().lr = 0.3  # type: ignore[misc]


def batch(round_: int) -> Batch:
    zero = torch.tensor(0)
    return Batch((), zero, zero, zero, zero, zero.bool(), torch.tensor(round_))


def test_a_vector_departs_with_velocity_only_if_there_is_momentum() -> None:
    theta = torch.ones(4)
    assert FedAvg().sgd_start(theta).velocity.shape == (0,)
    assert torch.equal(FedAvg(momentum=0.9).sgd_start(theta).velocity, torch.zeros(4))


def test_plain_descent_is_one_gradient_step() -> None:
    theta, gradient = torch.tensor([1.0, 2.0]), torch.tensor([4.0, -4.0])
    method = FedAvg(lr=0.25)
    point = method.sgd_step(method.sgd_start(theta), gradient, batch(3))
    assert torch.equal(point.at, torch.tensor([0.0, 3.0]))


def test_another_rate_may_be_given_to_a_step_and_decays_too() -> None:
    theta, gradient = torch.zeros(1), torch.ones(1)
    method = FedAvg(lr=0.25, lr_decay=0.5)
    point = method.sgd_step(method.sgd_start(theta), gradient, batch(3), lr=8.0)
    assert point.at.tolist() == [-1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_keeps_the_type_of_its_vector(dtype: torch.dtype) -> None:
    method = FedAvg(lr=0.1, momentum=0.9, clip=0.1, weight_decay=0.1, lr_decay=0.9)
    theta = torch.ones(3, dtype=dtype)
    point = method.sgd_step(method.sgd_start(theta), theta, batch(2))
    assert (point.at.dtype, point.velocity.dtype) == (dtype, dtype)


def clipped(slope: list[float], clip: float | None) -> torch.Tensor:
    """The gradient of <slope, theta> as a step with this clip meets it."""
    direction = torch.tensor(slope, dtype=torch.float64)
    task = watch(Task(nn.Linear(1, 1), dtype=torch.float64), clip=clip)
    start = torch.zeros_like(direction)
    return task.grad_of(lambda theta: direction @ theta, start, batch(0))


def test_a_gradient_of_nothing_survives_clipping() -> None:
    assert torch.equal(clipped([0.0, 0.0], 1.0), torch.zeros(2, dtype=torch.float64))


def test_a_long_gradient_is_scaled_to_the_clip_and_a_short_one_is_not() -> None:
    long = clipped([30.0, 40.0], 1.0)
    torch.testing.assert_close(long, torch.tensor([0.6, 0.8]).double())
    expected = torch.tensor([30.0, 40.0], dtype=torch.float64)
    assert torch.equal(clipped([30.0, 40.0], 51.0), expected)
    assert torch.equal(clipped([30.0, 40.0], None), expected)


def test_the_tensors_of_a_record_are_clipped_as_one_vector() -> None:
    task = watch(Task(nn.Linear(1, 1), dtype=torch.float64), clip=1.0)
    at = (torch.zeros(1).double(), torch.zeros(1).double())
    gradient = task.grad_of(lambda r: (30 * r[0] + 40 * r[1]).sum(), at, batch(0))
    torch.testing.assert_close(torch.cat(gradient), torch.tensor([0.6, 0.8]).double())


def cohort(sizes: list[float]) -> Cohort:
    count = len(sizes)
    teams = torch.arange(count) // 2
    population = Population(
        task=Task(nn.Linear(1, 1)),
        theta=lambda index: torch.zeros(index),
        sizes=torch.tensor(sizes),
        teams=teams,
        rate=1.0,
    )
    return Cohort(
        clients=torch.arange(count),
        sizes=torch.tensor(sizes),
        teams=teams,
        round=0,
        exchange=0,
        population=population,
    )


def test_both_weightings_sum_to_one_and_skip_clients_without_samples() -> None:
    some = cohort([3.0, 0.0, 1.0])
    assert some.weights("size").tolist() == [0.75, 0.0, 0.25]
    assert some.weights("equal").tolist() == [0.5, 0.0, 0.5]


def test_some_rows_of_a_cohort_keep_their_teams_and_sizes() -> None:
    some = cohort([3.0, 5.0, 1.0]).only(torch.tensor([2, 0]))
    assert some.clients.tolist() == [2, 0]
    assert some.sizes.tolist() == [1.0, 3.0]
    assert some.teams.tolist() == [1, 0]
    assert some.population.count == 3
    assert some.population.team_count == 2


def test_what_a_method_must_write_is_missing_until_it_does() -> None:
    from fedloom.core.algorithm import Algorithm

    class Bare(Algorithm[Empty, Empty, Empty, Empty, Empty]):
        name = "bare"
        group = "local"

    bare = Bare()
    nothing: Any = Empty()
    with pytest.raises(NotImplementedError):
        bare.init_server(cohort([1.0]).population)
    assert bare.end_round(nothing, cohort([1.0])) is nothing
    assert bare.initial_memory(nothing, nothing, nothing) == Empty()
    assert bare.shared(nothing, nothing) is None
    assert not bare.has_posterior
    assert bare.exchanges == 1
    assert bare.adaptation == ()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: FedProx(mu=0.1), "FedProx: unknown setting 'mu'. Known: .*pull"),
        (lambda: Ditto(pul=1.0), "Did you mean 'pull'"),
        (lambda: Ditto(0.1), r"by name, found 0.1 without one. Write Ditto\(lr=...\)"),
    ],
)
def test_a_setting_that_a_method_does_not_have_is_answered(make, told):
    with pytest.raises(ConfigError, match=told):
        make()


def test_a_method_can_be_copied_pickled_and_changed():
    method = Ditto(pull=2.0)
    assert copy.deepcopy(method) == pickle.loads(pickle.dumps(method)) == method
    assert replace(method, lr=0.1) == Ditto(pull=2.0, lr=0.1)
