"""What can be said of methods from few seeds: estimates, paired tests, chosen rounds.

What is repeated in a comparison is the seed. It draws the split, the first model, the
cohorts and the batches, so runs of different seeds are independent, and all methods
meet the same ones: two methods are compared by the differences of their mean-over-
clients scores, one difference per seed. Clients of one seed are not independent of
one another: they trained one shared model together, from one start and in the same
cohorts, and what is luck for one is luck for many. A test that counted each of them
as a repetition would find almost any difference significant.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fedloom.core.metrics import METRICS

LEVEL = 0.95
"""Level of all intervals."""

_BATCH = 1_000_000
"""Most clients that are drawn at a time, so that many of them need little memory."""


@dataclass(frozen=True)
class Estimate:
    """A mean, with how far it may be off."""

    mean: float
    error: float
    """Standard error; nan from a single value."""
    low: float
    """Where the interval begins; nan from a single value."""
    high: float
    """Where the interval ends."""
    count: int
    """How many values went in."""

    @property
    def has_interval(self) -> bool:
        """Whether there were enough values for an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True)
class Paired:
    """One method against another, seed by seed."""

    difference: Estimate
    """First minus second, over the seeds that both finished."""
    p: float
    """Two-sided, of the paired t-test; nan with fewer than two pairs."""


def is_error(metric: str) -> bool:
    """Whether less of it is better."""
    return metric in METRICS and not METRICS[metric].is_higher_better


def is_better(a: float, b: float, metric: str) -> bool:
    """Whether score `a` is better than `b`; nothing is better than itself or nan."""
    return a < b if is_error(metric) else a > b


def improvement(gap: NDArray[np.float64], metric: str) -> NDArray[np.float64]:
    """Differences of scores, turned so that positive is better for every metric."""
    return -gap if is_error(metric) else gap


def over_seeds(values: ArrayLike, level: float = LEVEL) -> Estimate:
    """Mean over seeds with Student's t interval; values that are not finite are left.

    Args:
        values: one number per seed.
        level: of the interval.
    """
    known = _finite(values)
    count = len(known)
    mean = float(known.mean()) if count else math.nan
    if count < 2:
        return Estimate(mean, math.nan, math.nan, math.nan, count)
    error = float(known.std(ddof=1) / math.sqrt(count))
    half = float(scipy.stats.t.ppf(0.5 + level / 2, count - 1)) * error
    return Estimate(mean, error, mean - half, mean + half, count)


def over_clients(
    values: ArrayLike, level: float = LEVEL, draws: int = 4000
) -> Estimate:
    """Mean over the clients of one run with a percentile bootstrap interval.

    It says how much the mean depends on which clients there happen to be, and nothing
    about what another seed would give. The draws are the same every time.

    Args:
        values: one number per client; those that are not finite are left out.
        level: of the interval.
        draws: how often clients are drawn anew, with replacement.
    """
    known = _finite(values)
    count = len(known)
    if count < 2:
        return over_seeds(known)
    interval = scipy.stats.bootstrap(
        (known,),
        np.mean,
        n_resamples=draws,
        batch=max(1, _BATCH // count),
        confidence_level=level,
        method="percentile",
        rng=np.random.Generator(np.random.Philox(0)),
    ).confidence_interval
    error = float(known.std(ddof=1) / math.sqrt(count))
    return Estimate(
        float(known.mean()), error, float(interval.low), float(interval.high), count
    )


def paired(first: ArrayLike, second: ArrayLike, level: float = LEVEL) -> Paired:
    """Paired t-test of two methods.

    Args:
        first: one number per seed, nan for a seed that did not finish.
        second: the same seeds in the same order.
        level: of the interval of the difference.
    """
    gaps = np.asarray(first, float) - np.asarray(second, float)
    difference = over_seeds(gaps, level)
    if difference.count < 2:
        return Paired(difference, math.nan)
    if difference.error == 0.0:
        # Without any spread t is 0/0 or infinite.
        return Paired(difference, 1.0 if difference.mean == 0.0 else 0.0)
    with warnings.catch_warnings():
        # SciPy warns of gaps that are nearly equal; the tiny p-value is meant.
        warnings.simplefilter("ignore", RuntimeWarning)
        test = scipy.stats.ttest_1samp(_finite(gaps), 0.0)
    return Paired(difference, float(test.pvalue))


def holm(p: Sequence[float]) -> NDArray[np.float64]:
    """p-values adjusted for being several (Holm 1979); nan ones are not counted.

    The k-th smallest of m is multiplied by m - k + 1; none is smaller than the one
    before it, and none is above 1. The chance that any true null hypothesis falls
    below a threshold is then at most that threshold, however the tests depend on one
    another.
    """
    values = np.asarray(p, float)
    adjusted = np.full(values.shape, np.nan)
    known = np.flatnonzero(np.isfinite(values))
    order = known[np.argsort(values[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * factors))
    return adjusted


def choose_round(validation: Mapping[int, float], metric: str) -> int | None:
    """The round that does best on validation data, the earliest of equals.

    Args:
        validation: the score of each evaluated round.
        metric: what the scores are.

    Returns:
        None if there is no finite score.
    """
    best: int | None = None
    for number in sorted(validation):
        score = validation[number]
        if not math.isfinite(score):
            continue
        if best is None or is_better(score, validation[best], metric):
            best = number
    return best


def accuracy_error(
    accuracy: NDArray[np.float64], samples: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Standard error of each client's accuracy, from its number of samples alone.

    Two successes and two failures are added (Agresti and Coull 1998), so that a client
    with all of three samples right is not taken to be certain.
    """
    share = (accuracy * samples + 2) / (samples + 4)
    error: NDArray[np.float64] = np.sqrt(share * (1 - share) / (samples + 4))
    return error


def rank_correlation(x: ArrayLike, y: ArrayLike) -> float:
    """Spearman's; equals share their mean rank. nan where one of the two is constant.

    Args:
        x: finite numbers.
        y: as many.
    """
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(scipy.stats.spearmanr(x, y).statistic)


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    kept: NDArray[np.float64] = numbers[np.isfinite(numbers)]
    return kept
