"""Rounding at random may lengthen a vector: what a bound on its norm leaves for it."""

from __future__ import annotations

import math
from typing import NamedTuple

from fedloom.core.errors import ConfigError
from fedloom.core.wording import counted

_MOST_ROOM = 0.1
"""Share of a bound that may go to rounding."""
_MARGIN = 1e-6
"""By so much of itself a shortened vector stays below, whatever 32-bit floats do."""


def largest_number(kind: str, bound: float) -> float:
    """The largest number of a field in a secure sum.

    Args:
        kind: as in `fedloom.core.sums.Bound`.
        bound: the largest number of a vector.
    """
    if kind == "vector":
        return bound
    return bound**2 if kind == "square" else 1.0


class Rounding(NamedTuple):
    """How a secure sum rounds: up or down at random, to multiples of a step."""

    bits: int
    """Of a number in the sum."""
    bound: float
    """Largest number of a vector."""

    def step(self, kind: str) -> float:
        """What the numbers of a field become multiples of; 0 if that changes none.

        Args:
            kind: as in `fedloom.core.sums.Bound`. A weight is one number from 0 to 1,
                and 1 is a multiple: no rounding passes it.
        """
        if kind == "weight":
            return 0.0
        return float(largest_number(kind, self.bound) / (2 ** (self.bits - 1) - 1))


def norm_before_rounding(norm: float, step: float, numbers: int) -> float:
    """The norm that a field may have so that it is within another once it is rounded.

    Each number moves by less than a step, so all of them by less than step *
    sqrt(numbers), whatever chance decides.

    Args:
        norm: what it may have then.
        step: what its numbers become multiples of; 0 if they are not rounded.
        numbers: how many there are.

    Raises:
        ConfigError: Rounding would take more than a tenth of it.
    """
    if not step:
        return norm
    room = step * math.sqrt(numbers)
    if room > _MOST_ROOM * norm:
        raise ConfigError(
            f"[secure]: what a client adds is bounded to a norm of {norm:g}, and "
            f"rounding its {counted(numbers, 'number')} to multiples of {step:.3g} "
            f"could lengthen it by {room:.3g}; expected {_MOST_ROOM * norm:.3g} at "
            "most. Raise secure.bits, or lower secure.bound, which need not be above "
            "that norm."
        )
    return (norm - room) * (1.0 - _MARGIN)
