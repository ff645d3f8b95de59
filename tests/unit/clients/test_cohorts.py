from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.clients import Sampling
from fedloom.core.errors import ConfigError


@settings(deadline=None, max_examples=100)
@given(
    rate=st.floats(1e-9, 1.0),
    kind=st.sampled_from(["fixed", "bernoulli"]),
    population=st.integers(2, 500),
    seed=st.integers(0, 99),
    round=st.integers(0, 99),
)
def test_a_cohort_is_sorted_distinct_and_repeatable(
    rate: float, kind: str, population: int, seed: int, round: int
) -> None:
    sampling = Sampling(rate=rate, kind=kind)  # type: ignore[arg-type]
    cohort = sampling.draw(population, seed, round)
    assert cohort.dtype == np.int64
    assert (np.diff(cohort) > 0).all()
    assert 0 <= cohort[0] <= cohort[-1] < population
    assert len(cohort) >= (2 if kind == "bernoulli" else 1)
    assert cohort.tolist() == sampling.draw(population, seed, round).tolist()


@pytest.mark.parametrize(
    ("rate", "population", "size"),
    [(0.29, 100, 29), (0.1, 20, 2), (0.1, 5, 1), (0.25, 10, 2), (1.0, 7, 7)],
)
def test_a_fixed_cohort_has_the_floor_of_its_share(
    rate: float, population: int, size: int
) -> None:
    assert len(Sampling(rate=rate).draw(population, 0, 0)) == size


def test_rounds_and_seeds_differ() -> None:
    sampling = Sampling(rate=0.1)
    drawn = [
        tuple(sampling.draw(200, seed, round)) for seed in (0, 1) for round in (0, 1)
    ]
    assert len(set(drawn)) == 4


def test_protocol_does_not_change_the_cohort() -> None:
    one = Sampling(rate=0.3).draw(50, 0, 4)
    other = Sampling(rate=0.3, protocol="train-all").draw(50, 0, 4)
    assert one.tolist() == other.tolist()


@pytest.mark.parametrize("kind", ["fixed", "bernoulli"])
def test_every_client_is_drawn_at_its_rate(kind: str) -> None:
    sampling = Sampling(rate=0.3, kind=kind)  # type: ignore[arg-type]
    times = np.zeros(20)
    for round in range(2000):
        times[sampling.draw(20, 0, round)] += 1
    np.testing.assert_allclose(times / 2000, 0.3, atol=0.05)


def test_bernoulli_sizes_vary_as_a_binomial() -> None:
    sampling = Sampling(rate=0.5, kind="bernoulli")
    sizes = [len(sampling.draw(100, 0, round)) for round in range(1000)]
    assert np.var(sizes) == pytest.approx(25, rel=0.2)


def test_too_few_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs at least 2 clients, found 1"):
        Sampling(kind="bernoulli").draw(1, 0, 0)
    with pytest.raises(ConfigError, match="at least 1 clients, found 0"):
        Sampling().draw(0, 0, 0)
    with pytest.raises(ConfigError, match="rate must be a number above 0"):
        Sampling(rate=0.0)


@pytest.mark.parametrize("kind", ["fixed", "bernoulli"])
def test_the_cost_does_not_grow_with_the_population(kind: str) -> None:
    population = 10**12
    sampling = Sampling(rate=100 / population, kind=kind)  # type: ignore[arg-type]
    start = time.perf_counter()
    assert 20 < len(sampling.draw(population, 0, 0)) < 200
    assert time.perf_counter() - start < 1.0
