"""Per-FedAvg, pFedMe and APFL: reductions, parabolas (quadratic.py), autograd."""

from __future__ import annotations

from typing import Any

import by_hand
import pytest
import torch
from by_hand import (
    EVERYONE,
    assert_close,
    batches,
    gradient,
    initial,
    made_up,
    simulation_of,
)
from quadratic import (
    CURVATURES,
    OPTIMA,
    PLAIN,
    SHARES,
    SIZES,
    START,
    assert_exact,
    personal,
    rounds,
    shared,
    weave_of,
)
from torch import Tensor
from torch.autograd.functional import hessian as exact_hessian

from fedloom.algorithms import APFL, FedAvg, Local, PerFedAvg, PFedMe, PFedMT
from fedloom.core.errors import ConfigError
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

ALL = max(SIZES)
"""A batch size that every client's data fit into."""
EQUAL = torch.full((len(SIZES),), 1.0 / len(SIZES), dtype=torch.float64)
WEIGHTS = {"size": SHARES, "equal": EQUAL}
ORDINARY: list[dict[str, Any]] = [
    {"lr": 0.1, "batch_size": 3, "epochs": 2},
    {"lr": 0.1, "batch_size": 3, "momentum": 0.9, "weight_decay": 0.1},
    {"lr": 0.1, "batch_size": 2, "steps": 5, "clip": 0.5, "lr_decay": 0.9},
]
ordinary = pytest.mark.parametrize("settings", ORDINARY, ids=["plain", "heavy", "clip"])
runners = pytest.mark.parametrize("runner", [Loop(), Weave(3)], ids=["loop", "weave"])
gradients = pytest.mark.parametrize("kind", ["first-order", "hessian-free"])


def start() -> Tensor:
    return torch.full((len(SIZES),), START, dtype=torch.float64)


def slope(theta: Tensor) -> Tensor:
    """(clients,) h_k (theta_k - m_k), the gradient on all data."""
    return CURVATURES * (theta - OPTIMA)


def pair(simulation: Simulation) -> tuple[Tensor, Tensor]:
    """The shared model and all personal ones of a run on the made-up classes."""
    theta = simulation.shared()
    assert theta is not None
    return theta, simulation.personal(EVERYONE)


# Per-FedAvg


@runners
@gradients
@pytest.mark.parametrize("weights", ["equal", "size"])
def test_per_fedavg_on_parabolas(runner: Loop | Weave, kind: Any, weights: Any) -> None:
    """After the inner step w~ - m = (1 - alpha h) (w - m), so that a local step is

        w - m <- (1 - beta h (1 - alpha h)) (w - m)        first-order
        w - m <- (1 - beta h (1 - alpha h)^2) (w - m)      with the exact Hessian h

    The difference of gradients is exact on a parabola, whatever delta is. The personal
    model is w~ with the gradient on all data: m + (1 - alpha h) (w - m).
    """
    alpha, beta, steps = 0.15, 0.1, 3
    method = PerFedAvg(
        lr=beta,
        inner_lr=alpha,
        gradient=kind,
        difference=0.2,
        weights=weights,
        batch_size=ALL,
        steps=steps,
    )
    simulation = rounds(weave_of(method, runner), 4)
    power = 1 if kind == "first-order" else 2
    inner = 1 - alpha * CURVATURES
    rate = (1 - beta * CURVATURES * inner**power) ** steps
    w = torch.tensor(START, dtype=torch.float64)
    for _ in range(4):
        w = (WEIGHTS[weights] * (OPTIMA + rate * (w - OPTIMA))).sum()
    assert_exact(shared(simulation), w)
    assert_exact(personal(simulation), OPTIMA + inner * (w - OPTIMA))


@gradients
def test_the_inner_step_of_per_fedavg_keeps_to_alpha(kind: Any) -> None:
    """Weight decay c and the decay gamma^t of the learning rate are the outer step's:

    w <- w - beta gamma^t (G + c w)
    """
    alpha, beta, decay, fading = 0.15, 0.1, 0.3, 0.6
    method = PerFedAvg(
        lr=beta,
        inner_lr=alpha,
        gradient=kind,
        weight_decay=decay,
        lr_decay=fading,
        batch_size=ALL,
        steps=2,
    )
    simulation = rounds(weave_of(method), 3)
    inner = 1 - alpha * CURVATURES
    w = torch.tensor(START, dtype=torch.float64)
    for t in range(3):
        own = w.expand(len(SIZES))
        for _ in range(2):
            outer = slope(own) * inner ** (1 if kind == "first-order" else 2)
            own = own - beta * fading**t * (outer + decay * own)
        w = own.mean()
    assert_exact(shared(simulation), w)
    assert_exact(personal(simulation), w - alpha * slope(w))


@gradients
@pytest.mark.parametrize("inner_lr", [0.0, 0.2])
def test_a_round_of_per_fedavg_is_its_formula_once(kind: Any, inner_lr: float) -> None:
    """Each local step by autograd, on the step's own two or three batches.

    A second pass over the data, as in a known implementation, would not come to this.
    With alpha = 0 it is FedAvg on the batches D'.
    """
    beta, delta = 0.3, 1e-3
    method = PerFedAvg(lr=beta, inner_lr=inner_lr, gradient=kind, batch_size=3)
    simulation = simulation_of(method, Weave(2))
    tally = simulation.run_exchange()
    ends = []
    for client, steps in enumerate([3, 1, 4]):
        w = initial()
        streams = [batches(client, 3, steps, stream=s) for s in range(3)]
        for first, second, third in zip(*streams, strict=True):
            outer = gradient(w - inner_lr * gradient(w, first), second)
            if kind == "hessian-free":
                ahead = gradient(w + delta * outer, third)
                behind = gradient(w - delta * outer, third)
                outer = outer - inner_lr * (ahead - behind) / (2 * delta)
            w = w - beta * outer
        ends.append(w)
    theta, _ = pair(simulation)
    assert_close(theta, torch.stack(ends).mean(0))
    assert tally is not None
    assert tally.steps == 3 + 1 + 4


def test_hessian_free_is_near_the_exact_hessian() -> None:
    """One full-batch step of one client; the difference errs by O(delta^2)."""
    alpha, beta = 0.5, 0.3
    method = PerFedAvg(
        lr=beta, inner_lr=alpha, gradient="hessian-free", batch_size=11, steps=1
    )
    simulation = simulation_of(method)
    simulation.run_exchange()
    w, ends, firsts = initial(), [], []
    for rows in made_up().train:
        outer = gradient(w - alpha * gradient(w, rows), rows)
        hessian = exact_hessian(lambda t, r=rows: by_hand.loss(t, r), w)
        ends.append(w - beta * (outer - alpha * hessian @ outer))
        firsts.append(w - beta * outer)
    exact, first_order = torch.stack(ends).mean(0), torch.stack(firsts).mean(0)
    theta, _ = pair(simulation)
    torch.testing.assert_close(theta, exact, rtol=0, atol=1e-8)
    assert float((theta - first_order).abs().max()) > 1e-3


@gradients
def test_per_fedavg_without_an_inner_step_is_fedavg(kind: Any) -> None:
    settings: dict[str, Any] = {"lr": 0.2, "batch_size": 11, "epochs": 3}
    settings |= {"momentum": 0.5, "weights": "equal"}
    method = PerFedAvg(inner_lr=0.0, gradient=kind, **settings)
    found = pair(rounds(simulation_of(method, PLAIN, rate=0.7), 3))
    expected = pair(rounds(simulation_of(FedAvg(**settings), PLAIN, rate=0.7), 3))
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])


def test_the_personal_model_of_per_fedavg_has_seen_training_data_alone() -> None:
    """w - alpha grad f(w) over the training samples; the test samples may be any."""
    method = PerFedAvg(lr=0.3, inner_lr=0.4, batch_size=3)
    found = []
    for other_tests in (False, True):
        federation = made_up(other_tests=other_tests)
        simulation = rounds(simulation_of(method, Weave(3), federation), 2)
        scores = simulation.evaluate("test").scores[-1]
        found.append((simulation.personal(EVERYONE), scores.values["loss"]))
    assert torch.equal(found[0][0], found[1][0])
    assert (found[0][1] != found[1][1]).all()
    theta, own = pair(simulation)
    for client, rows in enumerate(made_up().train):
        assert_close(own[client], theta - 0.4 * gradient(theta, rows))


# pFedMe


@runners
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"restart": True, "server_mixing": 0.6, "weights": "size"},
        {"server_mixing": 1.5, "weight_decay": 0.2},
    ],
    ids=str,
)
def test_pfedme_on_parabolas(runner: Loop | Weave, settings: dict[str, Any]) -> None:
    """Alg. 1 in the open: K steps on theta, one on w_i, R times; then the server's."""
    eta, inner, pull = 0.1, 0.2, 2.0
    method = PFedMe(
        lr=eta,
        personal_lr=inner,
        pull=pull,
        steps=3,
        inner_steps=4,
        batch_size=ALL,
        **settings,
    )
    simulation = rounds(weave_of(method, runner), 5)
    x, theta = torch.tensor(START, dtype=torch.float64), start()
    for _ in range(5):
        w = x.expand(len(SIZES))
        theta = w if method.restart else theta
        for _ in range(3):
            for _ in range(4):
                decay = method.weight_decay * theta
                theta = theta - inner * (slope(theta) + pull * (theta - w) + decay)
            w = w - eta * pull * (w - theta)
        mean = (WEIGHTS[method.weights] * w).sum()
        x = (1 - method.server_mixing) * x + method.server_mixing * mean
    assert_exact(shared(simulation), x)
    assert_exact(personal(simulation), theta)


def test_many_inner_steps_of_pfedme_solve_the_inner_problem() -> None:
    """The inner optimum is theta*(w) = (h m + lambda w) / (h + lambda), so w_i descends
    the Moreau envelope, a parabola of curvature lambda h / (h + lambda):

        w_i - m <- (1 - eta lambda h / (h + lambda)) (w_i - m)

    The personal model is theta* of the w_i before its last step. It is not w_i.
    """
    eta, pull, steps = 0.1, 3.0, 4
    method = PFedMe(
        lr=eta,
        personal_lr=0.15,
        pull=pull,
        steps=steps,
        inner_steps=120,
        batch_size=ALL,
    )
    simulation = weave_of(method, Weave(4))
    simulation.run_exchange()
    rate = 1 - eta * pull * CURVATURES / (CURVATURES + pull)
    before = OPTIMA + rate ** (steps - 1) * (START - OPTIMA)
    theta = (CURVATURES * OPTIMA + pull * before) / (CURVATURES + pull)
    local = OPTIMA + rate**steps * (START - OPTIMA)
    assert_exact(personal(simulation), theta)
    assert_exact(shared(simulation), local.mean())
    assert float((personal(simulation) - local).abs().min()) > 0.01
    assert simulation.last is not None
    assert_exact(simulation.last.client_log.client_drift, (theta - local).abs())


def test_the_inner_steps_of_pfedme_stay_on_one_batch() -> None:
    eta, inner, pull = 0.02, 0.1, 5.0
    method = PFedMe(
        lr=eta, personal_lr=inner, pull=pull, steps=3, inner_steps=2, batch_size=3
    )
    simulation = simulation_of(method, Weave(2))
    thetas, x = [initial()] * 3, initial()
    for round_ in range(2):
        simulation.run_exchange()
        ends = []
        for client in range(3):
            w, theta = x, thetas[client]
            for rows in batches(client, 3, 3, round_=round_):
                for _ in range(2):
                    pulled = gradient(theta, rows) + pull * (theta - w)
                    theta = theta - inner * pulled
                w = w - eta * pull * (w - theta)
            ends.append(w)
            thetas[client] = theta
        x = torch.stack(ends).mean(0)
    found, own = pair(simulation)
    assert_close(found, x)
    assert_close(own, torch.stack(thetas))


def test_pfedme_with_one_local_round_is_pfedmt_with_one_team() -> None:
    """K team iterations = 1: w = x - eta lambda (x - mean theta), and the shared model
    x - beta gamma (x - w) is pFedMe's with a server mixing of beta gamma.
    """
    lr, pull, team_lr = 0.1, 2.0, 0.2
    pfedmt = PFedMT(
        lr=lr,
        pull=pull,
        team_lr=team_lr,
        team_pull=0.5,
        shared_lr=0.8,
        steps=6,
        team_iterations=1,
        batch_size=ALL,
        weights="equal",
        restart=True,
        device_pull=None,
    )
    pfedme = PFedMe(
        lr=team_lr,
        personal_lr=lr,
        pull=pull,
        inner_steps=6,
        steps=1,
        server_mixing=0.4,
        batch_size=ALL,
        restart=True,
    )
    one, other = rounds(weave_of(pfedme), 4), rounds(weave_of(pfedmt), 4)
    assert_exact(shared(one), shared(other))
    assert_exact(personal(one), personal(other))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr": 0.1}, "lr \\* pull must be at most 1.*0.1 \\* 15 = 1.5"),
        ({"personal_lr": 0.2}, "personal_lr \\* pull must be below 2.*0.2 \\* 15 = 3"),
    ],
)
def test_pfedme_refuses_steps_that_overshoot(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        PFedMe(**settings)


# APFL


@ordinary
@pytest.mark.parametrize("weights", ["size", "equal"])
def test_apfl_without_the_private_model_is_fedavg(
    settings: dict[str, Any], weights: Any
) -> None:
    method = APFL(
        mixing=0.0, adaptive=False, partner="shared", weights=weights, **settings
    )
    apfl = rounds(weave_of(method, PLAIN, rate=0.5), 4)
    fedavg = rounds(
        weave_of(FedAvg(weights=weights, **settings), PLAIN, rate=0.5),
        4,
    )
    assert torch.equal(shared(apfl), shared(fedavg))
    assert torch.equal(personal(apfl), personal(fedavg))


@ordinary
def test_apfl_without_the_shared_model_is_local_training(
    settings: dict[str, Any],
) -> None:
    apfl = rounds(
        weave_of(APFL(mixing=1.0, adaptive=False, **settings), PLAIN),
        3,
    )
    local = rounds(weave_of(Local(**settings), PLAIN), 3)
    assert torch.equal(personal(apfl), personal(local))


@ordinary
def test_the_shared_model_of_apfl_is_that_of_fedavg(settings: dict[str, Any]) -> None:
    apfl = rounds(weave_of(APFL(**settings), PLAIN), 3)
    fedavg = rounds(weave_of(FedAvg(**settings), PLAIN), 3)
    assert torch.equal(shared(apfl), shared(fedavg))


@runners
@pytest.mark.parametrize("partner", ["own", "shared"])
def test_apfl_mixes_alpha_and_one_minus_alpha(
    runner: Loop | Weave, partner: Any
) -> None:
    """In the open, with alpha v + beta w; right for beta = 1 - alpha, not for alpha."""
    lr, alpha, steps = 0.1, 0.3, 2
    method = APFL(
        lr=lr,
        mixing=alpha,
        adaptive=False,
        partner=partner,
        batch_size=ALL,
        epochs=steps,
    )
    simulation = rounds(weave_of(method, runner), 4)

    def mixed(beta: float) -> Tensor:
        x, v = torch.tensor(START, dtype=torch.float64), start()
        for _ in range(4):
            w = x.expand(len(SIZES))
            for _ in range(steps):
                w = w - lr * slope(w)
                v = v - lr * alpha * slope(alpha * v + beta * w)
            x = (SHARES * w).sum()
        return alpha * v + beta * (w if partner == "own" else x)

    assert_exact(personal(simulation), mixed(1 - alpha))
    assert float((personal(simulation) - mixed(alpha)).abs().max()) > 0.1


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_apfl_learns_its_mixing_in_the_first_step_of_a_round(decay: float) -> None:
    """All of it by autograd: alpha descends f(alpha v + (1 - alpha) w), decayed lr."""
    lr, fading = 0.4, 0.7
    method = APFL(lr=lr, lr_decay=fading, mixing_decay=decay, batch_size=3)
    simulation = simulation_of(method, Weave(2))
    x = initial()
    privates, alphas = [x] * 3, [torch.tensor(0.5, dtype=torch.float64)] * 3
    sizes = torch.tensor(by_hand.TRAIN, dtype=torch.float64)
    for round_ in range(3):
        simulation.run_exchange()
        pace, ends = lr * fading**round_, []
        for client, steps in enumerate([3, 1, 4]):
            w, v, alpha = x, privates[client], alphas[client]
            for step, rows in enumerate(batches(client, 3, steps, round_=round_)):
                w = w - pace * gradient(w, rows)
                a = alpha.clone().requires_grad_()
                mixture = by_hand.loss(a * v + (1 - a) * w, rows)
                (derivative,) = torch.autograd.grad(mixture, a)
                v = v - pace * alpha * gradient(alpha * v + (1 - alpha) * w, rows)
                if step == 0:
                    moved = alpha - pace * (derivative + decay * alpha)
                    alpha = moved.clamp(0, 1)
            ends.append(w)
            privates[client], alphas[client] = v, alpha
        x = (sizes / sizes.sum()) @ torch.stack(ends)
    theta, own = pair(simulation)
    mixing = torch.stack(alphas)
    assert simulation.last is not None
    assert_close(simulation.last.client_log.mixing, mixing)
    assert float((mixing - 0.5).abs().min()) > 1e-3
    assert_close(theta, x)
    private, local = torch.stack(privates), torch.stack(ends)
    assert_close(own, mixing[:, None] * private + (1 - mixing[:, None]) * local)


def test_the_mixing_of_apfl_stays_between_0_and_1() -> None:
    """Pulled by far more than 1 toward 0 it stops there, and then is as FedAvg."""
    method = APFL(lr=0.3, mixing_decay=20.0, batch_size=ALL)
    simulation = rounds(weave_of(method, PLAIN), 3)
    assert simulation.last is not None
    assert simulation.last.client_log.mixing.tolist() == [0.0] * len(SIZES)
    fixed = APFL(lr=0.3, mixing=0.0, adaptive=False, batch_size=ALL)
    assert torch.equal(
        personal(simulation),
        personal(rounds(weave_of(fixed, PLAIN), 3)),
    )


def test_a_client_that_apfl_never_met_has_the_shared_model() -> None:
    simulation = rounds(weave_of(APFL(lr=0.1), rate=0.25), 2)
    unseen = ~simulation.clients.memory.seen
    assert unseen.any()
    assert_exact(
        personal(simulation)[unseen], shared(simulation).expand(int(unseen.sum()))
    )
