"""Compressed files: how much they unpack to is looked at before it is kept."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fedloom.core.errors import DataError
from fedloom.core.memory import host_memory

COMPRESSED = (".gz", ".bz2", ".zst")
"""How the names of compressed files end."""

LESS_DATA = "Leave out rows and columns that are not needed."
"""What to do about a file that is too large."""

_CHUNK = 1 << 20


def open_unpacked(path: Path) -> IO[bytes] | Any:
    """A file to read from, unpacked while it is read if its name says so."""
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".bz2":
        return bz2.open(path)
    if path.suffix == ".zst":
        # Imported here: only users of tables need wait for it.
        import pyarrow

        return pyarrow.input_stream(str(path), compression="zstd")
    return path.open("rb")


def read_unpacked(path: Path) -> bytes:
    """All that a file holds, unpacked.

    Raises:
        DataError: it does not fit in memory.
    """
    return b"".join(_chunks(path))


def check_unpacked_size(path: Path) -> None:
    """Refuse a compressed file that unpacks to more than fits in memory.

    Raises:
        DataError: it does.
    """
    if path.suffix in COMPRESSED:
        for _ in _chunks(path):
            pass


def _chunks(path: Path) -> Iterator[bytes]:
    room, size = host_memory(), 0
    with open_unpacked(path) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            if size > room:
                refuse_size(path, size, is_more=True)
            yield chunk


def refuse_size(path: Path, size: float, *, is_more: bool = False) -> None:
    """Refuse a file that unpacks to more than fits in memory.

    Args:
        path: the file.
        size: bytes of what it holds.
        is_more: whether it holds more than that.

    Raises:
        DataError: there is not so much memory; the message has the figures.
    """
    room = host_memory()
    if size > room:
        more = "more than " if is_more else ""
        raise DataError(
            f"{path}: its {path.stat().st_size / 1e9:.3g} GB unpack to {more}"
            f"{size / 1e9:.3g} GB, and there are {room / 1e9:.3g} GB of memory. "
            f"{LESS_DATA}"
        )
