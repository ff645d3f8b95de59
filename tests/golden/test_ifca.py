"""IFCA: FedAvg with one model, two clear clusters, and the choice by hand."""

from __future__ import annotations

from typing import Any

import by_hand
import numpy as np
import pytest
import torch
from by_hand import EVERYONE, assert_close, batches, gradient, made_up, simulation_of
from quadratic import rounds, weave_of
from torch import Tensor, nn

from fedloom.algorithms import IFCA, FedAvg
from fedloom.algorithms.ifca import Server, Upload
from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import Cohort, Population
from fedloom.core.errors import ConfigError
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

runners = pytest.mark.parametrize("runner", [Loop(), Weave(3)], ids=["loop", "weave"])


def models(simulation: Simulation) -> Tensor:
    found: Tensor = simulation.state.server.models
    return found


@pytest.mark.parametrize("weights", ["size", "equal"])
@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.9, "weight_decay": 0.1, "lr_decay": 0.7}], ids=str
)
def test_ifca_with_one_cluster_is_fedavg(weights: Any, settings: Any) -> None:
    """Its look at the losses is no gradient step and adds nothing to the loss met.

    Training is its second phase, so that batches differ unless they are all data.
    """
    settings = settings | {"lr": 0.2, "batch_size": 11, "epochs": 3, "weights": weights}
    ifca = simulation_of(IFCA(cluster_count=1, **settings), Weave(2), rate=0.7)
    fedavg = simulation_of(FedAvg(**settings), Weave(2), rate=0.7)
    for _ in range(3):
        one, other = ifca.run_exchange(), fedavg.run_exchange()
        assert one is not None
        assert other is not None
        assert one.steps == other.steps
        assert one.loss == pytest.approx(other.loss, rel=1e-12)
    expected = fedavg.shared()
    assert expected is not None
    assert_close(models(ifca)[0], expected)
    assert_close(ifca.personal(EVERYONE), fedavg.personal(EVERYONE))
    assert ifca.shared() is None


SLOPES = (3.0, -2.0, 3.0, -2.0, -2.0, 3.0)
SAMPLES = (4, 3, 6, 5, 2, 7)


def two_lines() -> Federation:
    """Six clients, y = 3 x or y = -2 x, without noise."""
    draw = np.random.default_rng(3)
    cuts = np.cumsum(SAMPLES)
    x = draw.normal(size=(cuts[-1], 1))
    parts = np.split(np.arange(cuts[-1]), cuts[:-1])
    none = [np.arange(0)] * len(SAMPLES)
    return Federation(
        dataset=Dataset(
            name="lines",
            inputs=(torch.from_numpy(x),),
            targets=torch.from_numpy(x[:, 0] * np.repeat(SLOPES, SAMPLES)),
        ),
        train=Ragged.of(parts),
        validation=Ragged.of(none),
        test=Ragged.of(none),
        names=tuple("abcdef"),
        teams=np.zeros(len(SAMPLES), dtype=np.int64),
    )


@runners
def test_two_clear_clusters_are_found(runner: Loop | Weave) -> None:
    """On lines through 0 the loss of slope theta is (theta - s)^2 mean x^2: whoever
    has s = 3 takes the larger of two slopes, whoever has s = -2 the smaller. From then
    on each cluster is FedAvg among its own, by hand:

        theta_i = s + (1 - 2 eta mean x_i^2)^E (theta_j - s),  averaged by samples
    """
    with seeded(1, "line"):
        task = Task(nn.Linear(1, 1, bias=False), "squared-error", dtype=torch.float64)
    federation = two_lines()
    method = IFCA(lr=0.1, batch_size=max(SAMPLES), epochs=2)
    simulation = Simulation(method, task, federation, runner)
    clusters = models(simulation)[:, 0].clone()
    steep = int(clusters.argmax())
    belongs = [steep if s == 3.0 else 1 - steep for s in SLOPES]
    x = federation.dataset.inputs[0][:, 0]
    for _ in range(25):
        simulation.run_exchange()
        assert simulation.last is not None
        assert simulation.last.client_log.cluster.tolist() == belongs
        assert float(simulation.last.server_log.clusters_used) == 2
        for j in range(2):
            members = [i for i in range(6) if belongs[i] == j]
            ends, sizes = [], []
            for i in members:
                rate = (1 - 0.2 * x[federation.train[i]].square().mean()) ** 2
                ends.append(SLOPES[i] + rate * (clusters[j] - SLOPES[i]))
                sizes.append(SAMPLES[i])
            shares = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
            clusters[j] = shares @ torch.stack(ends)
            weight = simulation.last.server_log.weight[members]
            assert_close(weight, shares)
    assert_close(models(simulation)[:, 0], clusters)
    own = simulation.personal(torch.arange(6))[:, 0]
    torch.testing.assert_close(own, torch.tensor(SLOPES).double(), rtol=0, atol=1e-2)


def lowest(thetas: Tensor, client: int) -> tuple[int, float]:
    """Which model has the lowest loss on all training data, and by how much."""
    rows = made_up().train[client]
    losses = torch.stack([by_hand.loss(theta, rows) for theta in thetas])
    ordered = losses.sort().values
    return int(losses.argmin()), float(ordered[1] - ordered[0])


def test_a_round_of_ifca_by_hand() -> None:
    """Three models: each client chooses by all of its data, then trains in batches."""
    method = IFCA(cluster_count=3, lr=0.3, batch_size=3)
    simulation = simulation_of(method, Weave(2))
    for round_ in range(3):
        before = models(simulation).clone()
        chosen = [lowest(before, client) for client in range(3)]
        simulation.run_exchange()
        assert simulation.last is not None
        assert simulation.last.client_log.cluster.tolist() == [j for j, _ in chosen]
        margins = torch.tensor([m for _, m in chosen], dtype=torch.float64)
        assert_close(simulation.last.client_log.margin, margins)
        expected, mass = torch.zeros_like(before), torch.zeros(3, 1).double()
        for client, steps in enumerate([3, 1, 4]):
            j, _ = chosen[client]
            theta = before[j]
            for rows in batches(client, 3, steps, round_=round_, phase=1):
                theta = theta - 0.3 * gradient(theta, rows)
            expected[j] += by_hand.TRAIN[client] * theta
            mass[j] += by_hand.TRAIN[client]
        expected = torch.where(mass > 0, expected / mass.clamp(min=1), before)
        assert_close(models(simulation), expected)


def test_a_client_uses_the_model_with_the_lowest_training_loss() -> None:
    """Also a client that was never met, and whatever the test samples are."""
    method = IFCA(cluster_count=3, lr=0.3, batch_size=3)
    found = []
    for other_tests in (False, True):
        federation = made_up(other_tests=other_tests)
        simulation = rounds(simulation_of(method, Weave(3), federation, rate=0.34), 1)
        scores = simulation.evaluate("test").scores
        assert [s.kind for s in scores] == ["personal"]
        found.append(simulation.personal(EVERYONE))
    assert not bool(simulation.clients.memory.seen.all())
    assert torch.equal(found[0], found[1])
    for client in range(3):
        j, _ = lowest(models(simulation), client)
        assert torch.equal(found[0][client], models(simulation)[j])


def test_dropout_has_no_say_in_the_choice() -> None:
    with seeded(5, "model"):
        model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.7), nn.Linear(8, 3))
    task = Task(model, dtype=torch.float64)
    simulation = Simulation(
        IFCA(cluster_count=3), task, made_up(), Weave(3), sampling=Sampling()
    )
    thetas = models(simulation).clone()
    data = made_up().dataset
    expected = []
    for rows in made_up().train:
        x, y = data.inputs[0][rows], data.targets[rows]
        losses = [nn.functional.cross_entropy(task.predict(t, (x,)), y) for t in thetas]
        expected.append(int(torch.stack(losses).argmin()))
    simulation.run_exchange()
    assert simulation.last is not None
    assert simulation.last.client_log.cluster.tolist() == expected


@pytest.mark.parametrize(
    ("weights", "first"), [("size", (1 * 1.0 + 3 * 5.0) / 4), ("equal", 3.0)]
)
def test_clusters_are_averaged_apart_and_an_empty_one_stays(
    weights: Any, first: float
) -> None:
    """Sizes 1, 2, 3 and no data; clusters 0, 2, 0 and 1, the last with nothing."""
    method = IFCA(cluster_count=4, weights=weights)
    sizes = torch.tensor([1.0, 2.0, 3.0, 0.0])
    rows = torch.arange(4)
    population = Population(
        task=Task(nn.Linear(1, 1)),
        theta=lambda index: torch.zeros(1),
        sizes=sizes,
        teams=rows * 0,
        rate=1.0,
    )
    cohort = Cohort(
        clients=rows,
        sizes=sizes,
        teams=rows * 0,
        round=0,
        exchange=0,
        population=population,
    )
    server = Server(torch.tensor([[-1.0], [-2.0], [-3.0], [-4.0]]))
    uploads = Upload(
        torch.tensor([[1.0], [7.0], [5.0], [9.0]]), torch.tensor([0, 2, 0, 1])
    )
    new, log = method.aggregate(server, uploads, cohort)
    torch.testing.assert_close(new.models[:, 0], torch.tensor([first, -2.0, 7.0, -4.0]))
    assert float(log.clusters_used) == 2


def test_the_models_of_ifca_start_apart() -> None:
    simulation = simulation_of(IFCA(cluster_count=4))
    thetas = models(simulation)
    assert torch.equal(thetas[0], simulation.task.start)
    distances = torch.cdist(thetas, thetas) + torch.eye(4)
    assert float(distances.min()) > 0.1


def test_models_that_would_start_alike_are_refused() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    task = Task(Constant(), "squared-error", dtype=torch.float64)
    with pytest.raises(ConfigError, match=r"2 different initial models.*reset_param"):
        Simulation(IFCA(), task, two_lines(), Loop())
    Simulation(IFCA(cluster_count=1), task, two_lines(), Loop())


def test_ifca_has_no_shared_model() -> None:
    assert weave_of(IFCA()).shared() is None
