"""EMNIST letters and EMNIST by class from the IDX files of NIST."""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.idx import idx_files, join_parts, read_parts
from fedloom.data.source import Source

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""What the 62 labels of EMNIST by class, and of FEMNIST, stand for."""

Classes = Literal["all", "a-j"]
"""All 62 characters, or the ten lower-case letters a to j that FedProx began with."""


def keep_classes(dataset: Dataset, classes: Classes) -> Dataset:
    """The samples, of 62 characters, that a choice of classes keeps, numbered anew."""
    if classes == "all":
        return dataset
    first = CHARACTERS.index("a")
    kept = (dataset.targets >= first) & (dataset.targets < first + 10)
    owner, is_test = dataset.owner, dataset.fixed_test
    return replace(
        dataset,
        inputs=(dataset.inputs[0][kept],),
        targets=dataset.targets[kept] - first,
        classes=10,
        owner=None if owner is None else owner[kept.numpy()],
        fixed_test=None if is_test is None else is_test[kept.numpy()],
        class_names=CHARACTERS[first : first + 10],
    )


class _Emnist(Source):
    """What all sets of EMNIST have in common."""

    licence = "NIST, public"
    file_hint = "They are files of NIST's EMNIST, gzip.zip, kept compressed."

    def _load(
        self, data_dir: Path | None, labels: range, names: tuple[str, ...]
    ) -> Dataset:
        """Training and test images of one set, upright.

        Args:
            data_dir: The data directory.
            labels: What the files hold as labels.
            names: What these labels stand for.
        """
        parts = (f"{self.folder_name}-train", f"{self.folder_name}-test")
        images, targets = read_parts(self.find(data_dir), parts, labels)
        # The files hold every image with rows and columns exchanged.
        upright = [np.ascontiguousarray(x.transpose(0, 2, 1)) for x in images]
        return join_parts(self.folder_name, upright, targets, len(names), names)


@dataclass(frozen=True, kw_only=True)
class EmnistLetters(_Emnist):
    """EMNIST letters: 145,600 letters of 28 x 28, both cases in one of 26 classes."""

    folder_name = "emnist-letters"
    file_names = idx_files(("emnist-letters-train", "emnist-letters-test"))

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `emnist-letters/` in the data directory."""
        return self._load(data_dir, range(1, 27), tuple(string.ascii_lowercase))


@dataclass(frozen=True, kw_only=True)
class EmnistLettersAj(_Emnist):
    """Letters a to j of EMNIST letters: 56,000 of 28 x 28, ten balanced classes."""

    folder_name = "emnist-letters-aj"
    file_names = idx_files(("emnist-letters-aj-train", "emnist-letters-aj-test"))

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `emnist-letters-aj/` in the data directory."""
        return self._load(data_dir, range(1, 11), tuple(string.ascii_lowercase[:10]))


@dataclass(frozen=True, kw_only=True)
class EmnistByclass(_Emnist):
    """EMNIST by class: 814,255 characters of 28 x 28, cases apart, unbalanced."""

    folder_name = "emnist-byclass"
    file_names = idx_files(("emnist-byclass-train", "emnist-byclass-test"))

    classes: Classes = "all"
    """Characters to take: all 62, or the lower-case letters a to j, labels 36 to 45."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `emnist-byclass/` in the data directory."""
        dataset = self._load(data_dir, range(62), CHARACTERS)
        return keep_classes(dataset, self.classes)
