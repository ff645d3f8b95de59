"""Held-out observations of all methods, and what their means are made of.

An observation is what the models of one seed say of one sample of one client. All
methods meet the same ones, and so does training alone with each method's work. A score
is the mean over clients of the mean over a client's observations. It is linear in them,
so how sure it is, and how sure any difference of two scores is, follows from what every
observation adds to it: its weight times its residual. These parts are summed by sample,
for a sample that returns in several seeds is one piece of news and not several, and by
seed, for what is luck of one training is luck of all its clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Observations:
    """What all methods said of the same held-out samples.

    Whoever has no single samples to look at gives one observation per client and seed,
    the client's score, with the client's number as the sample's.
    """

    methods: tuple[str, ...]
    seeds: Codes
    """(N,) which seed an observation is of."""
    rows: Codes
    """(N,) which sample; the same number is the same sample in every seed."""
    clients: Codes
    """(N,) which client; a client that is made anew by every seed has a number for
    each of them."""
    is_test: NDArray[np.bool_]
    """(N,) test data, which scores and gains are read from; others help to choose."""
    values: Numbers
    """(K, N) score of each method; nan where a method has no run of that seed."""
    alone: Numbers
    """(K, N) score of training alone with as much work as each method took; nan where
    that is not known."""

    @cached_property
    def has_same_clients(self) -> bool:
        """Whether clients return in other seeds; then their seeds are taken together.

        Otherwise a score is the mean over the clients of each seed, then over seeds.
        """
        if len(np.unique(self.seeds)) < 2:
            return True
        _, client = np.unique(self.clients, return_inverse=True)
        low, high = self.seeds.copy(), self.seeds.copy()
        np.minimum.at(low_of := np.full(client.max() + 1, low.max()), client, low)
        np.maximum.at(high_of := np.full(client.max() + 1, high.min()), client, high)
        return bool((low_of < high_of).any())

    def test(self) -> Observations:
        """Those on test data alone; all of them if there are no test data."""
        if self.is_test.all() or not self.is_test.any():
            return self
        kept = self.is_test
        return Observations(
            self.methods,
            self.seeds[kept],
            self.rows[kept],
            self.clients[kept],
            kept[kept],
            self.values[:, kept],
            self.alone[:, kept],
        )


@dataclass(frozen=True, eq=False)
class Design:
    """How observations hang together: by sample, client and seed."""

    row: Codes
    """(N,) place of the sample among all samples."""
    client: Codes
    """(N,) place of the client among all clients."""
    seed: Codes
    """(N,) place of the seed among all seeds."""
    home: Codes
    """(R,) the client that each sample counts for."""
    clients: int
    """How many there are."""
    has_same_clients: bool
    _weighings: dict[bytes, _Weighing] = field(default_factory=dict)

    @classmethod
    def of(cls, observations: Observations) -> Design:
        """That of some observations."""
        _, row = np.unique(observations.rows, return_inverse=True)
        names, client = np.unique(observations.clients, return_inverse=True)
        _, seed = np.unique(observations.seeds, return_inverse=True)
        home = np.zeros(row.max(initial=-1) + 1, dtype=np.int64)
        home[row] = client
        is_same = observations.has_same_clients
        return cls(row, client, seed, home, len(names), is_same)

    @property
    def group(self) -> Codes:
        """(N,) what is averaged last: all, or seeds where each has its own clients."""
        return np.zeros_like(self.seed) if self.has_same_clients else self.seed

    def mean(self, values: Numbers) -> Mean:
        """The mean over clients of (N,) values, and what each of them adds to it.

        Values that are not finite are left out.
        """
        known = np.isfinite(values)
        used = self._weighing(known)
        y = np.where(known, values, 0.0)
        mean = float(used.weight @ y)
        own = np.bincount(self.client, y, minlength=len(used.count)) / used.count
        centre = np.where(used.is_single, mean, own)
        part = used.weight * used.correction * (y - centre[self.client])
        # What a seed adds: about the client's mean where it is the same in all seeds.
        about = own[self.client] if self.has_same_clients else mean
        return Mean(mean, part, used.weight * (y - about), used.weight)

    def _weighing(self, known: NDArray[np.bool_]) -> _Weighing:
        key = known.tobytes()
        if key not in self._weighings:
            self._weighings[key] = self._weigh(known)
        return self._weighings[key]

    def _weigh(self, known: NDArray[np.bool_]) -> _Weighing:
        client, group = self.client[known], self.group[known]
        count = np.bincount(client, minlength=self.clients)
        group_of = np.zeros(self.clients, dtype=np.int64)
        group_of[client] = group
        in_group = np.bincount(group_of[count > 0])
        weight = np.zeros(len(known))
        weight[known] = 1.0 / (
            (in_group > 0).sum() * in_group[group] * count[client]
        )
        base = len(self.home) + 1
        cells, times = np.unique(client * base + self.row[known], return_counts=True)
        holder = cells // base
        # How much of a client's mean a sample is, squared and summed: 1 / samples where
        # all return as often. Variances divided by what is left are unbiased.
        share = np.bincount(holder, (times / count[holder]) ** 2, self.clients)
        is_single = np.bincount(holder, minlength=self.clients) == 1
        # Clients with a single sample have no spread of their own: one crowd of them.
        share[is_single] = 1.0 / max(int(is_single.sum()), 2)
        correction = np.sqrt(1.0 / (1.0 - share))[self.client]
        return _Weighing(weight, correction, np.maximum(count, 1), is_single)


@dataclass(frozen=True, eq=False)
class _Weighing:
    """How much each of some observations counts."""

    weight: Numbers
    """(N,) 0 for those that are left out."""
    correction: Numbers
    """(N,) what a residual is multiplied by, so that variances are unbiased."""
    count: Codes
    """(C,) observations of each client, at least 1."""
    is_single: NDArray[np.bool_]
    """(C,) clients with a single sample."""


@dataclass(frozen=True, eq=False)
class Mean:
    """A mean over clients, or a difference of such, and what it is made of."""

    value: float
    part: Numbers
    """(N,) what each observation adds to its error."""
    seed_part: Numbers
    """(N,) what each adds to the error of its seed."""
    weight: Numbers
    """(N,) how much each counts."""

    def by_row(self, design: Design) -> Numbers:
        """(R,) what each sample adds to its error, over all seeds together."""
        return np.bincount(design.row, self.part, minlength=len(design.home))

    def minus(self, other: Mean) -> Mean:
        """Their difference."""
        return Mean(
            self.value - other.value,
            self.part - other.part,
            self.seed_part - other.seed_part,
            self.weight,
        )

    def log(self) -> Mean:
        """The logarithm of a positive mean, by the delta method."""
        return Mean(
            float(np.log(self.value)),
            self.part / self.value,
            self.seed_part / self.value,
            self.weight,
        )


@dataclass(frozen=True)
class Spread:
    """The variance of a mean, from its samples and from its seeds."""

    variance: float
    df: float
    """Degrees of freedom of that, by Satterthwaite's formula."""
    rows: float
    """How many samples of equal weight would weigh as much as these."""


def spread(mean: Mean, design: Design) -> Spread:
    """How far a mean may be off, clients taken as they are.

    From samples: the squares of what each of them adds, over all seeds together. From
    seeds: what they differ by beyond what their samples explain, where samples that
    return make seeds more alike.
    """
    by_row = mean.by_row(design)
    weight = np.bincount(design.row, mean.weight, minlength=len(by_row))
    squares, home = by_row[weight > 0] ** 2, design.home[weight > 0]
    from_rows = float(squares.sum())
    # The samples of a client estimate one variance; those of single ones, another.
    samples = np.bincount(home, minlength=design.clients)
    _, stratum = np.unique(np.where(samples[home] == 1, -1, home), return_inverse=True)
    degrees = np.maximum(np.bincount(stratum) - 1, 1)
    doubt = float((np.bincount(stratum, squares) ** 2 / degrees).sum())
    from_seeds, seeds = _from_seeds(mean, design, from_rows)
    variance = from_rows + from_seeds
    if seeds > 1:
        doubt += from_seeds**2 / (seeds - 1)
    rows = float(1.0 / (weight**2).sum())
    df = max(variance**2 / doubt, 1.0) if doubt > 0 else max(rows - 1, 1.0)
    return Spread(variance, df, rows)


def _from_seeds(mean: Mean, design: Design, from_rows: float) -> tuple[float, int]:
    """What seeds add to the variance, at least 0, and how many seeds there are."""
    weight = np.bincount(design.seed, mean.weight)
    by_seed = np.bincount(design.seed, mean.seed_part)[weight > 0]
    seeds = len(by_seed)
    if seeds < 2:
        return 0.0, seeds
    between = seeds / (seeds - 1) * float(((by_seed - by_seed.mean()) ** 2).sum())
    cells = float((mean.part**2).sum())
    return max(0.0, between - cells + (from_rows - cells) / (seeds - 1)), seeds
