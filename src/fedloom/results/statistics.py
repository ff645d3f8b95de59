"""Small statistics: estimates over seeds or clients, intervals, adjusted p-values.

What held-out samples say of methods is worked out in `evidence`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from fedloom.core.metrics import METRICS

LEVEL = 0.95
"""Level of all intervals."""

_FEWEST_SEEDS = 3
"""From as many seeds on there is an interval over them."""

_BATCH = 1_000_000
"""Most clients that are drawn at a time, so that many of them need little memory."""


@dataclass(frozen=True)
class Estimate:
    """A mean, with how far it may be off."""

    mean: float
    error: float
    """Standard error; nan from a single value."""
    low: float
    """Where the interval begins; nan from too few values."""
    high: float
    """Where the interval ends."""
    count: int
    """How many values went in."""

    @property
    def has_interval(self) -> bool:
        """Whether there were enough values for an interval."""
        return math.isfinite(self.low) and math.isfinite(self.high)


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

    Two seeds give no interval: Student's t would make it 13 times their distance wide.

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
    if count < _FEWEST_SEEDS:
        return Estimate(mean, error, math.nan, math.nan, count)
    half = float(scipy.stats.t.ppf(0.5 + level / 2, count - 1)) * error
    return Estimate(mean, error, mean - half, mean + half, count)


def within_range(estimate: Estimate, metric: str, *, is_share: bool) -> Estimate:
    """A mean over seeds with an interval that stays where the number can be.

    Wilson's for a share, one on the log scale for an error. None where all seeds gave
    the same, for then nothing is known of what others would give.

    Args:
        estimate: as `over_seeds` gives it.
        metric: what it is a mean of.
        is_share: whether it lies between 0 and 1.
    """
    mean, error = estimate.mean, estimate.error
    if not estimate.has_interval:
        return estimate
    if error == 0:
        return replace(estimate, error=math.nan, low=math.nan, high=math.nan)
    df = estimate.count - 1
    if is_share and 0 < mean < 1:
        low, high = share_interval(mean, mean * (1 - mean) / error**2, df=df)
        return replace(estimate, low=low, high=high)
    if is_error(metric) and mean > 0:
        width = float(scipy.stats.t.ppf(0.5 + LEVEL / 2, df)) * error / mean
        factor = math.exp(min(width, _WIDEST))
        return replace(estimate, low=mean / factor, high=mean * factor)
    return estimate


_WIDEST = 100.0
"""An interval on the log scale is not wider, so that its ends are numbers."""


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


def share_interval(
    share: float, count: float, level: float = LEVEL, df: float = math.inf
) -> tuple[float, float]:
    """Wilson's interval of a share, which stays between 0 and 1.

    Args:
        share: how many of all, between 0 and 1.
        count: how many there are, or would be that are as sure.
        level: of the interval.
        df: degrees of freedom, where the spread was estimated.
    """
    t = float(scipy.stats.t.ppf(0.5 + level / 2, df))
    shrink = 1 + t * t / count
    centre = (share + t * t / (2 * count)) / shrink
    half = t * math.sqrt(share * (1 - share) / count + (t / (2 * count)) ** 2) / shrink
    return max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share))


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
