"""Client u holds classes u, u + 1, ...: the recipes of FedProx, FEMNIST and pFedMe.

In the scripts that these come from, samples are taken in the order of the files; here
the samples of a class are shuffled first. Every slice of a class goes to one client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedloom.clients.assignment import (
    Assignment,
    Indices,
    Partition,
    check_classes,
    check_enough,
    class_pools,
    lognormal,
    numbered,
)
from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, Positive, SmallCount, Whole
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Consecutive(Partition):
    """Consecutive classes, each divided among its holders by a law of sizes.

    FedProx's MNIST: every holder of a class takes `first` samples; the rest is divided
    in lognormal shares, rounded down. pFedMe's CIFAR-10 adds a uniform number to a
    share and doubles the sum. A holder that would take more than is left takes nothing
    beyond its first samples; what nobody takes is not used.
    """

    clients: Count = 20
    """Number of clients; client u holds classes u, u + 1, ..., counted in a circle."""
    classes: Count = 2
    """Classes of one client."""
    first: Whole = 5
    """Samples of a class that each of its holders takes before the rest is divided."""
    law: Literal["lognormal", "broken"] = "lognormal"
    """How the rest is divided: in lognormal shares; or (pFedMe's MNIST) each holder
    breaks off between 1 / (holders + 1) and 1 / 2 of what is left, and the last takes
    the remainder."""
    spread: Positive = 2.0
    """Standard deviation of the logarithm of a lognormal share."""
    thinning: SmallCount = 1
    """How many lognormal shares are drawn for every one that is used. pFedMe draws ten,
    so that on average a tenth of a class is dealt by shares."""
    extra: tuple[Whole, ...] = (0, 0)
    """Least and most of a uniform number that is added to every lognormal share."""
    times: Count = 1
    """Factor by which a lognormal share and its extra are multiplied."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.extra) != 2 or self.extra[0] > self.extra[1]:
            raise ConfigError(
                f"Consecutive: extra must be two numbers, least and most, found "
                f"{self.extra!r}."
            )

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Take the first samples of each class, then what the law says."""
        pools = class_pools(dataset, "consecutive")
        holders = _holders(dataset, pools, self.clients, self.classes)
        draw = generator(seed, "partition")
        members: list[list[Indices]] = [[] for _ in range(self.clients)]
        for pool, held in zip(pools, holders, strict=True):
            if not held:
                continue
            _check_pool(dataset, pool, len(held), self.first, "consecutive: first")
            draw.shuffle(pool)
            left = len(pool) - self.first * len(held)
            if self.law == "lognormal":
                wanted = self._shares(left, len(held), draw)
            else:
                wanted = _break(left, len(held), draw)
            start = 0
            for client, count in zip(held, wanted, strict=True):
                taken = count if count <= left else 0
                left -= taken
                members[client].append(pool[start : start + self.first + taken])
                start += self.first + taken
        joined = [np.concatenate(parts) for parts in members]
        empty = [client for client, held in enumerate(joined) if len(held) == 0]
        if empty:
            raise ConfigError(
                f"consecutive: client {empty[0]} gets no sample. Raise first."
            )
        return numbered(joined)

    def _shares(self, total: int, holders: int, draw: np.random.Generator) -> list[int]:
        weights = lognormal(draw, self.spread, holders * self.thinning)
        shares = np.floor(total * (weights / weights.sum())[:holders]).astype(np.int64)
        low, high = self.extra
        shares += draw.integers(low, high, holders, endpoint=True)
        return [int(share) * self.times for share in shares]


@dataclass(frozen=True, kw_only=True)
class DrawnSizes(Partition):
    """Consecutive classes in equal parts of a lognormal size: FedProx's FEMNIST.

    A client draws its size, lognormal(centre, spread) + base, and takes an equal part
    of it from each of its classes. Where a class runs short a client takes less, never
    so much that a later holder would not find `least`.
    """

    clients: Count = 20
    """Number of clients; client u holds classes u, u + 1, ..., counted in a circle."""
    classes: Count = 5
    """Classes of one client: 5 in Self-FL, 3 in FedProx."""
    centre: float = 4.0
    """Mean of the logarithm of a size."""
    spread: Positive = 1.0
    """Standard deviation of the logarithm of a size."""
    base: Whole = 5
    """What is added to every size."""
    least: Count = 2
    """Fewest samples of each of its classes that a client takes."""

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Draw the sizes, then take consecutive slices of each class."""
        pools = class_pools(dataset, "drawn-sizes")
        holders = _holders(dataset, pools, self.clients, self.classes)
        draw = generator(seed, "partition")
        # A size beyond all samples cannot be met, and could not be a whole number.
        exponents = np.minimum(
            draw.normal(self.centre, self.spread, self.clients), np.log(len(dataset))
        )
        sizes = ((np.exp(exponents) + self.base) // self.classes).astype(np.int64)
        members: list[list[Indices]] = [[] for _ in range(self.clients)]
        for pool, held in zip(pools, holders, strict=True):
            _check_pool(dataset, pool, len(held), self.least, "drawn-sizes: least")
            draw.shuffle(pool)
            start = 0
            for n, client in enumerate(held):
                spare = len(pool) - start - self.least * (len(held) - n)
                wanted = max(int(sizes[client]) - self.least, 0)
                stop = start + self.least + min(wanted, spare)
                members[client].append(pool[start:stop])
                start = stop
        return numbered([np.concatenate(parts) for parts in members])


def _holders(
    dataset: Dataset, pools: Sequence[Indices], clients: int, classes: int
) -> list[list[int]]:
    """For each class the clients that hold it, in order."""
    check_enough(dataset, clients)
    check_classes(dataset, classes, len(pools))
    holders: list[list[int]] = [[] for _ in pools]
    for client in range(clients):
        for step in range(classes):
            holders[(client + step) % len(pools)].append(client)
    return holders


def _check_pool(
    dataset: Dataset, pool: Indices, holders: int, each: int, what: str
) -> None:
    if len(pool) < each * holders:
        label = int(dataset.targets[pool[0]])
        raise ConfigError(
            f"{what} is {each}, but class {label} has {len(pool)} samples for "
            f"{holders} clients. Lower it, or use fewer clients or fewer classes."
        )


def _break(total: int, holders: int, draw: np.random.Generator) -> list[int]:
    """A stick broken at random, from one end."""
    parts = []
    for _ in range(holders - 1):
        low, high = total // (holders + 1), total // 2
        parts.append(int(draw.integers(low, max(high, low + 1))) if total else 0)
        total -= parts[-1]
    return [*parts, total]
