"""Statistics over seeds: by hand, and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedloom.results.statistics import (
    accuracy_error,
    choose_round,
    holm,
    is_better,
    over_clients,
    over_seeds,
    rank_correlation,
    share_interval,
)

numbers = st.lists(st.floats(-100, 100), min_size=3, max_size=12)


def test_mean_and_interval_of_three_seeds_by_hand() -> None:
    """Of 1, 2, 3: mean 2, standard deviation 1, error 1/sqrt(3), t(2) 4.302653."""
    estimate = over_seeds([1.0, 2.0, 3.0])
    assert estimate.mean == 2.0
    assert estimate.error == pytest.approx(1 / math.sqrt(3), abs=1e-15)
    assert estimate.high == pytest.approx(
        2 + 4.302652729911275 / math.sqrt(3), abs=1e-10
    )
    assert estimate.low == pytest.approx(4 - estimate.high, abs=1e-12)
    assert estimate.count == 3


def test_one_seed_has_a_mean_and_no_interval() -> None:
    estimate = over_seeds([0.7])
    assert (estimate.mean, estimate.count) == (0.7, 1)
    assert math.isnan(estimate.error)
    assert not estimate.has_interval


def test_seeds_that_did_not_finish_are_left_out_and_not_counted() -> None:
    # As text: from Python 3.13 on, records with a number that is none differ.
    assert str(over_seeds([1.0, math.nan, 3.0])) == str(over_seeds([1.0, 3.0]))
    assert over_seeds([math.nan]).count == 0


@given(numbers)
def test_the_interval_is_that_of_scipy(values: list[float]) -> None:
    estimate = over_seeds(values)
    error = stats.sem(values)
    if error > 0:
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), error)
        assert estimate.low == pytest.approx(low, abs=1e-8)
        assert estimate.high == pytest.approx(high, abs=1e-8)


def test_the_bootstrap_of_two_clients_spans_both() -> None:
    """A mean of two draws is the lower with 1/4, the higher with 1/4, else between."""
    estimate = over_clients([0.2, 0.6])
    assert (estimate.low, estimate.high) == (0.2, 0.6)
    assert estimate.mean == pytest.approx(0.4)


def test_the_bootstrap_agrees_with_scipy_and_is_the_same_every_time() -> None:
    values = np.random.default_rng(3).exponential(size=60)
    estimate = over_clients(values)
    assert estimate == over_clients(values)
    expected = stats.bootstrap(
        (values,), np.mean, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert estimate.low == pytest.approx(expected.low, abs=0.02)
    assert estimate.high == pytest.approx(expected.high, abs=0.02)


def test_holm_by_hand() -> None:
    """Of 0.01, 0.04, 0.03: 3 x 0.01, 2 x 0.03, and 0.04 not below the one before."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06], abs=1e-15)
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]).shape == (0,)


def test_holm_does_not_count_what_could_not_be_tested() -> None:
    adjusted = holm([0.02, math.nan, 0.03])
    assert adjusted[[0, 2]] == pytest.approx([0.04, 0.04])
    assert math.isnan(adjusted[1])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_keeps_the_order_and_lies_between_p_and_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    order = np.argsort(p)
    assert (np.diff(adjusted[order]) >= 0).all()
    assert (adjusted >= np.array(p) - 1e-15).all()
    assert (adjusted <= np.minimum(1.0, np.array(p) * len(p)) + 1e-12).all()


def test_the_chosen_round_is_the_earliest_of_the_best_and_never_a_nan() -> None:
    scores = {0: 0.1, 5: 0.8, 10: 0.8, 15: math.nan}
    assert choose_round(scores, "accuracy") == 5
    assert choose_round(scores, "mse") == 0
    assert choose_round({3: math.nan}, "accuracy") is None


def test_less_is_better_for_errors_only() -> None:
    assert is_better(0.2, 0.1, "accuracy")
    assert is_better(0.1, 0.2, "mse")
    assert not is_better(0.1, 0.1, "mse")
    assert not is_better(math.nan, 0.1, "auc")


def test_a_client_with_all_of_few_samples_right_is_not_certain() -> None:
    """3 of 3 right: (3 + 2) / (3 + 4) = 5/7, error sqrt(5/7 x 2/7 / 7)."""
    errors = accuracy_error(np.array([1.0, 0.5]), np.array([3.0, 100.0]))
    assert errors[0] == pytest.approx(math.sqrt(10 / 49 / 7), abs=1e-12)
    assert errors[1] == pytest.approx(math.sqrt(0.25 / 104), abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3))
def test_the_rank_correlation_is_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    x, y = np.array(pairs).T
    rho = rank_correlation(x, y)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert math.isnan(rho)
    else:
        assert rho == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


@given(st.integers(0, 30), st.integers(1, 30))
def test_the_interval_of_a_share_is_wilsons(right: int, wrong: int) -> None:
    count = right + wrong
    low, high = share_interval(right / count, count)
    expected = stats.binomtest(right, count).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_interval_of_all_right_does_not_end_before_1() -> None:
    low, high = share_interval(1.0, 5)
    assert (low < 0.6, high) == (True, 1.0)
