"""What a run has spent: values that were worked out elsewhere, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import pytest

from fedloom.core.errors import ConfigError
from fedloom.privacy import Privacy, accounting
from fedloom.privacy.accounting import (
    Accountant,
    gaussian_delta,
    gaussian_epsilon,
    mechanism_of,
    noise_for,
)

ONE_TO_ONE = Privacy(noise=1.0, delta=1e-4)


def accountant(privacy: Privacy, *, rate: float, kind: str = "fixed") -> Accountant:
    return Accountant(
        mechanism_of(privacy, clients=1000, rate=rate, kind=kind, releases=1)
    )


@pytest.mark.parametrize(
    ("kind", "rate", "expected"),
    [("poisson", 0.1, 5.97), ("fixed", 0.1, 81.6), ("fixed", 1.0, 86.3)],
)
def test_a_hundred_rounds_cost_what_they_are_known_to(
    kind: str, rate: float, expected: float
) -> None:
    """1000 clients, noise = clip, delta 1e-4, cohorts secret."""
    privacy = Privacy(noise=1.0, delta=1e-4, cohorts="secret")
    spent = accountant(privacy, rate=rate, kind=kind).foreseen(100)
    assert spent == pytest.approx(expected, rel=1e-3)


def test_known_cohorts_cost_as_much_as_everybody() -> None:
    known = accountant(ONE_TO_ONE, rate=0.1, kind="poisson")
    assert known.epsilon(100) == accountant(ONE_TO_ONE, rate=1.0).epsilon(100)


def test_many_gaussians_are_one_of_less_noise() -> None:
    """dp-accounting composes them one by one; the closed form is exact."""
    dp = pytest.importorskip("dp_accounting")
    pld = pytest.importorskip("dp_accounting.pld")
    other = pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    other.compose(dp.GaussianDpEvent(4.0), 30)
    privacy = Privacy(noise=4.0, delta=1e-5)
    spent = accountant(privacy, rate=1.0).epsilon(30)
    assert spent == pytest.approx(other.get_epsilon(1e-5), rel=0.01)


@pytest.mark.parametrize(
    ("cohorts", "epsilon"),
    [
        ("known", 0.5),
        ("known", 4.0),
        ("known", 40.0),
        pytest.param("secret", 4.0, marks=pytest.mark.slow),
    ],
)
def test_the_noise_for_an_epsilon_is_the_least_that_keeps_it(
    cohorts: Literal["known", "secret"], epsilon: float
) -> None:
    privacy = Privacy(noise=1.0, delta=1e-4, cohorts=cohorts)
    mechanism = mechanism_of(
        privacy, clients=1000, rate=0.1, kind="poisson", releases=1
    )
    noise = noise_for(mechanism, 30, epsilon)
    enough, less = (
        Accountant(replace(mechanism, noise=z)).foreseen(30)
        for z in (noise, 0.99 * noise)
    )
    assert enough <= epsilon < less


@pytest.mark.parametrize("noise", [0.02, 0.5, 1.0, 10.0, 1000.0])
def test_epsilon_of_a_gaussian_is_where_its_delta_is(noise: float) -> None:
    epsilon = gaussian_epsilon(noise, 1e-5)
    assert math.isfinite(epsilon)
    if epsilon:
        assert gaussian_delta(noise, epsilon) == pytest.approx(1e-5, rel=1e-3)
    else:
        assert gaussian_delta(noise, 0.0) <= 1e-5


def test_spending_round_by_round_is_spending_at_once() -> None:
    privacy = Privacy(noise=2.0, delta=1e-4, cohorts="secret")
    step_by_step = accountant(privacy, rate=0.1, kind="poisson")
    spent = [step_by_step.epsilon(n) for n in range(4)]
    assert spent == sorted(spent)
    assert spent[0] == 0.0
    at_once = accountant(privacy, rate=0.1, kind="poisson").foreseen(3)
    assert spent[3] == pytest.approx(at_once, rel=1e-3)


def test_a_round_is_accounted_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger asks for all rounds after every round: thousands would take minutes."""
    asked: list[float] = []

    def counted(noise: float, delta: float) -> float:
        asked.append(noise)
        return gaussian_epsilon(noise, delta)

    monkeypatch.setattr(accounting, "gaussian_epsilon", counted)
    known = accountant(ONE_TO_ONE, rate=1.0)
    for rounds in range(1, 21):
        assert len([known.epsilon(n) for n in range(1, rounds + 1)]) == rounds
    assert len(asked) == 20


def test_exchanges_of_a_round_share_its_cohort() -> None:
    def spent(releases: float, noise: float) -> float:
        privacy = Privacy(noise=noise, delta=1e-4)
        made = mechanism_of(
            privacy, clients=10, rate=1.0, kind="fixed", releases=releases
        )
        return Accountant(made).epsilon(5)

    assert spent(4, 2.0) == pytest.approx(spent(1, 1.0))


def test_an_upload_that_hides_alone_needs_twice_the_noise() -> None:
    local = Privacy(noise=2.0, delta=1e-4, at="local")
    assert accountant(local, rate=0.1).epsilon(7) == pytest.approx(
        accountant(ONE_TO_ONE, rate=1.0).epsilon(7)
    )


def test_cohorts_that_are_drawn_again_are_refused() -> None:
    with pytest.raises(ConfigError, match='kind = "poisson"'):
        accountant(ONE_TO_ONE, rate=0.1, kind="bernoulli")
