"""Held-out observations with a known truth: who is right is a matter of chance.

A world without groups draws what it drew before there were any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
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
    tests: Literal["folds", "drawn", "last"] = "drawn"
    """Whether every sample is tested in one seed, at random in several, or the same
    ones in every seed."""
    group_sizes: tuple[int, ...] = ()
    """Samples of groups that are tested together, which take turns; none without."""
    common: float = 0.8
    """Share of the variance of difficulty and noise that is common to a group."""

    def draw(self, number: int) -> tuple[Observations, Numbers, Numbers]:
        """Observations, and the true scores of the methods and of training alone."""
        rng = np.random.default_rng(number)
        sizes = np.geomspace(self.smallest, self.largest, self.clients).astype(int)
        holder = np.repeat(np.arange(self.clients), sizes)
        group = self._groups(sizes)
        difficulty = self._normal(rng, group, 1)[0]
        skill = norm.ppf(self.level) * 1.2 + rng.normal(0, 0.5, self.clients)
        gains = np.array([0.0, *self.gains])
        by_seed = rng.normal(0, self.seed_skill, (len(gains), self.seeds))
        lasting = self.own * self._normal(rng, group, len(gains))
        home = np.zeros(group.max() + 1, dtype=int)
        home[group] = holder
        order = np.lexsort((rng.random(len(home)), home))
        fold = np.empty(len(home), dtype=int)
        fold[order] = np.arange(len(home)) % self.seeds
        last = np.unique(home, return_index=True)[1]
        rank = np.arange(len(home)) - last[home]
        rows, seeds, values = [], [], []
        for seed in range(self.seeds):
            if self.tests == "drawn":
                is_tested = rng.random(len(home)) < SHARE
            elif self.tests == "folds":
                is_tested = fold == seed
            else:
                is_tested = rank < np.maximum(1, SHARE * np.bincount(home))[home]
            row = np.flatnonzero(is_tested[group])
            total = skill[holder[row]] + gains[:, None] + by_seed[:, seed, None]
            passing = self.own * self._normal(rng, group[row], len(gains))
            total = total + lasting[:, row] + passing
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
            groups=group[row] if self.group_sizes else None,
        )
        spread = math.sqrt(1 + 2 * self.own**2)
        at = skill[None, :, None] + gains[:, None, None] + by_seed[:, None, :]
        truth = norm.cdf(at / spread).mean(axis=(1, 2))
        return observations, truth[1:], truth[:1].repeat(len(self.gains))

    def _groups(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """(N,) group of each sample; every one its own without groups."""
        if not self.group_sizes:
            return np.arange(sizes.sum())
        groups, count = [], 0
        for size in sizes.tolist():
            lengths = np.resize(self.group_sizes, size)
            own = np.repeat(np.arange(size), lengths)[:size]
            groups.append(count + own)
            count += own[-1] + 1
        return np.concatenate(groups)

    def _normal(
        self, rng: np.random.Generator, group: NDArray[np.int64], count: int
    ) -> Numbers:
        """(count, N) standard normal numbers, those of a group alike."""
        own = rng.normal(size=(count, len(group)))
        if not self.group_sizes:
            return own
        of_group = rng.normal(size=(count, group.max(initial=0) + 1))[:, group]
        return math.sqrt(self.common) * of_group + math.sqrt(1 - self.common) * own
