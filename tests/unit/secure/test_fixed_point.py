from __future__ import annotations

import math

import numpy as np
import pytest

from fedloom.core.errors import ConfigError
from fedloom.core.secure_sums import SecureSums
from fedloom.secure.fixed_point import FixedPoint


def test_a_sum_is_off_by_less_than_a_step_for_each_client() -> None:
    draw = np.random.default_rng(0)
    bound = np.repeat([16.0, 1.0], 500)
    values = draw.uniform(-1, 1, (10, 1000)) * bound
    values[0] = bound  # the ends and the middle themselves
    values[1], values[2] = -bound, 0.0
    code = FixedPoint(20, bound)
    total = np.zeros(1000, np.uint32)
    for n, row in enumerate(values):
        total += code.encode(row, bytes([n]) * 32)
    error = np.abs(code.decode(total) - values.sum(0))
    assert (error < 10 * code.step).all()
    assert error.max() > 0


def test_rounding_is_right_on_average() -> None:
    values = np.full(40_000, 0.3)
    code = FixedPoint(4, np.ones(40_000))
    rounded = code.decode(code.encode(values, bytes(32)))
    assert set(np.unique(np.round(rounded * 7))) == {2.0, 3.0}
    assert abs(rounded.mean() - 0.3) < 5 * code.step[0] * 0.5 / math.sqrt(40_000)


def test_zero_stays_zero_and_the_largest_sum_fits() -> None:
    bound = np.ones(3)
    for clients in (2, 3, 10, 1000, 4096):
        bits = SecureSums().bits_for(clients)
        assert clients * 2**bits < 2**32
        assert bits == 30 or clients * 2 ** (bits + 1) >= 2**32
        code = FixedPoint(bits, bound)
        one = code.encode(np.array([1.0, -1.0, 0.0]), bytes(32))
        total = (one.astype(np.uint64) * clients).astype(np.uint32)
        assert code.decode(total).tolist() == pytest.approx([clients, -clients, 0])


def test_sums_that_could_overflow_are_refused_with_the_figure() -> None:
    assert SecureSums(bits=20).bits_for(4095) == 20
    with pytest.raises(
        ConfigError, match=r"4096 clients.*4294967296.*Lower bits to 19"
    ):
        SecureSums(bits=20).bits_for(4096)


def test_the_threshold_is_more_than_half_and_no_total_is_over_too_few() -> None:
    assert [SecureSums().needed(n) for n in (4, 5, 10, 100)] == [3, 4, 7, 70]
    assert SecureSums(threshold=0.5).needed(10) == 6
    assert SecureSums(threshold=1.0).needed(10) == 10
    with pytest.raises(ConfigError, match=r"sum of 2 clients.*at least 3"):
        SecureSums().needed(2)
    assert SecureSums(fewest=2).needed(2) == 2
