"""FedACS: the attention of three clients by hand, its edge cases, and both runners.

Three models in the plane, a = (1, 0), b = (3, 4), c = (0, 2), have the cosines

    ab 0.6    ac 0    bc 0.8

so the nine entries of S in order are 0 0 .6 .6 .8 .8 1 1 1. The 0.4-quantile lies at
place 0.4 * 8 = 3.2 of them, hence delta = 0.6 + 0.2 * 0.2 = 0.64: b and c collaborate
and a is left alone. The 0.2-quantile, at place 1.6, is 0.36: then also a and b.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.algorithms import FedACS, Local
from fedloom.algorithms.fedacs import DownloadLog, Server, Upload, _quantile
from fedloom.clients import Federation, Natural, Sampling, Split, divide
from fedloom.core.algorithm import Cohort, Population
from fedloom.core.errors import ConfigError
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.data.dataset import from_arrays
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

ABC = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
SIZES = (3, 1, 4, 2, 6)


def f64(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def cohort_of(*clients: int, count: int = 3, sizes: Any = None) -> Cohort:
    task = Task(nn.Linear(1, 1), dtype=torch.float64)
    everyone = torch.ones(count, dtype=torch.float64)
    who = torch.tensor(clients)
    return Cohort(
        clients=who,
        sizes=everyone[who] if sizes is None else f64(*sizes),
        teams=torch.zeros_like(who),
        round=0,
        exchange=0,
        population=Population(
            task=task,
            theta=lambda index: task.start,
            sizes=everyone,
            teams=torch.zeros(count, dtype=torch.int64),
            rate=1.0,
        ),
    )


def server_of(models: Tensor, known: bool = True) -> Server:
    return Server(models, torch.full((len(models),), known))


def attend(method: FedACS, models: Tensor, cohort: Cohort) -> DownloadLog:
    down, log = method.download(server_of(models), cohort)
    starts = down.start
    if method.scope == "cohort":
        models = models[cohort.clients]
    torch.testing.assert_close(starts, log.weights @ models, rtol=0, atol=1e-12)
    torch.testing.assert_close(log.weights.sum(1), torch.ones(len(starts)).double())
    return log


@pytest.mark.parametrize(
    ("quantile", "attention"),
    [
        (0.4, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.8], [0.0, 0.8, 1.0]]),
        (0.2, [[1.0, 0.6, 0.0], [0.6, 1.0, 0.8], [0.0, 0.8, 1.0]]),
        (0.0, [[1.0, 0.6, 0.0], [0.6, 1.0, 0.8], [0.0, 0.8, 1.0]]),
        (1.0, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    ],
)
def test_three_clients_by_hand(quantile: float, attention: Any) -> None:
    found = attend(FedACS(quantile=quantile), ABC, cohort_of(0, 1, 2))
    scores = f64(*attention)
    expected = scores / scores.sum(1, keepdim=True)
    torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)
    cosines = f64([1.0, 0.6, 0.0], [0.6, 1.0, 0.8], [0.0, 0.8, 1.0])
    torch.testing.assert_close(found.similarity, cosines, rtol=0, atol=1e-12)
    others = (scores > 0).sum(1) - 1
    assert torch.equal(found.collaborators, others)


def test_equal_models_stay_where_they_are() -> None:
    """Round 1: all similarities are 1, and none of them exceeds delta = 1."""
    models = f64(1.0, -2.0, 0.5).repeat(4, 1)
    cohort = cohort_of(0, 1, 2, 3, count=4)
    starts = FedACS().download(server_of(models), cohort).record.start
    torch.testing.assert_close(starts, models, rtol=0, atol=1e-12)


def test_a_model_of_zeros_is_like_nobody_but_itself() -> None:
    models = torch.cat([ABC, f64([0.0, 0.0])])
    found = attend(FedACS(quantile=0.0), models, cohort_of(0, 1, 2, 3, count=4))
    assert torch.equal(found.weights[3], f64(0.0, 0.0, 0.0, 1.0))
    assert not found.weights[:3, 3].any()


def test_all_models_zero_as_in_logistic_regression_stay_zero() -> None:
    zeros = torch.zeros(3, 2, dtype=torch.float64)
    starts = FedACS().download(server_of(zeros), cohort_of(0, 1, 2)).record.start
    assert torch.equal(starts, zeros)


def test_no_weight_is_negative() -> None:
    models = torch.cat([ABC, -ABC[:1], f64([-3.0, -4.1])])
    for quantile in (0.0, 0.05, 0.3, 0.6):
        cohort = cohort_of(0, 1, 2, 3, 4, count=5)
        found = attend(FedACS(quantile=quantile), models, cohort)
        assert (found.weights >= 0).all()


def test_a_cohort_of_one_goes_on_from_its_own_model() -> None:
    for method in (FedACS(), FedACS(similarity="update"), FedACS(quantile=0.0)):
        found = method.download(server_of(ABC), cohort_of(1)).record.start
        torch.testing.assert_close(found, ABC[1:2], rtol=0, atol=1e-12)


def test_updates_are_compared_after_their_mean_is_taken_away() -> None:
    """Around (10, 10), a and b point one way and c the other."""
    centre = f64(10.0, 10.0)
    offsets = f64([1.0, 0.0], [2.0, 0.0], [-3.0, 0.0])
    found = attend(
        FedACS(similarity="update", quantile=0.0), centre + offsets, cohort_of(0, 1, 2)
    )
    signs = f64([1.0, 1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 1.0])
    torch.testing.assert_close(found.similarity, signs, rtol=0, atol=1e-10)
    expected = f64([0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0])
    torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-10)
    whole = attend(FedACS(quantile=0.0), centre + offsets, cohort_of(0, 1, 2))
    assert (whole.similarity > 0.9).all()


def test_scope_all_asks_everyone_who_ever_took_part() -> None:
    method = FedACS(scope="all", quantile=0.0)
    cohort = cohort_of(1)
    everyone = method.download(server_of(ABC), cohort).record.start
    expected = (0.6 * ABC[0] + ABC[1] + 0.8 * ABC[2]) / 2.4
    torch.testing.assert_close(everyone[0], expected, rtol=0, atol=1e-12)
    known = torch.tensor([False, False, True])
    some = method.download(Server(ABC, known), cohort).record.start
    expected = (ABC[1] + 0.8 * ABC[2]) / 1.8
    torch.testing.assert_close(some[0], expected, rtol=0, atol=1e-12)
    alone = FedACS(quantile=0.0).download(server_of(ABC), cohort).record.start
    torch.testing.assert_close(alone[0], ABC[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("scope", ["cohort", "all"])
def test_a_client_without_samples_is_nobodys_collaborator(scope: Any) -> None:
    method = FedACS(quantile=0.3, scope=scope)
    models = torch.cat([ABC, ABC[1:2] + 0.01])
    server = Server(models, torch.tensor([True, True, True, False]))
    ghost = cohort_of(0, 1, 2, 3, count=4, sizes=(1.0, 1.0, 1.0, 0.0))
    real = cohort_of(0, 1, 2, count=4)
    torch.testing.assert_close(
        method.download(server, ghost).record.start[:3],
        method.download(server, real).record.start,
        rtol=0,
        atol=1e-12,
    )
    after = method.aggregate(server, Upload(models + 1.0), ghost)
    assert torch.equal(after.models[3], models[3])
    assert torch.equal(after.models[:3], models[:3] + 1.0)
    assert after.known.tolist() == [True, True, True, False]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.77, 1.0])
def test_the_quantile_is_that_of_torch(share: float) -> None:
    values = torch.from_numpy(np.random.default_rng(1).normal(size=(7, 7)))
    torch.testing.assert_close(
        _quantile(values, share), torch.quantile(values.flatten(), share)
    )


def small() -> Federation:
    draw = np.random.default_rng(3)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    y = draw.integers(0, 3, len(owner))
    x = draw.normal(size=(len(owner), 3)) + np.eye(3)[y]
    data = from_arrays(x, y, clients=owner, classes=3)
    return divide(data, Natural(), Split(test=0.0), seed=0)


def simulation_of(method: Any, runner: Any, rate: float = 1.0) -> Simulation:
    with seeded(0, "model"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    task = Task(model, dtype=torch.float64)
    return Simulation(
        method, task, small(), runner, sampling=Sampling(rate=rate), seed=2
    )


def play(simulation: Simulation, rounds: int) -> Tensor:
    while simulation.state.round < rounds:
        simulation.run_exchange()
    return simulation.personal(torch.arange(len(SIZES)))


@pytest.mark.parametrize("rate", [1.0, 0.6])
@pytest.mark.parametrize(
    "method",
    [
        FedACS(batch_size=2, epochs=2),
        FedACS(batch_size=2, similarity="update", momentum=0.5),
        FedACS(steps=1, quantile=0.0, scope="all"),
    ],
)
def test_weave_equals_loop(method: FedACS, rate: float) -> None:
    slow = play(simulation_of(method, Loop(), rate), 4)
    fast = play(simulation_of(method, Weave(2), rate), 4)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)


def test_a_client_never_sampled_has_the_common_start() -> None:
    simulation = simulation_of(FedACS(), Loop(), rate=0.2)
    theta = play(simulation, 1)
    absent = ~simulation.state.server.known
    assert torch.equal(theta[absent], simulation.task.start.repeat(4, 1))
    assert torch.equal(simulation.state.server.models[absent], theta[absent])
    assert torch.equal(simulation.state.server.models[~absent], theta[~absent])


def test_quantile_1_is_local_training() -> None:
    alone = FedACS(quantile=1.0, lr=0.05, epochs=2)
    local = Local(lr=0.05, epochs=2)
    torch.testing.assert_close(
        play(simulation_of(alone, Loop()), 3),
        play(simulation_of(local, Loop()), 3),
        rtol=0,
        atol=1e-12,
    )


def test_one_full_gradient_step_is_equation_5() -> None:
    simulation = simulation_of(FedACS(steps=1, batch_size=100, lr=0.3), Loop())
    play(simulation, 1)
    before = simulation.state.server
    cohort = simulation.coordinator.cohort(torch.arange(len(SIZES)))
    start = simulation.algorithm.download(before, cohort).record.start
    after = play(simulation, 2)
    for row, theta in enumerate(start):
        mine = simulation.federation.train[row]
        x = simulation.federation.dataset.inputs[0][mine]
        y = simulation.federation.dataset.targets[mine]
        theta = theta.clone().requires_grad_()
        params = simulation.task.unflatten(theta)
        outputs = torch.func.functional_call(simulation.task.module, params, (x,))
        nn.functional.cross_entropy(outputs, y).backward()
        assert theta.grad is not None
        expected = (theta - 0.3 * theta.grad).detach()
        torch.testing.assert_close(after[row], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "settings", [{"quantile": 1.5}, {"similarity": "data"}, {"scope": "some"}]
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        FedACS(**settings)


def test_the_order_of_the_cohort_is_irrelevant() -> None:
    method = FedACS(quantile=0.3)
    straight, turned = cohort_of(0, 1, 2), cohort_of(2, 0, 1)
    turned = replace(turned, population=straight.population)
    one = method.download(server_of(ABC), straight).record.start
    other = method.download(server_of(ABC), turned).record.start
    torch.testing.assert_close(other, one[[2, 0, 1]], rtol=0, atol=1e-12)
