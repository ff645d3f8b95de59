"""Axes: round ticks, and ranges that a few outliers do not ruin."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedloom.reports.axes import Scale, axis, fair_axis, fair_range, nice_ticks

PERCENT = Scale("accuracy, %", str, (0.0, 1.0), "percent")
ERROR = Scale("mse", str, (0.0, None))


def test_ticks_are_round_and_few() -> None:
    assert nice_ticks(0.0, 1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert axis([3.0, 3000.0], 0, 1, is_log=True).ticks() == pytest.approx(
        [10, 100, 1000]
    )
    for low, high in ((0.0, 97.0), (-4.0, 101.0), (0.871, 0.879), (1e5, 9e8)):
        assert 2 <= len(nice_ticks(low, high)) <= 8
    assert len(nice_ticks(0.046, 0.054, most=3)) >= 2
    assert len(axis([2.79e-4, 2.88e-4], 0, 1, is_log=True, pad=0).ticks()) >= 2


def test_a_range_holds_all_methods_where_none_is_far_from_the_others() -> None:
    assert fair_range([[0.5, 0.6], [0.7, 0.8], [0.3]]) == (0.3, 0.8)
    assert fair_range([[0.1], [0.9]]) == (0.1, 0.9)
    assert fair_range([[0.5], [0.5], [0.5], [0.9]]) == (0.5, 0.9)
    assert fair_range([]) == (0.0, 1.0)


@pytest.mark.parametrize("outliers", [1, 2, 4])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_few_methods_that_would_squash_all_others_are_left_out(
    outliers: int, sign: float
) -> None:
    usual = [[0.90 + 0.01 * n, 0.91 + 0.01 * n] for n in range(10 - outliers)]
    far = [[sign * 1000.0]] * outliers
    low, high = fair_range([*usual, *far])
    assert (low, high) == (0.90, usual[-1][1])


def test_half_of_the_methods_are_never_left_out() -> None:
    values = [[0.0], [0.1], [900.0], [901.0]]
    assert fair_range(values) == (0.0, 901.0)


def test_single_clients_do_not_ruin_the_range_of_a_method() -> None:
    draw = np.random.default_rng(0)
    clients = [*draw.normal(size=30), -4000.0]
    low, high = fair_range([clients])
    assert -5 < low < high < 5


def test_errors_of_very_different_size_get_a_log_axis_and_shares_never() -> None:
    wide = [[0.01, 0.02], [1.0], [30.0]]
    assert fair_axis(wide, 0, 100, ERROR).is_log
    assert not fair_axis(wide, 0, 100, PERCENT).is_log
    assert not fair_axis([[0.5], [0.9]], 0, 100, ERROR).is_log
    diverged = fair_axis([[0.1], [0.2], [9.0], [1e30]], 0, 100, ERROR)
    assert diverged.is_log
    assert diverged.high < 20
    assert diverged.side(1e30) == 1


def test_an_axis_knows_what_lies_outside_and_where_it_would_be() -> None:
    x = fair_axis([[0.90], [0.92], [0.93], [0.1]], 0, 100, PERCENT)
    assert [x.side(v) for v in (0.1, 0.9, 0.93, 2.0)] == [-1, 0, 0, 1]
    assert x.at(0.1) < -1000
    for value in (1e308, -1e308):
        assert abs(x.at(value)) < 1e33


def test_zero_is_on_an_axis_of_gains_whatever_they_are() -> None:
    x = fair_axis([[3.0, 4.0]], 0, 100, Scale("gain", str), zero=0.0)
    assert x.side(0.0) == 0


def test_the_script_of_the_page_is_told_what_it_needs() -> None:
    x = fair_axis([[0.2, 0.8]], 20, 300, PERCENT)
    told = json.loads(x.for_script("x", (5, 90), PERCENT, zero=None))
    assert told["bounds"] == [0.0, 1.0]
    assert (told["start"], told["end"], told["along"]) == (20, 300, "x")
    assert told["low"] == pytest.approx(x.low)
