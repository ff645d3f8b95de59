"""Who gains: every client against training alone, and what each should use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloom.reports.collect import Collection
from fedloom.reports.ranking import Ranking
from fedloom.reports.runs import KIND, Run
from fedloom.results.statistics import (
    Estimate,
    Paired,
    accuracy_error,
    improvement,
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
    def staying(self) -> int:
        """Clients that do as well as alone."""
        return int((self.gain == 0).sum())

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

    collection: Collection
    who: tuple[Who, ...]
    rows: tuple[NDArray[np.int64], ...]
    """For every seed: the place among `who` of each client of that seed's runs."""

    def table(self, method: str, number: str, part: str = "") -> Numbers:
        """(clients, seeds) a number at the last round; nan where there is none."""

        def column(run: Run) -> Numbers | None:
            if run.last is None:
                return None
            return run.last.get(KIND, part or run.part, number)

        return self._fill(method, column)

    def written_gains(self, method: str) -> Numbers:
        """(clients, seeds) what gain.parquet says; nan where there is none."""

        def column(run: Run) -> Numbers | None:
            columns = run.alone
            return columns["together"] - columns["alone"] if columns else None

        return self._fill(method, column)

    def _fill(self, method: str, values: Callable[[Run], Numbers | None]) -> Numbers:
        table = np.full((len(self.who), len(self.rows)), np.nan)
        for n, run in enumerate(self.collection.by_seed(method)):
            column = values(run) if run is not None else None
            if column is not None:
                table[self.rows[n], n] = column
        return table


def gains(collection: Collection) -> Gains | None:
    """Every method's gain over training alone; None if nothing trained alone."""
    baseline, metric = collection.baseline, collection.metric
    if not collection.is_paired or collection.first_run() is None:
        return None
    seats = _seats(collection)
    if baseline is None:
        return _written_gains(collection, seats)
    alone = seats.table(baseline, metric)
    samples = seats.table(baseline, "samples")
    steps_alone = _steps(collection, baseline)
    methods = []
    for method in collection.methods:
        if method != baseline:
            together = seats.table(method, metric)
            gap = improvement(together - alone, metric)
            error = _gap_error(together, alone, samples, metric)
            work = _steps(collection, method) / steps_alone if steps_alone else math.nan
            methods.append(MethodGain(method, _mean(gap), error, _over(gap), work))
    return Gains(baseline, seats.who, collection.has_same_clients, tuple(methods))


def advise(collection: Collection, ranking: Ranking) -> Advice | None:
    """The method that suits each client best, training alone included."""
    order = [s.method for s in ranking.standings if s.last.count]
    if ranking.pick is None or len(order) < 2 or not collection.is_paired:
        return None
    metric, seats = collection.metric, _seats(collection)
    part = "validation" if ranking.is_picked_on_validation else ""
    # (methods, clients, seeds)
    deciding = np.stack([seats.table(m, metric, part) for m in order])
    reported = np.stack([seats.table(m, metric) for m in order])
    losses = np.stack([_mean(seats.table(m, "loss", part)) for m in order])
    better = _mean(improvement(deciding, metric))
    first, second = _two_best(better, losses)
    places = np.arange(len(seats.who))
    gain = np.full(len(places), np.nan)
    if collection.baseline in order:
        gap = reported[first, places] - reported[order.index(collection.baseline)]
        gain = _mean(improvement(gap, metric))
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
            seats.table(order[0], "samples", part),
            metric,
        ),
        gain=gain,
        followed=over_seeds(followed),
        against_pick=paired(followed, picked),
    )


def drivers(
    collection: Collection, gains: Gains, method: str
) -> dict[str, tuple[float, int]]:
    """How columns of a method's client log go with its clients' gain.

    Spearman's rank correlation, over the clients of the first counted seed, of each
    column's mean over rounds with the gain; with the number of clients.
    """
    run, gain = collection.first_run(method=method), gains.of(method)
    if run is None or gain is None or run.last is None:
        return {}
    own = {
        w.name: gain.gain[n]
        for n, w in enumerate(gains.who)
        if w.seed in (None, run.seed)
    }
    y = np.array([own.get(name, np.nan) for name in run.last.names])
    columns = _client_means(run, len(y))
    if run.client_data is not None:
        columns["training samples"] = run.client_data.sizes.astype(float)
    correlations = {}
    for name, x in columns.items():
        known = np.isfinite(x) & np.isfinite(y)
        if known.sum() >= 5:
            rho = rank_correlation(x[known], y[known])
            if math.isfinite(rho):
                correlations[name] = (rho, int(known.sum()))
    return correlations


def log_columns(table: pa.Table) -> Iterator[tuple[str, Numbers]]:
    """The recorded numbers of one client log: (participants,) by name."""
    for name in table.column_names:
        values = np.asarray(table[name].to_numpy(zero_copy_only=False))
        if name not in ("round", "client") and values.dtype.kind in "fiub":
            yield name, values.astype(float)


def _client_means(run: Run, count: int) -> dict[str, Numbers]:
    """Columns of a run's client log, each averaged over rounds: (clients,) by name."""
    sums: dict[str, Numbers] = {}
    times: dict[str, Numbers] = {}
    for table in run.client_log:
        clients = np.asarray(table["client"].to_numpy())
        for name, values in log_columns(table):
            known = np.isfinite(values)
            np.add.at(
                sums.setdefault(name, np.zeros(count)), clients[known], values[known]
            )
            np.add.at(times.setdefault(name, np.zeros(count)), clients[known], 1)
    with np.errstate(invalid="ignore"):
        return {name: sums[name] / times[name] for name in sums}


def _seats(collection: Collection) -> _Seats:
    places: dict[tuple[int | None, str], int] = {}
    samples: dict[tuple[int | None, str], list[int]] = {}
    rows = []
    for seed in collection.seeds:
        run = collection.first_run(seed)
        names = run.last.names if run is not None and run.last is not None else ()
        data = run.client_data if run is not None else None
        sizes = data.sizes.tolist() if data is not None else [0] * len(names)
        keys = [(None if collection.has_same_clients else seed, name) for name in names]
        for key, size in zip(keys, sizes, strict=True):
            places.setdefault(key, len(places))
            samples.setdefault(key, []).append(size)
        rows.append(np.array([places[key] for key in keys], dtype=np.int64))
    who = tuple(
        Who(name, seed, round(float(np.mean(samples[seed, name]))))
        for seed, name in places
    )
    return _Seats(collection, who, tuple(rows))


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


def _steps(collection: Collection, method: str) -> float:
    runs = collection.of(method)
    return float(np.mean([run.total("steps") for run in runs] or [0]))


def _written_gains(collection: Collection, seats: _Seats) -> Gains | None:
    """From gain.parquet, which `fedloom run --gain` leaves, where every run has one."""
    if any(run.alone is None for run in collection.counted.values()):
        return None
    methods = []
    for method in collection.methods:
        gap = improvement(seats.written_gains(method), collection.metric)
        error = _gap_error(gap, np.zeros_like(gap), gap, "")
        methods.append(MethodGain(method, _mean(gap), error, _over(gap), work=1.0))
    baseline = "training alone with as many steps"
    return Gains(baseline, seats.who, collection.has_same_clients, tuple(methods))
