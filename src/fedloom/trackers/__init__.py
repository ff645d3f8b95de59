"""Trackers: a run's numbers where other tools see them."""

from __future__ import annotations

from collections.abc import Callable

from fedloom.core.errors import ConfigError, unknown
from fedloom.trackers.csv import Csv
from fedloom.trackers.follow import follow
from fedloom.trackers.mlflow import MLflow
from fedloom.trackers.tensorboard import TensorBoard
from fedloom.trackers.tracker import About, Ending, Tracker

__all__ = [
    "TRACKERS",
    "About",
    "Csv",
    "Ending",
    "MLflow",
    "TensorBoard",
    "Tracker",
    "follow",
    "make_trackers",
]

TRACKERS: dict[str, Callable[[], Tracker]] = {
    "csv": Csv,
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
}
"""Every tracker by its name on the command line."""


def make_trackers(names: str) -> list[Tracker]:
    """The trackers of `--track tensorboard,mlflow`, one run's worth.

    Raises:
        ConfigError: a name is not known, or its library is not installed.
    """
    wanted = [name for name in map(str.strip, names.split(",")) if name]
    for name in wanted:
        if name not in TRACKERS:
            raise ConfigError(f"--track: {unknown('tracker', name, TRACKERS)}")
    return [TRACKERS[name]() for name in wanted]
