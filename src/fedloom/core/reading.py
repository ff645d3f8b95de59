"""Files that may be damaged: what comes of reading one, and a reader that says so."""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import DataError

UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    EOFError,
    MemoryError,
    RuntimeError,  # and what is not implemented, and what is nested too deep
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    SyntaxError,  # numpy has Python's own parser read the head of an array
    tokenize.TokenError,
)
"""What may come of reading a file that is not whole, whatever its format."""


def read_npz(path: Path, what: str) -> dict[str, NDArray[Any]]:
    """The arrays of an archive by name; objects are refused.

    Args:
        path: of the file.
        what: how messages call it: "file of outcomes".

    Raises:
        DataError: it cannot be read, or is not whole.
    """
    try:
        # By a file of our own, for numpy leaves a broken archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except UNREADABLE as error:
        raise not_whole(path, what, error) from error


def not_whole(path: Path, what: str, error: Exception) -> DataError:
    """The error for a file that cannot be read, or that is not what it should be."""
    reason = str(error) or type(error).__name__
    return DataError(f"{path}: not a whole {what} ({reason}).")
