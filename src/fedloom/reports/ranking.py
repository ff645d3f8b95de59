"""The methods in order, with what can and cannot be said of their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedloom.reports.collect import Collection
from fedloom.reports.runs import KIND, Run
from fedloom.results.scores import ERRORS
from fedloom.results.statistics import (
    Estimate,
    Paired,
    holm,
    is_better,
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

    metric: str
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
        found = []
        for other in self.standings:
            tested = self.pair(method, other.method)
            if other.method != method and tested and not tested[1] < ALPHA:
                found.append(other.method)
        return found


def rank(found: Collection) -> Ranking:
    """Order the methods of a collection."""
    metric = found.metric
    last = {m: _scores(found, m, "last") for m in found.methods}
    chosen = {m: _scores(found, m, "chosen") for m in found.methods}
    standings = [
        Standing(
            method=method,
            algorithm=found.algorithm(method),
            last=_estimate(found, method, last[method]),
            chosen=_estimate(found, method, chosen[method], is_chosen=True),
            chosen_rounds=tuple(
                run.chosen_round
                for run in found.of(method)
                if run is not None and run.chosen_round is not None
            ),
            validation=over_seeds(_numbers(found, method, metric, part="validation")),
            worst=over_seeds(_numbers(found, method, f"{metric}_worst_decile")),
            counts=found.state_counts(method),
        )
        for method in found.methods
    ]
    sign = 1 if metric in ERRORS else -1
    standings.sort(
        key=lambda s: (
            s.last.count == 0,
            not s.is_whole,
            sign * s.last.mean if s.last.count else 0.0,
        )
    )
    pick, on_validation = _pick(standings, metric)
    return Ranking(
        metric=metric,
        standings=tuple(standings),
        pairs=_pairs([s.method for s in standings], last, chosen, found),
        pick=pick,
        is_picked_on_validation=on_validation,
    )


def other_numbers(found: Collection) -> list[str]:
    """Numbers besides the metric's own that some run recorded, such as auc or mae."""
    names: dict[str, None] = {}
    for run in found.counted.values():
        for numbers in run.evaluated[-1].scores.values() if run.evaluated else ():
            names |= dict.fromkeys(numbers.get(run.part, {}))
    return [name for name in names if name.partition("_")[0] != found.metric]


def estimate_of(
    found: Collection, method: str, number: str, kind: str = KIND
) -> Estimate:
    """A number at the last round, over seeds."""
    return over_seeds(_numbers(found, method, number, kind=kind))


def kinds_of(found: Collection, method: str) -> list[str]:
    """Kinds of model that a method's runs scored."""
    names: dict[str, None] = {}
    for run in found.of(method):
        if run is not None and run.evaluated:
            names |= dict.fromkeys(run.evaluated[-1].scores)
    return list(names)


def _scores(found: Collection, method: str, which: str) -> NDArray[np.float64]:
    """(seeds,) mean over clients; nan where there is no counted run."""

    def one(run: Run | None) -> float:
        if run is None:
            return math.nan
        at = run.last_round if which == "last" else run.chosen_round
        return run.number(at, found.metric)

    return np.array([one(run) for run in found.of(method)])


def _numbers(
    found: Collection, method: str, name: str, *, kind: str = KIND, part: str = ""
) -> list[float]:
    return [
        run.number(run.last_round, name, kind=kind, part=part)
        for run in found.of(method)
        if run is not None
    ]


def _estimate(
    found: Collection,
    method: str,
    scores: NDArray[np.float64],
    *,
    is_chosen: bool = False,
) -> Estimate:
    """Over seeds; with a single one, over its clients."""
    if len(found.seeds) > 1 or not np.isfinite(scores).any():
        return over_seeds(scores)
    run = found.first_run(method=method)
    assert run is not None
    of_clients = run.scores(run.chosen_round) if is_chosen else run.last
    if of_clients is None:
        return over_seeds(scores)
    return over_clients(of_clients.get(KIND, run.part, found.metric))


def _pairs(
    methods: list[str],
    last: Mapping[str, NDArray[np.float64]],
    chosen: Mapping[str, NDArray[np.float64]],
    found: Collection,
) -> tuple[Pair, ...]:
    if not found.is_paired:
        return ()
    pairs = []
    every = list(combinations(methods, 2))
    for with_baseline in (True, False):
        names = [pair for pair in every if (found.baseline in pair) == with_baseline]
        at_last = [paired(last[a], last[b]) for a, b in names]
        at_chosen = [paired(chosen[a], chosen[b]) for a, b in names]
        p_last = holm([test.p for test in at_last])
        p_chosen = holm([test.p for test in at_chosen])
        pairs += [
            Pair(a, b, at_last[n], float(p_last[n]), at_chosen[n], float(p_chosen[n]))
            for n, (a, b) in enumerate(names)
        ]
    return tuple(pairs)


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
