"""A folder of the user's own: pictures in folders, or one table for each client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.core.reprs import without_values
from fedloom.data.tables import place_of
from fedloom.data.unpack import COMPRESSED

PICTURES = (
    *(".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"),
    *(".tif", ".tiff", ".ppm", ".pgm"),
)
"""How the names of pictures end."""

_TEXTS = tuple(f"{text}{end}" for text in (".csv", ".tsv") for end in ("", *COMPRESSED))
TABLES = (".npz", ".parquet", *_TEXTS)
"""How the names of files of samples end."""

TRAIN = ("train", "training", "val", "valid", "validation")
TEST = ("test", "testing")
"""Names of folders that say what is in them is for, and not whose or what it is."""

_SHAPES = (
    "CLASS/1.png (one folder for each class), CLIENT/CLASS/1.png, or one table for "
    "each client (CLIENT.csv)"
)


def kind_of(path: Path) -> str:
    """How a file's name ends, the ending below that of a compression included."""
    return "".join(path.suffixes[-2:]) if path.suffix in COMPRESSED else path.suffix


def files_below(folder: Path, endings: Sequence[str]) -> list[Path]:
    """All files below a folder whose names end so, in order; hidden ones are not.

    Raises:
        DataError: The folder cannot be read.
    """
    return sorted(_walk(folder, tuple(endings)))


def _walk(folder: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror}).")

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [n for n in folders if not n.startswith((".", "__MACOSX"))]
        for name in names:
            if not name.startswith(".") and name.lower().endswith(endings):
                yield Path(place) / name


def understood(folder: Path) -> Literal["pictures", "tables"]:
    """What a folder holds.

    Raises:
        DataError: It holds neither, or both.
    """
    pictures, tables = (files_below(folder, kinds) for kinds in (PICTURES, TABLES))
    if pictures and tables:
        raise DataError(
            f"{folder}: holds pictures ({_named(pictures, folder)}) and tables "
            f"({_named(tables, folder)}). Say which is meant: --data images or --data "
            f"file, with --set data.path={folder}; or keep them in folders of their "
            "own."
        )
    if not pictures and not tables:
        raise DataError(
            f"{folder}: expected {_SHAPES}; found neither a picture nor a table. A "
            f"picture ends in {', '.join(PICTURES[:3])}, ...; a table in "
            f"{', '.join(TABLES[:4])}, ..."
        )
    return "pictures" if pictures else "tables"


def _named(paths: Sequence[Path], folder: Path) -> str:
    first = paths[0].relative_to(folder)
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{first}{more}"


@without_values
@dataclass(frozen=True)
class Tables:
    """The tables of a folder, one below the other."""

    what: Literal["array", "column"]
    """What they hold by name."""
    columns: Mapping[str, NDArray[Any]]
    client: NDArray[np.str_]
    """(N,) whose each row is: the name of its file, or of the file's folder."""
    files: tuple[Path, ...]
    rows: tuple[int, ...]
    """Rows of each file."""

    def place_of(self, row: int) -> str:
        """Where a reader finds a row: in which file, and in which line there."""
        ends = list(accumulate(self.rows))
        n = next(n for n, end in enumerate(ends) if row < end)
        inside = row - (ends[n] - self.rows[n])
        if self.what == "array":
            return f"{self.files[n]}: row {inside}"
        return f"{self.files[n]}: {place_of(self.files[n], inside)}"


Read = Callable[[Path], tuple[Literal["array", "column"], dict[str, NDArray[Any]]]]


def read_tables(folder: Path, read: Read, *, names_clients: bool) -> Tables:
    """Read all tables of a folder, each of which is one client's.

    They lie in the folder itself, or each alone in a folder of its client's.

    Args:
        folder: Where they lie.
        read: Reads one.
        names_clients: Whether the tables themselves say whose each row is, so that the
            names of the files mean nothing.

    Raises:
        DataError: There is none, they do not have the same columns, or their names
            leave open whose they are.
    """
    files = files_below(folder, TABLES)
    if not files:
        raise DataError(
            f"{folder}: expected tables ({', '.join(TABLES[:4])}, ...), found none."
        )
    names = _clients(folder, files, names_clients=names_clients)
    held: list[dict[str, NDArray[Any]]] = []
    first_what: Literal["array", "column"] = "column"
    for n, file in enumerate(files):
        what, columns = read(file)
        if n == 0:
            first_what = what
        elif (what, set(columns)) != (first_what, set(held[0])):
            odd = sorted(set(columns) ^ set(held[0]))
            raise DataError(
                f"{file}: expected the {first_what}s of {files[0].name}, which every "
                f"client must have: {', '.join(held[0])}; found "
                f"{', '.join(columns)}. In one of both only: {', '.join(odd)}."
            )
        held.append(columns)
    rows = tuple(len(next(iter(columns.values()))) for columns in held)
    joined = {name: _joined(name, [c[name] for c in held], files) for name in held[0]}
    return Tables(
        first_what, joined, np.repeat(np.array(names), rows), tuple(files), rows
    )


def _clients(folder: Path, files: Sequence[Path], *, names_clients: bool) -> list[str]:
    """Whose each table is."""
    depths = {len(file.relative_to(folder).parts) for file in files}
    stems = [file.name.removesuffix(kind_of(file)) for file in files]
    if names_clients:
        return stems
    if depths == {2}:
        stems = [file.parent.name for file in files]
    elif depths != {1}:
        raise DataError(
            f"{folder}: expected the tables of all clients beside one another, or each "
            f"in a folder of its client's; found {_named(files, folder)} at different "
            "depths. If a column says whose each row is, --set data.client=COLUMN."
        )
    parts = [name for name in stems if name.lower() in (*TRAIN, *TEST)]
    if parts:
        raise DataError(
            f"{folder}: {' and '.join(parts[:2])} may be parts of the same data and "
            "not two clients. If a column of the tables says whose each row is, --set "
            "data.client=COLUMN; if they are clients, give the files other names."
        )
    twice = [name for name in dict.fromkeys(stems) if stems.count(name) > 1]
    if twice:
        raise DataError(
            f"{folder}: {stems.count(twice[0])} tables are called {twice[0]}, and each "
            "client has one. Join them, or rename one."
        )
    return stems


def _joined(
    name: str, parts: Sequence[NDArray[Any]], files: Sequence[Path]
) -> NDArray[Any]:
    """One column of all tables."""
    is_text = [part.dtype.kind in "OUST" for part in parts]
    if any(is_text) and not all(is_text):
        n, m = is_text.index(True), is_text.index(False)
        raise DataError(
            f"{files[n]}: column {name!r} holds text, and in {files[m].name} numbers. "
            "Write it in the same way in every table."
        )
    shapes = [part.shape[1:] for part in parts]
    if len(set(shapes)) > 1:
        n = next(n for n, shape in enumerate(shapes) if shape != shapes[0])
        raise DataError(
            f"{files[n]}: {name!r} has samples of shape {shapes[n]}, those of "
            f"{files[0].name} {shapes[0]}. Every client needs the same."
        )
    try:
        return np.concatenate(parts)
    except TypeError as error:
        raise DataError(
            f"{files[0].parent}: column {name!r} is not of the same kind in all tables "
            f"({error}). Write it in the same way in every one."
        ) from error
