"""Outcomes: what a run's personal models said of every held-out sample.

A file of outcomes, .npz, has for each part of the data (validation, test) the arrays
`{part}_rows`, `{part}_clients` and `{part}_values`, and `work` if work was counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.core.files import atomic_write
from fedloom.core.reading import UNREADABLE, not_whole, read_npz
from fedloom.core.reprs import without_values

_COLUMNS = {"rows": np.int64, "clients": np.int32, "values": np.float64}


@without_values
@dataclass(frozen=True, eq=False)
class Outcomes:
    """One part of the data of one run at one round, sample by sample."""

    rows: NDArray[np.int64]
    """(N,) number of the sample in the dataset: the same sample has the same number in
    every seed, unless the data themselves depend on the seed."""
    clients: NDArray[np.int32]
    """(N,) number of the client in this run, ascending."""
    values: NDArray[np.float64]
    """(N,) the task's metric of the single sample: 1 or 0, right or wrong, for
    accuracy; the squared error in the target's own units for mse."""

    def of_client(self, client: int) -> slice:
        """Where a client's samples stand."""
        first, last = np.searchsorted(self.clients, [client, client + 1])
        return slice(int(first), int(last))

    def with_values(self, values: NDArray[Any]) -> Outcomes:
        """What something else said of the same samples."""
        return Outcomes(self.rows, self.clients, values.astype(np.float64))


@without_values
@dataclass(frozen=True, eq=False)
class RunOutcomes:
    """All that a file of outcomes holds."""

    parts: Mapping[str, Outcomes]
    """By part of the data."""
    work: NDArray[np.int64] | None = None
    """(M,) gradient-samples of each client over the whole run, adaptation before use
    included; None where work was not counted."""

    def write(self, path: Path, *, lasting: bool = False) -> None:
        """Write the file, whole or not at all.

        Args:
            path: of the file.
            lasting: whether it must be on the disk itself when this returns.

        Raises:
            DataError: it cannot be written.
        """
        arrays: dict[str, NDArray[Any]] = {}
        for part, outcomes in self.parts.items():
            for name, kind in _COLUMNS.items():
                arrays[f"{part}_{name}"] = getattr(outcomes, name).astype(kind)
        if self.work is not None:
            arrays["work"] = self.work.astype(np.int64)
        with (
            atomic_write(path, lasting=lasting) as temporary,
            temporary.open("wb") as file,
        ):
            np.savez_compressed(file, allow_pickle=False, **arrays)


def read_outcomes(path: Path, clients: int | None = None) -> RunOutcomes | None:
    """What `RunOutcomes.write` wrote; None if there is no such file.

    Args:
        path: of the file.
        clients: how many there are, where that is known.

    Raises:
        DataError: the file is not a whole file of outcomes, or is of other clients.
    """
    if not path.is_file():
        return None
    try:
        return _run_outcomes(path, clients)
    except DataError as error:
        raise DataError(
            f"{error} Remove it and go on with the run or the comparison, which writes "
            "it again."
        ) from error


def _run_outcomes(path: Path, clients: int | None) -> RunOutcomes:
    what = "file of outcomes"
    arrays = read_npz(path, what)
    try:
        work = arrays.pop("work", None)
        parts = dict.fromkeys(name.rpartition("_")[0] for name in arrays)
        by_part = {
            part: Outcomes(
                *(arrays[f"{part}_{n}"].astype(kind) for n, kind in _COLUMNS.items())
            )
            for part in parts
        }
        for part, outcomes in by_part.items():
            shapes = {getattr(outcomes, name).shape for name in _COLUMNS}
            if len(shapes) > 1 or any(len(shape) != 1 for shape in shapes):
                raise ValueError(f"its columns of {part} have shapes {shapes}")
            numbers = outcomes.clients
            if clients is not None and ((numbers < 0) | (numbers >= clients)).any():
                raise ValueError(f"it is not of {clients} clients")
        if work is not None and clients not in (None, len(work)):
            raise ValueError(f"it has the work of {len(work)} clients, not {clients}")
    except UNREADABLE as error:
        raise not_whole(path, what, error) from error
    return RunOutcomes(by_part, work)
