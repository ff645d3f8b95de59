"""`fedloom reproduce`: the experiments of the papers, and of the library itself."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

from fedloom.commands import completion, options
from fedloom.commands.console import say
from fedloom.commands.options import argument, option
from fedloom.core.errors import ConfigError, unknown


def reproduce_command(
    name: Annotated[
        str,
        argument(
            "Experiment, such as self_fl/gaussian or worlds.", completion.experiments
        ),
    ],
    out: Annotated[Path | None, option("Directory for the results.")] = None,
    seed: Annotated[int, option("Seed of everything that is drawn.")] = 0,
    jobs: Annotated[
        int | None,
        option("Number of processes that share the work, for worlds; one per core."),
    ] = None,
    device: options.Device = None,
) -> None:
    """Rerun an experiment.

    Examples:
        fedloom reproduce self_fl/gaussian --out runs/gaussian
        fedloom reproduce digits --device cpu
    """
    if device is not None:
        _show_only(device)
    from fedloom.experiments import EXPERIMENTS
    from fedloom.experiments.worlds import study

    if name not in EXPERIMENTS:
        raise ConfigError(unknown("experiment", name, EXPERIMENTS))
    reproduce = EXPERIMENTS[name]
    if jobs is not None:
        if reproduce not in (study.reproduce, study.reproduce_groups):
            raise ConfigError(
                f"reproduce {name}: runs in one process; --jobs is for worlds alone. "
                "Leave it out."
            )
        if jobs < 1:
            raise ConfigError(f"--jobs: expected 1 or more processes, found {jobs}.")
        reproduce = partial(reproduce, jobs=jobs)
    folder = out if out is not None else Path("runs") / name
    say(reproduce(folder, seed))
    say(f"Written to {folder}")


def _show_only(device: str) -> None:
    """Have experiments, which take a GPU if they see one, see no other device."""
    if device != "auto":
        # Before PyTorch is imported, which looks once.
        os.environ["CUDA_VISIBLE_DEVICES"] = device.removeprefix("cuda").lstrip(":")
        if device == "cuda":
            del os.environ["CUDA_VISIBLE_DEVICES"]
        elif device == "cpu":
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from fedloom.engine.choice import EngineSettings

    EngineSettings(device=device.partition(":")[0]).torch_device()
