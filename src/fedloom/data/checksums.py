"""Are these the published files? Sums that were published, and the comparison."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from fedloom.core.errors import DataError

SUMS = {
    "mnist": {
        "train-images-idx3-ubyte.gz": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte.gz": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte.gz": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte.gz": "27ae3e4e09519cfbb04c329615203637",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte.gz": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte.gz": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte.gz": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte.gz": "15d484375f8d13e6eb1aabb0c3f46965",
    },
    "cifar10": {
        "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
    },
    "cifar100": {
        "train.bin": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e",
        "test.bin": "8fb6623e830365ff53cf14adec797474f5478006",
    },
}
"""MD5 or SHA-1 by dataset and file. That of a .gz is of what it holds, so that a file
compressed again is still the same file."""

_KINDS = {32: "md5", 40: "sha1"}


def verify(path: Path, content: Any, expected: str) -> None:
    """Refuse content other than the published one.

    Args:
        path: What messages call the content.
        content: Bytes, or an array of them.
        expected: The published MD5 or SHA-1 in hexadecimal digits.

    Raises:
        DataError: The sums differ.
    """
    kind = _KINDS[len(expected)]
    actual = hashlib.new(kind, content, usedforsecurity=False).hexdigest()
    if actual != expected:
        raise DataError(
            f"{path}: its content has the {kind} sum {actual}, the published file has "
            f"{expected}. Copy or download the original again; to use a file of your "
            "own in its place, set verify = false."
        )
