"""How many CPU threads PyTorch uses, for as long as some work takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def on_threads(count: int | None) -> Iterator[None]:
    """Work on so many CPU threads, then leave the process as it was.

    Args:
        count: how many; as many as the process has if None.
    """
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
