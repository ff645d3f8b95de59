"""Where the files of named datasets lie on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.core.errors import DataError

VARIABLE = "FEDLOOM_DATA"
"""The environment variable that names the data directory where none is given."""


def data_directory(data_dir: Path | None) -> Path | None:
    """The data directory that was given, else that of FEDLOOM_DATA, else none."""
    if data_dir is None and os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    return data_dir


class Absent(DataError):
    """None of a dataset's files is on this machine, so another place may be tried."""


@contextmanager
def on_hub_instead(absent: Absent) -> Iterator[None]:
    """Let an error of the hub say too where the files belong that are absent."""
    try:
        yield
    except DataError as error:
        raise DataError(
            f"{absent} It was looked for on the hub too: {error}"
        ) from error


def folder_of(
    name: str, files: Iterable[str], data_dir: Path | None, *, hint: str = ""
) -> Path:
    """The folder of one dataset, which holds every file that was asked for.

    Args:
        name: The dataset, which is also its folder's name in the data directory.
        files: What must lie there, by name.
        data_dir: The data directory; that of FEDLOOM_DATA if absent.
        hint: A sentence that says where the files come from.

    Raises:
        Absent: There is no data directory, or none of the files lies there.
        DataError: Some of the files are missing.
    """
    wanted = list(files)
    listed = ", ".join(f"{name}/{file}" for file in wanted)
    data_dir = data_directory(data_dir)
    if data_dir is None:
        raise Absent(
            f"{name}: no data directory. Set {VARIABLE} or give --data-dir; "
            f"expected in it: {listed}. {hint}".rstrip()
        )
    folder = data_dir / name
    missing = [file for file in wanted if not (folder / file).exists()]
    if missing:
        kind = Absent if len(missing) == len(wanted) else DataError
        raise kind(
            f"{folder}: no such file: {', '.join(missing)}. Expected in {data_dir}: "
            f"{listed}. {hint}".rstrip()
        )
    return folder
