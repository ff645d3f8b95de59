"""MNIST and Fashion-MNIST from their original IDX files on this machine, or the hub."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.data.checksums import SUMS, verify
from fedloom.data.dataset import Dataset
from fedloom.data.hub import Hub, instead
from fedloom.data.locations import VARIABLE, Absent
from fedloom.data.normalise import Normalise, normalised
from fedloom.data.source import Source
from fedloom.data.unpack import read_unpacked

_IMAGES = 0x0803
_LABELS = 0x0801
_PARTS = ("train", "t10k")
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_idx(path: Path, magic: int, md5: str | None = None) -> NDArray[np.uint8]:
    """The array in a gzipped IDX file of unsigned bytes.

    Args:
        path: The file.
        magic: The number it must open with; its low byte counts the dimensions.
        md5: The sum of what it must hold, if that is known.

    Raises:
        DataError: The file is missing, corrupt, of another kind or cut short.
    """
    again = "Copy or download the file again."
    try:
        content = read_unpacked(path)
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file. Put the original {path.name} into {path.parent}, "
            f"or point {VARIABLE} to the folder that holds {path.parent.name}/."
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a whole gzip file ({error}). {again}") from error
    dimensions = magic & 0xFF
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise DataError(
            f"{path}: expected an IDX header of {header} bytes, found "
            f"{len(content)} bytes in all. {again}"
        )
    actual, *shape = struct.unpack(f">{1 + dimensions}I", content[:header])
    if actual != magic:
        raise DataError(
            f"{path}: expected an IDX file with magic number {magic:#06x}, found "
            f"{actual:#06x}. Are images and labels exchanged?"
        )
    expected = math.prod(shape)
    if len(content) - header != expected:
        raise DataError(
            f"{path}: its header announces {expected} bytes of shape {tuple(shape)}, "
            f"found {len(content) - header}. {again}"
        )
    if md5 is not None:
        verify(path, content, md5)
    # A copy, since the bytes themselves are read-only.
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


def idx_files(parts: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the image and the label file of every part."""
    kinds = ("images-idx3", "labels-idx1")
    return tuple(f"{part}-{kind}-ubyte.gz" for part in parts for kind in kinds)


def read_parts(
    folder: Path,
    parts: tuple[str, str],
    labels: range,
    sums: Mapping[str, str] | None = None,
) -> tuple[list[NDArray[np.uint8]], list[NDArray[np.int64]]]:
    """Images (n, height, width) and labels, from 0, of training and test files.

    Args:
        folder: Where the four files lie.
        parts: How the names of the training and the test files begin.
        labels: What the files may hold as labels; the first one becomes 0.
        sums: MD5 sums by file name, of those that are to be verified.

    Raises:
        DataError: A file is broken, or they do not belong together.
    """
    sums = sums or {}
    images, numbers = [], []
    for part in parts:
        image_file, label_file = idx_files((part,))
        x = read_idx(folder / image_file, _IMAGES, sums.get(image_file))
        y = read_idx(folder / label_file, _LABELS, sums.get(label_file))
        if len(x) != len(y):
            raise DataError(
                f"{folder}: {part} has {len(x)} images and {len(y)} labels; the files "
                "do not belong together."
            )
        if len(y) and (y.min() < labels[0] or y.max() > labels[-1]):
            raise DataError(
                f"{folder / label_file}: labels must lie in {labels[0]}..{labels[-1]}, "
                f"found {y.min()}..{y.max()}. Is it the file of another dataset?"
            )
        images.append(x)
        numbers.append(y.astype(np.int64) - labels[0])
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(
            f"{folder}: training images are {images[0].shape[1:]}, test "
            f"images {images[1].shape[1:]}; the files do not belong together."
        )
    return images, numbers


def join_parts(
    name: str,
    images: Sequence[NDArray[np.uint8]],
    labels: Sequence[NDArray[np.int64]],
    classes: int,
    class_names: tuple[str, ...] | None,
) -> Dataset:
    """The dataset of training and test images, the latter marked as such."""
    return Dataset(
        name=name,
        inputs=(torch.from_numpy(np.concatenate(images)[:, None]),),
        targets=torch.from_numpy(np.concatenate(labels)),
        classes=classes,
        scale=255.0,
        fixed_test=np.repeat([False, True], [len(part) for part in labels]),
        class_names=class_names,
    )


@dataclass(frozen=True, kw_only=True)
class Mnist(Source):
    """MNIST: 70,000 handwritten digits of 28 x 28, 10,000 for testing."""

    licence = "CC BY-SA 3.0"
    folder_name = "mnist"
    file_names = idx_files(_PARTS)
    file_hint = "They are the four original IDX files."

    normalise: Normalise = "none"
    """How pixels enter the model: from 0 to 1; "half" from -1 to 1, less 0.5 over 0.5;
    "pixels" each less its mean over its deviation in all images, as FedProx and pFedMe
    have it."""
    verify: bool = True
    """Whether the files must be the published ones, byte for byte."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `mnist/` in the data directory, else the hub."""
        return _load(self, data_dir, "ylecun/mnist")


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Source):
    """Fashion-MNIST: 70,000 pictures of clothes of 28 x 28, 10,000 for testing."""

    licence = "MIT"
    folder_name = "fashion-mnist"
    file_names, file_hint = Mnist.file_names, Mnist.file_hint

    normalise: Normalise = "none"
    """How pixels enter the model: from 0 to 1; "half" from -1 to 1, less 0.5 over 0.5;
    "pixels" each less its mean over its deviation in all images."""
    verify: bool = True
    """Whether the files must be the published ones, byte for byte."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `fashion-mnist/` in the data directory, else the hub."""
        return _load(self, data_dir, "zalando-datasets/fashion_mnist", _CLOTHES)


def _load(
    source: Mnist | FashionMnist,
    data_dir: Path | None,
    hub_id: str,
    class_names: tuple[str, ...] | None = None,
) -> Dataset:
    """One dataset from its four files, else from the hub."""
    name = source.folder_name
    try:
        folder = source.find(data_dir)
    except Absent as absent:
        hub = Hub(id=hub_id, inputs=("image",), splits=("train", "test"))
        dataset = instead(absent, hub, data_dir, name, class_names=class_names)
    else:
        sums = SUMS[name] if source.verify else None
        images, labels = read_parts(folder, _PARTS, range(10), sums)
        dataset = join_parts(name, images, labels, 10, class_names)
    return normalised(dataset, source.normalise)
