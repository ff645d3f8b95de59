"""The lower bound of epsilon that follows from guesses about coins.

Steinke, Nasr, Jagielski. Privacy Auditing with One (1) Training Run. NeurIPS 2023.
arXiv:2305.08846, Theorem 5.2: whoever sees the result of an (epsilon, delta)-private
run in which each of m clients took part by a fair coin, and guesses r of the coins, is
right no more often than Binomial(r, e^epsilon / (1 + e^epsilon)) says, but for what
delta adds.
"""

from __future__ import annotations

import math

import numpy as np
import scipy

_LARGEST = 50.0
"""No count of guesses that fits in memory shows more."""


def lower_bound(coins: int, right: int, *, delta: float, level: float) -> float:
    """The largest epsilon that so many right guesses rule out; 0 if they rule out none.

    Args:
        coins: m, how many coins there were; all of them were guessed, so that it is r,
            too.
        right: v, how many of them rightly.
        delta: the delta that belongs to epsilon.
        level: how often the bound is not above the true epsilon.
    """
    chance = 1.0 - level

    def is_ruled_out(epsilon: float) -> bool:
        return p_value(coins, coins, right, epsilon, delta) < chance

    if not coins or not is_ruled_out(0.0):
        return 0.0
    low, high = 0.0, _LARGEST
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if is_ruled_out(middle) else (low, middle)
    return low


def p_value(
    coins: int, guesses: int, right: int, epsilon: float, delta: float
) -> float:
    """How likely so many right guesses are, at most, in a run that is that private.

    Theorem 5.2: P[W >= v] <= beta + 2 m delta alpha, with beta = P[B >= v] for B of
    Binomial(r, e^epsilon / (1 + e^epsilon)) and alpha the maximum over i of
    P[v > B >= v - i] / i.
    """
    binomial = scipy.stats.binom(guesses, 1.0 / (1.0 + math.exp(-epsilon)))
    beta = float(binomial.sf(right - 1))
    if delta == 0.0 or right == 0:
        return beta
    below = np.cumsum(binomial.pmf(np.arange(right - 1, -1, -1)))
    alpha = float((below / np.arange(1, right + 1)).max())
    return min(1.0, beta + 2 * coins * delta * alpha)
