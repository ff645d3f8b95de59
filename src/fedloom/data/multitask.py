"""Landmine and School: two classics of multi-task learning, one task per client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.data.dataset import Dataset, read_targets
from fedloom.data.files import read_npz
from fedloom.data.source import Source


@dataclass(frozen=True, kw_only=True)
class Landmine(Source):
    """Landmine: 14,820 radar signatures of 29 fields, a mine (6 %) or clutter.

    Xue and others (JMLR 2007). Nine features; the first 15 fields are
    overgrown, the others bare. With so few mines look at the AUC, not at accuracy.
    """

    licence = "research use"
    folder_name, file_names = "landmine", ("landmine.npz",)
    file_hint = "It holds the arrays x, y, field, one row per sample."

    standardise: bool = True
    """Whether features enter the model with mean 0 and standard deviation 1 over the
    training samples of all fields."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `landmine/landmine.npz` in the data directory."""
        x, y, field = _read(self.find(data_dir), ("x", "y", "field"))
        targets = read_targets(y, classes=2, where="landmine: y")
        return Dataset(
            name="landmine",
            inputs=(torch.from_numpy(x.astype(np.float32)),),
            targets=targets.values,
            classes=2,
            owner=field.astype(np.int64),
            class_names=("clutter", "mine"),
            standardise=self.standardise,
        )


@dataclass(frozen=True, kw_only=True)
class School(Source):
    """School: exam scores of 15,362 pupils of 139 schools in London, a regression.

    Goldstein (1991). 28 features of pupil and school, most of them 0 or 1, the last
    always 1; scores from 1 to 70 are standardised while they are learned.
    """

    licence = "research use"
    folder_name, file_names = "school", ("school.npz",)
    file_hint = "It holds the arrays x, y, school, one row per sample."

    standardise: bool = True
    """Whether features enter the model with mean 0 and standard deviation 1 over the
    training pupils of all schools."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `school/school.npz` in the data directory."""
        x, y, school = _read(self.find(data_dir), ("x", "y", "school"))
        return Dataset(
            name="school",
            inputs=(torch.from_numpy(x.astype(np.float32)),),
            targets=torch.from_numpy(y.astype(np.float32)),
            owner=school.astype(np.int64),
            standardise=self.standardise,
        )


def _read(folder: Path, wanted: Iterable[str]) -> list[NDArray[Any]]:
    """The arrays x, y and client of one file, each checked for its kind."""
    path = folder / f"{folder.name}.npz"
    arrays = read_npz(path)
    for array, dimensions in zip(wanted, (2, 1, 1), strict=True):
        if array not in arrays:
            raise DataError(
                f"{path}: there is no array {array!r}. Found: "
                f"{', '.join(sorted(arrays))}. Save x, y and the client of each row."
            )
        values = arrays[array]
        if values.ndim != dimensions or values.dtype.kind not in "biuf":
            raise DataError(
                f"{path}: {array!r} must have {dimensions} dimensions of numbers, "
                f"found shape {values.shape} of {values.dtype}."
            )
    return [arrays[array] for array in wanted]
