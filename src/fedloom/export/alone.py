"""Training alone, the yardstick of gain: the same local work, nothing exchanged."""

from __future__ import annotations

from typing import Any

from fedloom.algorithms import Local
from fedloom.core.algorithm import AnyAlgorithm


def alone_like(method: AnyAlgorithm, **changes: Any) -> Local:
    """Local training with a method's settings, as long as all of its exchanges.

    Args:
        method: whose learning rate, batches and local work are taken.
        changes: settings that differ.
    """
    times = method.exchanges
    settings = {
        "lr": method.lr,
        "batch_size": method.batch_size,
        "epochs": method.epochs * times,
        "steps": method.steps * times if method.steps is not None else None,
        "momentum": method.momentum,
        "weight_decay": method.weight_decay,
        "lr_decay": method.lr_decay,
        "clip": method.clip,
    }
    return Local(**{**settings, **changes})
