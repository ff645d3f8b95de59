"""Text files to tokens: words, their fixed vectors, or hashes of words."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.errors import DataError
from fedloom.data.unpack import read_unpacked

PADDING, UNKNOWN = 0, 1
"""Tokens that are no word: what fills up short texts, and a word without a vector."""
_WORD = re.compile(r"[\w']+|[.,!?;]")


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A text file, gzipped if its name ends in .gz; line ends stay as they are.

    Raises:
        DataError: The file is cut short, damaged or of another encoding.
    """
    try:
        return read_unpacked(path).decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: expected {encoding} text, but {error.reason} at byte "
            f"{error.start}. Convert the file."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path}: not a whole file ({error}). Copy or download it again."
        ) from error


def words(text: str) -> list[str]:
    """Lower-case words, apostrophes included, and the marks . , ! ? ; in their order.

    Lower case, since that is all the vectors of GloVe know.
    """
    return _WORD.findall(text.lower())


def read_vectors(path: Path, wanted: Collection[str]) -> tuple[list[str], Tensor]:
    """The vectors of some words from a file in the format of GloVe.

    Args:
        path: A file of lines `word number number ...`, gzipped if it ends in .gz.
        wanted: The words to keep; a set, or it is slow.

    Returns:
        The words that were found, and (2 + words, dim) their vectors after those of
        padding and unknown, which are 0.

    Raises:
        DataError: The file is damaged, or its lines are not as they should be.
    """
    known: list[str] = []
    rows: list[NDArray[np.float32]] = []
    spaces = None
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        spaces = line.count(" ") if spaces is None else spaces
        word, _, rest = line.partition(" ")
        if line.count(" ") != spaces or spaces == 0:
            raise DataError(
                f"{path}, line {number}: expected a word and {max(spaces, 1)} numbers, "
                f"found {line.count(' ')}. Is the file whole?"
            )
        if word not in wanted:
            continue
        try:
            row = np.array(rest.split(" "), dtype=np.float32)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not numbers ({error}).") from error
        if not np.isfinite(row).all():
            raise DataError(f"{path}, line {number}: the vector is not finite.")
        known.append(word)
        rows.append(row)
    if not known:
        raise DataError(
            f"{path}: holds the vector of none of {len(wanted)} words. Is it GloVe in "
            "lower case?"
        )
    vectors = np.concatenate([np.zeros((2, len(rows[0])), np.float32), np.stack(rows)])
    return known, torch.from_numpy(vectors)


def to_tokens(
    texts: Sequence[list[str]], known: Iterable[str], length: int
) -> NDArray[np.int64]:
    """(texts, length) the first words of each text by their place in `known`.

    The first known word is token 2; a word that is not known is 1, and 0 is padding.
    """
    place = {word: number for number, word in enumerate(known, start=2)}
    return _number(texts, length, lambda word: place.get(word, UNKNOWN))


def to_hashes(
    texts: Sequence[list[str]], buckets: int, length: int
) -> NDArray[np.int64]:
    """(texts, length) the first words of each text, 1 + CRC-32 modulo `buckets`."""
    return _number(texts, length, lambda word: 1 + zlib.crc32(word.encode()) % buckets)


def _number(
    texts: Sequence[list[str]], length: int, token_of: Callable[[str], int]
) -> NDArray[np.int64]:
    tokens = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, text in zip(tokens, texts, strict=True):
        numbers = [token_of(word) for word in text[:length]]
        row[: len(numbers)] = numbers
    return tokens
