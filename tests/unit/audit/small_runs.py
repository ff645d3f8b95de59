"""Runs of a second: few clients, few samples, a model of a few parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedloom
from fedloom.audit import Subject, open_subject


def clients(
    count: int = 8, each: int = 20, *, is_noise: bool = False, seed: int = 0, **kw: Any
) -> fedloom.Federation:
    """Each with as many samples for testing as for training.

    With `is_noise` labels say nothing of inputs, so that all that can be learnt is
    which samples there were.
    """
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count * each, 24, generator=draw)
    y = (x @ torch.randn(24, generator=draw) > 0).long()
    if is_noise:
        y = torch.randint(0, 2, y.shape, generator=draw)
    who = np.repeat(np.arange(count), each)
    return fedloom.federation(x, y, clients=who, test=0.5, **kw)


def trained(
    path: Path,
    method: Any,
    federation: fedloom.Federation,
    *,
    rounds: int = 3,
    model: Any = "mlr",
    **options: Any,
) -> Subject:
    """A finished run, ready to be audited."""
    out = path / "run"
    fedloom.run(
        method, model, federation, rounds=rounds, out=out, progress=False, **options
    )
    return open_subject(out, model, federation)
