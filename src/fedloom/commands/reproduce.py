"""`fedloom reproduce`: the experiments of the papers, and of the library itself."""

from __future__ import annotations

import inspect
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.commands import completion, options
from fedloom.commands.console import (
    make_table,
    plain,
    remark,
    say,
    stoppable,
    tell,
)
from fedloom.commands.console import (
    out as console,
)
from fedloom.commands.options import argument, option
from fedloom.core.errors import ConfigError, DataError, unknown

if TYPE_CHECKING:
    from collections.abc import Sequence


def reproduce_command(
    names: Annotated[
        list[str] | None,
        argument(
            "Experiments, such as self_fl/fig4_gaussian or worlds; a paper's name is "
            "all of its own. The first is run first.",
            completion.experiments,
        ),
    ] = None,
    listed: Annotated[
        bool,
        option(
            "List what there is, the data it needs, how long it takes and what is "
            "stored.",
            "--list",
        ),
    ] = False,
    everything: Annotated[
        bool, option("Run all experiments of the papers, cheap ones first.", "--all")
    ] = False,
    scale: Annotated[
        str, option("Scale: small, minutes on two cores, or paper, all of it.")
    ] = "small",
    results: Annotated[
        Path, option("Folder of stored results; what it holds is not run again.")
    ] = Path("results"),
    out: Annotated[Path | None, option("Directory for the runs.")] = None,
    stop_after: Annotated[
        float | None,
        option("Minutes after which to stop; the same command goes on."),
    ] = None,
    search: Annotated[
        bool,
        option(
            "Search the settings that the paper does not give, on validation data.",
            "--search",
        ),
    ] = False,
    seed: Annotated[
        int, option("Seed of everything that is drawn, for the library's own.")
    ] = 0,
    jobs: Annotated[
        int | None,
        option(
            "Number of processes that share the work: one by default, one per core "
            "for worlds."
        ),
    ] = None,
    device: options.Device = None,
    quiet: options.Quiet = False,
) -> None:
    """Rerun experiments of the papers, or of the library itself.

    Examples:
        fedloom reproduce --list
        fedloom reproduce self_fl/fig4_gaussian --scale paper
        fedloom reproduce pfedvem --scale paper --device cuda --stop-after 25
        fedloom reproduce digits --device cpu
    """
    from fedloom.experiments import EXPERIMENTS

    if listed:
        _list(results)
        return
    names = names or []
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs: expected 1 or more processes, found {jobs}.")
    if len(names) == 1 and names[0] in EXPERIMENTS:
        _run_own(names[0], out, seed, jobs, device)
        return
    _run_papers(
        _chosen(names, everything=everything),
        scale,
        results,
        out if out is not None else Path("runs/reproduce"),
        stop_after,
        device,
        jobs if jobs is not None else 1,
        is_search=search,
    )


def _chosen(names: Sequence[str], *, everything: bool) -> list[str]:
    """The experiments that are meant, each once."""
    from fedloom.experiments import EXPERIMENTS
    from fedloom.experiments.catalogue import by_cost, experiment_names

    known = experiment_names()
    if everything:
        return by_cost(known)
    if not names:
        raise ConfigError(
            "reproduce: which experiments? Name some, or --all; --list shows them."
        )
    chosen: dict[str, None] = {}
    for name in names:
        below = [one for one in known if one == name or one.startswith(f"{name}/")]
        if name in EXPERIMENTS and below == []:
            raise ConfigError(
                f"reproduce: {name} is the library's own experiment; run it alone."
            )
        if not below:
            raise ConfigError(unknown("experiment", name, [*EXPERIMENTS, *known]))
        chosen |= dict.fromkeys(below)
    return list(chosen)


def _run_papers(
    names: Sequence[str],
    scale: str,
    results: Path,
    out: Path,
    stop_after: float | None,
    device: str | None,
    jobs: int,
    *,
    is_search: bool,
) -> None:
    from fedloom.experiments.catalogue import load_experiment
    from fedloom.experiments.experiment import SCALES
    from fedloom.experiments.reproduce import reproduce
    from fedloom.experiments.search import search
    from fedloom.experiments.training import Trainer

    if scale not in SCALES:
        raise ConfigError(f"--scale: {unknown('scale', scale, SCALES)}")
    if stop_after is not None and stop_after <= 0:
        raise ConfigError(
            f"--stop-after: expected minutes above 0, found {stop_after}."
        )
    if device is not None:
        from fedloom.engine.choice import EngineSettings

        EngineSettings(device=device.partition(":")[0]).torch_device()
    again = "What is done is stored; the same command goes on."
    with stoppable(again):
        if is_search:
            for name in names:
                experiment = load_experiment(name)
                search(
                    experiment, scale, results, out, device=device, jobs=jobs, tell=tell
                )
                say(f"{name}: what was found is stored in {results}")
            return
        outcome = reproduce(
            names,
            scale,
            results,
            Trainer(out, device),
            jobs=jobs,
            stop_after=stop_after,
            tell=say,
        )
    for unit in outcome.left:
        remark(f"left: {unit}")
    for problem in outcome.problems:
        remark(problem)
    if outcome.problems:
        raise DataError(f"{len(outcome.problems)} could not be run, as is said above.")
    if outcome.left:
        raise typer.Exit(0)


def _list(results: Path) -> None:
    """What there is."""
    from fedloom.experiments import EXPERIMENTS
    from fedloom.experiments.catalogue import (
        experiment_names,
        load_experiment,
        needed_data,
    )
    from fedloom.experiments.experiment import SCALES
    from fedloom.experiments.reproduce import units_left
    from fedloom.experiments.search import with_found

    table = make_table("experiment", "items", "data", "minutes", "stored")
    for name in experiment_names():
        experiment = load_experiment(name)
        data = [
            folder if place is not None else f"{folder} (absent)"
            for folder, place in needed_data(experiment).items()
        ]
        about = experiment.estimated_minutes.items()
        minutes = [f"{device} {value:g}" for device, value in about]
        stored = []
        for scale in SCALES:
            units = experiment.units(scale)
            left = units_left(with_found(experiment, results, scale), scale, results)
            stored.append(f"{scale} {len(units) - len(left)}/{len(units)}")
        table.add_row(
            name,
            " ".join(experiment.items),
            plain(", ".join(data) or "none"),
            ", ".join(minutes),
            ", ".join(stored),
        )
    console.print(table)
    say(f"\nThe library's own: {', '.join(EXPERIMENTS)}")


def _run_own(
    name: str, out: Path | None, seed: int, jobs: int | None, device: str | None
) -> None:
    """An experiment that is a function."""
    if device is not None:
        _show_only(device)
    from fedloom.experiments import EXPERIMENTS

    reproduce = EXPERIMENTS[name]
    if jobs is not None:
        if "jobs" not in inspect.signature(reproduce).parameters:
            raise ConfigError(
                f"reproduce {name}: runs in one process; --jobs is for private, worlds "
                "and the papers' experiments. Leave it out."
            )
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
