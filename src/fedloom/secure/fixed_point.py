"""Numbers as whole numbers modulo 2^32, and back, by stochastic rounding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.secure.primitives import Words, keystream


class FixedPoint(NamedTuple):
    """Numbers from -bound to bound as whole multiples of `step`.

    What is rounded is off by less than a step, and right on average; so a sum over n
    clients is off by less than n steps. Zero stays zero.
    """

    bits: int
    bound: NDArray[np.float64]
    """The largest number at each place."""

    @property
    def step(self) -> NDArray[np.float64]:
        """What 1 stands for, at each place."""
        step: NDArray[np.float64] = self.bound / (2 ** (self.bits - 1) - 1)
        return step

    def encode(self, values: NDArray[np.float64], key: bytes) -> Words:
        """Round numbers up or down, with chances that keep their mean.

        Args:
            values: numbers, none beyond the bound.
            key: what chance is drawn from.
        """
        chance = keystream(key, len(values)) * 2.0**-32  # in [0, 1)
        steps = values / self.step
        whole = np.floor(steps)
        # In two parts, so that whole numbers of steps stay what they are.
        rounded = whole + np.floor(steps - whole + chance)
        most = 2 ** (self.bits - 1) - 1
        return rounded.clip(-most, most).astype(np.int64).astype(np.uint32)

    def decode(self, total: Words) -> NDArray[np.float64]:
        """What a sum of encoded numbers stands for."""
        whole: NDArray[np.int32] = total.view(np.int32)
        return whole * self.step
