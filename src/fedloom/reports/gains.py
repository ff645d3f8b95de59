"""Who gains: every client against training alone, and what each should use."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloom.reports.collect import Collection
from fedloom.reports.held_out import Seats, Who
from fedloom.reports.ranking import Ranking
from fedloom.reports.runs import Run
from fedloom.results.evidence import Contrast, contrast
from fedloom.results.observations import Design, Numbers, Observations
from fedloom.results.statistics import (
    Estimate,
    accuracy_error,
    improvement,
    is_error,
    over_seeds,
    rank_correlation,
)


@dataclass(frozen=True, eq=False)
class MethodGain:
    """What one method did for the clients."""

    method: str
    gain: Numbers
    """(clients,) how much better than alone; positive is better for every metric."""
    error: Numbers
    """(clients,) standard error, nan where it is unknown."""
    mean: Estimate
    """Mean over clients, in the units of the score."""
    p: float
    """Of no mean gain at all, adjusted for the number of methods."""
    is_shown: bool
    """Whether the mean gain is positive, and more than chance explains."""
    work: float
    """Work of this method for each of the baseline's, in samples that entered a
    gradient; nan if there is no baseline."""
    is_over_baseline: bool = False
    """Whether training alone with as much work is the arm that trains alone."""

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

    has_equal_work: bool
    """Whether alone means: with as much work as the method took, client by client.
    Otherwise it is the arm of the comparison that trains alone."""
    who: tuple[Who, ...]
    has_same_clients: bool
    methods: tuple[MethodGain, ...]

    @property
    def reference(self) -> str:
        """What gains are over, in words."""
        return "training alone" + (" with as much work" if self.has_equal_work else "")

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
    followed: float
    """Score if every client used what its validation data of the same seed prefer."""
    against_pick: Contrast
    """How much better that is than everybody using the one method to use."""

    def word(self, n: int) -> str:
        """How sure the advice is: clear, likely or open."""
        if not math.isfinite(self.error[n]):
            return "unknown"
        if self.lead[n] > 1.96 * self.error[n]:
            return "clear"
        return "likely" if self.lead[n] > self.error[n] else "open"


def gains(
    collection: Collection,
    seats: Seats,
    observations: Observations | None,
    ranking: Ranking,
) -> Gains | None:
    """Every method's gain over training alone; None if nothing trained alone."""
    evidence = ranking.evidence
    if observations is None or evidence is None or not evidence.gains:
        return None
    compared = observations.for_gains()
    design = Design.of(compared)
    baseline = collection.baseline
    work_alone = _work(collection, baseline) if baseline is not None else math.nan
    methods = []
    for n, method in enumerate(compared.methods):
        mean = evidence.over_alone(method)
        if mean is None:
            continue
        gain, error = _by_client(compared, design, n, collection.metric, len(seats.who))
        if not compared.has_samples:
            error = _gap_error(collection, seats, method)
        work = _work(collection, method) / work_alone if work_alone else math.nan
        tested_gain = evidence.gains[method]
        methods.append(
            MethodGain(
                method,
                gain,
                error,
                mean,
                tested_gain.adjusted,
                tested_gain.is_shown,
                work,
                is_over_baseline=baseline in compared.methods
                and np.allclose(
                    compared.alone[n],
                    compared.values[compared.methods.index(baseline)],
                    equal_nan=True,
                ),
            )
        )
    has_equal_work = all(
        run.alone_outcomes is not None or run.alone is not None
        for run in collection.counted.values()
        if not run.is_alone
    )
    return Gains(has_equal_work, seats.who, collection.has_same_clients, tuple(methods))


def advise(
    collection: Collection,
    seats: Seats,
    observations: Observations | None,
    ranking: Ranking,
    pick: str | None,
) -> Advice | None:
    """The method that suits each client best, training alone included.

    Whether that pays is judged seed by seed: the validation data of a seed choose, its
    test data tell what came of it.
    """
    order = [s.method for s in ranking.standings if s.last.count]
    if observations is None or pick not in order or len(order) < 2:
        return None
    metric = collection.metric
    is_on_validation = all(
        s.validation.count for s in ranking.standings if s.last.count
    ) and bool(observations.is_test.any())
    part = "validation" if is_on_validation else ""
    # (methods, clients, seeds)
    deciding = np.stack([seats.table(m, metric, part) for m in order])
    losses = np.stack([seats.table(m, "loss", part) for m in order])
    better = _mean(improvement(deciding, metric))
    first, second = _two_best(better, _mean(losses))
    places = np.arange(len(seats.who))
    by_seed = np.stack(
        [
            _two_best(improvement(deciding[..., n], metric), losses[..., n])[0]
            for n in range(deciding.shape[2])
        ],
        axis=1,
    )
    tested = observations.test()
    values = tested.values[[tested.methods.index(m) for m in order]]
    seeds = np.unique(tested.seeds, return_inverse=True)[1]
    followed = values[by_seed[tested.clients, seeds], np.arange(values.shape[1])]
    error = _error_between(
        deciding[first, places],
        deciding[second, places],
        seats.table(order[0], "samples", part),
        metric,
    )
    if observations.has_samples and (
        observations.groups is not None or observations.repeats_samples
    ):
        number = np.array([observations.methods.index(m) for m in order])
        pair = number[first], number[second]
        by_unit = _error_by_unit(observations, pair, is_test=not is_on_validation)
        error = np.maximum(error, by_unit)
    return Advice(
        who=seats.who,
        is_on_validation=is_on_validation,
        method=tuple(order[n] for n in first),
        lead=better[first, places] - better[second, places],
        error=error,
        followed=Design.of(tested).mean(followed).value,
        against_pick=contrast(tested, followed, values[order.index(pick)], metric),
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
    columns = _client_means(run, run.last.clients)
    if run.client_data is not None:
        sizes = run.client_data.sizes[run.last.clients]
        columns["training samples"] = sizes.astype(float)
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


def _client_means(run: Run, clients: NDArray[np.int64]) -> dict[str, Numbers]:
    """Columns of a run's client log, each averaged over rounds: (clients,) by name."""
    sums: dict[str, Numbers] = {}
    times: dict[str, Numbers] = {}
    count = len(clients)
    for table in run.client_log:
        members = np.asarray(table["client"].to_numpy())
        is_asked = np.isin(members, clients)
        place = np.searchsorted(clients, members[is_asked])
        for name, column in log_columns(table):
            values = column[is_asked]
            known = np.isfinite(values)
            np.add.at(
                sums.setdefault(name, np.zeros(count)), place[known], values[known]
            )
            np.add.at(times.setdefault(name, np.zeros(count)), place[known], 1)
    with np.errstate(invalid="ignore"):
        return {name: sums[name] / times[name] for name in sums}


def _mean(table: Numbers) -> Numbers:
    """Over the last axis, of what is known; nan where nothing is."""
    known = np.isfinite(table)
    total = np.where(known, table, 0.0).sum(-1)
    with np.errstate(invalid="ignore"):
        mean: Numbers = total / known.sum(-1)
    return mean


def _by_client(
    compared: Observations, design: Design, n: int, metric: str, count: int
) -> tuple[Numbers, Numbers]:
    """(clients,) a method's gain over training alone, and its standard error."""
    gap = improvement(compared.values[n] - compared.alone[n], metric)
    gain, error = np.full(count, np.nan), np.full(count, np.nan)
    own = design.by_client(gap)
    gain[np.unique(compared.clients)] = own.mean
    error[np.unique(compared.clients)] = own.error
    return gain, error


def _gap_error(collection: Collection, seats: Seats, method: str) -> Numbers:
    """(clients,) standard error of a gain whose samples are not known."""
    metric, baseline = collection.metric, collection.baseline
    together = seats.table(method, metric)
    if baseline is None:
        alone = seats.written_alone(method)
    else:
        alone = seats.table(baseline, metric)
    return _error_between(together, alone, seats.table(method, "samples"), metric)


def _error_between(a: Numbers, b: Numbers, samples: Numbers, metric: str) -> Numbers:
    """(clients,) standard error of the difference of two methods' scores.

    From the spread over seeds where a client has several. From one seed it is known
    for accuracies only, by the number of samples; the two models answer the same
    questions, so taking their errors as independent makes it too large rather than
    too small.
    """
    if (np.isfinite(a).sum(1) > 1).any():
        return np.array([over_seeds(gap).error for gap in a - b])
    if is_error(metric):
        return np.full(len(a), np.nan)
    own, other = accuracy_error(a, samples), accuracy_error(b, samples)
    error: Numbers = np.sqrt(_mean(np.square(own) + np.square(other)))
    return error


def _error_by_unit(
    observations: Observations,
    pair: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    is_test: bool,
) -> Numbers:
    """(clients,) the same from samples or groups, each counted once in all seeds.

    Args:
        observations: all that is held out.
        pair: (clients,) numbers of the two methods that each client is compared by.
        is_test: whether they are compared on test data, or else on the others.
    """
    first, second = (side[observations.clients] for side in pair)
    each = np.arange(len(observations.clients))
    gap = observations.values[first, each] - observations.values[second, each]
    gap = np.where(observations.is_test == is_test, gap, np.nan)
    error = np.full(len(pair[0]), np.nan)
    by_client = Design.of(observations).by_client(gap)
    error[np.unique(observations.clients)] = by_client.error
    return error


def _two_best(
    better: Numbers, loss: Numbers
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(clients,) the best and the next; equals by loss, then by overall rank."""
    place = np.broadcast_to(np.arange(len(better))[:, None], better.shape)
    # Unknown scores come last: lexsort puts nan at the end.
    order = np.lexsort((place, loss, -better), axis=0)
    return order[0], order[1]


def _work(collection: Collection, method: str) -> float:
    """Samples that entered a gradient, mean over runs; steps where none are counted."""
    totals = []
    for run in collection.of(method):
        work = run.reader.work
        own = float(work.sum()) if work is not None else run.total("gradients")
        totals.append(own or run.total("steps"))
    return float(np.mean(totals or [0.0]))
