"""Who gains: every client against training alone, and what each should use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.reports.collect import Collection
from fedloom.reports.ranking import Ranking
from fedloom.reports.runs import KIND, Run
from fedloom.results.scores import ERRORS
from fedloom.results.statistics import (
    Estimate,
    Paired,
    accuracy_error,
    over_clients,
    over_seeds,
    paired,
    rank_correlation,
)

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Who:
    """A client: of every seed if clients are the same in all of them, else of one."""

    name: str
    seed: int | None
    samples: int
    """Training samples; their mean over seeds, rounded."""


@dataclass(frozen=True, eq=False)
class MethodGain:
    """What one method did for the clients."""

    method: str
    gain: Numbers
    """(clients,) how much better than alone; positive is better for every metric."""
    error: Numbers
    """(clients,) standard error, nan where it is unknown."""
    mean: Estimate
    """Mean over clients; the interval is over seeds, or clients of a single one."""
    work: float
    """Gradient steps of this method for each of the baseline's."""

    @property
    def gaining(self) -> int:
        """Clients that do better than alone."""
        return int((self.gain > 0).sum())

    @property
    def losing(self) -> int:
        """Clients that do worse than alone."""
        return int((self.gain < 0).sum())

    @property
    def known(self) -> int:
        """Clients that could be compared."""
        return int(np.isfinite(self.gain).sum())


@dataclass(frozen=True, eq=False)
class Gains:
    """All methods against training alone."""

    baseline: str
    """What alone means: a method of the collection, or words for gain.parquet."""
    who: tuple[Who, ...]
    has_same_clients: bool
    methods: tuple[MethodGain, ...]

    def of(self, method: str) -> MethodGain | None:
        """What one method did."""
        return next((g for g in self.methods if g.method == method), None)


@dataclass(frozen=True, eq=False)
class Advice:
    """What each client should use, decided on data that the score is not read from."""

    who: tuple[Who, ...]
    is_on_validation: bool
    """False: there were no validation data, so the choice saw the reported data."""
    method: tuple[str, ...]
    lead: Numbers
    """(clients,) ahead of the next best on the deciding data."""
    error: Numbers
    """(clients,) standard error of that lead, nan where it is unknown."""
    gain: Numbers
    """(clients,) over training alone, on the reported data; nan without a baseline."""
    followed: Estimate
    """Score if every client used what is advised to it."""
    against_pick: Paired
    """The same minus everybody using the one method to use, seed by seed."""

    def word(self, n: int) -> str:
        """How sure the advice is: clear, likely or open."""
        if not math.isfinite(self.error[n]):
            return "unknown"
        if self.lead[n] > 1.96 * self.error[n]:
            return "clear"
        return "likely" if self.lead[n] > self.error[n] else "open"


@dataclass(frozen=True, eq=False)
class _Seats:
    """Where the numbers of every client lie."""

    who: tuple[Who, ...]
    seeds: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...]
    """For every seed: places among `who`, and places in that seed's runs."""

    def table(
        self, found: Collection, method: str, number: str, part: str = ""
    ) -> Numbers:
        """(clients, seeds) a number at the last round; nan where there is none."""
        table = np.full((len(self.who), len(self.seeds)), np.nan)
        runs = found.of(method)
        for n, (rows, places) in enumerate(self.seeds):
            run = runs[n]
            if run is not None and run.last is not None:
                table[rows, n] = run.last.get(KIND, part or run.part, number)[places]
        return table


def gains(found: Collection) -> Gains | None:
    """Every method's gain over training alone; None if nothing trained alone."""
    baseline = found.baseline
    if not found.is_paired or found.first_run() is None:
        return None
    seats = _seats(found)
    if baseline is None:
        return _written_gains(found, seats)
    alone = seats.table(found, baseline, found.metric)
    samples = seats.table(found, baseline, "samples")
    work_alone = _steps(found, baseline)
    methods = []
    for method in found.methods:
        if method == baseline:
            continue
        together = seats.table(found, method, found.metric)
        gap = _better(together - alone, found.metric)
        methods.append(
            MethodGain(
                method=method,
                gain=_mean(gap),
                error=_gap_error(together, alone, samples, found.metric),
                mean=_over(gap),
                work=_steps(found, method) / work_alone if work_alone else math.nan,
            )
        )
    return Gains(baseline, seats.who, found.has_same_clients, tuple(methods))


def advise(found: Collection, ranking: Ranking) -> Advice | None:
    """The method that suits each client best, training alone included."""
    if ranking.pick is None or len(found.methods) < 2 or not found.is_paired:
        return None
    metric, seats = found.metric, _seats(found)
    part = "validation" if ranking.is_picked_on_validation else ""
    order = [s.method for s in ranking.standings if s.last.count]
    if len(order) < 2:
        return None
    # (methods, clients, seeds)
    deciding = np.stack([seats.table(found, m, metric, part) for m in order])
    reported = np.stack([seats.table(found, m, metric) for m in order])
    losses = np.stack([_mean(seats.table(found, m, "loss", part)) for m in order])
    better = np.stack([_mean(_better(scores, metric)) for scores in deciding])
    first, second = _two_best(better, losses)
    places = np.arange(len(seats.who))
    gain = np.full(len(places), np.nan)
    baseline = found.baseline
    if baseline in order:
        gap = reported[first, places] - reported[order.index(baseline)]
        gain = _mean(_better(gap, metric))
    followed = _mean(reported[first, places].T)
    picked = _mean(reported[order.index(ranking.pick)].T)
    return Advice(
        who=seats.who,
        is_on_validation=ranking.is_picked_on_validation,
        method=tuple(order[n] for n in first),
        lead=better[first, places] - better[second, places],
        error=_gap_error(
            deciding[first, places],
            deciding[second, places],
            seats.table(found, order[0], "samples", part),
            metric,
        ),
        gain=gain,
        followed=over_seeds(followed),
        against_pick=paired(followed, picked),
    )


def drivers(
    found: Collection, told: Gains, method: str
) -> dict[str, tuple[float, int]]:
    """How columns of a method's notes go with its clients' gain.

    Spearman's rank correlation, over the clients of the first counted seed, of each
    column's mean over rounds with the gain; with the number of clients.
    """
    run, gain = found.first_run(method=method), told.of(method)
    if run is None or gain is None or run.last is None:
        return {}
    names = run.last.names
    mine = {
        w.name: gain.gain[n]
        for n, w in enumerate(told.who)
        if w.seed in (None, run.seed)
    }
    y = np.array([mine.get(name, np.nan) for name in names])
    columns: dict[str, Numbers] = {}
    if run.shares is not None:
        columns["training samples"] = run.shares.sizes.astype(float)
    columns |= client_means(run)
    correlations = {}
    for name, x in columns.items():
        known = np.isfinite(x) & np.isfinite(y)
        if known.sum() >= 5 and np.ptp(x[known]) > 0 and np.ptp(y[known]) > 0:
            rho = rank_correlation(x[known], y[known])
            correlations[name] = (rho, int(known.sum()))
    return correlations


def client_means(run: Run) -> dict[str, Numbers]:
    """Columns of a run's notes, each averaged over rounds: (clients,) by name."""
    if run.last is None:
        return {}
    count = len(run.last.names)
    sums: dict[str, Numbers] = {}
    times: dict[str, Numbers] = {}
    for table in run.client_log:
        clients = np.asarray(table["client"].to_numpy())
        for name in table.column_names:
            if name in ("round", "client"):
                continue
            values = np.asarray(table[name].to_numpy(zero_copy_only=False))
            if values.dtype.kind not in "fiub":
                continue
            known = np.isfinite(values.astype(float))
            total = sums.setdefault(name, np.zeros(count))
            np.add.at(total, clients[known], values[known].astype(float))
            np.add.at(times.setdefault(name, np.zeros(count)), clients[known], 1)
    with np.errstate(invalid="ignore"):
        return {name: sums[name] / times[name] for name in sums}


def _seats(found: Collection) -> _Seats:
    rows: dict[tuple[int | None, str], int] = {}
    samples: dict[tuple[int | None, str], list[int]] = {}
    seeds = []
    for seed in found.seeds:
        run = found.first_run(seed)
        names = run.last.names if run is not None and run.last is not None else ()
        sizes = np.zeros(len(names), dtype=np.int64)
        if run is not None and run.shares is not None:
            sizes = run.shares.sizes
        mine = []
        for place, name in enumerate(names):
            key = (None if found.has_same_clients else seed, name)
            mine.append(rows.setdefault(key, len(rows)))
            samples.setdefault(key, []).append(int(sizes[place]))
        seeds.append((np.array(mine, dtype=np.int64), np.arange(len(mine))))
    who = tuple(
        Who(name, seed, round(float(np.mean(samples[seed, name]))))
        for seed, name in rows
    )
    return _Seats(who, tuple(seeds))


def _better(values: Numbers, metric: str) -> Numbers:
    return -values if metric in ERRORS else values


def _mean(table: Numbers) -> Numbers:
    """Over the last axis, of what is known; nan where nothing is."""
    known = np.isfinite(table)
    total = np.where(known, table, 0.0).sum(-1)
    with np.errstate(invalid="ignore"):
        mean: Numbers = total / known.sum(-1)
    return mean


def _over(table: Numbers) -> Estimate:
    """The mean of (clients, seeds): over seeds, or over the clients of a single one."""
    return over_seeds(_mean(table.T)) if table.shape[1] > 1 else over_clients(table)


def _gap_error(a: Numbers, b: Numbers, samples: Numbers, metric: str) -> Numbers:
    """(clients,) standard error of the difference of two methods' scores.

    From the spread over seeds where a client has several. From one seed it is known
    for accuracies only, by the number of samples; the two models answer the same
    questions, so taking their errors as independent makes it too large rather than
    too small.
    """
    if (np.isfinite(a).sum(1) > 1).any():
        return np.array([over_seeds(gap).error for gap in a - b])
    if metric != "accuracy":
        return np.full(len(a), np.nan)
    own, other = accuracy_error(a, samples), accuracy_error(b, samples)
    error: Numbers = np.sqrt(_mean(np.square(own) + np.square(other)))
    return error


def _two_best(
    better: Numbers, loss: Numbers
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(clients,) the best and the next; equals by loss, then by overall rank."""
    place = np.broadcast_to(np.arange(len(better))[:, None], better.shape)
    # Unknown scores come last: lexsort puts nan at the end.
    order = np.lexsort((place, loss, -better), axis=0)
    return order[0], order[1]


def _steps(found: Collection, method: str) -> float:
    runs = [run for run in found.of(method) if run is not None]
    return float(np.mean([sum(r.steps for r in run.rounds) for run in runs] or [0]))


def _written_gains(found: Collection, seats: _Seats) -> Gains | None:
    """From gain.parquet, which `fedloom run --gain` leaves, where every run has one."""
    if any(run.alone is None for run in found.counted.values()):
        return None
    methods = []
    for method in found.methods:
        gap = np.full((len(seats.who), len(found.seeds)), np.nan)
        for n, (rows, places) in enumerate(seats.seeds):
            run = found.of(method)[n]
            if run is not None and run.alone is not None:
                own = run.alone["together"] - run.alone["alone"]
                gap[rows, n] = _better(own, found.metric)[places]
        unknown = np.full(gap.shape, np.nan)
        error = _gap_error(gap, np.zeros_like(gap), unknown, "")
        methods.append(MethodGain(method, _mean(gap), error, _over(gap), work=1.0))
    baseline = "training alone with as many steps"
    return Gains(baseline, seats.who, found.has_same_clients, tuple(methods))
