"""`fedloom reproduce`: the experiments of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedloom.commands.console import say
from fedloom.commands.options import argument, option
from fedloom.core.errors import ConfigError, unknown
from fedloom.experiments import EXPERIMENTS


def reproduce_command(
    name: Annotated[str, argument("Experiment, such as self_fl/gaussian.")],
    out: Annotated[Path | None, option("Directory for the results.")] = None,
    seed: Annotated[int, option("Seed of everything that is drawn.")] = 0,
) -> None:
    """Rerun an experiment of the papers."""
    if name not in EXPERIMENTS:
        raise ConfigError(unknown("experiment", name, EXPERIMENTS))
    folder = out if out is not None else Path("runs") / name
    say(EXPERIMENTS[name](folder, seed))
    say(f"Written to {folder}")
