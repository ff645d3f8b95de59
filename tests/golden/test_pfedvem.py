"""pFedVEM by hand: divergence, confidence, aggregation, one step of head and of base.

The conjugate model has one linear parameter vector p, all of it head, and the loss
1/2 ||p - x||^2, so that the negative log-likelihood of n samples with mean xbar at a
head drawn as mu + sig * e_k is quadratic. With tau = 1 / rho^2 the objective

    1/K sum_k sum_i 1/2 ||mu + sig e_k - x_i||^2 + KL(N(mu, sig^2) || N(w, rho^2 I))

has, coordinate by coordinate and with m1, m2 the means over k of e_k and e_k^2,

    d/dmu  = n (mu - xbar + sig m1) + tau (mu - w)
    d/dsig = n (sig m2 + (mu - xbar) m1) + tau sig - 1 / sig

and in expectation (m1 = 0, m2 = 1) its minimum at mu = (n xbar + tau w) / (n + tau),
sig^2 = 1 / (n + tau).
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

from fedloom.algorithms import FedAvg, PFedVEM
from fedloom.algorithms.pfedvem import (
    Download,
    Memory,
    Server,
    Upload,
    Work,
)
from fedloom.clients import Federation, Natural, Sampling, Split, divide
from fedloom.core import gaussians
from fedloom.core.algorithm import Cohort, SGDState
from fedloom.core.errors import ConfigError, ContractError
from fedloom.core.gaussians import NOISE
from fedloom.core.streams import fold, normal, seeded
from fedloom.core.task import Batch, Task
from fedloom.core.watched import watch
from fedloom.data.dataset import from_arrays
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

SIZES = (3, 1, 4, 2, 6)
CLOSE: dict[str, float] = {"rtol": 0.0, "atol": 1e-10}


def f64(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def small(classes: int = 3) -> Federation:
    draw = np.random.default_rng(3)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    y = draw.integers(0, classes, len(owner))
    x = draw.normal(size=(len(owner), 3)) + np.eye(3)[y]
    data = from_arrays(x, y, clients=owner, classes=classes)
    return divide(data, Natural(), Split(test=0.0), seed=0)


def network() -> Task:
    with seeded(0, "model"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    return Task(model, dtype=torch.float64)


def simulation_of(
    method: Any, runner: Any = None, *, task: Any = None, **more: Any
) -> Simulation:
    seed = more.pop("seed", 2)
    return Simulation(
        method,
        task if task is not None else network(),
        small(),
        runner if runner is not None else Loop(),
        sampling=Sampling(**more),
        seed=seed,
    )


def play(simulation: Simulation, rounds: int) -> Simulation:
    while simulation.state.round < rounds:
        simulation.run_exchange()
    return simulation


def batch_of(x: Tensor, y: Tensor, key: int = 77) -> Batch:
    return Batch(
        inputs=(x,),
        targets=y,
        mask=torch.ones(len(x), dtype=torch.float64),
        key=torch.tensor(key),
        step=torch.tensor(0),
        ends_epoch=torch.tensor(True),
        round=torch.tensor(0),
    )


def noise(key: int, count: int, d: int) -> Tensor:
    """The draws of a step, one stream for each."""
    root = fold(torch.tensor(key), NOISE)
    rows = [normal(fold(root, k), (d,), torch.float64) for k in range(count)]
    return torch.stack(rows)


def test_the_divergence_by_hand() -> None:
    """Two coordinates with sig 1 and 2, mu - w = 1 and 3, rho = 2.

    KL = ln 2 - ln 1 + ln 2 - ln 2 + (1 + 4 + 1 + 9) / (2 * 4) - 2/2
    """
    found = gaussians.kl(f64(1.0, 3.0), f64(1.0, 2.0), f64(0.0, 0.0), f64(2.0))
    assert float(found) == pytest.approx(math.log(2.0) + 15 / 8 - 1, abs=1e-12)


def test_the_divergence_is_what_sampling_finds() -> None:
    draw = np.random.default_rng(0)
    mean, w = (torch.from_numpy(draw.normal(size=6)) for _ in range(2))
    scale = torch.from_numpy(draw.uniform(0.3, 1.5, size=6))
    rho = f64(0.8)[0]
    exact = gaussians.kl(mean, scale, w, rho)
    q = torch.distributions.Normal(mean, scale)
    p = torch.distributions.Normal(w, rho)
    torch.testing.assert_close(
        exact, torch.distributions.kl_divergence(q, p).sum(), **CLOSE
    )
    heads = gaussians.draw(mean, scale, torch.tensor(5), 100_000)
    values = (q.log_prob(heads) - p.log_prob(heads)).sum(1)
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean() - exact)) < 4 * error


def test_the_printed_bound_of_equation_10_fails_and_jensens_holds() -> None:
    """-sum log sig_i >= -(d/2) log(Tr(Sigma) / d), not -(1/2) log Tr(Sigma)."""
    scales = np.exp(np.random.default_rng(1).normal(size=(2000, 6)))
    left = -np.log(scales).sum(1)
    trace = (scales**2).sum(1)
    assert (left >= -3 * np.log(trace / 6) - 1e-12).all()
    assert (left < -0.5 * np.log(trace)).mean() > 0.1


def test_draws_are_reproducible_and_differ() -> None:
    mean, scale, key = torch.zeros(4000).double(), f64(2.0), torch.tensor(9)
    heads = gaussians.draw(mean, scale, key, 3)
    assert torch.equal(heads, gaussians.draw(mean, scale, key, 3))
    assert torch.equal(heads[:2], gaussians.draw(mean, scale, key, 2))
    assert float((heads[0] * heads[1]).mean().abs()) < 0.3
    assert float(heads.std()) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("value", [1e-8, 0.1, 1.0, 30.0, 1000.0])
def test_softplus_undoes_its_inverse(value: float) -> None:
    raw = f64(gaussians.softplus_inverse(value))
    assert float(F.softplus(raw)) == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize(
    ("confidence", "mean", "tau"),
    [
        # d = 2, sig = (0.5, 1.5): Tr(Sigma) = 2.5; ||mu - w||^2 = 9 + 16 = 25
        ("both", (4.0, 5.0), 2 / 27.5),
        ("uncertainty", (4.0, 5.0), 2 / 2.5),
        ("deviation", (4.0, 5.0), 2 / 25),
        ("both", (1.0, 1.0), 2 / 2.5),
        # Too small a deviation is 1e-8; none at all is the start, 1 / scale^2.
        ("deviation", (1.0, 1.0 + 1e-6), 1e8),
        ("deviation", (1.0, 1.0), 1 / 0.2**2),
    ],
)
def test_confidence_by_hand(
    confidence: Any, mean: tuple[float, float], tau: float
) -> None:
    method = PFedVEM(confidence=confidence, scale=0.2)
    spread = f64(*(gaussians.softplus_inverse(s) for s in (0.5, 1.5)))
    base = f64(1.0)
    memory = Memory(f64(*mean), spread, base)
    down = Download(base, f64(1.0, 1.0))
    work = method.begin(down, memory, client(), network())
    assert float(work.confidence) == pytest.approx(tau, rel=1e-6 if tau > 1e6 else 1e-9)


@pytest.mark.parametrize("confidence", ["both", "uncertainty", "deviation"])
def test_everybody_is_equally_sure_in_round_0(confidence: Any) -> None:
    simulation = play(simulation_of(PFedVEM(confidence=confidence, scale=0.3)), 1)
    assert simulation.last is not None
    expected = torch.full((5,), 1 / 0.09, dtype=torch.float64)
    torch.testing.assert_close(simulation.last.client_log.confidence, expected, **CLOSE)
    equal = torch.full((5,), 0.2, dtype=torch.float64)
    torch.testing.assert_close(simulation.last.server_log.head_weight, equal, **CLOSE)
    by_size = f64(*SIZES) / sum(SIZES)
    torch.testing.assert_close(simulation.last.server_log.base_weight, by_size, **CLOSE)


@pytest.mark.parametrize("keep", [0.0, 0.75])
def test_aggregation_by_hand(keep: float) -> None:
    """Heads by confidence 1 : 3, bases by size 4 : 1; the third client is empty."""
    server = Server(f64(10.0), f64(20.0, 20.0))
    uploads = Upload(
        mean=f64([0.0, 4.0], [8.0, 0.0], [1e6, 1e6]),
        confidence=f64(1.0, 3.0, 50.0),
        base=f64([5.0], [0.0], [1e6]),
    )
    population = simulation_of(PFedVEM()).coordinator.population
    who = torch.arange(3)
    cohort = Cohort(who, f64(4.0, 1.0, 0.0), who * 0, 0, 0, population)
    found, log = PFedVEM(server_momentum=keep).aggregate(server, uploads, cohort)
    head = keep * server.head + (1 - keep) * f64(6.0, 1.0)
    base = keep * server.base + (1 - keep) * f64(4.0)
    torch.testing.assert_close(found, Server(base, head), **CLOSE)
    torch.testing.assert_close(log.head_weight, f64(0.25, 0.75, 0.0), **CLOSE)
    torch.testing.assert_close(log.base_weight, f64(0.8, 0.2, 0.0), **CLOSE)


class Location(nn.Module):
    """A model that is a point; its output is the distance to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.point - x


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * outputs.square().sum(1)


def conjugate() -> Task:
    return Task(nn.Sequential(Location()), half_square, head="0", dtype=torch.float64)


def test_a_step_of_the_head_by_hand() -> None:
    method = PFedVEM(monte_carlo=4, head_lr=0.01, weight_decay=0.5, momentum=0.0)
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(5, 3)))
    mu, w, sig, tau = f64(0.3, -1.0, 2.0), f64(1.0, 0.0, 0.5), f64(0.5, 1.0, 2.0), 1.7
    spread = torch.log(torch.expm1(sig))
    posterior = torch.stack([mu, spread])
    none = f64()
    work = Work(SGDState(posterior, none), posterior, SGDState(none, none), f64(tau)[0])
    task = watch(conjugate())
    batch = batch_of(x, torch.zeros(5))
    found = method.step_head(work, Download(none, w), batch, task).posterior.at
    e = noise(77, 4, 3)
    m1, m2, xbar = e.mean(0), e.square().mean(0), x.mean(0)
    d_mu = 5 * (mu - xbar + sig * m1) + tau * (mu - w)
    d_sig = 5 * (sig * m2 + (mu - xbar) * m1) + tau * sig - 1 / sig
    # sig = log(1 + exp(pi)), so d sig / d pi = sigmoid(pi)
    expected = posterior - 0.01 * torch.stack([d_mu, d_sig * torch.sigmoid(spread)])
    torch.testing.assert_close(found, expected, **CLOSE)
    heads = mu + sig * e
    loss = 0.5 * (heads[:, None] - x).square().sum() / 4
    loss = loss + gaussians.kl(mu, sig, w, f64(tau)[0] ** -0.5)
    torch.testing.assert_close(task.met_loss(), loss / 5, **CLOSE)


def test_the_head_finds_the_conjugate_posterior() -> None:
    method = PFedVEM(monte_carlo=300, head_lr=0.01, passes=150, momentum=0.5, scale=0.5)
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(6, 3))) + 2.0
    task, none, w = conjugate(), f64(), f64(0.0, 0.0, 0.0)
    down = Download(none, w)
    work = method.begin(
        down, method.initial_memory(down, client(), task), client(), task
    )
    for step in range(method.passes):
        work = method.step_head(work, down, batch_of(x, torch.zeros(6), step), task)
    tau = 1 / 0.5**2
    mean, scale = work.posterior.at[0], F.softplus(work.posterior.at[1])
    expected = x.sum(0) / (6 + tau)
    torch.testing.assert_close(mean, expected, rtol=0, atol=0.02)
    expected = torch.full((3,), (6 + tau) ** -0.5).double()
    torch.testing.assert_close(scale, expected, rtol=0, atol=0.01)


def test_a_step_of_the_base_is_that_of_plain_autograd() -> None:
    method = PFedVEM(monte_carlo=3, lr=0.2, momentum=0.0, weight_decay=0.1)
    task = network()
    base, head = task.split(task.start)
    spread = torch.full_like(head, -1.0)
    posterior = torch.stack([head, spread])
    none = f64()
    work = Work(SGDState(posterior, none), posterior, SGDState(base, none), f64(1.0)[0])
    draw = np.random.default_rng(5)
    x, y = torch.from_numpy(draw.normal(size=(4, 3))), torch.tensor([0, 2, 1, 1])
    found = method.step_base(work, Download(base, head), batch_of(x, y), task)
    theta = base.clone().requires_grad_()
    total = torch.zeros(())
    for e in noise(77, 3, len(head)):
        one = head + F.softplus(spread) * e
        hidden = torch.tanh(x @ theta[:12].view(4, 3).T + theta[12:16])
        outputs = hidden @ one[:12].view(3, 4).T + one[12:]
        total = total + F.cross_entropy(outputs, y) / 3
    total.backward()  # type: ignore[no-untyped-call]
    assert theta.grad is not None
    expected = (theta - 0.2 * (theta.grad + 0.1 * theta)).detach()
    torch.testing.assert_close(found.base.at, expected, **CLOSE)
    assert torch.equal(found.posterior.at, posterior)


def test_the_confidence_sent_is_that_of_the_head_before_training() -> None:
    method = PFedVEM(passes=3, epochs=1)
    simulation = play(simulation_of(method), 1)
    server, kept = simulation.state.server, memories(simulation)
    uncertainty = F.softplus(kept.spread).square().sum(1)
    deviation = (kept.mean - server.head).square().sum(1)
    tau = server.head.numel() / (uncertainty + deviation)
    play(simulation, 2)
    assert simulation.last is not None
    torch.testing.assert_close(simulation.last.client_log.confidence, tau, **CLOSE)
    torch.testing.assert_close(
        simulation.last.client_log.uncertainty, uncertainty, **CLOSE
    )
    torch.testing.assert_close(simulation.last.client_log.deviation, deviation, **CLOSE)
    torch.testing.assert_close(
        simulation.last.server_log.head_weight, tau / tau.sum(), **CLOSE
    )


@pytest.mark.parametrize("runner", [Loop(), Weave(2)], ids=["loop", "weave"])
def test_a_head_that_fails_goes_back_and_the_round_goes_on(runner: Any) -> None:
    method = PFedVEM(head_lr=1e200, passes=4, momentum=0.0)
    simulation = simulation_of(method, runner)
    start = simulation.state.server
    play(simulation, 2)
    assert simulation.last is not None
    assert bool((simulation.last.client_log.restored == 1).all())
    torch.testing.assert_close(simulation.state.server.head, start.head, **CLOSE)
    kept = memories(simulation)
    assert torch.equal(kept.mean, start.head.repeat(5, 1))
    assert torch.isfinite(kept.base).all()
    assert not torch.equal(simulation.state.server.base, start.base)


def test_a_model_without_a_head_is_refused_and_told_what_to_do() -> None:
    task = Task(Location(), half_square, dtype=torch.float64)
    with pytest.raises(ContractError, match=r"algorithm\.bayesian = 'all'"):
        simulation_of(PFedVEM(), task=task)
    simulation = play(simulation_of(PFedVEM(bayesian="all"), task=task), 2)
    assert simulation.state.server.base.shape == (0,)
    assert simulation.state.server.head.shape == (3,)


def test_a_model_that_is_all_head_takes_no_step_of_the_base() -> None:
    task = Task(nn.Sequential(nn.Linear(3, 3)), dtype=torch.float64)
    simulation = play(simulation_of(PFedVEM(passes=4), task=task), 1)
    assert simulation.last is not None
    assert simulation.last.reports.steps.tolist() == [4] * 5


def test_the_head_starts_at_normal_numbers_or_as_the_model_has_it() -> None:
    task = network()
    one, other = (simulation_of(PFedVEM(), seed=s).state.server for s in (1, 2))
    assert not torch.equal(one.head, other.head)
    assert torch.equal(one.head, simulation_of(PFedVEM(), seed=1).state.server.head)
    assert torch.equal(one.base, task.start[:16])
    model = simulation_of(PFedVEM(head_start="model")).state.server
    assert torch.equal(torch.cat(list(model)), task.start)
    whole = simulation_of(PFedVEM(bayesian="all"), seed=1).state.server
    assert torch.equal(whole.head, torch.cat([task.start[:16], one.head]))


def test_a_client_draws_models_from_its_posterior() -> None:
    simulation = play(simulation_of(PFedVEM(scale=0.5)), 1)
    kept = memories(simulation)
    memory = Memory(kept.mean[0], kept.spread[0], kept.base[0])
    down = Download(*simulation.state.server)
    key = torch.tensor(4)
    many = simulation.algorithm.draws(
        down, memory, client(), simulation.task, key, 4000
    )
    own = simulation.algorithm.personal(down, memory, client(), simulation.task)
    assert torch.equal(many[:, :16], own[:16].expand(4000, -1))
    torch.testing.assert_close(many.mean(0), own, rtol=0, atol=0.04)
    scale = F.softplus(memory.spread)
    torch.testing.assert_close(many[:, 16:].std(0), scale, rtol=0.06, atol=0.0)


def test_only_a_method_with_a_posterior_says_so() -> None:
    assert PFedVEM().has_posterior
    assert not FedAvg().has_posterior


SHORT: dict[str, Any] = {"passes": 2, "epochs": 2, "monte_carlo": 2, "batch_size": 2}


@pytest.mark.parametrize("rate", [1.0, 0.4])
@pytest.mark.parametrize("protocol", ["train-selected", "train-all"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"confidence": "deviation", "server_momentum": 0.3},
        {"confidence": "uncertainty", "momentum": 0.0, "weight_decay": 0.1},
        {"bayesian": "all", "scale": 0.02, "clip": 1.0},
    ],
)
def test_weave_equals_loop(
    settings: dict[str, Any], protocol: str, rate: float
) -> None:
    method = PFedVEM(**SHORT | settings)
    more: dict[str, Any] = {"rate": rate, "protocol": protocol}
    slow = play(simulation_of(method, Loop(), **more), 3)
    fast = play(simulation_of(method, Weave(2), **more), 3)
    everyone = torch.arange(5)
    torch.testing.assert_close(
        fast.personal(everyone), slow.personal(everyone), **CLOSE
    )
    torch.testing.assert_close(fast.state.server, slow.state.server, **CLOSE)


@pytest.mark.parametrize(
    "settings",
    [
        {"scale": 0.0},
        {"server_momentum": 1.0},
        {"monte_carlo": 0},
        {"confidence": "none"},
        {"bayesian": "base"},
        {"passes": 2.5},
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        PFedVEM(**settings)
