"""How exact products are on a GPU: as in float32, or with the factors cut to tf32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["float32", "tf32"]
EXACT = "tf32x3"
"""As accurate as float32, by three products on tensor cores."""


@contextmanager
def at_precision(precision: Precision) -> Iterator[None]:
    """Have libraries and kernels compute so, then leave the process as it was."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def own_precision() -> str:
    """What kernels of our own take for what is set, in the words of Triton."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else EXACT
