"""MNIST and Fashion-MNIST from their original IDX files on this machine."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.data.dataset import Dataset
from fedloom.data.places import VARIABLE, folder_of

_IMAGES = 0x0803
_LABELS = 0x0801
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


def read_idx(path: Path, magic: int) -> NDArray[np.uint8]:
    """The array in a gzipped IDX file of unsigned bytes.

    Args:
        path: The file.
        magic: The number it must open with; its low byte counts the dimensions.

    Raises:
        DataError: The file is missing, corrupt, of another kind or cut short.
    """
    again = "Copy or download the file again."
    try:
        content = gzip.decompress(path.read_bytes())
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
    found, *shape = struct.unpack(f">{1 + dimensions}I", content[:header])
    if found != magic:
        raise DataError(
            f"{path}: expected an IDX file with magic number {magic:#06x}, found "
            f"{found:#06x}. Are images and labels exchanged?"
        )
    expected = math.prod(shape)
    if len(content) - header != expected:
        raise DataError(
            f"{path}: its header announces {expected} bytes of shape {tuple(shape)}, "
            f"found {len(content) - header}. {again}"
        )
    # A copy, since the bytes themselves are read-only.
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


def _load(
    name: str, data_dir: Path | None, class_names: tuple[str, ...] | None = None
) -> Dataset:
    """Both parts of one dataset, the test images marked as such."""
    folder = folder_of(
        name,
        [
            f"{part}-{kind}-ubyte.gz"
            for part in ("train", "t10k")
            for kind in ("images-idx3", "labels-idx1")
        ],
        data_dir,
        get="They are the four original IDX files.",
    )
    images, labels = [], []
    for part in ("train", "t10k"):
        x = read_idx(folder / f"{part}-images-idx3-ubyte.gz", _IMAGES)
        y = read_idx(folder / f"{part}-labels-idx1-ubyte.gz", _LABELS)
        if len(x) != len(y):
            raise DataError(
                f"{folder}: {part} has {len(x)} images and {len(y)} labels; the files "
                "do not belong together."
            )
        images.append(x[:, None])
        labels.append(y.astype(np.int64))
    if images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(
            f"{folder}: training images are {images[0].shape[2:]}, test "
            f"images {images[1].shape[2:]}; the files do not belong together."
        )
    return Dataset(
        name=name,
        inputs=(torch.from_numpy(np.concatenate(images)),),
        targets=torch.from_numpy(np.concatenate(labels)),
        classes=10,
        scale=255.0,
        fixed_test=np.repeat([False, True], [len(part) for part in labels]),
        class_names=class_names,
    )


@dataclass(frozen=True, kw_only=True)
class Mnist:
    """MNIST: 70,000 handwritten digits of 28 x 28, 10,000 for testing."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `mnist/` in the data directory; the seed changes nothing."""
        return _load("mnist", data_dir)


@dataclass(frozen=True, kw_only=True)
class FashionMnist:
    """Fashion-MNIST: 70,000 pictures of clothes of 28 x 28, 10,000 for testing."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `fashion-mnist/` in the data directory; the seed changes nothing."""
        return _load("fashion-mnist", data_dir, _CLOTHES)
