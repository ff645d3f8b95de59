"""How sure a mean over clients is: bootstrap intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError
from fedloom.core.streams import generator

_DRAWS = 1_000_000
"""Clients drawn at once, so that memory stays small."""


class Interval(NamedTuple):
    """A mean over clients and where it lies if other clients had been asked."""

    mean: float
    low: float
    high: float
    clients: int
    """Clients with a number; those with nan are left out."""


def bootstrap(
    values: NDArray[np.float64],
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """The percentile bootstrap interval of the mean over clients.

    Clients are drawn with replacement, as many as there are; the bounds are quantiles
    of the means of such draws. Narrow for few clients: with four, take it as a hint.

    Args:
        values: (clients,) one number each; nan is left out.
        level: how often the interval should hold the true mean.
        resamples: how many draws.
        seed: of the draws; the same seed gives the same interval.

    Raises:
        ConfigError: `level` is not between 0 and 1, or there is no resample.
    """
    if not 0 < level < 1 or resamples < 1:
        raise ConfigError(
            "interval: level must be above 0 and below 1 and resamples at least 1, "
            f"found {level} and {resamples}."
        )
    known = values[~np.isnan(values)]
    count = len(known)
    if count == 0:
        return Interval(np.nan, np.nan, np.nan, 0)
    draw, means = generator(seed, "bootstrap"), []
    block = max(1, _DRAWS // count)
    for start in range(0, resamples, block):
        rows = min(block, resamples - start)
        means.append(known[draw.integers(count, size=(rows, count))].mean(1))
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return Interval(float(known.mean()), float(low), float(high), count)
