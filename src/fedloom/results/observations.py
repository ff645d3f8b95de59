"""Held-out observations of all methods, and what their means are made of.

An observation is what the models of one seed say of one sample of one client. All
methods meet the same ones, and so does training alone with each method's work. A score
is the mean over clients of the mean over a client's observations. It is linear in them,
so how sure it is, and how sure any difference of two scores is, follows from what every
observation adds to it: its weight times its residual. These parts are summed by unit,
for a unit that returns in several seeds is one piece of news and not several, and by
seed, for what is luck of one training is luck of all its clients. A unit is a sample,
or a group of samples that belong together, such as a visit of a patient: what they have
in common, methods gain or lose by on all of them at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.core.reprs import without_values

Numbers = NDArray[np.float64]
Codes = NDArray[np.int64]

CONSTANT = "constant"
"""The yardstick that always says what is usual for the client."""
LONGER = "alone-longer"
"""The yardstick that trains alone for as many rounds as validation data prefer."""
ORDINARY = "ordinary"
"""The yardstick of an ordinary model on each client's own data."""
POOLED = "pooled"
"""The yardstick that has the data of all clients in one place."""


@without_values
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
    """(N,) test data, which scores are read from; others help to choose."""
    values: Numbers
    """(K, N) score of each method; nan where a method has no run of that seed."""
    alone: Numbers
    """(K, N) score of training alone with as much work as each method took; nan where
    that is not known."""
    yardsticks: Mapping[str, Numbers] = field(default_factory=dict)
    """(N,) by name, score of what the methods are measured by, such as a constant."""
    has_samples: bool = True
    """Whether these are single samples, and not scores of clients."""
    groups: Codes | None = None
    """(N,) which group of samples it is of, the same number in every seed; None if
    every sample stands for itself."""
    is_alike: bool = False
    """Whether validation samples are drawn as test samples are, and neither chose any
    setting, so that gains may be read from all of them."""

    @property
    def units(self) -> Codes:
        """(N,) what counts as one piece of news: the group, or else the sample."""
        return self.rows if self.groups is None else self.groups

    @property
    def repeats_samples(self) -> bool:
        """Whether every seed holds out the same samples, as a split in time does."""
        seeds, samples = (len(np.unique(x)) for x in (self.seeds, self.rows))
        return seeds > 1 and seeds * samples == len(self.rows)

    @cached_property
    def has_same_clients(self) -> bool:
        """Whether clients return in other seeds; then their seeds are taken together.

        Otherwise a score is the mean over the clients of each seed, then over seeds.
        """
        if len(np.unique(self.seeds)) < 2:
            return True
        both = np.unique(np.stack([self.clients, self.seeds]), axis=1)
        return bool(both.shape[1] > len(np.unique(self.clients)))

    def for_gains(self) -> Observations:
        """Those that gains are read from."""
        return self if self.is_alike else self.test()

    def test(self) -> Observations:
        """Those on test data alone; all of them if there are no test data."""
        if self.is_test.all() or not self.is_test.any():
            return self
        kept = self.is_test
        return replace(
            self,
            seeds=self.seeds[kept],
            rows=self.rows[kept],
            clients=self.clients[kept],
            is_test=kept[kept],
            values=self.values[:, kept],
            alone=self.alone[:, kept],
            yardsticks={name: y[kept] for name, y in self.yardsticks.items()},
            groups=None if self.groups is None else self.groups[kept],
        )


@dataclass(frozen=True, eq=False)
class Design:
    """How observations hang together: by unit, client and seed."""

    unit: Codes
    """(N,) place of the unit among all units."""
    client: Codes
    """(N,) place of the client among all clients."""
    seed: Codes
    """(N,) place of the seed among all seeds."""
    home: Codes
    """(U,) the client that each unit counts for."""
    clients: int
    """How many there are."""
    has_same_clients: bool
    has_groups: bool
    """Whether a unit may have several observations in one seed."""
    _weighings: dict[bytes, _Weighing] = field(default_factory=dict)

    @classmethod
    def of(cls, observations: Observations) -> Design:
        """That of some observations."""
        _, unit = np.unique(observations.units, return_inverse=True)
        names, client = np.unique(observations.clients, return_inverse=True)
        _, seed = np.unique(observations.seeds, return_inverse=True)
        home = np.zeros(unit.max(initial=-1) + 1, dtype=np.int64)
        home[unit] = client
        is_same = observations.has_same_clients
        has_groups = observations.groups is not None
        return cls(unit, client, seed, home, len(names), is_same, has_groups)

    @property
    def outer(self) -> Codes:
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

    def by_client(self, values: Numbers) -> ClientMeans:
        """The mean of every client's values, and how far it may be off."""
        known = np.isfinite(values)
        used = self._weighing(known)
        y = np.where(known, values, 0.0)
        count = np.bincount(self.client[known], minlength=self.clients)
        own = np.bincount(self.client, y, minlength=self.clients) / used.count
        rest = np.where(known, used.correction * (y - own[self.client]), 0.0)
        cells = self.client * (len(self.home) + 1) + self.unit
        _, cell = np.unique(cells, return_inverse=True)
        holder = np.zeros(cell.max(initial=-1) + 1, dtype=np.int64)
        holder[cell] = self.client
        squares = np.bincount(cell, rest / used.count[self.client]) ** 2
        error = np.sqrt(np.bincount(holder, squares, self.clients))
        return ClientMeans(
            np.where(count > 0, own, np.nan),
            np.where((count > 0) & ~used.is_single, error, np.nan),
        )

    def _weighing(self, known: NDArray[np.bool_]) -> _Weighing:
        key = known.tobytes()
        if key not in self._weighings:
            self._weighings[key] = self._weigh(known)
        return self._weighings[key]

    def _weigh(self, known: NDArray[np.bool_]) -> _Weighing:
        client, outer = self.client[known], self.outer[known]
        count = np.bincount(client, minlength=self.clients)
        outer_of = np.zeros(self.clients, dtype=np.int64)
        outer_of[client] = outer
        within = np.bincount(outer_of[count > 0])
        weight = np.zeros(len(known))
        weight[known] = 1.0 / ((within > 0).sum() * within[outer] * count[client])
        base = len(self.home) + 1
        cells, times = np.unique(client * base + self.unit[known], return_counts=True)
        holder = cells // base
        # How much of a client's mean a unit is, squared and summed: 1 / units where all
        # count as much. Variances divided by what is left are unbiased.
        part = times / count[holder]
        share = np.bincount(holder, part**2, self.clients).astype(np.float64)
        if self.has_groups:
            # Groups of different sizes, whose means scatter alike whatever their size.
            cubes = np.bincount(holder, part**3, self.clients)
            share = 2 * cubes / np.where(share > 0, share, 1.0) - share
        is_single = np.bincount(holder, minlength=self.clients) == 1
        # Clients with a single unit have no spread of their own: one crowd of them.
        share[is_single] = 1.0 / max(int(is_single.sum()), 2)
        correction = np.sqrt(1.0 / (1.0 - share))[self.client]
        return _Weighing(weight, correction, np.maximum(count, 1), is_single)


class ClientMeans(NamedTuple):
    """One number of every client."""

    mean: Numbers
    """(C,) nan without an observation."""
    error: Numbers
    """(C,) standard error, from the client's units; nan with less than two."""


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
    """(C,) clients with a single unit."""


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

    def by_unit(self, design: Design) -> Numbers:
        """(U,) what each unit adds to its error, over all seeds together."""
        sums = np.bincount(design.unit, self.part, minlength=len(design.home))
        return sums.astype(np.float64)

    def by_unit_and_seed(self, design: Design) -> Numbers:
        """What each unit adds to its error in each of its seeds."""
        if not design.has_groups:
            return self.part
        seeds = design.seed.max(initial=0) + 1
        _, cell = np.unique(design.unit * seeds + design.seed, return_inverse=True)
        return np.bincount(cell, self.part).astype(np.float64)

    def minus(self, other: Mean) -> Mean:
        """Their difference."""
        return Mean(
            self.value - other.value,
            self.part - other.part,
            self.seed_part - other.seed_part,
            self.weight,
        )

    def log(self) -> Mean:
        """The logarithm of a mean that is not negative, by the delta method."""
        value = max(self.value, float(np.finfo(float).tiny))
        return Mean(
            float(np.log(value)),
            self.part / value,
            self.seed_part / value,
            self.weight,
        )


@dataclass(frozen=True)
class Spread:
    """The variance of a mean, from its units and from its seeds."""

    variance: float
    df: float
    """Degrees of freedom of that, by Satterthwaite's formula."""
    units: float
    """How many units of equal weight would weigh as much as these; exactly 1 if there
    is one, which says nothing of the variance."""


def spread(mean: Mean, design: Design) -> Spread:
    """How far a mean may be off, clients taken as they are.

    From units: the squares of what each of them adds, over all seeds together. From
    seeds: what they differ by beyond what their units explain, where units that return
    make seeds more alike.
    """
    by_unit = mean.by_unit(design)
    weight = np.bincount(design.unit, mean.weight, minlength=len(by_unit))
    squares, home = by_unit[weight > 0] ** 2, design.home[weight > 0]
    from_units = float(squares.sum())
    # The units of a client estimate one variance; those of single ones, another.
    number = np.bincount(home, minlength=design.clients)
    _, stratum = np.unique(np.where(number[home] == 1, -1, home), return_inverse=True)
    equal = np.bincount(stratum).astype(np.float64)
    if design.has_groups:
        # Of large and small groups, as many as would count the same if all were equal.
        own = weight[weight > 0]
        equal = np.bincount(stratum, own) ** 2 / np.bincount(stratum, own**2)
    degrees = np.maximum(equal - 1, 1)
    doubt = float((np.bincount(stratum, squares) ** 2 / degrees).sum())
    from_seeds, seeds = _from_seeds(mean, design, from_units)
    variance = from_units + from_seeds
    if seeds > 1:
        doubt += from_seeds**2 / (seeds - 1)
    units = float(1.0 / (weight**2).sum()) if len(home) > 1 else 1.0
    df = max(variance**2 / doubt, 1.0) if doubt > 0 else max(units - 1, 1.0)
    return Spread(variance, df, units)


def _from_seeds(mean: Mean, design: Design, from_units: float) -> tuple[float, int]:
    """What seeds add to the variance, at least 0, and how many seeds there are."""
    weight = np.bincount(design.seed, mean.weight)
    by_seed = np.bincount(design.seed, mean.seed_part)[weight > 0]
    seeds = len(by_seed)
    if seeds < 2:
        return 0.0, seeds
    between = seeds / (seeds - 1) * float(((by_seed - by_seed.mean()) ** 2).sum())
    cells = float((mean.by_unit_and_seed(design) ** 2).sum())
    return max(0.0, between - cells + (from_units - cells) / (seeds - 1)), seeds
