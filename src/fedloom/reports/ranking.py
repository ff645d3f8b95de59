"""The methods in order, with what can and cannot be said of their differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedloom.reports.collect import Collection
from fedloom.reports.runs import KIND
from fedloom.results.statistics import (
    Estimate,
    Paired,
    holm,
    is_better,
    is_error,
    over_clients,
    over_seeds,
    paired,
)

ALPHA = 0.05
"""Adjusted p-values below it are called a difference."""


@dataclass(frozen=True)
class Standing:
    """One method's place."""

    method: str
    algorithm: str
    last: Estimate
    """Score at the last round: mean over clients, then over seeds."""
    chosen: Estimate
    """The same at the round chosen on validation data; empty without any."""
    chosen_rounds: tuple[int, ...]
    """Which round that was, seed by seed."""
    validation: Estimate
    """Score on validation data at the last round."""
    worst: Estimate
    """Score of the tenth of the clients that do worst, at the last round."""
    counts: Mapping[str, int]
    """Seeds by how they ended."""

    @property
    def is_whole(self) -> bool:
        """Whether every seed finished."""
        return all(n == 0 for end, n in self.counts.items() if end != "finished")


@dataclass(frozen=True)
class Pair:
    """Two methods, compared seed by seed."""

    first: str
    second: str
    last: Paired
    """First minus second at the last round."""
    p_last: float
    """Adjusted for the number of pairs that answer the same question."""
    chosen: Paired
    """The same at the rounds chosen on validation data."""
    p_chosen: float


@dataclass(frozen=True)
class Ranking:
    """All methods, best first; those with a seed that did not finish come last.

    Two questions are asked, and p-values are adjusted within each: does a method differ
    from training alone (the pairs with the baseline), and which of the others is better
    (all other pairs)?
    """

    standings: tuple[Standing, ...]
    pairs: tuple[Pair, ...]
    pick: str | None
    """The method to use: best on validation data, else on the reported data."""
    is_picked_on_validation: bool

    def pair(self, first: str, second: str) -> tuple[Paired, float] | None:
        """First minus second at the last round, and its adjusted p-value."""
        for pair in self.pairs:
            if (pair.first, pair.second) == (first, second):
                return pair.last, pair.p_last
            if (pair.first, pair.second) == (second, first):
                return _turned(pair.last), pair.p_last
        return None

    def standing(self, method: str) -> Standing:
        """One method's place."""
        return next(s for s in self.standings if s.method == method)

    def rivals(self, method: str) -> list[str]:
        """Methods that the seeds cannot tell apart from this one.

        Every method is one if nothing could be tested.
        """
        return [
            other.method
            for other in self.standings
            if (tested := self.pair(method, other.method)) and not tested[1] < ALPHA
        ]


def rank(collection: Collection) -> Ranking:
    """Order the methods of a collection."""
    standings = [_standing(collection, method) for method in collection.methods]
    sign = 1 if is_error(collection.metric) else -1
    standings.sort(
        key=lambda s: (
            s.last.count == 0,
            not s.is_whole,
            sign * s.last.mean if s.last.count else 0.0,
        )
    )
    pick, on_validation = _pick(standings, collection.metric)
    return Ranking(
        standings=tuple(standings),
        pairs=tuple(_pairs(collection, [s.method for s in standings])),
        pick=pick,
        is_picked_on_validation=on_validation,
    )


def other_numbers(collection: Collection) -> list[str]:
    """Numbers besides the metric's own that some run recorded, such as auc or mae."""
    names: dict[str, None] = {}
    for run in collection.counted.values():
        row = run.evaluated.get(run.last_round or 0)
        for parts in row.scores.values() if row is not None else ():
            names |= dict.fromkeys(parts.get(run.part, {}))
    return [name for name in names if name.partition("_")[0] != collection.metric]


def estimate_of(
    collection: Collection, method: str, number: str, kind: str = KIND, part: str = ""
) -> Estimate:
    """A number at the last round, over seeds."""
    return over_seeds(
        [
            run.number(run.last_round, number, kind=kind, part=part)
            for run in collection.of(method)
        ]
    )


def kinds_of(collection: Collection, method: str) -> list[str]:
    """Kinds of model that a method's runs scored."""
    kinds = [kind for run in collection.of(method) for kind in run.kinds]
    return list(dict.fromkeys(kinds))


def _standing(collection: Collection, method: str) -> Standing:
    metric, runs = collection.metric, collection.of(method)
    every = [run for (m, _), run in collection.runs.items() if m == method]
    return Standing(
        method=method,
        algorithm=every[0].algorithm if every else method,
        last=_estimate(collection, method, is_chosen=False),
        chosen=_estimate(collection, method, is_chosen=True),
        chosen_rounds=tuple(
            run.chosen_round for run in runs if run.chosen_round is not None
        ),
        validation=estimate_of(collection, method, metric, part="validation"),
        worst=estimate_of(collection, method, f"{metric}_worst_decile"),
        counts=collection.state_counts(method),
    )


def _scores(
    collection: Collection, method: str, *, is_chosen: bool
) -> NDArray[np.float64]:
    """(seeds,) mean over clients; nan where there is no counted run."""
    scores = np.full(len(collection.seeds), np.nan)
    for n, run in enumerate(collection.by_seed(method)):
        if run is not None:
            at = run.chosen_round if is_chosen else run.last_round
            scores[n] = run.number(at, collection.metric)
    return scores


def _estimate(collection: Collection, method: str, *, is_chosen: bool) -> Estimate:
    """Over seeds; with a single one, over its clients."""
    scores = _scores(collection, method, is_chosen=is_chosen)
    run = collection.first_run(method=method)
    if collection.has_seeds or run is None or not np.isfinite(scores).any():
        return over_seeds(scores)
    of_clients = run.scores(run.chosen_round) if is_chosen else run.last
    if of_clients is None:
        return over_seeds(scores)
    return over_clients(of_clients.get(KIND, run.part, collection.metric))


def _pairs(collection: Collection, methods: list[str]) -> Iterator[Pair]:
    if not collection.is_paired:
        return
    last, chosen = (
        {m: _scores(collection, m, is_chosen=is_chosen) for m in methods}
        for is_chosen in (False, True)
    )
    for with_baseline in (True, False):
        names = [
            pair
            for pair in combinations(methods, 2)
            if (collection.baseline in pair) == with_baseline
        ]
        at_last = [paired(last[a], last[b]) for a, b in names]
        at_chosen = [paired(chosen[a], chosen[b]) for a, b in names]
        p_last = holm([test.p for test in at_last])
        p_chosen = holm([test.p for test in at_chosen])
        for n, (a, b) in enumerate(names):
            yield Pair(
                a, b, at_last[n], float(p_last[n]), at_chosen[n], float(p_chosen[n])
            )


def _pick(standings: list[Standing], metric: str) -> tuple[str | None, bool]:
    able = [s for s in standings if s.last.count and s.is_whole]
    able = able or [s for s in standings if s.last.count]
    if not able:
        return None, False
    if any(s.validation.count == 0 for s in able):
        return able[0].method, False
    best = able[0]
    for s in able[1:]:
        if is_better(s.validation.mean, best.validation.mean, metric):
            best = s
    return best.method, True


def _turned(test: Paired) -> Paired:
    d = test.difference
    return Paired(Estimate(-d.mean, d.error, -d.high, -d.low, d.count), test.p)
