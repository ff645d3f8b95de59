"""FedAMP and HeurFedAMP: weights by hand, the proximal term on parabolas.

Three models in the plane, a = (0, 0), b = (1, 0), c = (0, 2), are apart by the squares

    ab 1    ac 4    bc 5

whose median is 4, while their distances are 1, 2 and sqrt(5). With sigma = 2,
A'(y) = exp(-y / 2) / 2.

On parabolas, F has the gradient h (w - m). A full step of size eta down
F + c / 2 (w - u)^2, c = lambda / alpha, is affine with the fixed point
w* = (h m + c u) / (h + c), so that k steps from u come to

    w* + (1 - eta (h + c))^k (u - w*)
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from quadratic import (
    CURVATURES,
    OPTIMA,
    START,
    assert_exact,
    personal,
    rounds,
    weave_of,
)
from torch import Tensor, nn

from fedloom.algorithms import FedAMP, HeurFedAMP, Local, fedamp, heurfedamp
from fedloom.core.algorithm import Cohort, Population
from fedloom.core.client_models import (
    Mixture,
    mixed,
    squared_distances,
)
from fedloom.core.errors import ConfigError
from fedloom.core.task import Task
from fedloom.engine.weave import Weave


def f64(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


ABC = f64([0.0, 0.0], [1.0, 0.0], [0.0, 2.0])
SQUARES = f64([0.0, 1.0, 4.0], [1.0, 0.0, 5.0], [4.0, 5.0, 0.0])


def cohort_of(*clients: int, count: int = 3) -> Cohort:
    task = Task(nn.Linear(1, 1), dtype=torch.float64)
    everyone = torch.ones(count, dtype=torch.float64)
    who = torch.tensor(clients)
    return Cohort(
        clients=who,
        sizes=everyone[who],
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


def attentive(method: FedAMP, models: Tensor = ABC, known: Any = True) -> fedamp.Server:
    """The server after everybody, or those named, uploaded these models."""
    clients = by_angles(models, known)
    return fedamp.Server(*clients, method._width(clients))


def by_angles(models: Tensor, known: Any = True) -> heurfedamp.Server:
    """The same for HeurFedAMP."""
    full = torch.tensor(known).expand(len(models))
    mean = models[full].mean(0) if full.any() else torch.zeros_like(models[0])
    return heurfedamp.Server(models, full, mean)


def clouds(method: Any, server: Any, cohort: Cohort) -> Tensor:
    """u_i of clients that have the models that the server has of them."""
    down = method.download(server, cohort).record
    mix = torch.func.vmap(lambda others, share, own: mixed(Mixture(others, share), own))
    means: Tensor = mix(*down, server.models[cohort.clients])
    return means


def weights(method: FedAMP, server: fedamp.Server, cohort: Cohort) -> Tensor:
    """xi, as recorded; it must be what the means are made of."""
    log = method.download(server, cohort).log
    assert_exact(clouds(method, server, cohort), log.weights @ server.models)
    count = len(cohort.clients)
    assert_exact(log.weights.sum(1), torch.ones(count).double())
    own = log.weights[torch.arange(count), cohort.clients]
    assert torch.equal(log.self_weight, own)
    return log.weights


def by_hand(alpha: float, sigma: float, squares: Tensor = SQUARES) -> Tensor:
    """xi for small alpha: alpha A'(||w_i - w_j||^2), and on the diagonal the rest."""
    others = alpha * torch.exp(-squares / sigma) / sigma
    others.fill_diagonal_(0.0)
    return others + torch.diag(1.0 - others.sum(1))


def test_the_attention_of_three_clients_by_hand() -> None:
    method = FedAMP(width=2.0, server_lr=0.5)
    found = weights(method, attentive(method), cohort_of(0, 1, 2))
    assert_exact(found, by_hand(0.5, 2.0))
    ab, ac = math.exp(-0.5) / 4, math.exp(-2.0) / 4
    assert_exact(found[0], f64(1 - ab - ac, ab, ac))


def test_attention_is_by_the_squared_distance_not_the_distance() -> None:
    method = FedAMP(width=2.0, server_lr=0.5)
    found = weights(method, attentive(method), cohort_of(0, 1, 2))
    ratio = float(found[0, 1] / found[0, 2])
    assert ratio == pytest.approx(math.exp((4 - 1) / 2), rel=1e-12)
    assert ratio != pytest.approx(math.exp((2 - 1) / 2), rel=0.1)


def test_the_others_weights_are_scaled_down_to_sum_to_one() -> None:
    """With alpha = 8, those of a and b would sum to 3.0 and 2.8, that of c to 0.87."""
    method = FedAMP(width=2.0, server_lr=8.0)
    found = weights(method, attentive(method), cohort_of(0, 1, 2))
    ab, ac, bc = (math.exp(-y / 2) for y in (1.0, 4.0, 5.0))
    assert 4 * (ab + ac) > 1
    assert 4 * (ab + bc) > 1
    assert 4 * (ac + bc) < 1
    assert_exact(found[0], f64(0.0, ab, ac) / (ab + ac))
    assert_exact(found[1], f64(ab, 0.0, bc) / (ab + bc))
    assert_exact(found[2], f64(4 * ac, 4 * bc, 1 - 4 * (ac + bc)))


def test_the_width_can_be_the_median_squared_distance() -> None:
    method = FedAMP(server_lr=0.5)
    server = attentive(method)
    assert_exact(server.width, f64(4.0)[0])
    found = weights(method, server, cohort_of(0, 1, 2))
    assert_exact(found, by_hand(0.5, 4.0))
    # Ten times as far apart, the same attention but for the factor 1 / sigma.
    far = attentive(method, 10.0 * ABC)
    assert_exact(far.width, f64(400.0)[0])
    stretched = replace(method, server_lr=50.0)
    assert_exact(weights(stretched, far, cohort_of(0, 1, 2)), found)


def test_the_median_is_taken_among_those_who_took_part() -> None:
    method = FedAMP()
    assert_exact(attentive(method, known=[True, False, True]).width, f64(4.0)[0])
    assert_exact(attentive(method, known=[True, True, False]).width, f64(1.0)[0])
    assert_exact(attentive(method, known=[True, False, False]).width, f64(1.0)[0])


@pytest.mark.parametrize("method", [FedAMP(), FedAMP(width=1e-9), HeurFedAMP()])
def test_equal_models_stay_where_they_are(method: Any) -> None:
    models = f64(1.0, -2.0, 0.5).repeat(4, 1)
    cohort = cohort_of(0, 1, 2, 3, count=4)
    is_by_distance = isinstance(method, FedAMP)
    server = attentive(method, models) if is_by_distance else by_angles(models)
    torch.testing.assert_close(
        clouds(method, server, cohort), models, rtol=0, atol=1e-12
    )


def test_nobody_attends_to_a_client_that_was_never_here() -> None:
    method = FedAMP(width=2.0, server_lr=0.5)
    server = attentive(method, known=[True, False, True])
    found = weights(method, server, cohort_of(0, 1, 2))
    assert not found[[0, 2], 1].any()
    assert_exact(found[0, 2], f64(math.exp(-2.0) / 4)[0])
    # b, new here, goes on from its own model, or from the mean of the others.
    assert_exact(found[1], f64(0.0, 1.0, 0.0))
    down = method.download(server, cohort_of(0, 1, 2)).record
    assert_exact(down.others[1], ABC[[0, 2]].mean(0))
    alone = attentive(method, known=False)
    assert torch.equal(clouds(method, alone, cohort_of(2, 0)), ABC[[2, 0]])


def test_a_mean_does_not_depend_on_who_else_is_in_the_cohort() -> None:
    method = FedAMP(server_lr=0.7)
    server = attentive(method)
    all_three = clouds(method, server, cohort_of(2, 0, 1))
    alone = clouds(method, server, cohort_of(0))
    assert_exact(alone[0], all_three[1])


def test_small_differences_of_long_models_are_seen_in_single_precision() -> None:
    """Lengths of 1000 and distances of 0.01: inner products alone would see noise."""
    offsets = 0.01 * ABC.float()
    models = torch.full((3, 2), 700.0) + offsets
    exact = torch.cdist(models.double(), models.double()).square()
    found = squared_distances(models, models, models.mean(0))
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-10)


def test_the_angles_of_three_clients_by_hand() -> None:
    """(1, 0), (3, 4) and (0, 2) have the cosines 0.6, 0 and 0.8."""
    models = f64([1.0, 0.0], [3.0, 4.0], [0.0, 2.0])
    server = by_angles(models)
    method = HeurFedAMP(self_weight=0.3, sharpness=5.0)
    cohort = cohort_of(0, 1, 2)
    found = method.download(server, cohort).log.weights
    ab, ac, bc = (math.exp(5.0 * cosine) for cosine in (0.6, 0.0, 0.8))
    assert_exact(found[0], f64(0.3, 0.7 * ab / (ab + ac), 0.7 * ac / (ab + ac)))
    assert_exact(found[1], f64(0.7 * ab / (ab + bc), 0.3, 0.7 * bc / (ab + bc)))
    assert_exact(found[2], f64(0.7 * ac / (ac + bc), 0.7 * bc / (ac + bc), 0.3))
    assert_exact(clouds(method, server, cohort), found @ models)


def test_angles_to_nobody_leave_a_client_its_own_model() -> None:
    models = f64([1.0, 0.0], [3.0, 4.0], [0.0, 2.0])
    known = [False, True, False]
    method = HeurFedAMP(self_weight=0.0)
    down = method.download(by_angles(models, known), cohort_of(0, 1)).record
    # Only b is known: a, if it has no model, starts from b, and b from itself.
    assert_exact(down.own_share, f64(1.0, 1.0))
    assert_exact(down.others, models[[1, 1]])
    zeros = by_angles(torch.zeros_like(models), [True, False, True])
    assert not clouds(HeurFedAMP(), zeros, cohort_of(0, 1, 2)).any()


def proximal(u: Tensor, eta: float, c: float, k: int) -> Tensor:
    """Where k full steps from u come to on the parabolas."""
    best = (CURVATURES * OPTIMA + c * u) / (CURVATURES + c)
    return best + (1.0 - eta * (CURVATURES + c)) ** k * (u - best)


@pytest.mark.parametrize(
    "method",
    [
        FedAMP(width=0.5, server_lr=0.2, pull=0.3, lr=0.1, steps=4, batch_size=10),
        HeurFedAMP(pull=1.5, lr=0.1, steps=4, batch_size=10, self_weight=0.25),
    ],
)
def test_two_rounds_on_parabolas_by_hand(method: Any) -> None:
    """Four steps from the start, then four from the means of the models they gave."""
    w = proximal(f64(*[START] * 4), 0.1, 1.5, 4)
    if isinstance(method, FedAMP):
        squares = (w[:, None] - w).square()
        xi = by_hand(0.2, 0.5, squares)
        assert (xi > 0).all()
    else:
        # All models are positive numbers, so that all cosines are 1.
        assert (w > 0).all()
        xi = torch.full((4, 4), 0.25, dtype=torch.float64)
    simulation = rounds(weave_of(method), 1)
    assert_exact(personal(simulation), w)
    assert_exact(personal(rounds(simulation, 1)), proximal(xi @ w, 0.1, 1.5, 4))


@pytest.mark.parametrize("kind", [FedAMP, HeurFedAMP])
def test_the_pull_changes_training_and_a_strong_one_holds_a_client(kind: Any) -> None:
    """A pull whose gradient is lost would train as if it were 0."""
    common: dict[str, Any] = {"lr": 1e-4, "steps": 30, "batch_size": 10}
    free, held = (
        rounds(weave_of(kind(pull=pull, **common)), 1) for pull in (0.0, 5000.0)
    )
    u = f64(*[START] * 4)
    moved = (personal(free) - u).abs()
    assert_exact(personal(free), proximal(u, 1e-4, 0.0, 30))
    assert_exact(personal(held), proximal(u, 1e-4, 5000.0, 30))
    assert ((personal(held) - u).abs() < 0.2 * moved).all()
    again = rounds(held, 1)
    cohort = again.coordinator.cohort(torch.arange(4))
    cloud = clouds(again.algorithm, again.state.server, cohort)[:, 0]
    after = personal(rounds(again, 1))
    torch.testing.assert_close(after, cloud, rtol=0, atol=5e-3)


@pytest.mark.parametrize(
    "method", [FedAMP(pull=0.0, width=1e-9), HeurFedAMP(pull=0.0, self_weight=1.0)]
)
def test_without_pull_and_attention_it_is_local_training(method: Any) -> None:
    ordinary: dict[str, Any] = {"lr": 0.1, "batch_size": 3, "momentum": 0.9}
    method = replace(method, epochs=2, weight_decay=0.1, **ordinary)
    found = rounds(weave_of(method, Weave(3)), 4)
    local = Local(epochs=2, weight_decay=0.1, **ordinary)
    assert_exact(personal(found), personal(rounds(weave_of(local), 4)))


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (FedAMP, {"width": 0.0}, "width"),
        (FedAMP, {"width": "mean"}, "width must be a number above 0 or one of median"),
        (FedAMP, {"server_lr": 0.0}, "server_lr"),
        (FedAMP, {"server_lr": 0.001}, r"0\.05 \* 0\.1 / 0\.001 = 5\. Lower"),
        (HeurFedAMP, {"self_weight": 1.5}, "self_weight"),
        (HeurFedAMP, {"pull": 20.0}, r"lr \* pull must be below 1"),
    ],
)
def test_bad_settings_are_refused(kind: Any, settings: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        kind(**settings)
