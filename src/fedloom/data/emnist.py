"""EMNIST letters and EMNIST by class from the IDX files of NIST."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedloom.core.settings import check
from fedloom.data.dataset import Dataset
from fedloom.data.idx import idx_files, read_parts
from fedloom.data.locations import folder_of

CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""What the 62 labels of EMNIST by class, and of FEMNIST, stand for."""

Classes = Literal["all", "a-j"]
"""All 62 characters, or the ten lower-case letters a to j that FedProx began with."""


def chosen(classes: Classes) -> range:
    """The labels, of 62, that a choice of classes keeps."""
    if classes == "all":
        return range(len(CHARACTERS))
    first = CHARACTERS.index("a")
    return range(first, first + 10)


def _load(
    name: str,
    data_dir: Path | None,
    labels: range,
    names: tuple[str, ...],
    keep: range | None = None,
) -> Dataset:
    """Training and test images of one EMNIST set, upright.

    Args:
        name: The set, its folder, and how its files' names begin.
        data_dir: The data directory.
        labels: What the files hold as labels.
        names: What these labels stand for.
        keep: Which of the labels, counted from 0, are kept; they are numbered anew.
    """
    parts = (f"{name}-train", f"{name}-test")
    folder = folder_of(
        name,
        idx_files(parts),
        data_dir,
        get="They are files of NIST's EMNIST, gzip.zip, kept compressed.",
    )
    images, targets = read_parts(folder, parts, labels)
    if keep is not None:
        for part, y in enumerate(targets):
            kept = (y >= keep.start) & (y < keep.stop)
            images[part] = images[part][kept]
            targets[part] = y[kept] - keep.start
        names = names[keep.start : keep.stop]
    # The files hold every image with rows and columns exchanged.
    upright = np.concatenate([x.transpose(0, 2, 1) for x in images])
    return Dataset(
        name=name,
        inputs=(torch.from_numpy(np.ascontiguousarray(upright)[:, None]),),
        targets=torch.from_numpy(np.concatenate(targets)),
        classes=len(names),
        scale=255.0,
        fixed_test=np.repeat([False, True], [len(y) for y in targets]),
        class_names=names,
    )


@dataclass(frozen=True, kw_only=True)
class EmnistLetters:
    """EMNIST letters: 145,600 letters of 28 x 28, both cases in one of 26 classes."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `emnist-letters/` in the data directory; the seed changes nothing."""
        letters = tuple(string.ascii_lowercase)
        return _load("emnist-letters", data_dir, range(1, 27), letters)


@dataclass(frozen=True, kw_only=True)
class EmnistLettersAj:
    """Letters a to j of EMNIST letters: 56,000 of 28 x 28, ten balanced classes."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `emnist-letters-aj/` in the data directory; the seed does nothing."""
        letters = tuple(string.ascii_lowercase[:10])
        return _load("emnist-letters-aj", data_dir, range(1, 11), letters)


@dataclass(frozen=True, kw_only=True)
class EmnistByclass:
    """EMNIST by class: 814,255 characters of 28 x 28, cases apart, unbalanced."""

    classes: Classes = "all"
    """Which characters: all 62, or the lower-case letters a to j, labels 36 to 45."""

    def __post_init__(self) -> None:
        check(self)

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `emnist-byclass/` in the data directory; the seed changes nothing."""
        return _load(
            "emnist-byclass", data_dir, range(62), CHARACTERS, chosen(self.classes)
        )
