"""CIFAR-10 and CIFAR-100 from their official binary files, or the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.core.scaling import Levels
from fedloom.data.checksums import SUMS, verify
from fedloom.data.dataset import Dataset
from fedloom.data.hub import Hub, instead
from fedloom.data.locations import Absent
from fedloom.data.normalise import LEVELS
from fedloom.data.source import Source

_PIXELS = 3 * 32 * 32
_CHANNELS_10 = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_CHANNELS_100 = (0.5074, 0.4867, 0.4411), (0.2011, 0.1987, 0.2025)
"""Mean and deviation of red, green and blue, of pixels in 0..1."""


def _read(
    folder: Path,
    files: tuple[str, ...],
    bounds: tuple[int, ...],
    sums: Mapping[str, str] | None,
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """Images, (N, 3, 32, 32), labels, (N, kinds), and whether the last file holds it.

    Args:
        folder: Where the files lie.
        files: Their names, the test file last.
        bounds: Number of classes of each kind of label, a byte before the pixels.
        sums: SHA-1 sums by name, if they are to be verified.

    Raises:
        DataError: A file is broken, or not the published one.
    """
    record = len(bounds) + _PIXELS
    images, labels = [], []
    for file in files:
        path = folder / file
        content = np.fromfile(path, np.uint8)
        if len(content) == 0 or len(content) % record:
            raise DataError(
                f"{path}: expected records of {record} bytes, found {len(content)} "
                f"bytes, {len(content) % record} too many. The file is cut short, or "
                "not of the binary version. Copy or download it again."
            )
        rows = content.reshape(-1, record)
        numbers = rows[:, : len(bounds)].astype(np.int64)
        most = numbers.max(axis=0)
        if (most >= bounds).any():
            raise DataError(
                f"{path}: labels must be below {bounds}, found up to "
                f"{tuple(most.tolist())}. Is it the file of another dataset?"
            )
        if sums is not None:
            verify(path, content, sums[file])
        images.append(rows[:, len(bounds) :])
        labels.append(numbers)
    sizes = [len(part) for part in labels]
    is_test = np.arange(sum(sizes)) >= sum(sizes[:-1])
    return (
        np.concatenate(images).reshape(-1, 3, 32, 32),
        np.concatenate(labels),
        is_test,
    )


def _names(path: Path, count: int) -> tuple[str, ...] | None:
    """Class names from a text file, one in a line, if it is there."""
    if not path.exists():
        return None
    names = tuple(
        line for line in path.read_text(encoding="utf-8").splitlines() if line
    )
    if len(names) != count:
        raise DataError(
            f"{path}: expected {count} names, found {len(names)}. Copy the file again, "
            "or remove it to do without names."
        )
    return names


@dataclass(frozen=True, kw_only=True)
class _Cifar(Source):
    """What both datasets have in common."""

    licence = "research use"

    normalise: Literal["channels", "half", "none"] = "channels"
    """How pixels in 0..1 enter the model: less mean over deviation of each channel;
    less 0.5 over 0.5, as pFedMe does; or as they are."""
    verify: bool = True
    """Whether the files must be the published ones, byte for byte."""

    def _load(
        self,
        data_dir: Path | None,
        bounds: tuple[int, ...],
        channels: tuple[tuple[float, ...], tuple[float, ...]],
        names_file: str,
        target: str = "label",
        subclass: str | None = None,
    ) -> Dataset:
        """The files in the data directory, else the hub's copy.

        Args:
            data_dir: The data directory.
            bounds: Number of classes of each kind of label, as for `_read`.
            channels: Mean and deviation of every channel, of pixels in 0..1.
            names_file: The file with the names of the classes.
            target: The hub's column to predict: the first kind of label if it is
                `coarse_label`, else the last.
            subclass: The hub's column of subclasses, which is the last kind of label.
        """
        name, sums = self.folder_name, SUMS[self.folder_name]
        shift, scale = self._levels(*channels)
        try:
            folder = self.find(data_dir)
        except Absent as absent:
            hub = Hub(
                id=f"uoft-cs/{name}",
                inputs=("img",),
                target=target,
                subclass=subclass,
                task="classification",
                splits=("train", "test"),
            )
            return instead(absent, hub, data_dir, name, shift=shift, scale=scale)
        images, labels, is_test = _read(
            folder, tuple(sums), bounds, sums if self.verify else None
        )
        kind = 0 if target == "coarse_label" else -1
        return Dataset(
            name=name,
            inputs=(torch.from_numpy(images),),
            targets=torch.from_numpy(labels[:, kind].copy()),
            classes=bounds[kind],
            shift=shift,
            scale=scale,
            fixed_test=is_test,
            class_names=_names(folder / names_file, bounds[kind]),
            subclass=None if subclass is None else labels[:, -1].copy(),
        )

    def _levels(
        self, mean: tuple[float, ...], deviation: tuple[float, ...]
    ) -> tuple[Levels, Levels]:
        """Shift and scale of bytes that make pixels in 0..1 as the setting says."""
        if self.normalise == "channels":
            return tuple(255.0 * m for m in mean), tuple(255.0 * d for d in deviation)
        return LEVELS[self.normalise]


@dataclass(frozen=True, kw_only=True)
class Cifar10(_Cifar):
    """CIFAR-10: 60,000 photographs of 32 x 32 in colour, 10,000 for testing."""

    folder_name = "cifar10"
    file_names = tuple(SUMS["cifar10"])
    file_hint = "They are the files of cifar-10-binary.tar.gz."

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `cifar10/` in the data directory, else the hub.

        Raises:
            DataError: A file is missing, broken or not the published one.
        """
        return self._load(data_dir, (10,), _CHANNELS_10, "batches.meta.txt")


@dataclass(frozen=True, kw_only=True)
class Cifar100(_Cifar):
    """CIFAR-100: 60,000 photographs of 32 x 32, 100 classes in 20 superclasses."""

    folder_name = "cifar100"
    file_names = tuple(SUMS["cifar100"])
    file_hint = "They are the files of cifar-100-binary.tar.gz."

    labels: Literal["fine", "coarse"] = "fine"
    """What is to be predicted: the class, or the superclass. Coarse labels come with
    the class as `subclass`, which a partition by concept drift needs."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `cifar100/` in the data directory, else the hub.

        Raises:
            DataError: A file is missing, broken or not the published one.
        """
        return self._load(
            data_dir,
            (20, 100),
            _CHANNELS_100,
            f"{self.labels}_label_names.txt",
            target=f"{self.labels}_label",
            subclass=None if self.labels == "fine" else "fine_label",
        )
