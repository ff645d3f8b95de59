"""Files that are written whole or not at all, and that outlive a power cut.

Until it takes its name, a file lies in a hidden folder of its own beside it, whose name
nobody can guess and which no other user may enter. So nothing that was there before is
in the way, and nothing of anybody else's can be taken for it.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from fedloom.core.errors import DataError
from fedloom.core.foreign_text import spreadsheet_cell

_PRIVATE = re.compile(r"\.fedloom-[0-9a-f]{16}\.part")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}
_PATIENCE_S = (0.01, 0.03, 0.1, 0.3, 0.6)
"""Waits between tries to replace a file that somebody reads, on Windows."""


def private_folder(parent: Path) -> Path:
    """Make a hidden folder under a name that nobody can guess."""
    folder = parent / f".fedloom-{secrets.token_hex(8)}.part"
    folder.mkdir(mode=0o700)
    return folder


def is_private_folder(path: Path) -> bool:
    """Whether this is a private folder, by its name."""
    return _PRIVATE.fullmatch(path.name) is not None and path.is_dir()


def remove_private_folders(parent: Path) -> None:
    """Remove the private folders that killed processes left.

    Only for a folder to which no other process writes.

    Raises:
        DataError: one cannot be removed.
    """
    for folder in parent.glob(".fedloom-*.part"):
        if is_private_folder(folder):
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise cannot_write(folder, error) from error


@contextmanager
def atomic_write(
    path: Path,
    *,
    errors: tuple[type[Exception], ...] = (),
    lasting: bool = False,
    private: bool = False,
) -> Iterator[Path]:
    """Give a name to write to; at the end that file takes the place of `path`.

    Args:
        path: what is made or replaced; its folder is made too.
        errors: what else than `OSError` means that it cannot be written.
        lasting: whether it must be on the disk itself when this ends.
        private: whether nobody but its owner may read it, not for a moment.

    Raises:
        DataError: it cannot be written; what was there before is untouched.
    """
    refusals: tuple[type[Exception], ...] = (OSError, *errors)
    folder: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = private_folder(path.parent)
        part = folder / path.name
        part.touch(0o600 if private else 0o666, exist_ok=False)
        mode = part.stat().st_mode
        yield part
        if part.stat().st_mode != mode:
            part.chmod(mode)  # some libraries write for their owner alone
        if lasting:
            sync(part)
        _replace(part, path)
        if lasting:
            sync(path.parent)
    except refusals as error:
        raise cannot_write(path, error) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _replace(part: Path, path: Path) -> None:
    """Put a file in the place of another.

    Windows refuses while somebody reads the old one, the live view for instance; so it
    is tried again for a moment.
    """
    for wait_s in _PATIENCE_S if os.name == "nt" else ():
        try:
            part.replace(path)
        except PermissionError:
            time.sleep(wait_s)
        else:
            return
    part.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8 with the same line ends everywhere, so the same bytes.

    Raises:
        OSError: it cannot be written.
    """
    path.write_text(text, encoding="utf-8", newline="\n")


def write_csv(rows: Sequence[Mapping[str, object]], to: Path | TextIO) -> None:
    """Write rows as CSV, a column for each key that one of them has.

    Raises:
        DataError: the file cannot be written.
    """
    if isinstance(to, Path):
        text = io.StringIO()
        write_csv(rows, text)
        with atomic_write(to) as part:
            write_text(part, text.getvalue())
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


def remove_if_empty(folder: Path) -> None:
    """Remove a folder if it is there and nothing is in it."""
    with suppress(OSError):
        folder.rmdir()


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
