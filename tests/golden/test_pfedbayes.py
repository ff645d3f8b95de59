"""pFedBayes: divergence by hand, steps by plain autograd and PyTorch's own Adam.

The conjugate model is a point p with the loss 1/2 ||p - x||^2. For a batch of b of a
client's n samples with mean xbar, at models mu + sig e_k, and with m1, m2 the means
over k of e_k and e_k^2, the posterior's objective

    n/b sum_i 1/K sum_k 1/2 ||mu + sig e_k - x_i||^2
        + zeta KL(N(mu, sig^2) || N(w, r^2))

has, coordinate by coordinate, the gradient

    d/dmu  = n (mu - xbar + sig m1) + zeta (mu - w) / r^2
    d/dsig = n (sig m2 + (mu - xbar) m1) + zeta (sig / r^2 - 1 / sig)

and that of KL by the prior, at a posterior (mu, sig) held fixed, is

    d/dw = (w - mu) / r^2        d/dr = 1 / r - (sig^2 + (mu - w)^2) / r^3
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from by_hand import client, memories
from torch import Tensor, nn

from fedloom.algorithms import PFedBayes
from fedloom.algorithms.pfedbayes import (
    Adam,
    Download,
    Memory,
    Server,
    Upload,
    Work,
    _at_rest,
)
from fedloom.clients import Federation, Natural, Sampling, Split, divide
from fedloom.core import gaussians
from fedloom.core.algorithm import Cohort
from fedloom.core.errors import ConfigError
from fedloom.core.gaussians import NOISE
from fedloom.core.streams import fold, normal, seeded
from fedloom.core.task import Batch, Task
from fedloom.core.watched import watch
from fedloom.data.dataset import from_arrays
from fedloom.engine.loop import Loop
from fedloom.server.simulation import Simulation

SIZES = (3, 1, 4, 2, 6)
CLOSE: dict[str, float] = {"rtol": 0.0, "atol": 1e-10}


def f64(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rho(*scales: float) -> Tensor:
    return f64(*(gaussians.softplus_inverse(scale) for scale in scales))


def small() -> Federation:
    draw = np.random.default_rng(3)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    y = draw.integers(0, 3, len(owner))
    x = draw.normal(size=(len(owner), 3)) + np.eye(3)[y]
    data = from_arrays(x, y, clients=owner, classes=3)
    return divide(data, Natural(), Split(test=0.0), seed=0)


def network() -> Task:
    with seeded(0, "model"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    return Task(model, dtype=torch.float64)


class Location(nn.Module):
    """A model that is a point; its output is the distance to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.point - x


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * outputs.square().sum(1)


def conjugate() -> Task:
    return Task(Location(), half_square, dtype=torch.float64)


def simulation_of(method: Any, **sampling: Any) -> Simulation:
    return Simulation(method, network(), small(), Loop(), sampling=Sampling(**sampling))


def play(simulation: Simulation, rounds: int) -> Simulation:
    while simulation.state.round < rounds:
        simulation.run_exchange()
    return simulation


def batch_of(x: Tensor, y: Tensor, *, key: int = 77, step: int = 0) -> Batch:
    return Batch(
        inputs=(x,),
        targets=y,
        mask=torch.ones(len(x), dtype=torch.float64),
        key=torch.tensor(key),
        step=torch.tensor(step),
        ends_epoch=torch.tensor(True),
        round=torch.tensor(0),
    )


def noise(key: int, count: int, d: int, again: int = 0) -> Tensor:
    """The unit noise of a step, one stream for each model that is drawn."""
    root = fold(fold(torch.tensor(key), NOISE), again)
    rows = [normal(fold(root, k), (d,), torch.float64) for k in range(count)]
    return torch.stack(rows)


NOWHERE = Download(f64(), f64())
"""A step does not look at the download."""


def test_the_divergence_by_hand() -> None:
    """Stds of 1 and 2 against 2 and 1, means 1 and 3 away from those of the prior.

    KL = ln(2/1) + (1 + 1) / (2 * 4) - 1/2  +  ln(1/2) + (4 + 9) / 2 - 1/2
    """
    mean, scale, prior = f64(1.0, 3.0), f64(1.0, 2.0), f64(2.0, 1.0)
    found = gaussians.kl(mean, scale, f64(0.0, 0.0), prior)
    assert float(found) == pytest.approx(0.25 + 6.5 - 1.0, abs=1e-12)


def test_the_gradients_by_hand() -> None:
    """Three of a client's seven samples are in the batch."""
    method = PFedBayes(monte_carlo=4, prior_weight=2.5, lr=0.1, shared_lr=0.2)
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 2)))
    mu, sig, w, r = f64(0.3, -1.0), f64(0.5, 2.0), f64(1.0, 0.5), f64(0.8, 1.5)
    before = Work(_at_rest(mu, rho(0.5, 2.0)), _at_rest(w, rho(0.8, 1.5)), f64(7.0)[0])
    task = watch(conjugate())
    found = method.step(before, NOWHERE, batch_of(x, torch.zeros(3)), task)

    e = noise(77, 4, 2)
    m1, m2, xbar = e.mean(0), e.square().mean(0), x.mean(0)
    d_mu = 7 * (mu - xbar + sig * m1) + 2.5 * (mu - w) / r.square()
    d_sig = 7 * (sig * m2 + (mu - xbar) * m1) + 2.5 * (sig / r.square() - 1 / sig)
    # sig = log(1 + exp(rho)), so d sig / d rho = sigmoid(rho)
    d_rho = d_sig * torch.sigmoid(rho(0.5, 2.0))
    gradient = torch.stack([d_mu, d_rho])
    # The first step of Adam is the sign of the gradient, but for epsilon.
    torch.testing.assert_close(found.posterior.first, 0.1 * gradient, **CLOSE)
    expected = before.posterior.at - 0.1 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(found.posterior.at, expected, **CLOSE)

    mu, sig = expected[0], F.softplus(expected[1])
    d_w = (w - mu) / r.square()
    d_r = 1 / r - (sig.square() + (mu - w).square()) / r**3
    gradient = torch.stack([d_w, d_r * torch.sigmoid(rho(0.8, 1.5))])
    torch.testing.assert_close(found.prior.first, 0.1 * gradient, **CLOSE)
    expected = before.prior.at - 0.2 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(found.prior.at, expected, **CLOSE)

    models = before.posterior.at[0] + F.softplus(before.posterior.at[1]) * e
    loss = 0.5 * (models[:, None] - x).square().sum(-1).mean()
    loss = loss + 2.5 / 7 * gaussians.kl(f64(0.3, -1.0), f64(0.5, 2.0), w, r)
    torch.testing.assert_close(task.met_loss(), loss, **CLOSE)


@pytest.mark.parametrize("personal_steps", [1, 3])
def test_steps_are_those_of_plain_autograd_and_pytorchs_adam(
    personal_steps: int,
) -> None:
    method = PFedBayes(
        monte_carlo=2, lr=0.02, shared_lr=0.05, personal_steps=personal_steps
    )
    task = network()
    draw = np.random.default_rng(5)
    x, y = torch.from_numpy(draw.normal(size=(4, 3))), torch.tensor([0, 2, 1, 1])
    mean = task.start + 0.1 * torch.from_numpy(draw.normal(size=31))
    memory, down = (
        Memory(mean, torch.full_like(mean, -2.0)),
        Download(task.start, torch.full_like(mean, -1.0)),
    )
    work = method.begin(down, memory, client(9.0), task)
    for step in range(3):
        batch = batch_of(x, y, key=40 + step, step=step)
        work = method.step(work, down, batch, task)

    v = torch.stack(memory).requires_grad_()
    u = torch.stack(down).requires_grad_()
    of_v, of_u = torch.optim.Adam([v], lr=0.02), torch.optim.Adam([u], lr=0.05)

    def divergence() -> Tensor:
        q = torch.distributions.Normal(v[0], F.softplus(v[1]))
        w = torch.distributions.Normal(u[0], F.softplus(u[1]))
        return torch.distributions.kl_divergence(q, w).sum()

    for step in range(3):
        for again in range(personal_steps):
            loss = torch.zeros((), dtype=torch.float64)
            for e in noise(40 + step, 2, 31, again):
                theta = v[0] + F.softplus(v[1]) * e
                hidden = torch.tanh(x @ theta[:12].view(4, 3).T + theta[12:16])
                outputs = hidden @ theta[16:28].view(3, 4).T + theta[28:]
                total = F.cross_entropy(outputs, y, reduction="sum")
                loss = loss + 9 / 4 * total / 2
            of_v.zero_grad()
            (loss + 10.0 * divergence()).backward()  # type: ignore[no-untyped-call]
            of_v.step()
        of_u.zero_grad()
        divergence().backward()  # type: ignore[no-untyped-call]
        of_u.step()
    torch.testing.assert_close(work.posterior.at, v.detach(), **CLOSE)
    torch.testing.assert_close(work.prior.at, u.detach(), **CLOSE)
    memory_after, upload = method.finish(work, down, memory, client(9.0), task)
    assert torch.equal(torch.stack(memory_after), work.posterior.at)
    assert torch.equal(torch.stack(upload), work.prior.at)


def test_models_in_training_have_the_std_that_rho_says() -> None:
    """Not a thousandth of it, as in public code.

    With x = 0, zeta = 0 and mu = 0, d/dmu = n sig m1 and d/dsig = n sig m2, so that the
    gradients show m1 and m2, the moments of the noise: 0 and 1, over many draws.
    """
    method = PFedBayes(monte_carlo=4000, prior_weight=0.0)
    zero, spread = f64(0.0, 0.0), rho(0.5, 2.0)
    start = Work(_at_rest(zero, spread), _at_rest(zero, spread), f64(3.0)[0])
    batch = batch_of(torch.zeros(3, 2).double(), torch.zeros(3))
    found = method.step(start, NOWHERE, batch, conjugate())
    gradient = found.posterior.first / 0.1
    second_moment = gradient[1] / torch.sigmoid(spread) / (3 * f64(0.5, 2.0))
    torch.testing.assert_close(second_moment, f64(1.0, 1.0), rtol=0, atol=0.1)
    first_moment = gradient[0] / (3 * f64(0.5, 2.0))
    torch.testing.assert_close(first_moment, f64(0.0, 0.0), rtol=0, atol=0.07)


def test_a_client_draws_models_with_the_std_that_rho_says() -> None:
    simulation = play(simulation_of(PFedBayes(scale=0.5, lr=0.1, steps=5)), 1)
    kept = memories(simulation)
    memory = Memory(kept.mean[2], kept.spread[2])
    down = Download(*simulation.state.server)
    key = torch.tensor(4)
    many = simulation.algorithm.draws(
        down, memory, client(4.0), simulation.task, key, 4000
    )
    scale = F.softplus(memory.spread)
    assert float(scale.std()) > 0.01
    torch.testing.assert_close(many.std(0), scale, rtol=0.06, atol=0.0)
    torch.testing.assert_close(many.mean(0), memory.mean, rtol=0, atol=0.05)
    assert simulation.algorithm.has_posterior
    assert torch.equal(simulation.personal(torch.tensor([2]))[0], memory.mean)


def test_the_posterior_and_the_prior_find_their_minima() -> None:
    """Without data the two meet; with data, sig^2 = 1 / (n + 1 / r^2) at zeta = 1."""
    method = PFedBayes(monte_carlo=200, prior_weight=1.0, lr=0.02, shared_lr=1e-12)
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(6, 2))) + 2.0
    task, down = conjugate(), Download(f64(0.0, 0.0), rho(0.5, 0.5))
    memory = method.initial_memory(down, client(6.0), task)
    work = method.begin(down, memory, client(6.0), task)
    for step in range(300):
        batch = batch_of(x, torch.zeros(6), key=step, step=step)
        work = method.step(work, down, batch, task)
    mean, scale = work.posterior.at[0], F.softplus(work.posterior.at[1])
    torch.testing.assert_close(mean, x.sum(0) / 10, rtol=0, atol=0.03)
    expected = torch.full((2,), 10**-0.5).double()
    torch.testing.assert_close(scale, expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("mixing", [1.0, 0.25])
@pytest.mark.parametrize(("weights", "first"), [("equal", 0.5), ("size", 0.8)])
def test_aggregation_by_hand(mixing: float, weights: Any, first: float) -> None:
    """Two clients of sizes 4 and 1, and one that is empty."""
    server = Server(f64(10.0, 20.0), f64(-3.0, -2.0))
    uploads = Upload(
        mean=f64([0.0, 4.0], [8.0, 0.0], [1e6, 1e6]),
        spread=f64([-1.0, 0.0], [-5.0, 1.0], [1e6, 1e6]),
    )
    who = torch.arange(3)
    population = simulation_of(PFedBayes()).coordinator.population
    cohort = Cohort(who, f64(4.0, 1.0, 0.0), who * 0, 0, 0, population)
    method = PFedBayes(mixing=mixing, weights=weights)
    found = method.aggregate(server, uploads, cohort)
    mean = first * uploads.mean[0] + (1 - first) * uploads.mean[1]
    spread = first * uploads.spread[0] + (1 - first) * uploads.spread[1]
    expected = Server(
        (1 - mixing) * server.mean + mixing * mean,
        (1 - mixing) * server.spread + mixing * spread,
    )
    torch.testing.assert_close(found, expected, **CLOSE)


def test_everything_starts_at_the_model_with_the_same_std() -> None:
    simulation = simulation_of(PFedBayes(scale=0.3))
    server = simulation.state.server
    assert torch.equal(server.mean, simulation.task.start)
    spread = F.softplus(server.spread)
    torch.testing.assert_close(spread, torch.full_like(spread, 0.3), **CLOSE)
    assert math.isclose(F.softplus(torch.tensor(-3.0)), 0.0486, abs_tol=1e-4)


def test_adam_starts_anew_each_round() -> None:
    """The posterior goes on from where it was, the prior from what was sent."""
    simulation = play(simulation_of(PFedBayes(lr=0.05, steps=3)), 1)
    kept = take_client(simulation, 2)
    down = Download(*simulation.state.server)
    work = simulation.algorithm.begin(down, kept, client(4.0), simulation.task)
    assert not work.posterior.first.any()
    assert not work.prior.second.any()
    assert torch.equal(work.posterior.at, torch.stack(kept))
    assert torch.equal(work.prior.at, torch.stack(down))


def take_client(simulation: Simulation, row: int) -> Memory:
    columns = memories(simulation)
    return Memory(columns.mean[row], columns.spread[row])


def test_without_a_prior_nobody_hears_of_the_others() -> None:
    settings: dict[str, Any] = {"prior_weight": 0.0, "lr": 0.05, "steps": 4}
    one = play(simulation_of(PFedBayes(mixing=1.0, **settings)), 3)
    other = play(simulation_of(PFedBayes(mixing=0.1, **settings)), 3)
    everyone = torch.arange(5)
    assert not torch.equal(one.state.server.mean, other.state.server.mean)
    assert torch.equal(one.personal(everyone), other.personal(everyone))


def test_a_heavy_prior_keeps_clients_near_it() -> None:
    fixed: dict[str, Any] = {"lr": 0.002, "shared_lr": 1e-9}
    light, heavy = (
        play(simulation_of(PFedBayes(prior_weight=zeta, **fixed)), 1)
        for zeta in (0.1, 1e4)
    )
    assert light.last is not None
    assert heavy.last is not None
    far, near = light.last.client_log.divergence, heavy.last.client_log.divergence
    assert (near < 0.2 * far).all()


def test_decay_reaches_adam() -> None:
    at = torch.stack([f64(0.0, 0.0), f64(0.0, 0.0)])
    point = Adam(at, torch.zeros_like(at), torch.zeros_like(at))
    gradient = torch.stack([f64(3.0, 0.0), f64(0.0, 4.0)])
    batch = batch_of(f64([0.0]), f64(0.0))._replace(round=torch.tensor(2))
    method = PFedBayes(lr_decay=0.5)
    found = method._move(point, gradient, torch.tensor(1), 0.1, batch)
    # The rate is 0.1 / 4.
    torch.testing.assert_close(found.first, 0.1 * gradient, **CLOSE)
    expected = -0.025 * torch.sign(gradient)
    torch.testing.assert_close(found.at, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum": 0.9}, "momentum must be 0, found 0.9"),
        ({"weight_decay": 0.1}, "weight_decay must be 0, found 0.1"),
        ({"scale": 0.0}, "scale"),
        ({"prior_weight": -1.0}, "prior_weight"),
        ({"personal_steps": 0}, "personal_steps"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        PFedBayes(**settings)
