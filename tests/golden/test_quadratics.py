"""Local, FedAvg, FedProx and Ditto on parabolas, solved by hand; see quadratic.py."""

from __future__ import annotations

import pytest
import torch
from quadratic import (
    CURVATURES,
    OPTIMA,
    SHARES,
    SIZES,
    START,
    assert_exact,
    parabolas,
    personal,
    rounds,
    shared,
    weave_of,
)
from torch import Tensor

from fedloom.algorithms import Ditto, FedAvg, FedProx, Local
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave

ALL = max(SIZES)
"""A batch size that every client's data fit into."""
EQUAL = torch.full((len(SIZES),), 1.0 / len(SIZES), dtype=torch.float64)

runners = pytest.mark.parametrize("runner", [Loop(), Weave(3)], ids=["loop", "weave"])


def test_the_hand_computed_gradient_is_the_gradient() -> None:
    """h_k and m_k of quadratic.py against the mean of the losses themselves.

    F_k(theta) = mean (a theta - z)^2 is a parabola; its second difference is h_k and
    its slope vanishes at m_k.
    """
    federation = parabolas()
    x, z = federation.dataset.inputs[0][:, 0], federation.dataset.targets
    for n, rows in enumerate(federation.train):
        a, b = x[rows], z[rows]

        def loss(theta: Tensor, a: Tensor = a, b: Tensor = b) -> Tensor:
            return (a * theta - b).square().mean()

        m, one = OPTIMA[n], 1.0
        assert_exact(loss(m + one) - loss(m - one), torch.zeros_like(m))
        assert_exact(loss(m + one) + loss(m - one) - 2 * loss(m), CURVATURES[n])


@runners
def test_local_training_approaches_each_optimum_geometrically(
    runner: Loop | Weave,
) -> None:
    """T rounds of E full-batch steps are T E affine steps from theta_0:

    v_k = m_k + (1 - eta h_k)^(T E) (theta_0 - m_k)
    """
    simulation = rounds(weave_of(Local(lr=0.1, batch_size=ALL, epochs=3), runner), 4)
    rate = (1 - 0.1 * CURVATURES) ** 12
    assert_exact(personal(simulation), OPTIMA + rate * (START - OPTIMA))


@runners
def test_the_learning_rate_decays_from_round_to_round(runner: Loop | Weave) -> None:
    """In round t the step is eta gamma^t, so after T rounds of E steps

    v_k = m_k + prod_t (1 - eta gamma^t h_k)^E (theta_0 - m_k)
    """
    method = Local(lr=0.2, batch_size=ALL, epochs=2, lr_decay=0.7)
    simulation = rounds(weave_of(method, runner), 5)
    rate = torch.ones_like(CURVATURES)
    for t in range(5):
        rate = rate * (1 - 0.2 * 0.7**t * CURVATURES) ** 2
    assert_exact(personal(simulation), OPTIMA + rate * (START - OPTIMA))


@runners
def test_one_round_of_fedavg(runner: Loop | Weave) -> None:
    """Every client takes E affine steps from w, then p_k-weighted averaging:

    w' = sum_k p_k [m_k + (1 - eta h_k)^E (w - m_k)]
    """
    simulation = rounds(weave_of(FedAvg(lr=0.1, batch_size=ALL, epochs=3), runner), 1)
    rate = (1 - 0.1 * CURVATURES) ** 3
    expected = (SHARES * (OPTIMA + rate * (START - OPTIMA))).sum()
    assert_exact(shared(simulation), expected)
    assert_exact(personal(simulation), expected.expand(len(SIZES)))


@pytest.mark.parametrize(
    ("weights", "shares"), [("size", SHARES), ("equal", EQUAL)], ids=["size", "equal"]
)
def test_the_fixed_point_of_fedavg(weights: str, shares: Tensor) -> None:
    """With c_k = 1 - (1 - eta h_k)^E, the way of client k, a round is

        w' = w + sum_k p_k c_k (m_k - w)

    which rests where w* = sum p_k c_k m_k / sum p_k c_k: for E > 1 and unequal
    curvatures not the minimum of sum p_k F_k, FedAvg's well-known bias.
    """
    method = FedAvg(lr=0.2, batch_size=ALL, epochs=3, weights=weights)  # type: ignore[arg-type]
    simulation = rounds(weave_of(method, Weave(len(SIZES))), 60)
    way = 1 - (1 - 0.2 * CURVATURES) ** 3
    rest = (shares * way * OPTIMA).sum() / (shares * way).sum()
    minimum = (shares * CURVATURES * OPTIMA).sum() / (shares * CURVATURES).sum()
    assert_exact(shared(simulation), rest)
    assert abs(float(rest - minimum)) > 1e-3


def test_one_step_of_fedavg_is_gradient_descent_on_the_weighted_sum() -> None:
    """With E = 1 a round is w' = w - eta sum_k p_k h_k (w - m_k).

    Its fixed point is the minimum of sum p_k F_k, w* = sum p_k h_k m_k / sum p_k h_k,
    and after T rounds w = w* + (1 - eta sum p_k h_k)^T (theta_0 - w*).
    """
    simulation = rounds(weave_of(FedAvg(lr=0.1, batch_size=ALL)), 7)
    slope = (SHARES * CURVATURES).sum()
    minimum = (SHARES * CURVATURES * OPTIMA).sum() / slope
    expected = minimum + (1 - 0.1 * slope) ** 7 * (START - minimum)
    assert_exact(shared(simulation), expected)


def prox(w: Tensor, pull: float, lr: float, steps: int, start: Tensor) -> Tensor:
    """E steps on F_k + pull/2 (theta - w)^2 from `start`; one row per client.

    The gradient is (h_k + pull)(theta - q_k) with q_k = (h_k m_k + pull w)/(h_k +
    pull), so E steps leave (1 - lr (h_k + pull))^E of the way from q_k.
    """
    steep = CURVATURES + pull
    middle = (CURVATURES * OPTIMA + pull * w) / steep
    return middle + (1 - lr * steep) ** steps * (start - middle)


@runners
def test_one_round_of_fedprox(runner: Loop | Weave) -> None:
    """The mean of the inexact proximal solutions of `prox`, each begun at w."""
    method = FedProx(lr=0.1, batch_size=ALL, epochs=3, pull=0.7)
    simulation = rounds(weave_of(method, runner), 1)
    start = torch.tensor(START, dtype=torch.float64)
    expected = (SHARES * prox(start, 0.7, 0.1, 3, start)).sum()
    assert_exact(shared(simulation), expected)


def test_the_fixed_point_of_fedprox() -> None:
    """By `prox` a client goes from w to w + b_k (m_k - w) with

        b_k = (1 - (1 - eta (h_k + mu))^E) h_k / (h_k + mu)

    so the server rests at w* = sum p_k b_k m_k / sum p_k b_k.
    """
    lr, pull, steps = 0.15, 0.7, 4
    method = FedProx(lr=lr, batch_size=ALL, epochs=steps, pull=pull)
    simulation = rounds(weave_of(method, Weave(len(SIZES))), 80)
    steep = CURVATURES + pull
    way = (1 - (1 - lr * steep) ** steps) * CURVATURES / steep
    rest = (SHARES * way * OPTIMA).sum() / (SHARES * way).sum()
    assert_exact(shared(simulation), rest)


@runners
@pytest.mark.parametrize("personal_lr", [None, 0.25])
def test_the_coupled_recursion_of_ditto(
    runner: Loop | Weave, personal_lr: float | None
) -> None:
    """w^t is FedAvg's and knows nothing of the v_k. In round t, with w^t held still,

        v_k <- q_k + (1 - eta_p (h_k + lambda))^E (v_k - q_k),
        q_k = (h_k m_k + lambda w^t) / (h_k + lambda)

    v_k starts at w^0 = theta_0, since every client is met in the first round.
    """
    lr, pull, steps = 0.1, 0.6, 2
    method = Ditto(
        lr=lr, personal_lr=personal_lr, pull=pull, batch_size=ALL, epochs=steps
    )
    simulation = rounds(weave_of(method, runner), 5)
    w = torch.tensor(START, dtype=torch.float64)
    v = w.expand(len(SIZES))
    for _ in range(5):
        v = prox(w, pull, personal_lr or lr, steps, v)
        w = (SHARES * prox(w, 0.0, lr, steps, w)).sum()
    assert_exact(shared(simulation), w)
    assert_exact(personal(simulation), v)


def test_ditto_rests_between_own_and_shared_optimum() -> None:
    """At rest v_k = (h_k m_k + lambda w*) / (h_k + lambda), w* FedAvg's fixed point."""
    lr, pull, steps = 0.2, 0.6, 3
    method = Ditto(lr=lr, pull=pull, batch_size=ALL, epochs=steps)
    simulation = rounds(weave_of(method, Weave(len(SIZES))), 60)
    way = 1 - (1 - lr * CURVATURES) ** steps
    rest = (SHARES * way * OPTIMA).sum() / (SHARES * way).sum()
    expected = (CURVATURES * OPTIMA + pull * rest) / (CURVATURES + pull)
    assert_exact(personal(simulation), expected)


def test_the_training_loss_of_a_round_is_the_mean_over_its_steps() -> None:
    """F_k(theta) = F_k(m_k) + h_k / 2 (theta - m_k)^2, met once before each step."""
    simulation = weave_of(Local(lr=0.1, batch_size=ALL, epochs=2))
    tally = simulation.run_exchange()
    federation = parabolas()
    targets = federation.dataset.targets
    met = []
    for n, rows in enumerate(federation.train):
        least = targets[rows].var(correction=0)
        for step in range(2):
            off = (1 - 0.1 * CURVATURES[n]) ** step * (START - OPTIMA[n])
            met.append(least + CURVATURES[n] / 2 * off**2)
    assert tally is not None
    assert tally.steps == 2 * len(SIZES)
    assert tally.loss == pytest.approx(float(torch.stack(met).mean()), rel=1e-10)
