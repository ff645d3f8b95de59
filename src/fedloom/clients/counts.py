"""How many: shares of a number as whole numbers, without surprises of rounding."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedloom.clients.ragged import Ragged

_ROUND_OFF = 1e-12


def floor_share(share: float, count: int) -> int:
    """floor(share * count) as meant: 0.29 of 100 is 29, though 0.29 * 100 < 29."""
    product = share * count
    nearest = round(product)
    if abs(product - nearest) <= _ROUND_OFF * max(1.0, product):
        return nearest
    return math.floor(product)


def round_share(share: float, count: int) -> int:
    """The nearest whole number to share * count, a half going up."""
    return math.floor(share * count * (1.0 + _ROUND_OFF) + 0.5)


def round_shares(share: float, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same for each of some numbers."""
    exact = share * counts * (1.0 + _ROUND_OFF) + 0.5
    rounded: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    return rounded


def apportion(
    total: int,
    weights: NDArray[np.float64],
    *,
    least: int = 0,
    ties: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Divide `total` in proportion to `weights`, by largest remainders.

    Args:
        total: What is divided; at least `least` times the number of weights.
        weights: Not negative, not all zero.
        least: What everybody gets before the rest is divided.
        ties: Decides between equal remainders; without it the first one wins.
    """
    rest = total - least * len(weights)
    quota = rest * (weights / weights.sum())
    counts: NDArray[np.int64] = np.floor(quota).astype(np.int64)
    remainders = np.round(quota - counts, 9)
    keys = np.arange(len(weights)) if ties is None else ties.permutation(len(weights))
    order = np.lexsort((keys, -remainders))
    counts[order[: rest - int(counts.sum())]] += 1
    counts += least
    return counts


def apportion_each(
    totals: NDArray[np.int64], weights: Ragged, ties: NDArray[np.int64]
) -> NDArray[np.int64]:
    """`apportion` for each of some lists of weights, one after another.

    Args:
        totals: (n,) what is divided by each list.
        weights: the lists, of whole numbers.
        ties: what decides between equal remainders, an entry for each weight.
    """
    owner = weights.owners
    sums = np.bincount(owner, weights.indices, minlength=len(weights))
    quota = totals[owner] * (weights.indices.astype(np.float64) / sums[owner])
    counts: NDArray[np.int64] = np.floor(quota).astype(np.int64)
    remainders = np.round(quota - counts, 9)
    order = np.lexsort((ties, -remainders, owner))
    dealt = np.bincount(owner, counts, minlength=len(weights)).astype(np.int64)
    place = np.arange(len(owner)) - weights.offsets[owner]
    counts[order[place < (totals - dealt)[owner]]] += 1
    return counts
