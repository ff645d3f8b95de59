"""Held-out observations with a known truth: who is right is a matter of chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from fedloom.results.observations import Numbers, Observations

SHARE = 0.2
"""Share of a client's samples that a seed tests on, where samples may return."""


@dataclass(frozen=True)
class World:
    """Tiny, unequal clients; methods that are right and wrong together.

    A model is right of a sample if its skill (of the method, the client and the seed)
    exceeds the sample's difficulty and some noise, all normal. So the truth is known.
    """

    clients: int = 12
    smallest: int = 8
    largest: int = 60
    seeds: int = 5
    gains: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    """Skill of each method above training alone."""
    level: float = 0.8
    """Accuracy of training alone, about."""
    seed_skill: float = 0.05
    """How much skill differs from seed to seed."""
    own: float = 0.4
    """Noise of a single model, against difficulty's 1; less makes methods alike."""
    is_folded: bool = False
    """Whether every sample is tested in one seed, or at random in several."""

    def draw(self, number: int) -> tuple[Observations, Numbers, Numbers]:
        """Observations, and the true scores of the methods and of training alone."""
        rng = np.random.default_rng(number)
        sizes = np.geomspace(self.smallest, self.largest, self.clients).astype(int)
        holder = np.repeat(np.arange(self.clients), sizes)
        difficulty = rng.normal(size=len(holder))
        skill = norm.ppf(self.level) * 1.2 + rng.normal(0, 0.5, self.clients)
        gains = np.array([0.0, *self.gains])
        by_seed = rng.normal(0, self.seed_skill, (len(gains), self.seeds))
        lasting = rng.normal(0, self.own, (len(gains), len(holder)))
        order = np.lexsort((rng.random(len(holder)), holder))
        fold = np.empty(len(holder), dtype=int)
        fold[order] = np.arange(len(holder)) % self.seeds
        rows, seeds, values = [], [], []
        for seed in range(self.seeds):
            if self.is_folded:
                row = np.flatnonzero(fold == seed)
            else:
                row = np.flatnonzero(rng.random(len(holder)) < SHARE)
            total = skill[holder[row]] + gains[:, None] + by_seed[:, seed, None]
            total = (
                total + lasting[:, row] + rng.normal(0, self.own, lasting[:, row].shape)
            )
            values.append((total > difficulty[row]).astype(float))
            rows.append(row)
            seeds.append(np.full(len(row), seed))
        scores = np.concatenate(values, axis=1)
        row = np.concatenate(rows)
        observations = Observations(
            methods=tuple(f"m{n}" for n in range(len(self.gains))),
            seeds=np.concatenate(seeds),
            rows=row,
            clients=holder[row],
            is_test=np.ones(len(row), dtype=bool),
            values=scores[1:],
            alone=np.repeat(scores[:1], len(self.gains), axis=0),
        )
        spread = math.sqrt(1 + 2 * self.own**2)
        at = skill[None, :, None] + gains[:, None, None] + by_seed[:, None, :]
        truth = norm.cdf(at / spread).mean(axis=(1, 2))
        return observations, truth[1:], truth[:1].repeat(len(self.gains))
