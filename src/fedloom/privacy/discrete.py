"""Discrete Gaussian noise: whole numbers, so that no rounding tells what was added.

P(k) is proportional to exp(-k^2 / (2 s^2)). Its distribution function is tabulated in
integers of 62 bits and inverted at 62 random bits: exact up to 2^-62 for each k.
Canonne, Kamath, Steinke (NeurIPS 2020, arXiv:2004.00010) show that it hides what the
continuous one hides; sums of it over clients come as near to it as never matters while
each has a standard deviation of some steps (Kairouz, Liu, Steinke, ICML 2021,
arXiv:2102.06387).
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

_BITS = 62
_FIXED = 160
"""Bits of the fixed-point numbers that the table is made with."""
_TAIL = 10.0
"""Standard deviations up to which there are numbers: beyond, less than 2^-70."""


def discrete_gaussian(words: Tensor, scale: float) -> Tensor:
    """Whole numbers in float64.

    Args:
        words: random bits, an int64 for each number.
        scale: s, about the standard deviation.
    """
    table = _table(scale).to(words.device)
    words = words.bitwise_and((1 << _BITS) - 1)
    return (torch.bucketize(words, table, right=True) - len(table) // 2).double()


@lru_cache(maxsize=16)
def _table(scale: float) -> Tensor:
    """The distribution function from the least number on, the last one left out."""
    top = math.ceil(_TAIL * scale) + 1
    unit = 1 << _FIXED
    # exp(-(2 k + 1) / (2 s^2)) is what P(k + 1) is of P(k); its own ratio is constant.
    ratio = _fixed_exp(-0.5 / scale**2)
    shrink = _fixed_exp(-1.0 / scale**2)
    masses = [unit]
    for _ in range(top):
        masses.append(masses[-1] * ratio >> _FIXED)
        ratio = ratio * shrink >> _FIXED
    both = [*reversed(masses[1:]), *masses]
    total, so_far, table = sum(both), 0, []
    for mass in both[:-1]:
        so_far += mass
        table.append((so_far << _BITS) // total)
    return torch.tensor(table)


def _fixed_exp(x: float) -> int:
    """exp(x) for x at most 0, as a fixed-point number."""
    numerator, denominator = x.as_integer_ratio()
    half = 0
    while abs(numerator) * 4 > denominator:  # exp(x) = exp(x / 2)^2
        denominator *= 2
        half += 1
    term = total = 1 << _FIXED
    place = 0
    while term:
        place += 1
        term = term * abs(numerator) // (denominator * place)
        total += -term if place % 2 else term
    for _ in range(half):
        total = total * total >> _FIXED
    return total
