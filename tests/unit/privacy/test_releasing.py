"""Noise of totals: the same for the same release, and other noise for every other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from survivors import SMALL

import fedloom
from fedloom.config import parse
from fedloom.core.algorithm import Cohort
from fedloom.plan import make_clients, make_plan
from fedloom.privacy import private
from fedloom.privacy.private import Private

LENGTH = 50


def cohort_of(*clients: int) -> Cohort:
    plan = make_plan(*make_clients(parse(SMALL)))
    return plan.simulation.coordinator.cohort(torch.tensor(clients))


def noise_of(
    secret: Path, total: float, cohort: Cohort, weight: float = 0.0, **settings: Any
) -> torch.Tensor:
    """What a release adds to a total, in multiples of its standard deviation."""
    chosen = {"noise": 2.0, "clip": 0.5, "delta": 1e-5, "secret": str(secret)}
    method = private(fedloom.FedAvg(), **{**chosen, **settings})
    assert isinstance(method, Private)
    assert method.release is not None
    before = torch.full((LENGTH,), total, dtype=torch.float64)
    record = method.summand_record(before, torch.tensor(weight, dtype=torch.float64))
    found, spread = method.release(record, cohort)
    return (found.shared - before) / spread.shared


def test_the_same_release_has_the_same_noise(tmp_path: Path) -> None:
    cohort = cohort_of(0, 1)
    first, again = (noise_of(tmp_path / "secret", 1.0, cohort) for _ in range(2))
    assert torch.equal(first, again)


def test_no_two_releases_have_the_same_noise(tmp_path: Path) -> None:
    """Or their difference would have none, whatever differs between two runs."""
    secret, cohort = tmp_path / "secret", cohort_of(0, 1)
    other_seed = replace(cohort, population=replace(cohort.population, seed=77))
    noises = [
        noise_of(secret, 1.0, cohort),
        noise_of(secret, 1.0 + 1e-15, cohort),
        noise_of(secret, 1.0, cohort, weight=1.0),
        noise_of(secret, 1.0, cohort_of(0, 2)),
        noise_of(secret, 1.0, replace(cohort, round=1)),
        noise_of(secret, 1.0, replace(cohort, exchange=1)),
        noise_of(secret, 1.0, other_seed),
        noise_of(secret, 1.0, cohort, noise=3.0),
        noise_of(secret, 1.0, cohort, clip=0.6),
        noise_of(tmp_path / "another", 1.0, cohort),
    ]
    for n, one in enumerate(noises):
        for other in noises[:n]:
            # Of independent draws, (one - other)^2 is 2 on average.
            assert float((one - other).square().mean()) > 0.5


def test_parts_of_noise_that_are_too_few_steps_are_refused() -> None:
    """Sums of them would be no Gaussian: nothing would be left after rounding."""
    of_clients = {"at": "clients", "delta": 1e-6, "noise": 0.5, "bits": 8}
    private(fedloom.FedAvg(), least_clients=1000, **of_clients)
    with pytest.raises(fedloom.ConfigError, match=r"0\.29 steps .* Raise privacy.bits"):
        private(fedloom.FedAvg(), least_clients=50_000, **of_clients)


@pytest.mark.parametrize("noise", [{"noise": 1.0, "delta": 1e-5}, {"noise": 0.0}])
def test_a_clip_needs_weights_that_have_a_bound(noise: dict[str, float]) -> None:
    with pytest.raises(fedloom.ConfigError, match="most_samples must be a number"):
        private(fedloom.FedAvg(), clip=1.0, most_samples=None, **noise)
