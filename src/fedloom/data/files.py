"""The user's own file: arrays in .npz, a table in .parquet or .csv."""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError, DataError, unknown
from fedloom.core.settings import check
from fedloom.data.dataset import Dataset, Task, read_input, read_targets


@dataclass(frozen=True, kw_only=True)
class File:
    """A file of samples, with a column or an array that says whose each one is.

    In a table every column other than target and client is a feature and must be
    numeric. Text targets become labels in sorted order.
    """

    path: str
    """The file, .npz, .parquet, .csv or .csv.gz; if relative, looked for in the
    working directory, then in the data directory."""
    target: str = "y"
    """Column or array to predict."""
    client: str | None = None
    """Column or array with the client of each sample; none if there are no clients."""
    task: Task = "auto"
    """What the target is. `auto` takes floating numbers for a regression, text and
    whole numbers for labels."""
    inputs: tuple[str, ...] = ("x",)
    """Arrays of an .npz that the model takes, in its order. Not used for tables."""
    standardise: bool | None = None
    """Whether features enter the model with mean 0 and standard deviation 1 over the
    training rows of all clients; by default for tables, not for arrays."""

    def __post_init__(self) -> None:
        check(self)
        if self.client == self.target:
            raise ConfigError(
                f"File: target and client must differ, both are {self.target!r}."
            )

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read the file; the seed changes nothing.

        Raises:
            ConfigError: The kind of file is not known.
            DataError: The file is missing, broken, or lacks what the settings name.
        """
        path = self._find(data_dir)
        kind = _kind(path)
        if kind == ".npz":
            return self._from_arrays(path)
        if kind in _KINDS:
            return self._from_table(path)
        raise ConfigError(
            f"{path}: {unknown('kind of file', kind, _KINDS)} "
            "Convert it to one of these."
        )

    def _find(self, data_dir: Path | None) -> Path:
        places = [Path(self.path)]
        if data_dir is not None:
            places.append(data_dir / self.path)
        for place in places:
            if place.is_file():
                return place
        looked = " nor ".join(str(place) for place in dict.fromkeys(places))
        raise DataError(f"no file {looked}. Correct the path; it is {self.path!r}.")

    def _from_arrays(self, path: Path) -> Dataset:
        arrays = read_npz(path)
        parts = tuple(_pick(arrays, "array", name, path) for name in self.inputs)
        targets = _pick(arrays, "array", self.target, path)
        owner = None
        if self.client is not None:
            owner = _pick(arrays, "array", self.client, path)
        standardise = self.standardise is True
        return self._assemble(path, parts, targets, owner, standardise)

    def _from_table(self, path: Path) -> Dataset:
        columns = read_columns(path)
        targets = _pick(columns, "column", self.target, path)
        owner = None
        if self.client is not None:
            owner = _pick(columns, "column", self.client, path)
        features = {
            name: values
            for name, values in columns.items()
            if name not in (self.target, self.client)
        }
        text = [name for name, v in features.items() if v.dtype.kind not in "biuf"]
        if text:
            raise DataError(
                f"{path}: columns {', '.join(text)} are not numeric. Encode them as "
                "numbers or leave them out of the file."
            )
        if not features:
            raise DataError(
                f"{path}: no feature is left beside target and client columns."
            )
        for name, values in features.items():
            broken = np.flatnonzero(~np.isfinite(values))
            if len(broken):
                raise DataError(
                    f"{path}: column {name!r} has {len(broken)} values that are nan or "
                    f"infinite, the first in row {broken[0]}. Remove those rows or "
                    "fill them in."
                )
        stacked = [values.astype(np.float32) for values in features.values()]
        inputs = (np.stack(stacked, axis=1),)
        standardise = self.standardise is not False
        found = self._assemble(path, inputs, targets, owner, standardise)
        return replace(found, features=tuple(features))

    def _assemble(
        self,
        path: Path,
        parts: tuple[NDArray[Any], ...],
        y: NDArray[Any],
        owner: NDArray[Any] | None,
        standardise: bool,
    ) -> Dataset:
        where = f"{path}: target {self.target!r}"
        targets = read_targets(y, task=self.task, where=where)
        return Dataset(
            name=str(path),
            inputs=tuple(
                read_input(part, f"{path}: inputs[{i}]") for i, part in enumerate(parts)
            ),
            targets=targets.values,
            classes=targets.classes,
            owner=owner,
            class_names=targets.class_names,
            standardise=standardise,
        )


_KINDS = (".npz", ".parquet", ".csv", ".csv.gz")


def _kind(path: Path) -> str:
    """How the file's name ends, the ending below .gz included."""
    return Path(path.stem).suffix + ".gz" if path.suffix == ".gz" else path.suffix


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz by name; nothing is unpickled.

    Raises:
        DataError: The file is not a whole archive of plain arrays.
    """
    try:
        # Opened here, since numpy leaves a file that it cannot read open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (
        OSError,
        ValueError,
        TypeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(
            f"{path}: not a readable .npz of plain arrays ({error}). Save it again "
            "with np.savez, without arrays of Python objects."
        ) from error


def _pick(
    arrays: Mapping[str, NDArray[Any]], what: str, name: str, path: Path
) -> NDArray[Any]:
    if name not in arrays:
        raise DataError(f"{path}: {unknown(what, name, arrays)}")
    return arrays[name]


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    """Every column of a table as an array without gaps.

    Raises:
        DataError: The file is not a whole table, or has gaps.
    """
    # Imported here: only users of tables need wait for it.
    import pyarrow
    from pyarrow import csv, parquet

    kind = _kind(path)
    reader = parquet.read_table if kind == ".parquet" else csv.read_csv
    try:
        table = reader(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable {kind} table ({error}).") from error
    repeated = [name for name, n in Counter(table.column_names).items() if n > 1]
    if repeated:
        raise DataError(f"{path}: column {repeated[0]!r} occurs twice. Rename one.")
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise DataError(
                f"{path}: column {name!r} has {column.null_count} missing values, the "
                f"first in row {row}. Remove those rows or fill them in."
            )
        columns[name] = column.to_numpy()
    return columns
