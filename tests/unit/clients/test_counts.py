from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.clients.counts import apportion, floor_share, round_share


@pytest.mark.parametrize(
    ("share", "count", "expected"),
    [(0.29, 100, 29), (0.1, 20, 2), (0.1, 19, 1), (1 / 3, 30, 10), (0.7, 10, 7)],
)
def test_a_floor_is_the_one_meant(share: float, count: int, expected: int) -> None:
    assert floor_share(share, count) == expected


@given(percent=st.integers(0, 100), count=st.integers(0, 10**7))
def test_the_floor_of_a_percentage_is_exact(percent: int, count: int) -> None:
    assert floor_share(percent / 100, count) == percent * count // 100


@given(percent=st.integers(0, 100), count=st.integers(0, 10**6))
def test_a_half_is_rounded_up(percent: int, count: int) -> None:
    assert round_share(percent / 100, count) == (2 * percent * count + 100) // 200


@given(
    weights=st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=30),
    rest=st.integers(0, 10**6),
    least=st.integers(0, 5),
)
def test_what_is_divided_adds_up(weights: list[float], rest: int, least: int) -> None:
    total = rest + least * len(weights)
    counts = apportion(total, np.array(weights), least=least)
    assert counts.sum() == total
    assert counts.min() >= least
    exact = least + rest * np.array(weights) / sum(weights)
    assert np.abs(counts - exact).max() <= 1 + 1e-6
