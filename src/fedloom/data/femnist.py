"""FEMNIST: handwritten characters by writer, from the files of LEAF, or the hub."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.core.reprs import without_values
from fedloom.data.dataset import Dataset
from fedloom.data.emnist import CHARACTERS, Classes, keep_classes
from fedloom.data.hub import Hub, instead
from fedloom.data.locations import Absent
from fedloom.data.source import Source

_SIDE = 28


@without_values
class _Samples(NamedTuple):
    """Images, labels and writers of some samples."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    writers: NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Femnist(Source):
    """FEMNIST of LEAF: characters of 28 x 28 by some 3,500 writers, the clients."""

    licence = "BSD 2-clause (LEAF), NIST data public"
    folder_name, file_names = "femnist", ("train", "test")
    file_hint = "They are LEAF's folders of .json files (split by sample)."

    classes: Classes = "all"
    """Characters to take: all 62, or the lower-case letters a to j, labels 36 to 45.
    Writers without any of them are left out."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `femnist/train/*.json` and `femnist/test/*.json`, else the hub.

        Raises:
            DataError: A file is missing or broken.
        """
        try:
            folder = self.find(data_dir)
        except Absent as absent:
            return keep_classes(_from_hub(absent, data_dir), self.classes)
        parts = [_read_part(folder / part) for part in ("train", "test")]
        images, labels, writers = _join(parts)
        dataset = Dataset(
            name="femnist",
            inputs=(torch.from_numpy(images),),
            targets=torch.from_numpy(labels),
            classes=len(CHARACTERS),
            owner=writers,
            scale=255.0,
            fixed_test=np.repeat([False, True], [len(part.labels) for part in parts]),
            class_names=CHARACTERS,
        )
        return keep_classes(dataset, self.classes)


def _from_hub(absent: Absent, data_dir: Path | None) -> Dataset:
    hub = Hub(
        id="flwrlabs/femnist",
        inputs=("image",),
        target="character",
        client="writer_id",
        splits=("train",),
    )
    dataset = instead(absent, hub, data_dir, "femnist")
    if dataset.class_names != CHARACTERS:
        raise DataError(
            f"{hub.id}: its 62 labels are not the digits, the upper-case and the "
            "lower-case letters in this order. Use LEAF's files."
        )
    return dataset


def _join(samples: list[_Samples]) -> _Samples:
    return _Samples(*(np.concatenate(field) for field in zip(*samples, strict=True)))


def _read_part(folder: Path) -> _Samples:
    """The samples of all files of one folder."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder}: no .json file in it. Put LEAF's files there.")
    return _join([_read_file(path) for path in files])


def _read_file(path: Path) -> _Samples:
    """The samples of one file."""
    try:
        by_writer = json.loads(path.read_bytes())["user_data"]
        if not by_writer:
            raise DataError(f"{path}: it has no writer in it. Remove it.")
        return _join([_read_writer(path, *writer) for writer in by_writer.items()])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not a whole LEAF file ({type(error).__name__}: {error}). "
            "Expected user_data with x and y of every writer; make or copy it again."
        ) from error


def _read_writer(path: Path, writer: str, held: Any) -> _Samples:
    x, y = np.asarray(held["x"], np.float64), np.asarray(held["y"])
    where = f"{path}: writer {writer}"
    if x.shape != (len(y), _SIDE * _SIDE):
        raise DataError(
            f"{where} has {len(y)} labels and images of shape {x.shape}; expected "
            f"({len(y)}, {_SIDE * _SIDE})."
        )
    if not ((x >= 0) & (x <= 1)).all():
        raise DataError(
            f"{where}: pixels must lie in 0..1, found {x.min():g}..{x.max():g}."
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(CHARACTERS):
        raise DataError(
            f"{where}: labels must be whole numbers in 0..{len(CHARACTERS) - 1}, found "
            f"{y.min()}..{y.max()}."
        )
    # LEAF divided bytes by 255: this brings back the bytes themselves.
    pixels = np.rint(255 * x).astype(np.uint8)
    return _Samples(
        pixels.reshape(-1, 1, _SIDE, _SIDE),
        y.astype(np.int64),
        np.full(len(y), writer, dtype=np.object_),
    )
