"""What a shell completes: names that Fedloom knows, files and folders of the user's.

Names are read from the text of the registries: whoever presses the tab key does not
wait until PyTorch is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

Complete = Callable[[str], list[str]]
"""Gives what the beginning of a word may become."""

_PACKAGE = Path(__file__).parent.parent
SECTIONS = (
    *("algorithm", "data", "partition", "transform", "teams", "model", "split"),
    *("sampling", "faults", "robust", "attack", "privacy", "secure"),
    *("engine", "schedule", "evaluation", "checkpoint"),
    *("ray", "serve", "compare", "tune"),
)
"""What `fedloom describe` knows besides methods and components."""
_TABLES = (".csv", ".tsv", ".parquet", ".npz", ".gz", ".bz2", ".zst")


def registered(file: str, name: str) -> list[str]:
    """The keys of a registry, from the file that writes it down.

    Args:
        file: below the package.
        name: of the dictionary there.
    """
    for line in ast.parse((_PACKAGE / file).read_text(encoding="utf-8")).body:
        if (
            isinstance(line, ast.AnnAssign)
            and isinstance(line.target, ast.Name)
            and line.target.id == name
            and isinstance(line.value, ast.Dict)
        ):
            keys = line.value.keys
            return [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    return []


def method_names() -> list[str]:
    """Every method."""
    return registered("algorithms/__init__.py", "REGISTRY")


def source_names() -> list[str]:
    """Every data source."""
    return registered("data/__init__.py", "SOURCES")


def partition_names() -> list[str]:
    """Every partition."""
    return registered("clients/partitions.py", "PARTITIONS")


def model_names() -> list[str]:
    """Every built-in model."""
    return registered("models/__init__.py", "MODELS")


def methods(incomplete: str) -> list[str]:
    """Methods."""
    return _beginning(incomplete, method_names())


def methods_or_file(incomplete: str) -> list[str]:
    """Methods, and TOML files of a comparison."""
    return [*methods(incomplete), *_paths(incomplete, (".toml",))]


def config_file(incomplete: str) -> list[str]:
    """TOML files."""
    return list(_paths(incomplete, (".toml",)))


def data(incomplete: str) -> list[str]:
    """Data sources, files of samples, folders."""
    names = _beginning(incomplete, source_names())
    return [*names, *_paths(incomplete, _TABLES)]


def data_or_file(incomplete: str) -> list[str]:
    """What `fedloom data` takes: the same, and TOML files of runs."""
    names = _beginning(incomplete, source_names())
    return [*names, *_paths(incomplete, (*_TABLES, ".toml"))]


def samples(incomplete: str) -> list[str]:
    """Files of samples, folders."""
    return list(_paths(incomplete, _TABLES))


def folders(incomplete: str) -> list[str]:
    """Folders."""
    return list(_paths(incomplete, ()))


def partitions(incomplete: str) -> list[str]:
    """Partitions."""
    return _beginning(incomplete, partition_names())


def models(incomplete: str) -> list[str]:
    """Built-in models, and files of Python."""
    names = _beginning(incomplete, model_names())
    return [*names, *_paths(incomplete, (".py",))]


def devices(incomplete: str) -> list[str]:
    """Devices."""
    return _beginning(incomplete, ("auto", "cpu", "cuda"))


def describable(incomplete: str) -> list[str]:
    """Whatever `fedloom describe` explains."""
    every = (method_names, source_names, partition_names, model_names)
    names = [name for names in every for name in names()]
    return _beginning(incomplete, dict.fromkeys([*SECTIONS, *names]))


def experiments(incomplete: str) -> list[str]:
    """Experiments of `fedloom reproduce`."""
    own = registered("experiments/__init__.py", "EXPERIMENTS")
    folder = Path(__file__).parents[1] / "experiments"
    papers = [
        file.relative_to(folder).with_suffix("").as_posix()
        for file in sorted(folder.glob("*/*.toml"))
    ]
    return _beginning(incomplete, [*own, *papers])


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _paths(incomplete: str, endings: tuple[str, ...]) -> Iterator[str]:
    """Files that end so, and folders to look further in, below what is written."""
    folder, slash, begun = incomplete.rpartition("/")
    try:
        entries = sorted(Path(folder + slash or ".").iterdir())
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(begun) or entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield f"{folder}{slash}{entry.name}/"
        elif entry.name.endswith(endings):
            yield f"{folder}{slash}{entry.name}"
