"""Small runs for the tests of clusters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from fedloom.config import RunConfig, parse
from fedloom.results.rows import Round

MARKS = [
    pytest.mark.ray,
    pytest.mark.timeout(180),
    # Ray leaves files and processes of its own to be collected.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
"""Of every test that starts Ray."""

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "self-fl": {"most_steps": 6},
    "scaffold": {},
    "fedacs": {"epochs": 2},
    "pfedmt": {"steps": 3, "team_iterations": 2},
    "ditto": {},
}
"""Without memory, with it, with control variates, with a download for each client,
with teams and several exchanges, with a personal model."""


def small(name: str, **changes: Any) -> RunConfig:
    tables: dict[str, Any] = {
        "rounds": 4,
        "checkpoint_every": 1,
        "algorithm": {"name": name, **METHODS[name]},
        "partition": {"name": "label-skew", "clients": 10, "classes": 4},
        "teams": {"name": "blocks", "teams": 2},
        "model": {"name": "mlp", "hidden": [8]},
        "sampling": {"rate": 0.7},
        "engine": {
            "compile": "off",
            "device": "cpu",
            "dtype": "float64",
            "threads": 1,
        },
    }
    return parse(tables | changes)


def checkpoint_of(path: Path) -> dict[str, Tensor]:
    """All that a run has come to."""
    with safe_open(path / "checkpoint.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def assert_same(found: Path, expected: Path) -> None:
    """Two runs agree to rounding, in all that servers and clients keep."""
    mine, theirs = checkpoint_of(found), checkpoint_of(expected)
    assert mine.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-9, atol=1e-12, msg=name)


class Watcher:
    """Does something after some round."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self.number, self.act, self.reason = number, act, ""

    def start(self, simulation: Any, schedule: Any, reason: str) -> None:
        self.reason = reason

    def round(self, row: Round) -> None:
        if row.round == self.number:
            self.act()
