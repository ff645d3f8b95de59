"""Options that several commands share, and the settings that they amount to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.commands import completion
from fedloom.commands.console import plain, set_json, set_quiet
from fedloom.core.errors import ConfigError, shown

if TYPE_CHECKING:
    from fedloom.cluster import RaySettings


def option(
    about: str,
    *names: str,
    complete: completion.Complete | None = None,
    callback: Callable[[Any], Any] | None = None,
) -> Any:
    """An option of the command line, called as its parameter if no name is given.

    Args:
        about: what it means, as a sentence.
        names: how it is written, such as --quiet.
        complete: what a shell may complete its value to.
        callback: is called with its value before the command is.
    """
    return typer.Option(
        *names, help=plain(about), autocompletion=complete, callback=callback
    )


def argument(about: str, complete: completion.Complete | None = None) -> Any:
    """An argument of the command line.

    Args:
        about: what it means, as a sentence.
        complete: what a shell may complete its value to.
    """
    return typer.Argument(help=plain(about), autocompletion=complete)


Method = Annotated[
    str | None,
    option("Name of the method; see `fedloom list`.", complete=completion.methods),
]
Data = Annotated[
    str | None,
    option(
        "Your own data: a .csv, .tsv, .parquet or .npz file, a folder of pictures "
        "(CLASS/1.png or CLIENT/CLASS/1.png), or a folder with one table per client. "
        "Or the name of a data source, see `fedloom list`.",
        complete=completion.data,
    ),
]
Partition = Annotated[
    str | None,
    option(
        "Name of the partition; see `fedloom list`.", complete=completion.partitions
    ),
]
Model = Annotated[
    str | None,
    option(
        "Name of the model, see `fedloom list`; or your own module, such as "
        "my_module.py:Net or package.module:Net.",
        complete=completion.models,
    ),
]
ModelAgain = Annotated[
    str | None,
    option(
        "Where the run's own module is now, such as path/my_module.py:Net, if it is "
        "not where it was.",
        complete=completion.models,
    ),
]
Device = Annotated[
    str | None,
    option(
        "Device that computes: auto, cpu, cuda, cuda:1, ...; auto takes a GPU if "
        "there is one.",
        complete=completion.devices,
    ),
]
Quiet = Annotated[
    bool,
    option(
        "Print the result alone, and nothing of how the work goes on.",
        *("--quiet", "-q"),
        callback=set_quiet,
    ),
]
Json = Annotated[
    bool,
    option(
        "Print the result as one JSON document on standard output; all else goes to "
        "standard error.",
        "--json",
        callback=set_json,
    ),
]
Rounds = Annotated[int | None, option("Number of communication rounds.")]
Seed = Annotated[int | None, option("Seed of everything that is drawn.")]
Settings = Annotated[
    list[str] | None,
    option(
        "Setting of a run's file: section.key=value, such as algorithm.lr=auto or "
        "faults.absent=0.1; see `fedloom describe faults`.",
        "--set",
    ),
]
DataDir = Annotated[
    Path | None, option("Directory of dataset files, instead of FEDLOOM_DATA.")
]
Fresh = Annotated[bool, option("Replace what is already in --out.", "--fresh")]
Jobs = Annotated[
    int | None, option("Number of methods that a comparison trains at once.")
]
Ray = Annotated[
    str | None,
    option(
        "Ray cluster whose workers do the work: HOST:PORT, auto for the one that this "
        "machine belongs to, or local, which starts one here.",
        "--ray",
    ),
]
RayWorkers = Annotated[
    int | None,
    option("Number of workers; by default as many as the cluster has CPUs or GPUs."),
]
Track = Annotated[str, option("Trackers that follow: csv, tensorboard, mlflow.")]


def expect_file(path: Path | None, name: str) -> None:
    """Refuse a directory, and nothing at all, where a file is to be written.

    Args:
        path: what was given; None is for whoever has a default.
        name: of the option.

    Raises:
        ConfigError: it is one.
    """
    if path is not None and (not path.name or path.is_dir()):
        raise ConfigError(f"{name} {path}: expected the name of a file.")


def check_jobs(jobs: int | None) -> None:
    """Refuse a number of processes that cannot be.

    Raises:
        ConfigError: it is below 1.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs: expected at least 1, found {shown(jobs)}.")


def ray_settings(
    address: str | None, workers: int | None, jobs: int | None = None
) -> RaySettings | None:
    """The cluster that `--ray` and `--ray-workers` mean; None for none.

    Raises:
        ConfigError: they do not fit together, or `--jobs` is there, too.
    """
    if address is None:
        if workers is not None:
            raise ConfigError(
                "--ray-workers: is for a Ray cluster. Say which: --ray local, or --ray "
                "HOST:PORT."
            )
        return None
    if jobs is not None:
        raise ConfigError(
            "--jobs: is for processes of this machine alone. With --ray give "
            "--ray-workers."
        )
    from fedloom.cluster import RaySettings

    return RaySettings(address=address, workers=workers)


def is_file(names: Sequence[str]) -> bool:
    """Whether the arguments are one TOML file instead of names."""
    return len(names) == 1 and names[0].endswith(".toml")


def refuse_samples(name: Path) -> None:
    """Refuse a file of samples in the place of a run's file or of a method.

    Raises:
        ConfigError: it is one.
    """
    from fedloom.data.files import has_known_kind

    if has_known_kind(name):
        raise ConfigError(
            f"{name}: expected a TOML file or a name, found a file of samples. Give it "
            f"as data: --data {name}."
        )


def read_methods(names: Sequence[str]) -> dict[str, Any]:
    """The tables of a comparison: those of its file, or the methods by name."""
    from fedloom.config import read_toml

    for name in names:
        refuse_samples(Path(name))
        if "," in name and not is_file(names):
            apart = " ".join(part for part in re.split(r"[,\s]+", name) if part)
            raise ConfigError(
                f"{shown(name)}: expected the name of a method. Put spaces between "
                f"methods: {apart}."
            )
        if names.count(name) > 1:
            raise ConfigError(f"{name}: named {names.count(name)} times. Name it once.")
    if is_file(names):
        return read_toml(Path(names[0]))
    return {"methods": list(names)} if names else {}


def data_options(data: str | None) -> dict[str, Any]:
    """What `--data` amounts to, as `apply_options` takes it.

    Args:
        data: the name of a source, or the path of a file or a folder of samples.

    Raises:
        ConfigError: it is neither.
        DataError: the folder holds no samples, or it is open what they are.
    """
    from fedloom.data import SOURCES
    from fedloom.data.files import has_known_kind
    from fedloom.data.folders import understood
    from fedloom.data.image_folder import designates_test

    if data is None or data in SOURCES:
        return {"data.name": data}
    path = Path(data).expanduser()
    if path.is_dir():
        if understood(path) == "tables":
            return {"data.name": "file", "data.path": str(path)}
        fixed = {"split.fixed": True} if designates_test(path) else {}
        return {"data.name": "images", "data.path": str(path), **fixed}
    if path.is_file() or has_known_kind(path):
        return {"data.name": "file", "data.path": str(path)}
    if "/" in data or "." in data:
        raise ConfigError(
            f"--data {data}: there is no such file or folder. Correct the path, or "
            "give the name of a data source (`fedloom list`)."
        )
    return {"data.name": data}


def apply_options(
    tables: dict[str, Any], options: Mapping[str, Any], settings: list[str] | None
) -> None:
    """Put what the command line says in the place of what a file says.

    Args:
        tables: as a TOML file gives them.
        options: values by `section.key` or `key`; None was not given. A section that
            gets another `name` loses the settings that belong to the old one.
        settings: what was given with `--set`.
    """
    from fedloom.config import override

    for path, value in options.items():
        if value is None:
            continue
        section, _, key = path.rpartition(".")
        table = tables.setdefault(section, {}) if section else tables
        if isinstance(table, dict):  # else `parse` says what is wrong with it
            if key == "name" and table.get(key, value) != value:
                table.clear()
            table[key] = value
    for assignment in settings or []:
        override(tables, assignment)
