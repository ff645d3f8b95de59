"""The clients that the data themselves name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedloom.clients.assignment import Assignment, Indices, Partition
from fedloom.clients.ragged import Ragged
from fedloom.core.errors import DataError
from fedloom.core.settings import Count, Rate
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """The clients that the dataset itself names, in sorted order."""

    least: Count = 1
    """Fewest samples of a client that is not small; LEAF's Sent140 keeps users from 31
    on."""
    small: Literal["drop", "pool"] = "drop"
    """What becomes of small clients: they are left out, or joined in order until a pool
    has `least`."""
    share: Rate = 1.0
    """Share of the samples that is used: whole clients in random order until they hold
    so much, before small ones are sought."""

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Group the samples by owner; the seed matters only for a share below 1."""
        if dataset.owner is None:
            raise DataError(
                f"{dataset.name} does not say whose each sample is, so it has no "
                "natural clients. Name the client column (or pass clients=), or choose "
                "another partition: iid, label-skew, dirichlet, ..."
            )
        try:
            owners, inverse = np.unique(dataset.owner, return_inverse=True)
        except TypeError:
            raise DataError(
                f"{dataset.name}: client ids mix types that cannot be ordered. Make "
                "all of them text or all whole numbers."
            ) from None
        counts = np.bincount(inverse, minlength=len(owners))
        pieces = Ragged.cut(np.argsort(inverse, kind="stable"), counts)
        used = np.arange(len(owners))
        if self.share < 1.0:
            order = generator(seed, "partition").permutation(len(owners))
            before = np.cumsum(counts[order]) - counts[order]
            used = np.sort(order[before < self.share * len(dataset)])
        large = used[counts[used] >= self.least]
        members = pieces.only(large)
        names = [str(owner) for owner in owners[large]]
        if self.small == "pool":
            small = used[counts[used] < self.least]
            pools = self._pools(list(pieces.only(small)))
            members = members.followed_by(Ragged.of(pools))
            names += [f"pool {n}" for n in range(len(pools))]
        if not names:
            raise DataError(
                f"{dataset.name}: no client has {self.least} samples, the largest has "
                f"{counts[used].max()}. Lower least"
                + (', or set small = "pool".' if self.small == "drop" else ".")
            )
        return Assignment(members, tuple(names))

    def _pools(self, pieces: list[Indices]) -> list[Indices]:
        """Small clients joined in order; what is left at the end joins the last."""
        pools: list[Indices] = []
        rest = np.empty(0, dtype=np.int64)
        for piece in pieces:
            rest = np.concatenate([rest, piece])
            if len(rest) >= self.least:
                pools.append(rest)
                rest = rest[:0]
        if pools:
            pools[-1] = np.concatenate([pools[-1], rest])
        return pools
