"""Which experiments there are: files of this package, by paper and item."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

from fedloom.config import read_toml
from fedloom.core.errors import ConfigError, DataError, unknown
from fedloom.core.settings import build
from fedloom.data import SOURCES, Source
from fedloom.data.locations import data_directory
from fedloom.experiments.experiment import Experiment, merged, parse_experiment

FOLDER = Path(__file__).parent


def experiment_names() -> list[str]:
    """The names of all experiments, sorted: `pfedvem/table2`."""
    return sorted(
        file.relative_to(FOLDER).with_suffix("").as_posix()
        for file in FOLDER.glob("*/*.toml")
    )


@cache
def load_experiment(name: str) -> Experiment:
    """An experiment by its name.

    Raises:
        ConfigError: there is none, or its file is wrong.
    """
    if name not in experiment_names():
        raise ConfigError(unknown("experiment", name, experiment_names()))
    tables = read_toml(FOLDER / f"{name}.toml")
    if "of" in tables:
        below = read_toml(FOLDER / f"{tables['of']}.toml")
        own = ("estimated_minutes", "remarks", "tables", "figures", "claims", "search")
        tables = merged({k: v for k, v in below.items() if k not in own}, tables)
    return parse_experiment(name, tables)


def family(source: str) -> list[Experiment]:
    """An experiment that trains, and all that show its runs."""
    every = [load_experiment(name) for name in experiment_names()]
    return [experiment for experiment in every if experiment.source == source]


def needed_data(experiment: Experiment) -> dict[str, Path | None]:
    """Data that need files, by the name of their folder, and where those are."""
    found: dict[str, Path | None] = {}
    root = data_directory(None)
    for folder in experiment.needs:
        is_there = root is not None and (root / folder).is_dir()
        found[folder] = root / folder if root is not None and is_there else None
    for unit in () if experiment.program else experiment.units("paper"):
        settings = dict(experiment.config_tables(unit, "paper")["data"])
        name = settings.pop("name")
        if name not in SOURCES:
            raise ConfigError(f"{experiment.name}: {unknown('data', name, SOURCES)}")
        source = build(SOURCES[name], settings, f"{experiment.name} [data]")
        if source.folder_name and source.folder_name not in found:
            found[source.folder_name] = _folder(source)
    return found


def _folder(source: Source) -> Path | None:
    try:
        return source.find(None)
    except DataError:
        return None


def by_cost(names: list[str]) -> list[str]:
    """The same, the shortest first; those of which it is not known last."""

    def cost(name: str) -> float:
        minutes = load_experiment(name).estimated_minutes
        return min(minutes.values(), default=math.inf)

    return sorted(names, key=cost)
