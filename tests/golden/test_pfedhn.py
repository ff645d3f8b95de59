"""pFedHN: the server's step by hand and by plain autograd, its start, a reduction.

With no hidden layer the hypernetwork is theta_i = W v_i + b. Where <theta_i, delta_i>
is to grow, weighed by p_i for what is shared,

    W += alpha sum_i p_i delta_i v_i^T      b += alpha sum_i p_i delta_i
    v_i += alpha W^T delta_i                (the old W)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from quadratic import (
    CURVATURES,
    OPTIMA,
    SIZES,
    START,
    assert_exact,
    rounds,
    shared,
    weave_of,
)
from torch import Tensor, nn

from fedloom.algorithms import FedAvg, PFedHN
from fedloom.algorithms.pfedhn import Layer, Network, Server, Upload
from fedloom.core.algorithm import Cohort, Population
from fedloom.core.errors import ConfigError
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation


def f64(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def network() -> Task:
    with seeded(0, "model"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    return Task(model, dtype=torch.float64)


def population_of(sizes: Tensor, task: Task | None = None, seed: int = 5) -> Population:
    task = network() if task is None else task
    return Population(
        task=task,
        theta=lambda index: task.start,
        sizes=sizes,
        teams=torch.zeros(len(sizes), dtype=torch.int64),
        rate=1.0,
        seed=seed,
    )


def cohort_of(clients: Tensor, sizes: Tensor, count: int) -> Cohort:
    everyone = torch.ones(count, dtype=torch.float64)
    where = clients * 0
    return Cohort(clients, sizes, where, 0, 0, population_of(everyone))


def changes(n: int, d: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(3).normal(size=(n, d)))


def test_a_step_of_a_linear_hypernetwork_by_hand() -> None:
    method = PFedHN(layers=0, server_lr=0.1, embedding_lr=0.5, weights="size")
    weight, bias = f64([1.0, 2.0], [0.0, -1.0], [3.0, 1.0]), f64(1.0, 1.0, 1.0)
    v = f64([1.0, 0.0], [9.0, 9.0], [2.0, -1.0])
    server = Server(Network((), Layer(weight, bias)), v)
    # Clients 2 and 0, of sizes 1 and 3; client 1 is not here.
    cohort = cohort_of(torch.tensor([2, 0]), f64(1.0, 3.0), 3)
    models = method.download(server, cohort).personal
    assert_exact(models, f64([1.0, 2.0, 6.0], [2.0, 1.0, 4.0]))
    delta = f64([4.0, 0.0, 8.0], [0.0, 2.0, -4.0])
    found = method.aggregate(server, Upload(delta), cohort)
    # sum p delta = 1/4 (4, 0, 8) + 3/4 (0, 2, -4), and v_2 = (2, -1), v_0 = (1, 0)
    assert_exact(found.network.output.bias, bias + 0.1 * f64(1.0, 1.5, -1.0))
    outer = f64([2.0, -1.0], [1.5, 0.0], [1.0, -2.0])
    assert_exact(found.network.output.weight, weight + 0.1 * outer)
    # W^T delta_2 = (4 + 24, 8 + 8), W^T delta_0 = (-12, -2 - 4)
    assert_exact(found.embeddings[2], v[2] + 0.5 * f64(28.0, 16.0))
    assert_exact(found.embeddings[0], v[0] + 0.5 * f64(-12.0, -6.0))
    assert torch.equal(found.embeddings[1], v[1])


@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_a_step_is_that_of_plain_autograd(layers: int, weights: Any) -> None:
    """Through the explicit chain, backwards from the models that were sent."""
    method = PFedHN(layers=layers, hidden=7, server_lr=0.03, weights=weights)
    sizes = f64(2.0, 5.0, 1.0, 4.0)
    server = method.init_server(population_of(sizes))
    clients = torch.tensor([3, 1, 0])
    cohort = cohort_of(clients, sizes[clients], 4)
    delta = changes(3, 31)
    found = method.aggregate(server, Upload(delta), cohort)

    layered = [*server.network.hidden, server.network.output]
    params = [
        (w.clone().requires_grad_(), b.clone().requires_grad_()) for w, b in layered
    ]
    v = server.embeddings.clone().requires_grad_()
    p = sizes[clients] / 11.0 if weights == "size" else f64(1.0, 1.0, 1.0) / 3.0
    shared_part = own_part = torch.zeros((), dtype=torch.float64)
    for row, client in enumerate(clients.tolist()):
        x = v[client]
        for number, (w, b) in enumerate(params):
            x = w @ x + b
            if number < layers:
                x = x * (x > 0)
        sent = method.download(server, cohort).personal[row]
        assert_exact(x.detach(), sent)
        # The paper's gradient has theta - theta~ in the place of dL / d theta.
        shared_part = shared_part - p[row] * (x @ delta[row])
        own_part = own_part - x @ delta[row]
    flat = [tensor for pair in params for tensor in pair]
    by_params = torch.autograd.grad(shared_part, flat, retain_graph=True)
    (by_rows,) = torch.autograd.grad(own_part, [v])
    new = [*found.network.hidden, found.network.output]
    for n, (w, b) in enumerate(layered):
        assert_exact(new[n].weight, w - 0.03 * by_params[2 * n])
        assert_exact(new[n].bias, b - 0.03 * by_params[2 * n + 1])
    assert_exact(found.embeddings, server.embeddings - 0.03 * by_rows)
    assert torch.equal(found.embeddings[2], server.embeddings[2])


def test_a_small_step_moves_models_the_way_their_clients_went() -> None:
    """To first order <theta_i' - theta_i, delta_i> > 0 for a cohort of one."""
    method = PFedHN(hidden=20, server_lr=1e-4)
    sizes = torch.ones(6, dtype=torch.float64)
    server = method.init_server(population_of(sizes))
    cohort = cohort_of(torch.tensor([4]), f64(1.0), 6)
    delta = changes(1, 31)
    before = method.download(server, cohort).personal
    after = method.aggregate(server, Upload(delta), cohort)
    moved = method.download(after, cohort).personal - before
    assert float((moved * delta).sum()) > 0
    # The bias alone would move it by alpha |delta|^2; the hidden layer adds to that.
    assert float((moved * delta).sum()) > 1e-4 * float(delta.square().sum())


def test_the_pace_does_not_depend_on_the_size_of_the_cohort() -> None:
    """Twenty clients that say the same move the bias as far as one does."""
    method = PFedHN(hidden=5)
    server = method.init_server(population_of(torch.ones(20, dtype=torch.float64)))
    delta = changes(1, 31)
    found = []
    for count in (1, 20):
        clients = torch.arange(count)
        cohort = cohort_of(clients, torch.ones(count).double(), 20)
        uploads = Upload(delta.repeat(count, 1))
        found.append(method.aggregate(server, uploads, cohort))
    one, many = found
    assert_exact(one.network.output.bias, many.network.output.bias)
    assert_exact(one.embeddings[0], many.embeddings[0])


def test_a_client_without_samples_moves_nothing() -> None:
    method = PFedHN(hidden=5)
    server = method.init_server(population_of(torch.ones(4, dtype=torch.float64)))
    uploads = Upload(changes(2, 31))
    cohort = cohort_of(torch.tensor([1, 2]), f64(3.0, 0.0), 4)
    found = method.aggregate(server, uploads, cohort)
    only = cohort_of(torch.tensor([1]), f64(3.0), 4)
    expected = method.aggregate(server, Upload(uploads.change[:1]), only)
    assert_exact(found.network.output.weight, expected.network.output.weight)
    assert torch.equal(found.embeddings, expected.embeddings)


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_first_models_are_the_common_start_and_a_little_more(layers: int) -> None:
    task = Task(nn.Linear(60, 50), dtype=torch.float64)
    population = population_of(torch.ones(400, dtype=torch.float64), task)
    cohort = cohort_of(torch.arange(400), torch.ones(400).double(), 400)
    method = PFedHN(layers=layers, spread=0.02)
    server = method.init_server(population)
    assert server.embeddings.shape == (400, 101)
    deviations = method.download(server, cohort).personal - task.start
    assert float(deviations.std()) == pytest.approx(0.02, rel=0.1)
    assert float(deviations.std(0).min()) > 0
    same = PFedHN(layers=layers, spread=0.0)
    first = same.download(same.init_server(population), cohort).personal
    assert_exact(first, task.start.expand(400, -1))


def test_the_start_depends_on_the_seed_alone() -> None:
    sizes = torch.ones(8, dtype=torch.float64)
    method = PFedHN(hidden=6, embedding=4)
    one, again, other = (
        method.init_server(population_of(sizes, seed=seed)) for seed in (1, 1, 2)
    )
    assert one.embeddings.shape == (8, 4)
    assert torch.equal(one.embeddings, again.embeddings)
    assert torch.equal(one.network.output.weight, again.network.output.weight)
    assert not torch.equal(one.embeddings, other.embeddings)
    assert len(torch.unique(one.embeddings, dim=0)) == 8


def silent(simulation: Simulation) -> Simulation:
    """With embeddings of 0 and no weight for them, every model is the bias."""
    server = simulation.state.server
    output = server.network.output
    simulation.state.server = Server(
        Network((), Layer(torch.zeros_like(output.weight), output.bias)),
        torch.zeros_like(server.embeddings),
    )
    return simulation


def test_without_embeddings_and_at_rate_1_it_is_fedavg() -> None:
    common: dict[str, Any] = {"lr": 0.1, "batch_size": 3, "steps": 4, "momentum": 0.5}
    method = PFedHN(layers=0, server_lr=1.0, weights="size", **common)
    found = rounds(silent(weave_of(method, Weave(3), rate=0.5)), 4)
    fedavg = rounds(weave_of(FedAvg(**common), rate=0.5), 4)
    assert_exact(found.state.server.network.output.bias[0], shared(fedavg))
    assert_exact(
        found.personal(torch.arange(len(SIZES)))[:, 0], shared(fedavg).expand(4)
    )


def test_a_round_on_parabolas_moves_the_bias_by_the_mean_change() -> None:
    method = PFedHN(layers=0, server_lr=0.3, lr=0.1, steps=1, batch_size=10)
    simulation = rounds(silent(weave_of(method)), 1)
    change = 0.1 * CURVATURES * (OPTIMA - START)
    assert simulation.last is not None
    assert_exact(simulation.last.client_log.moved, change.abs())
    assert_exact(
        simulation.state.server.network.output.bias[0], START + 0.3 * change.mean()
    )


@pytest.mark.parametrize(
    "settings", [{"layers": -1}, {"hidden": 0}, {"embedding": 0}, {"server_lr": 0.0}]
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        PFedHN(**settings)
