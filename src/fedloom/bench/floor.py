"""The least time that some work can take on this machine.

Work is counted in floating-point operations of products and convolutions, and in bytes
that are read or written. The rates are measured in the same run, on the same device
and threads: a large product for the first, and for the second an update in place of as
many bytes as a chunk's parameters have, so that a cache counts where they stay in one.
The floor is the longer of the two times, as if they went on side by side. Everything
else is left out: activations, batches, calls, randomness, the server.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_SIDES = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the product that is timed, by kind of device."""
_LEAST_S = 0.02
"""Seconds that a measurement takes at least; the best of a few counts."""
_REPEATS = 5


@dataclass(frozen=True)
class Work:
    """What something takes at least, however it is done."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Rates:
    """What a device does in a second."""

    flops_s: float
    """Floating-point operations of a large product."""
    bytes_s: float
    """Bytes read or written."""

    @classmethod
    def measure(cls, device: torch.device, chunk_bytes: int) -> Rates:
        """Time a product, and an update of so many bytes."""
        side = _SIDES.get(device.type, _SIDES["cpu"])
        left, right, product = (torch.ones(side, side, device=device) for _ in range(3))
        product_s = _seconds(lambda: torch.mm(left, right, out=product), device)
        values = torch.zeros(max(1, chunk_bytes // 4), device=device)
        update_s = _seconds(lambda: values.add_(1.0), device)
        return cls(2 * side**3 / product_s, 2 * 4 * len(values) / update_s)

    def floor_s(self, work: Work) -> float:
        """The least seconds that some work takes."""
        return max(work.flops / self.flops_s, work.bytes / self.bytes_s)


def _seconds(function: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the best of a few series."""

    def series(calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    series(1)  # the first call sets things up
    calls = max(1, int(_LEAST_S / series(1)))
    return min(series(calls) for _ in range(_REPEATS)) / calls
