"""Heart disease at four hospitals, from the processed files of the UCI repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.data.dataset import Dataset
from fedloom.data.source import Source
from fedloom.data.text import read_text

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
"""The clients, in the order of their samples."""
FEATURES = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
"""What is known of a patient, in the order of the columns."""
_ALWAYS_KNOWN = 3
"""The first three are known of every patient."""
_NEVER_ZERO = (FEATURES.index("trestbps"), FEATURES.index("chol"))
"""No living patient has blood pressure or cholesterol 0: there, 0 means unknown."""


@dataclass(frozen=True, kw_only=True)
class HeartDisease(Source):
    """Heart disease: 920 patients of four hospitals, ill or not, from 13 features.

    Janosi, Steinbrunn, Pfisterer, Detrano (1988). Class 1 is a diagnosis of 1 to 4.
    A cell is unknown if it is `?`, and where blood pressure or cholesterol is 0: all
    123 Swiss cholesterols, and 49 cholesterols and a pressure at the VA.

    Unknown cells become medians over patients. Medians know nothing of diagnoses, but
    they are taken before patients are set aside for testing, whose features so enter
    them a little; means and deviations for standardising do not.
    """

    licence = "CC BY 4.0; name Janosi, Steinbrunn, Pfisterer, Detrano"
    folder_name = "heart-disease"
    file_names = tuple(f"processed.{hospital}.data" for hospital in HOSPITALS)
    file_hint = "They are the processed files of Heart Disease at UCI."

    missing: Literal["overall", "hospital"] = "overall"
    """Whose median fills an unknown cell: that of all patients, or of the hospital's
    own (of all where the hospital knows none, such as Swiss cholesterol)."""
    indicators: bool = True
    """Whether ten columns are added that are 1 where trestbps to thal were unknown,
    else 0."""
    standardise: bool = True
    """Whether features enter the model with mean 0 and standard deviation 1 over the
    training patients of all hospitals."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `heart-disease/` in the data directory."""
        folder = self.find(data_dir)
        parts = [_read(folder / file) for file in self.file_names]
        owner = np.repeat(HOSPITALS, [len(part) for part in parts])
        rows = np.concatenate(parts)
        features = rows[:, :-1]
        for column in _NEVER_ZERO:
            features[features[:, column] == 0, column] = np.nan
        is_unknown = np.isnan(features)
        nobody = np.flatnonzero(is_unknown.all(axis=0))
        if len(nobody):
            raise DataError(
                f"{folder}: {FEATURES[nobody[0]]!r} is known of no patient of any "
                "hospital. Are the files whole?"
            )
        filled = self._fill(features, owner)
        if self.indicators:
            filled = np.hstack([filled, is_unknown[:, _ALWAYS_KNOWN:]])
        return Dataset(
            name="heart-disease",
            inputs=(torch.from_numpy(filled.astype(np.float32)),),
            targets=torch.from_numpy((rows[:, -1] > 0).astype(np.int64)),
            classes=2,
            owner=owner,
            class_names=("healthy", "ill"),
            standardise=self.standardise,
        )

    def _fill(
        self, features: NDArray[np.float64], owner: NDArray[np.str_]
    ) -> NDArray[np.float64]:
        medians = np.tile(np.nanmedian(features, axis=0), (len(features), 1))
        if self.missing == "hospital":
            for hospital in HOSPITALS:
                own = features[owner == hospital]
                known = ~np.isnan(own).all(axis=0)
                medians[np.ix_(owner == hospital, known)] = np.nanmedian(
                    own[:, known], axis=0
                )
        return np.where(np.isnan(features), medians, features)


def _read(path: Path) -> NDArray[np.float64]:
    """(patients, 14) the cells of one hospital, nan where unknown."""
    rows = []
    lines = read_text(path).splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = line.split(",")
        if len(cells) != len(FEATURES) + 1:
            raise DataError(
                f"{path}, line {number}: expected {len(FEATURES) + 1} fields, found "
                f"{len(cells)}. Use the processed file, not the one with 76 attributes."
            )
        try:
            rows.append([np.nan if c.strip() == "?" else float(c) for c in cells])
        except ValueError as error:
            raise DataError(
                f"{path}, line {number}: expected numbers or ?, found {line!r}."
            ) from error
        if not np.isin(rows[-1][-1], range(5)) or np.isinf(rows[-1]).any():
            raise DataError(
                f"{path}, line {number}: expected finite numbers and a diagnosis 0 to "
                f"4 at the end, found {line!r}."
            )
    if not rows:
        raise DataError(f"{path}: holds no patient. Copy or download it again.")
    return np.array(rows)
