from __future__ import annotations

import math

import numpy as np
import pytest

from fedloom.audit.epsilon import lower_bound, p_value


def test_guessing_shows_nothing() -> None:
    assert lower_bound(32, 16, delta=0.0, level=0.95) == 0.0
    assert lower_bound(0, 0, delta=0.0, level=0.95) == 0.0


def test_all_right_is_what_a_binomial_with_one_outcome_says() -> None:
    # All of n right has the chance p^n, which is 1 - level at the bound.
    share = 0.05 ** (1 / 32)
    expected = math.log(share / (1 - share))
    assert lower_bound(32, 32, delta=0.0, level=0.95) == pytest.approx(
        expected, abs=1e-3
    )


def test_one_coin_is_the_test_of_two_worlds() -> None:
    assert lower_bound(1, 1, delta=0.0, level=0.95) == 0.0


def test_delta_lowers_the_bound_and_more_guesses_raise_it() -> None:
    without = lower_bound(32, 30, delta=0.0, level=0.95)
    assert lower_bound(32, 30, delta=1e-3, level=0.95) < without
    assert lower_bound(64, 60, delta=0.0, level=0.95) > without


def test_p_value_adds_what_delta_may_add() -> None:
    # By hand for two coins, both right, epsilon 0: B is Binomial(2, 1/2), so that
    # beta = 1/4, P[2 > B >= 1] / 1 = 1/2, P[2 > B >= 0] / 2 = 3/8, and alpha = 1/2.
    assert p_value(2, 2, 2, 0.0, 0.01) == pytest.approx(0.25 + 2 * 2 * 0.01 * 0.5)


def test_the_bound_holds_as_often_as_it_says() -> None:
    # Randomised response is the mechanism for which the theorem is tight.
    epsilon, coins, draw = 1.0, 40, np.random.default_rng(0)
    right = draw.binomial(coins, math.exp(epsilon) / (1 + math.exp(epsilon)), 300)
    known = {
        v: lower_bound(coins, v, delta=0.0, level=0.95) for v in set(right.tolist())
    }
    above = np.mean([known[v] > epsilon for v in right.tolist()])
    assert 0.0 < above <= 0.07
