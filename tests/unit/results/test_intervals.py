from __future__ import annotations

import numpy as np
import pytest

from fedloom.core.errors import ConfigError
from fedloom.results import intervals
from fedloom.results.by_size import by_size
from fedloom.results.intervals import bootstrap


def test_the_interval_of_many_clients_is_about_the_normal_one() -> None:
    values = np.random.default_rng(0).normal(0.7, 0.1, size=400)
    found = bootstrap(values)
    error = values.std() / np.sqrt(400)
    assert found.mean == pytest.approx(values.mean(), abs=1e-14)
    assert found.low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert found.high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


def test_a_higher_level_gives_a_wider_interval() -> None:
    values = np.random.default_rng(1).random(30)
    narrow, wide = bootstrap(values, level=0.5), bootstrap(values, level=0.99)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_the_interval_depends_on_values_and_seed_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(2).random(30)
    first = bootstrap(values, seed=3)
    np.random.default_rng(0).random(5)
    assert bootstrap(values, seed=3) == first
    assert bootstrap(values, seed=4) != first
    monkeypatch.setattr(intervals, "_DRAWS", 100)  # the same draws, block by block
    assert bootstrap(values, seed=3) == pytest.approx(first, abs=1e-14)


def test_clients_without_a_number_are_left_out_and_counted_out() -> None:
    known = np.array([0.2, 0.4, 0.9])
    with_gap = np.array([0.2, np.nan, 0.4, 0.9])
    assert bootstrap(with_gap) == bootstrap(known)
    assert bootstrap(with_gap).clients == 3
    assert bootstrap(np.array([0.5, 0.5]))[:3] == (0.5, 0.5, 0.5)
    assert np.isnan(bootstrap(np.array([np.nan])).mean)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_outside_0_to_1_is_refused(level: float) -> None:
    with pytest.raises(ConfigError, match=f"level must be above 0.*found {level}"):
        bootstrap(np.ones(3), level=level)


def test_clients_are_grouped_by_size_into_equal_groups() -> None:
    sizes = np.array([10, 1, 7, 3, 8, 2])
    values = np.array([1.0, 0.1, 0.7, 0.3, 0.8, 0.2])
    found = by_size(sizes, values, bins=3)
    assert found.clients.tolist() == [2, 2, 2]
    np.testing.assert_allclose(found.sizes, [1.5, 5, 9], rtol=1e-14)
    np.testing.assert_allclose(found.scores, [0.15, 0.5, 0.9], rtol=1e-14)
    np.testing.assert_allclose(found.errors, [0.05, 0.2, 0.1], rtol=1e-12)
    assert len(str(found).splitlines()) == 4


def test_clients_of_equal_size_stay_together_and_nan_is_left_out() -> None:
    sizes = np.array([5, 5, 5, 9, 9])
    values = np.array([0.0, 1.0, np.nan, 0.5, 0.7])
    found = by_size(sizes, values, bins=4)
    assert found.sizes.tolist() == [5, 9]
    assert found.clients.tolist() == [2, 2]
    np.testing.assert_allclose(found.scores, [0.5, 0.6], rtol=1e-14)


def test_a_group_of_one_has_no_error_and_no_group_is_refused() -> None:
    found = by_size(np.array([1, 2]), np.array([0.5, 0.6]), bins=2)
    assert np.isnan(found.errors).all()
    assert by_size(np.array([1]), np.array([np.nan])).clients.tolist() == []
    with pytest.raises(ConfigError, match="bins must be at least 1, found 0"):
        by_size(np.array([1]), np.array([0.5]), bins=0)
