"""Held-out observations of a collection: from single samples, or from clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedloom.reports.collect import Collection
from fedloom.reports.runs import KIND, Run
from fedloom.results.observations import Codes, Numbers, Observations
from fedloom.results.outcomes import Outcomes

PARTS = ("validation", "test")
"""Held-out data: a method may be chosen on all of them."""


@dataclass(frozen=True)
class Who:
    """A client: of every seed if clients are the same in all of them, else of one."""

    name: str
    seed: int | None
    samples: int
    """Training samples; their mean over seeds, rounded."""


@dataclass(frozen=True, eq=False)
class Seats:
    """Where the numbers of every client lie."""

    collection: Collection
    who: tuple[Who, ...]
    rows: tuple[Codes, ...]
    """For every seed: the place among `who` of each scored client of its runs."""
    clients: tuple[Codes, ...]
    """For every seed: the numbers of these clients, ascending."""

    def table(self, method: str, number: str, part: str = "") -> Numbers:
        """(clients, seeds) a number at the last round; nan where there is none."""

        def column(run: Run) -> Numbers | None:
            if run.last is None:
                return None
            return run.last.get(KIND, part or run.part, number)

        return self._fill(method, column)

    def written_alone(self, method: str) -> Numbers:
        """(clients, seeds) scores alone by gain.parquet; nan where there are none."""

        def column(run: Run) -> Numbers | None:
            if run.alone is None or run.last is None:
                return None
            return run.alone["alone"][run.last.clients]

        return self._fill(method, column)

    def places(self, seed: int, clients: NDArray[np.integer]) -> Codes:
        """Places among `who` of some clients.

        Args:
            seed: which of the seeds, from 0.
            clients: their numbers in runs of that seed.
        """
        return self.rows[seed][np.searchsorted(self.clients[seed], clients)]

    def _fill(self, method: str, values: Callable[[Run], Numbers | None]) -> Numbers:
        table = np.full((len(self.who), len(self.rows)), np.nan)
        for n, run in enumerate(self.collection.by_seed(method)):
            column = values(run) if run is not None else None
            if column is not None:
                table[self.rows[n], n] = column
        return table


def seats_of(collection: Collection) -> Seats:
    """The clients of a collection."""
    places: dict[tuple[int | None, str], int] = {}
    samples: dict[tuple[int | None, str], list[int]] = {}
    rows, clients = [], []
    for seed in collection.seeds:
        # One run's files may be damaged; all runs of a seed have the same clients.
        runs = [run for (_, s), run in collection.counted.items() if s == seed]
        data = next((r.client_data for r in runs if r.client_data is not None), None)
        last = next((r.last for r in runs if r.last is not None), None)
        names = data.names if data is not None else ()
        scored = np.arange(len(names))
        if last is not None:
            names, scored = last.names, last.clients
        sizes = [0] * len(names)
        if data is not None:
            sizes = data.sizes[scored].tolist()
        keys = [(None if collection.has_same_clients else seed, name) for name in names]
        for key, size in zip(keys, sizes, strict=True):
            places.setdefault(key, len(places))
            samples.setdefault(key, []).append(size)
        rows.append(np.array([places[key] for key in keys], dtype=np.int64))
        clients.append(scored)
    who = tuple(
        Who(name, seed, round(float(np.mean(samples[seed, name]))))
        for seed, name in places
    )
    return Seats(collection, who, tuple(rows), tuple(clients))


def observe(collection: Collection, seats: Seats) -> Observations | None:
    """What all counted runs said of the same held-out samples.

    None if methods did not meet the same clients, or nothing was scored. Where a run
    has no single samples, as in a real federation, or where it is not known which of
    them belong together, every client is an observation.
    """
    if not collection.is_paired or collection.first_run() is None:
        return None
    samples = None if collection.lacks_groups else _of_samples(collection, seats)
    return samples or _of_clients(collection, seats)


def _of_samples(collection: Collection, seats: Seats) -> Observations | None:
    blocks = [
        block
        for n, seed in enumerate(collection.seeds)
        for part in PARTS
        if (block := _Block.of(collection, seats, n, seed, part)) is not None
    ]
    runs = collection.counted.values()
    if not blocks or any(run.outcomes is None for run in runs):
        return None
    if any(block.is_uneven for block in blocks):
        return None
    return Observations(
        methods=collection.methods,
        seeds=np.concatenate([np.full(len(b), b.seed) for b in blocks]),
        rows=np.concatenate([b.rows for b in blocks]),
        clients=np.concatenate([b.clients for b in blocks]),
        is_test=np.concatenate([np.full(len(b), b.part == "test") for b in blocks]),
        values=np.concatenate([b.values for b in blocks], axis=1),
        alone=np.concatenate([b.alone for b in blocks], axis=1),
        yardsticks={
            name: np.concatenate([b.yardstick(name) for b in blocks])
            for name in collection.yardsticks
        },
        groups=_joined([b.groups for b in blocks]),
        is_alike=collection.has_folds,
    )


def _joined(groups: Sequence[Codes | None]) -> Codes | None:
    """The groups of all observations; None if samples stand for themselves."""
    named = [codes for codes in groups if codes is not None]
    return np.concatenate(named) if named else None


@dataclass(frozen=True, eq=False)
class _Block:
    """One part of the data of one seed."""

    collection: Collection
    seed: int
    part: str
    reference: Outcomes
    rows: Codes
    clients: Codes
    groups: Codes | None

    @classmethod
    def of(
        cls, collection: Collection, seats: Seats, n: int, seed: int, part: str
    ) -> _Block | None:
        run = collection.first_run(seed)
        outcomes = (run.outcomes or {}).get(part) if run is not None else None
        if outcomes is None or not len(outcomes.rows):
            return None
        if not np.isin(outcomes.clients, seats.clients[n]).all():
            return None  # who they are was in files that are damaged
        rows = outcomes.rows.astype(np.int64)
        groups = collection.groups(seed)
        if groups is not None:
            if rows.min() < 0 or rows.max() >= len(groups):
                return None  # a file of other data
            groups = groups[rows]
        if not collection.has_same_data:
            # The same number is another sample, or group, in another seed.
            other = n * (1 << 40)
            rows = rows + other
            groups = groups + other if groups is not None else None
        clients = seats.places(n, outcomes.clients)
        return cls(collection, seed, part, outcomes, rows, clients, groups)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_uneven(self) -> bool:
        """Whether some run scored other samples, so that nothing can be paired."""
        return any(
            run is not None
            and not np.array_equal(
                (run.outcomes or {})[self.part].rows, self.reference.rows
            )
            for run in self._runs
            if run is not None and self.part in (run.outcomes or {})
        )

    @cached_property
    def _runs(self) -> list[Run | None]:
        return [
            self.collection.counted.get((m, self.seed)) for m in self.collection.methods
        ]

    @property
    def values(self) -> Numbers:
        """(K, N) what every method said."""
        return np.stack(
            [
                self._values(run.outcomes if run is not None else None)
                for run in self._runs
            ]
        )

    @property
    def alone(self) -> Numbers:
        """(K, N) what training alone said: with as much work, or the baseline."""
        baseline = self.collection.baseline
        arm = self.collection.counted.get((baseline or "", self.seed))
        rows = []
        for run in self._runs:
            if run is None or run.is_alone:
                rows.append(self._values(None))
            elif run.alone_outcomes is not None:
                rows.append(self._values(run.alone_outcomes))
            else:
                rows.append(self._values(arm.outcomes if arm is not None else None))
        return np.stack(rows)

    def yardstick(self, name: str) -> Numbers:
        """(N,) what a yardstick says."""
        return self._values(self.collection.yardsticks[name].outcomes.get(self.seed))

    def _values(self, outcomes: Mapping[str, Outcomes] | None) -> Numbers:
        own = outcomes.get(self.part) if outcomes is not None else None
        if own is None:
            return np.full(len(self), np.nan)
        # What is measured by may know more clients than were scored.
        values = own.values[np.isin(_keys(own), _keys(self.reference))]
        return values if len(values) == len(self) else np.full(len(self), np.nan)


def _keys(outcomes: Outcomes) -> Codes:
    """One number for each pair of sample and client."""
    keys: Codes = (outcomes.rows.astype(np.int64) << 32) + outcomes.clients
    return keys


def _of_clients(collection: Collection, seats: Seats) -> Observations | None:
    """One observation per client, seed and part: the client's score."""
    metric, baseline = collection.metric, collection.baseline
    run = collection.first_run()
    parts = [
        p for p in PARTS if run is not None and (p == run.part or p == "validation")
    ]
    tables, alone = [], []
    places: list[NDArray[np.bool_]] = []
    for part in parts:
        tables.append(
            np.stack([seats.table(m, metric, part) for m in collection.methods])
        )
        alone.append(np.stack(list(_alone(collection, seats, baseline, part))))
        places.append(np.logical_or.reduce(np.isfinite(tables[-1])))
    if not any(place.any() for place in places):
        return None
    clients, seeds = (
        np.concatenate([np.nonzero(place)[axis] for place in places]) for axis in (0, 1)
    )
    return Observations(
        methods=collection.methods,
        seeds=seeds,
        rows=clients,
        clients=clients,
        is_test=np.concatenate(
            [
                np.full(place.sum(), p == "test")
                for p, place in zip(parts, places, strict=True)
            ]
        ),
        values=_picked(tables, places),
        alone=_picked(alone, places),
        has_samples=False,
    )


def _alone(
    collection: Collection, seats: Seats, baseline: str | None, part: str
) -> Iterator[Numbers]:
    """(clients, seeds) for every method, its score alone."""
    for method in collection.methods:
        run = collection.first_run(method=method)
        if run is None or run.is_alone:
            yield np.full((len(seats.who), len(seats.rows)), np.nan)
        elif run.alone is not None and part == run.part:
            yield seats.written_alone(method)
        elif baseline is not None:
            yield seats.table(baseline, collection.metric, part)
        else:
            yield np.full((len(seats.who), len(seats.rows)), np.nan)


def _picked(tables: list[Numbers], places: list[NDArray[np.bool_]]) -> Numbers:
    both = zip(tables, places, strict=True)
    return np.concatenate([table[:, place] for table, place in both], axis=1)
