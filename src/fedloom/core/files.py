"""Files that are written whole or not at all, and that outlive a power cut."""

from __future__ import annotations

import csv
import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from fedloom.core.errors import DataError
from fedloom.core.foreign_text import spreadsheet_cell

PART = ".part"
"""How the name of a file ends that is still being written."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}


def partial_path(path: Path) -> Path:
    """Where a file is written before it takes its name.

    Hidden, so that whoever reads a whole folder of tables does not stumble over it.
    """
    return path.with_name(f".{path.name}{PART}")


@contextmanager
def atomic_write(
    path: Path, *, errors: tuple[type[Exception], ...] = (), lasting: bool = False
) -> Iterator[Path]:
    """Give a name to write to; at the end that file takes the place of `path`.

    Args:
        path: what is made or replaced; its folder is made too.
        errors: what else than `OSError` means that it cannot be written.
        lasting: whether it must be on the disk itself when this ends.

    Raises:
        DataError: it cannot be written; what was there before is untouched.
    """
    part = partial_path(path)
    refusals: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        if lasting:
            sync(part)
        part.replace(path)
        if lasting:
            sync(path.parent)
    except refusals as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def write_csv(rows: Sequence[Mapping[str, object]], to: Path | TextIO) -> None:
    """Write rows as CSV, a column for each key that one of them has.

    Raises:
        DataError: the file cannot be written.
    """
    if isinstance(to, Path):
        with atomic_write(to) as part, part.open("w", newline="") as file:
            write_csv(rows, file)
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write_csv_lines([columns, *([row.get(c, "") for c in columns] for row in rows)], to)


def write_csv_lines(lines: Iterable[Iterable[object]], to: TextIO) -> None:
    """Write lines of values as CSV; text is never a formula of a spreadsheet."""
    writer = csv.writer(to, lineterminator="\n")
    for line in lines:
        writer.writerow([spreadsheet_cell(value) for value in line])


def remove(path: Path) -> None:
    """Remove a file if it is there.

    Raises:
        DataError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk itself."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows opens no folders
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems have nothing to sync in a folder and say so.
        if not is_folder or error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def cannot_write(path: Path, error: Exception) -> DataError:
    """The error for a file that cannot be written: why, and what to do."""
    # Libraries in other languages give the number in their message alone.
    match = re.search(r"os error (\d+)", str(error))
    number = int(match[1]) if match else getattr(error, "errno", None)
    reason = getattr(error, "strerror", None) or str(error)
    advice = "Make room or make it writable"
    if number in _FULL:
        advice = "Make room"
    elif number in _FORBIDDEN:
        advice = "Make it writable or choose another place"
    return DataError(
        f"{path}: cannot be written ({reason}). {advice}; what was written before is "
        "whole."
    )
