"""Digests: what says that a file is still as it was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedloom.core.errors import MessageError
from fedloom.core.files import atomic_write, write_text
from fedloom.core.reading import UNREADABLE

_BLOCK = 1 << 20


class Extent(NamedTuple):
    """How many bytes a file has, or had at some moment, and their digest."""

    size: int
    digest: str


class Hash:
    """A digest of what has come so far."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._size = 0

    def update(self, content: bytes) -> None:
        """Take in more."""
        self._digest.update(content)
        self._size += len(content)

    @property
    def extent(self) -> Extent:
        """What has come so far."""
        return Extent(self._size, self._digest.hexdigest())


def hash_of(path: Path, size: int | None = None) -> Hash:
    """The digest of a file, or of its first bytes; of less where it is shorter.

    Raises:
        OSError: it cannot be read.
    """
    digest, left = Hash(), size
    with path.open("rb") as file:
        while block := file.read(_BLOCK if left is None else min(_BLOCK, left)):
            digest.update(block)
            left = None if left is None else left - len(block)
    return digest


def check_extent(path: Path, extent: Extent, *, may_grow: bool = False) -> Hash:
    """Make sure that a file is as it was written.

    Args:
        path: of the file.
        extent: what was written.
        may_grow: whether more may follow, which is not looked at.

    Returns:
        The digest of what was written.

    Raises:
        MessageError: it was damaged, changed or removed.
    """
    try:
        content = hash_of(path, extent.size if may_grow else None)
    except OSError as error:
        raise MessageError(f"{path}: cannot be read ({error}).") from error
    size = content.extent.size
    if size < extent.size:
        raise MessageError(
            f"{path}: expected {extent.size} bytes, found {size}. The file was cut "
            "short; put back a copy of it, or start anew with --fresh."
        )
    if content.extent != extent:
        raise MessageError(
            f"{path}: its {extent.size} bytes are not those that were written. The "
            "file was changed or damaged; put back a copy of it, or start anew with "
            "--fresh."
        )
    return content


def extent_of(path: Path) -> Extent:
    """The extent of a file.

    Raises:
        OSError: it cannot be read.
    """
    return hash_of(path).extent


def text_digest(text: str) -> str:
    """The digest of a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def table_digest(table: Mapping[str, Any]) -> str:
    """The digest of a table as JSON, whatever the order of its keys."""
    return text_digest(json.dumps(table, sort_keys=True))


def write_checked_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a table with its digest, whole or not at all, on the disk itself.

    Raises:
        DataError: it cannot be written.
    """
    text = json.dumps({**table, "digest": table_digest(table)}, indent=2) + "\n"
    with atomic_write(path, lasting=True) as part:
        write_text(part, text)


def read_checked_json(
    path: Path, what: str, keys: Iterable[str] = (), *, format_: str | None = None
) -> dict[str, Any]:
    """What `write_checked_json` wrote, and nothing else.

    Args:
        path: of the file.
        what: how messages call it: "a manifest".
        keys: what it must have.
        format_: what it must name as its format.

    Raises:
        MessageError: it cannot be read, was damaged or changed, or is something else.
    """
    try:
        table: Any = json.loads(path.read_text(encoding="utf-8"))
    except UNREADABLE as error:
        raise MessageError(f"{path}: not a whole file of {what} ({error}).") from error
    if not isinstance(table, dict):
        raise MessageError(
            f"{path}: not {what}: expected a JSON object, found {type(table).__name__}."
        )
    if format_ is not None and table.get("format") != format_:
        raise MessageError(
            f"{path}: not {what} that this version reads: expected the format "
            f"{format_!r}, found {table.get('format')!r}."
        )
    digest = table.pop("digest", None)
    if digest != table_digest(table):
        raise MessageError(
            f"{path}: {what} that was damaged or changed (its digest is wrong)."
        )
    missing = [key for key in keys if key not in table]
    if missing:
        raise MessageError(f"{path}: not {what}: it has no {', '.join(missing)}.")
    return table
