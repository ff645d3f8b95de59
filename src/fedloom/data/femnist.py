"""FEMNIST: handwritten characters by writer, from the files of LEAF, or the hub."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.core.settings import check
from fedloom.data.dataset import Dataset
from fedloom.data.emnist import CHARACTERS, Classes, chosen
from fedloom.data.hub import Hub, instead
from fedloom.data.locations import Absent, folder_of

_SIDE = 28


class _Samples(NamedTuple):
    """Images, labels and writers of some samples."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    writers: NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Femnist:
    """FEMNIST of LEAF: characters of 28 x 28 by some 3,500 writers, the clients."""

    classes: Classes = "all"
    """Which characters: all 62, or the lower-case letters a to j, labels 36 to 45.
    Writers without any of them are left out."""

    def __post_init__(self) -> None:
        check(self)

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `femnist/train/*.json` and `femnist/test/*.json`, else the hub.

        Raises:
            DataError: A file is missing or broken.
        """
        keep = chosen(self.classes)
        try:
            folder = folder_of(
                "femnist",
                ["train", "test"],
                data_dir,
                get="They are LEAF's folders of .json files (split by sample).",
            )
        except Absent as absent:
            return self._from_hub(absent, data_dir, keep)
        parts = [_read_part(folder / part, keep) for part in ("train", "test")]
        whole = _join(parts)
        return Dataset(
            name="femnist",
            inputs=(torch.from_numpy(whole.images),),
            targets=torch.from_numpy(whole.labels),
            classes=len(keep),
            owner=whole.writers,
            scale=255.0,
            fixed_test=np.repeat([False, True], [len(part.labels) for part in parts]),
            class_names=CHARACTERS[keep.start : keep.stop],
        )

    def _from_hub(self, absent: Absent, data_dir: Path | None, keep: range) -> Dataset:
        hub = Hub(
            id="flwrlabs/femnist",
            inputs=("image",),
            target="character",
            client="writer_id",
            splits=("train",),
        )
        found = instead(absent, hub, data_dir)
        if found.class_names != CHARACTERS or found.owner is None:
            raise DataError(
                f"{hub.id}: its 62 labels are not the digits, the upper-case and the "
                "lower-case letters in this order. Use LEAF's files."
            )
        kept = (found.targets >= keep.start) & (found.targets < keep.stop)
        return replace(
            found,
            name="femnist",
            inputs=(found.inputs[0][kept],),
            targets=found.targets[kept] - keep.start,
            classes=len(keep),
            owner=found.owner[kept.numpy()],
            class_names=CHARACTERS[keep.start : keep.stop],
        )


def _join(samples: list[_Samples]) -> _Samples:
    return _Samples(*(np.concatenate(field) for field in zip(*samples, strict=True)))


def _read_part(folder: Path, keep: range) -> _Samples:
    """The samples of all files of one folder."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"{folder}: no .json file in it. Put LEAF's files there.")
    return _join([_read_file(path, keep) for path in files])


def _read_file(path: Path, keep: range) -> _Samples:
    """The samples of one file whose labels are kept, numbered from 0."""
    try:
        by_writer = json.loads(path.read_bytes())["user_data"]
        if not by_writer:
            raise DataError(f"{path}: it has no writer in it. Remove it.")
        return _join(
            [_read_writer(path, who, held, keep) for who, held in by_writer.items()]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not a whole LEAF file ({type(error).__name__}: {error}). "
            "Expected user_data with x and y of every writer; make or copy it again."
        ) from error


def _read_writer(path: Path, writer: str, held: Any, keep: range) -> _Samples:
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
    kept = (y >= keep.start) & (y < keep.stop)
    # LEAF divided bytes by 255: this brings back the bytes themselves.
    pixels = np.rint(255 * x[kept]).astype(np.uint8)
    return _Samples(
        pixels.reshape(-1, 1, _SIDE, _SIDE),
        y[kept].astype(np.int64) - keep.start,
        np.full(int(kept.sum()), writer, dtype=np.object_),
    )
