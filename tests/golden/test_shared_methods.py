"""SCAFFOLD, FedNova, FedAvgM and FedAdam on parabolas by hand; see quadratic.py.

To let clients take unequal numbers of steps, each target is replaced by the mean of its
client: then every batch has the gradient of all data, h_k (theta - m_k), and a batch of
3 of the sizes 4, 9, 2, 6 makes tau = 2, 3, 1, 2 steps an epoch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import memories
from quadratic import (
    CURVATURES,
    OPTIMA,
    SHARES,
    SIZES,
    START,
    assert_exact,
    line,
    parabolas,
    personal,
    rounds,
    shared,
    weave_of,
)
from torch import Tensor

from fedloom.algorithms import FedAdam, FedAvg, FedAvgM, FedNova, Scaffold
from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.core.errors import ConfigError
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

ALL = max(SIZES)
"""A batch size that every client's data fit into."""
TAU = torch.tensor([2.0, 3.0, 1.0, 2.0], dtype=torch.float64)
"""Steps of each client in an epoch of batches of 3."""
EQUAL = torch.full((len(SIZES),), 1.0 / len(SIZES), dtype=torch.float64)
W0 = torch.tensor(START, dtype=torch.float64)

runners = pytest.mark.parametrize("runner", [Loop(), Weave(3)], ids=["loop", "weave"])
weightings = pytest.mark.parametrize(
    ("weights", "shares"), [("size", SHARES), ("equal", EQUAL)], ids=["size", "equal"]
)


def noiseless() -> Federation:
    """The parabolas with every target at the mean of its client."""
    federation = parabolas()
    targets = federation.dataset.targets.clone()
    for rows in federation.train:
        targets[rows] = targets[rows].mean()
    return replace(federation, dataset=replace(federation.dataset, targets=targets))


def unequal(algorithm: Any, runner: Any = None, **sampling: Any) -> Simulation:
    """A run whose clients take TAU steps an epoch, before its first round."""
    runner = Weave(3) if runner is None else runner
    return Simulation(
        replace(algorithm, batch_size=3),
        line(),
        noiseless(),
        runner,
        sampling=Sampling(**sampling),
    )


def trained(w: Tensor, lr: float, steps: Tensor | int) -> Tensor:
    """(clients,) plain SGD from w: m_k + (1 - eta h_k)^tau_k (w - m_k)."""
    return OPTIMA + (1 - lr * CURVATURES) ** steps * (w - OPTIMA)


def minimum(shares: Tensor) -> Tensor:
    """Where sum_k p_k F_k is least: sum p_k h_k m_k / sum p_k h_k."""
    return (shares * CURVATURES * OPTIMA).sum() / (shares * CURVATURES).sum()


def variates(simulation: Simulation) -> Tensor:
    """(clients,) every c_k; 0 for a client never seen."""
    column: Tensor = memories(simulation).variate[:, 0]
    return torch.where(simulation.clients.memory.seen, column, 0.0)


# SCAFFOLD


@runners
@weightings
@pytest.mark.parametrize(
    "settings", [{}, {"clip": 0.6, "weight_decay": 0.3, "lr_decay": 0.8}], ids=str
)
def test_scaffold_step_by_step(
    runner: Any, weights: Any, shares: Tensor, settings: dict[str, Any]
) -> None:
    """Each client in turn, from its gradients alone, tau_k steps a round:

        y <- y - eta_t (g - c_k + c),  c_k <- the mean of the g of this round
        x <- x + eta_g sum_k p_k (y_k - x),  c <- sum_k p_k c_k

    with g the clipped gradient plus weight decay, eta_t = eta gamma^t. The method never
    averages gradients: it reads c_k off the way, and moves c by the changes of the c_k.
    """
    method = Scaffold(lr=0.1, server_lr=0.7, weights=weights, **settings)
    simulation = rounds(unequal(method, runner), 4)
    clip = settings.get("clip", float("inf"))
    decay, fall = settings.get("weight_decay", 0.0), settings.get("lr_decay", 1.0)
    x, c, own = W0, torch.zeros_like(W0), torch.zeros_like(EQUAL)
    for t in range(4):
        y, means = x.repeat(len(SIZES)), torch.zeros_like(own)
        for k, steps in enumerate(TAU.int().tolist()):
            for _ in range(steps):
                g = CURVATURES[k] * (y[k] - OPTIMA[k])
                g = g * min(1.0, clip / float(g.abs())) + decay * y[k]
                means[k] += g / steps
                y[k] -= 0.1 * fall**t * (g - own[k] + c)
        x = x + 0.7 * (shares * (y - x)).sum()
        own, c = means, (shares * means).sum()
    assert_exact(shared(simulation), x)
    assert_exact(variates(simulation), own)
    assert_exact(simulation.state.server.variate[0], c)


@pytest.mark.parametrize(
    "settings",
    [{"epochs": 2}, {"steps": 5, "clip": 0.5, "weight_decay": 0.1}],
    ids=["plain", "clip"],
)
@weightings
def test_scaffold_with_zero_variates_is_fedavg(
    settings: dict[str, Any], weights: Any, shares: Tensor
) -> None:
    """So is its first round; from the second on they part."""
    given: dict[str, Any] = {"lr": 0.1, "batch_size": 3, "weights": weights}
    scaffold = weave_of(Scaffold(**given, **settings), Weave(3))
    fedavg = weave_of(FedAvg(**given, **settings), Weave(3))
    assert_exact(shared(rounds(scaffold, 1)), shared(rounds(fedavg, 1)))
    apart = shared(rounds(scaffold, 1)) - shared(rounds(fedavg, 1))
    assert abs(float(apart)) > 1e-3


@weightings
@pytest.mark.parametrize("protocol", ["train-selected", "train-all"])
def test_the_servers_variate_stays_the_mean_of_all_the_clients(
    weights: Any, shares: Tensor, protocol: Any
) -> None:
    """c = sum_k p_k c_k over all clients, however few are heard: c moves by the changes
    of those who upload, and nobody else's c_k may move.
    """
    simulation = unequal(Scaffold(lr=0.1, weights=weights), rate=0.5, protocol=protocol)
    for _ in range(4):
        before = variates(simulation)
        simulation.run_exchange()
        assert simulation.last is not None
        moved = (variates(simulation) != before).nonzero()[:, 0]
        assert torch.equal(moved, simulation.last.uploaders.sort().values)
        assert_exact(
            simulation.state.server.variate[0], (shares * variates(simulation)).sum()
        )
    assert len(simulation.last.uploaders) == 2


@weightings
def test_scaffold_finds_the_minimum_that_fedavg_misses(
    weights: Any, shares: Tensor
) -> None:
    """At rest c_k is the mean gradient of client k and y_k = x - tau_k eta c, so that
    sum p_k (y_k - x) = 0 makes c = sum p_k c_k = 0: nobody moves, c_k is the gradient
    at x, and their mean vanishes. Neither the many nor the unequal steps matter.
    """
    tau = 2 * TAU
    scaffold = unequal(Scaffold(lr=0.1, epochs=2, weights=weights), Weave(4))
    assert_exact(shared(rounds(scaffold, 50)), minimum(shares))
    assert_exact(variates(scaffold), CURVATURES * (minimum(shares) - OPTIMA))
    # FedAvg rests where sum p_k (y_k - w) = 0, each y_k a share of the way to m_k.
    way = shares * (1 - (1 - 0.1 * CURVATURES) ** tau)
    fedavg = (way * OPTIMA).sum() / way.sum()
    assert_exact((shares * trained(fedavg, 0.1, tau)).sum(), fedavg)
    assert abs(float(fedavg - minimum(shares))) > 0.1


def test_scaffold_notes_how_large_the_correction_is() -> None:
    """||c - c_k||: 0 before anybody has a variate, then what the first round left."""
    simulation = unequal(Scaffold(lr=0.1))
    for _ in range(2):
        expected = (simulation.state.server.variate[0] - variates(simulation)).abs()
        simulation.run_exchange()
        assert simulation.last is not None
        assert_exact(simulation.last.client_log.correction, expected)
    assert float(expected.min()) > 0.1


def test_scaffold_refuses_momentum() -> None:
    with pytest.raises(ConfigError, match=r"momentum must be 0, found 0\.9"):
        Scaffold(momentum=0.9)


# FedNova


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_fednova_with_equal_steps_is_fedavg(momentum: float, weights: Any) -> None:
    """All ||a_k||_1 are one number then, and cancel."""
    given: dict[str, Any] = {
        "lr": 0.1,
        "batch_size": 3,
        "steps": 5,
        "weight_decay": 0.1,
    }
    given |= {"momentum": momentum, "weights": weights}
    fednova = rounds(weave_of(FedNova(**given), Weave(3), rate=0.5), 4)
    fedavg = rounds(weave_of(FedAvg(**given), Weave(3), rate=0.5), 4)
    assert_exact(shared(fednova), shared(fedavg))


@runners
@weightings
def test_fednova_with_unequal_steps(runner: Any, weights: Any, shares: Tensor) -> None:
    """x' = x - (sum p_k tau_k) sum_k p_k (x - y_k) / tau_k, y_k = `trained`."""
    simulation = rounds(unequal(FedNova(lr=0.1, epochs=2, weights=weights), runner), 3)
    tau, x = 2 * TAU, W0
    for _ in range(3):
        directions = (x - trained(x, 0.1, tau)) / tau
        x = x - (shares * tau).sum() * (shares * directions).sum()
    assert_exact(shared(simulation), x)
    assert simulation.last is not None
    log = simulation.last.server_log
    assert_exact(log.length, (shares * tau).sum())
    assert_exact(log.change_weight, shares * (shares * tau).sum() / tau)


@pytest.mark.parametrize("rho", [0.5, 0.9, 1.0])
def test_fednova_with_local_momentum(rho: float) -> None:
    """With v <- rho v + g the gradient of step j of tau is repeated until the end,
    a_j = 1 + rho + ... + rho^(tau - j), so that

        ||a||_1 = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)

    and tau (tau + 1) / 2 for rho = 1. The way itself is stepped by hand.
    """
    simulation = rounds(unequal(FedNova(lr=0.05, epochs=2, momentum=rho)), 1)
    tau = 2 * TAU
    if rho < 1.0:
        length = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    else:
        length = tau * (tau + 1) / 2
    y = W0.repeat(len(SIZES))
    for k, steps in enumerate(tau.int().tolist()):
        velocity = torch.zeros_like(W0)
        for _ in range(steps):
            velocity = rho * velocity + CURVATURES[k] * (y[k] - OPTIMA[k])
            y[k] -= 0.05 * velocity
    mean = (SHARES * (W0 - y) / length).sum()
    assert_exact(shared(simulation), W0 - (SHARES * length).sum() * mean)
    assert simulation.last is not None
    assert_exact(simulation.last.server_log.length, (SHARES * length).sum())


def test_fednova_rests_nearer_to_the_minimum_than_fedavg() -> None:
    """With b_k = 1 - (1 - eta h_k)^tau_k the way of client k to its optimum, FedNova
    rests at sum p_k b_k m_k / tau_k over sum p_k b_k / tau_k, which for a small eta,
    where b_k = tau_k eta h_k, is the minimum. FedAvg rests there without the 1 / tau_k.
    """
    fednova = rounds(unequal(FedNova(lr=0.05, epochs=2), Weave(4)), 80)
    tau = 2 * TAU
    way = SHARES * (1 - (1 - 0.05 * CURVATURES) ** tau)
    rest = (way * OPTIMA / tau).sum() / (way / tau).sum()
    fedavg = (way * OPTIMA).sum() / way.sum()
    assert_exact(shared(fednova), rest)
    off, far = abs(rest - minimum(SHARES)), abs(fedavg - minimum(SHARES))
    assert float(off) < 0.25 * float(far)


# FedAvgM


@pytest.mark.parametrize("rate", [1.0, 0.5])
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_fedavgm_without_momentum_is_fedavg(rate: float, weights: Any) -> None:
    given: dict[str, Any] = {"lr": 0.1, "batch_size": 3, "momentum": 0.5}
    given |= {"weights": weights}
    fedavgm = weave_of(FedAvgM(server_momentum=0.0, **given), Weave(3), rate=rate)
    fedavg = weave_of(FedAvg(**given), Weave(3), rate=rate)
    assert_exact(shared(rounds(fedavgm, 4)), shared(rounds(fedavg, 4)))


@runners
def test_the_server_of_fedavgm_is_a_heavy_ball(runner: Any) -> None:
    """w_1 = w_0 - s d_0 and w_2 = w_1 - s (beta d_0 + d_1), where s is the server's
    learning rate and d_t = sum p_k (w_t - y_k) the change that FedAvg would make.
    """
    method = FedAvgM(
        lr=0.1, epochs=3, batch_size=ALL, server_momentum=0.6, server_lr=0.5
    )
    simulation = weave_of(method, runner)
    first = (SHARES * (W0 - trained(W0, 0.1, 3))).sum()
    one = W0 - 0.5 * first
    assert_exact(shared(rounds(simulation, 1)), one)
    second = (SHARES * (one - trained(one, 0.1, 3))).sum()
    two = one - 0.5 * (0.6 * first + second)
    assert_exact(shared(rounds(simulation, 1)), two)
    assert_exact(simulation.state.server.velocity[0], 0.6 * first + second)


# FedAdam


@runners
@pytest.mark.parametrize("rule", ["adam", "yogi", "adagrad"])
def test_two_rounds_of_fedadam(runner: Any, rule: Any) -> None:
    """With D_t the change that FedAvg would make in round t and m_0 = 0, v_0 = tau^2,

        m_1 = (1 - b1) D_1,               x_1 = x_0 + s m_1 / (sqrt(v_1) + tau)
        m_2 = b1 (1 - b1) D_1 + (1 - b1) D_2,  x_2 = x_1 + s m_2 / (sqrt(v_2) + tau)

    Adam: v_t = b2 v + (1 - b2) D^2. Adagrad: v_t = v + D^2. Yogi adds (1 - b2) D^2
    to a v below D^2, as in round 1, and takes it from a v above, as in round 2.
    """
    tau, s, b1, b2 = 0.3, 0.2, 0.8, 0.2
    method = FedAdam(
        lr=0.1,
        epochs=3,
        batch_size=ALL,
        second_moment=rule,
        server_lr=s,
        server_momentum=b1,
        square_decay=b2,
        adaptivity=tau,
    )
    simulation = weave_of(method, runner)

    def second(v: Tensor, change: Tensor, sign: float) -> Tensor:
        if rule == "adam":
            return b2 * v + (1 - b2) * change**2
        return v + (change**2 if rule == "adagrad" else sign * (1 - b2) * change**2)

    one = (SHARES * (trained(W0, 0.1, 3) - W0)).sum()
    v1 = second(torch.tensor(tau**2, dtype=torch.float64), one, +1.0)
    x1 = W0 + s * (1 - b1) * one / (v1.sqrt() + tau)
    assert float(one**2) > tau**2
    assert_exact(shared(rounds(simulation, 1)), x1)
    two = (SHARES * (trained(x1, 0.1, 3) - x1)).sum()
    assert rule != "yogi" or float(two**2) < float(v1)
    v2 = second(v1, two, -1.0)
    x2 = x1 + s * (b1 * (1 - b1) * one + (1 - b1) * two) / (v2.sqrt() + tau)
    assert_exact(shared(rounds(simulation, 1)), x2)
    assert_exact(simulation.state.server.square[0], v2)


def test_fedadam_without_adaptivity_is_fedavg() -> None:
    """Beside a huge tau the changes vanish from Adagrad's v = tau^2 + sum D^2, so that
    sqrt(v) + tau = 2 tau, and s = 2 tau takes exactly FedAvg's step.
    """
    given: dict[str, Any] = {"lr": 0.1, "batch_size": 3, "momentum": 0.5}
    method = FedAdam(
        second_moment="adagrad",
        server_momentum=0.0,
        adaptivity=1e7,
        server_lr=2e7,
        **given,
    )
    fedadam = rounds(weave_of(method, Weave(3), rate=0.5), 4)
    fedavg = rounds(weave_of(FedAvg(**given), Weave(3), rate=0.5), 4)
    assert_exact(shared(fedadam), shared(fedavg))


@pytest.mark.parametrize("decay", [1.0, -0.1])
def test_a_server_that_never_forgets_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match="at least 0 and below 1"):
        FedAvgM(server_momentum=decay)
    with pytest.raises(ConfigError, match="at least 0 and below 1"):
        FedAdam(square_decay=decay)


# All four


@pytest.mark.parametrize("method", [Scaffold, FedNova, FedAvgM, FedAdam])
def test_the_personal_model_is_the_shared_one_after_tuning(method: Any) -> None:
    """Without tuning the shared model; after E epochs of full batches `trained`."""
    given: dict[str, Any] = {"lr": 0.1, "batch_size": ALL}
    simulation = rounds(weave_of(method(**given), Weave(3)), 2)
    x = shared(simulation)
    assert_exact(personal(simulation), x.expand(len(SIZES)))
    tuned = rounds(weave_of(method(tuning=2, **given), Weave(3)), 2)
    assert_exact(shared(tuned), x)
    assert_exact(personal(tuned), trained(x, 0.1, 2))
