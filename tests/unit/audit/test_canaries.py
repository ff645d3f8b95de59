from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
import pytest
import small_runs
import torch

import fedloom
from fedloom.audit import AuditSettings, open_subject
from fedloom.audit.canaries import Trail, bound_epsilon, plant, shares_of, threshold
from fedloom.core import streams
from fedloom.core.errors import ConfigError


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_without_noise_planted_clients_are_found(tmp_path: Path, name: str) -> None:
    method = fedloom.REGISTRY[name](lr=0.1)
    subject = small_runs.trained(tmp_path, method, small_runs.clients(12), rounds=2)
    found = bound_epsilon(subject, 24, seed=0)
    assert (found.clients, found.runs) == (24, 4)
    assert found.epsilon > 1.0


def test_a_way_that_follows_nobody_gives_nobody_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = fedloom.FedAvg(lr=0.1)
    subject = small_runs.trained(tmp_path, method, small_runs.clients(12), rounds=2)
    draw, task = np.random.default_rng(0), subject.simulation.task

    def anything(trail: Trail) -> torch.Tensor:
        return torch.from_numpy(draw.normal(size=task.d))

    monkeypatch.setattr(Trail, "_model", anything)
    found = bound_epsilon(subject, 24, seed=0)
    assert found.epsilon < 0.3


def test_planted_clients_hold_features_of_others_and_targets_that_there_are() -> None:
    federation = small_runs.clients(6)
    plants = plant(federation, 3, seed=0, run=0)
    assert plants.federation.count == 9
    assert len(set(plants.federation.names)) == 9
    assert plants.federation.sizes[6:].tolist() == [10] * 3
    rows = plants.federation.train.indices[plants.federation.train.offsets[6] :]
    values = plants.federation.dataset.inputs[0][rows]
    known = federation.dataset.inputs[0][federation.train.indices]
    for column in range(known.shape[1]):
        assert set(values[:, column].tolist()) <= set(known[:, column].tolist())
    assert not any((known == row).all(1).any() for row in values)


def test_half_of_many_coins_fall_on_each_side() -> None:
    coins = plant(small_runs.clients(200, 4), 100, seed=0, run=0).coins
    assert 30 < coins.sum() < 70


def test_planted_clients_are_half_of_the_others_at_most() -> None:
    assert shares_of(32, 20) == [8, 8, 8, 8]
    assert shares_of(7, 6) == [3, 2, 2]
    assert shares_of(2, 1) == [1, 1]


def test_threshold_parts_two_groups() -> None:
    assert 1.0 < threshold(np.array([0.1, 0.2, 5.0, 0.0, 5.2])) < 5.0
    assert threshold(np.array([3.0])) == 0.0


def test_settings_that_leave_nothing_to_do_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 4, found 3"):
        AuditSettings(references=3)
    with pytest.raises(ConfigError, match="nothing is left to do"):
        AuditSettings(references=0, canaries=0, batch=0)


@dataclass(frozen=True, kw_only=True)
class NoisyFedAvg(fedloom.FedAvg):
    """FedAvg whose server adds Gaussian noise to a sum of bounded uploads."""

    name: ClassVar[str] = "noisy-fedavg"
    noise: float = 1.0
    """Standard deviation, in multiples of the bound."""

    def aggregate(self, server: Any, uploads: Any, cohort: Any) -> Any:
        bound, everyone = 0.5, cohort.population
        moved = uploads.shared - server.shared
        moved = moved * (bound / moved.norm(dim=1, keepdim=True)).clamp(max=1.0)
        draw = streams.generator(everyone.seed, "noise", cohort.round)
        noise = torch.from_numpy(draw.normal(size=moved.shape[1])).to(moved.dtype)
        total = moved.sum(0) + self.noise * bound * noise
        return server._replace(shared=server.shared + total / everyone.count)


def gaussian_epsilon(noise: float, rounds: int, delta: float) -> float:
    """Of so many Gaussian releases (Balle and Wang 2018, theorem 8)."""
    mean, normal = math.sqrt(rounds) / noise, NormalDist().cdf

    def at(epsilon: float) -> float:
        first = normal(mean / 2 - epsilon / mean)
        return first - math.exp(epsilon) * normal(-mean / 2 - epsilon / mean) - delta

    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle) > 0 else (low, middle)
    return high


@pytest.mark.parametrize(("noise", "least"), [(4.0, 0.0), (1.0, 0.0), (0.2, 0.8)])
def test_the_bound_never_exceeds_the_epsilon_of_a_private_run(
    tmp_path: Path, noise: float, least: float
) -> None:
    method = NoisyFedAvg(lr=0.5, noise=noise)
    federation = small_runs.clients(12)
    fedloom.run(
        method, "mlr", federation, rounds=3, out=tmp_path / "run", progress=False
    )
    subject = open_subject(tmp_path / "run", "mlr", federation, algorithm=method)
    epsilon = gaussian_epsilon(noise, 3, 1e-5)
    for seed in range(3):
        found = bound_epsilon(subject, 24, seed=seed)
        assert least <= found.epsilon <= epsilon
