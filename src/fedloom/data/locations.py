"""Where the files of named datasets lie on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

from fedloom.core.errors import DataError

VARIABLE = "FEDLOOM_DATA"
"""The environment variable that names the data directory where none is given."""

_is_looking: ContextVar[bool] = ContextVar("is_looking", default=False)


class _Found(Exception):
    """Ends a load that only asked where its files are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder


def look(load: Callable[[], object]) -> Path | None:
    """Where the files lie that a load would read, without reading them.

    Args:
        load: Calls `folder_of` before it reads anything, if it reads files at all.

    Returns:
        Their folder; None if the load came to its end without any.

    Raises:
        DataError: A file is missing.
    """
    token = _is_looking.set(True)
    try:
        load()
    except _Found as found:
        return found.folder
    finally:
        _is_looking.reset(token)
    return None


def data_directory(data_dir: Path | None) -> Path | None:
    """The data directory that was given, else that of FEDLOOM_DATA, else none."""
    if data_dir is None and os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return data_dir


class Absent(DataError):
    """None of a dataset's files is on this machine, so another place may be tried."""


def folder_of(
    name: str, files: Iterable[str], data_dir: Path | None, *, get: str = ""
) -> Path:
    """The folder of one dataset, which holds every file that was asked for.

    Args:
        name: The dataset, which is also its folder's name in the data directory.
        files: What must lie there, by name.
        data_dir: The data directory; that of FEDLOOM_DATA if absent.
        get: A sentence that says where the files come from.

    Raises:
        Absent: There is no data directory, or none of the files lies there.
        DataError: Some of the files are missing.
    """
    wanted = list(files)
    if _is_looking.get():
        _only_look(name, wanted, data_dir)
    listed = ", ".join(f"{name}/{file}" for file in wanted)
    data_dir = data_directory(data_dir)
    if data_dir is None:
        raise Absent(
            f"{name}: no data directory. Set {VARIABLE} or give --data-dir; "
            f"expected in it: {listed}. {get}".rstrip()
        )
    folder = data_dir / name
    missing = [file for file in wanted if not (folder / file).exists()]
    if missing:
        kind = Absent if len(missing) == len(wanted) else DataError
        raise kind(
            f"{folder}: no such file: {', '.join(missing)}. Expected in {data_dir}: "
            f"{listed}. {get}".rstrip()
        )
    return folder


def _only_look(name: str, wanted: list[str], data_dir: Path | None) -> NoReturn:
    """Say whether the files are there, in a way that no fallback takes up."""
    root = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    folder = Path(root or "") / name
    if root and all((folder / file).exists() for file in wanted):
        raise _Found(folder)
    raise DataError(f"{folder}: not all of its files are there.")
