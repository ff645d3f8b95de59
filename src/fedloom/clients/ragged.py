"""Lists of different lengths in two arrays: whose samples are whose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.core.reprs import without_values


@without_values
@dataclass(frozen=True, eq=False)
class Ragged:
    """One list of sample indices per client, stored end to end.

    Raises:
        DataError: The offsets do not cut the indices into consecutive pieces.
    """

    indices: NDArray[np.int64]
    """(total,) all lists, one after another."""
    offsets: NDArray[np.int64]
    """(n + 1,) list i is indices[offsets[i]:offsets[i + 1]]."""

    def __post_init__(self) -> None:
        is_int64 = self.indices.dtype == self.offsets.dtype == np.int64
        is_flat = self.indices.ndim == self.offsets.ndim == 1
        if not (is_int64 and is_flat and len(self.offsets) > 0):
            raise DataError(
                "Ragged: indices and offsets must be flat int64 arrays, found "
                f"{self.indices.dtype} {self.indices.shape} and "
                f"{self.offsets.dtype} {self.offsets.shape}."
            )
        ends = int(self.offsets[0]), int(self.offsets[-1])
        if ends != (0, len(self.indices)) or (np.diff(self.offsets) < 0).any():
            raise DataError(
                "Ragged: offsets must rise from 0 to the number of indices, "
                f"{len(self.indices)}; found {ends[0]} to {ends[1]}."
            )

    @classmethod
    def of(cls, lists: Sequence[NDArray[np.int64]]) -> Ragged:
        """Store these lists in this order."""
        sizes = np.array([len(indices) for indices in lists], dtype=np.int64)
        joined = np.concatenate(lists) if len(lists) else np.empty(0)
        return cls.cut(joined.astype(np.int64, copy=False), sizes)

    @classmethod
    def cut(cls, indices: NDArray[np.int64], sizes: NDArray[np.int64]) -> Ragged:
        """Consecutive pieces of these lengths."""
        return cls(indices, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    def only(self, rows: Sequence[int] | NDArray[np.int64]) -> Ragged:
        """Some of the lists, in this order."""
        chosen = np.asarray(rows, dtype=np.int64)
        sizes = self.sizes[chosen]
        ends = np.cumsum(sizes)
        shift = np.repeat(self.offsets[:-1][chosen] - (ends - sizes), sizes)
        return Ragged.cut(self.indices[np.arange(len(shift)) + shift], sizes)

    def only_where(self, is_kept: NDArray[np.bool_]) -> Ragged:
        """The lists without some of their entries.

        Args:
            is_kept: (total,) which entries stay.
        """
        kept = np.concatenate([[0], np.cumsum(is_kept)])
        return Ragged(self.indices[is_kept], kept[self.offsets])

    def followed_by(self, other: Ragged) -> Ragged:
        """These lists and then those of another."""
        indices = np.concatenate([self.indices, other.indices])
        return Ragged.cut(indices, np.concatenate([self.sizes, other.sizes]))

    def ascending(self) -> Ragged:
        """Every list sorted."""
        width = self.indices.max(initial=0) + 1
        keys = self.owners * width
        ordered = np.sort(keys + self.indices)
        return Ragged(ordered - keys, self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> NDArray[np.int64]:
        if not 0 <= i < len(self):
            raise IndexError(f"list {i} of {len(self)}")
        return self.indices[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (self[i] for i in range(len(self)))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(n,) length of each list."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> NDArray[np.int64]:
        """(total,) the list that each entry is in."""
        return np.repeat(np.arange(len(self)), self.sizes)
