"""Who holds which samples. Every partition is disjoint and leaves no client empty."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.settings import Count, Positive, check
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset
from fedloom.federation.counts import apportion

Indices = NDArray[np.int64]

_DRAWS = 20
"""How often `dirichlet` draws anew before it repairs the best draw."""


@dataclass(frozen=True, eq=False)
class Assignment:
    """Samples of every client, and what the clients are called."""

    members: tuple[Indices, ...]
    names: tuple[str, ...]


class Partition(Protocol):
    """Settings of one way to divide a dataset among clients."""

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Divide the samples; the same seed gives the same clients."""
        ...


@dataclass(frozen=True, kw_only=True)
class Iid:
    """Samples dealt at random, sizes equal up to one."""

    clients: Count = 20
    """Number of clients."""

    def __post_init__(self) -> None:
        check(self)

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Shuffle and cut into equal pieces."""
        _check_enough(dataset, self.clients)
        order = generator(seed, "partition").permutation(len(dataset))
        return _numbered(np.array_split(order, self.clients))


@dataclass(frozen=True, kw_only=True)
class LabelSkew:
    """Every client holds exactly `classes` classes (the "pathological" split).

    Clients in turn take the classes that have fewest holders, ties at random: every
    class is used and no class has two holders more than another. The samples of a
    class are divided among its holders.
    """

    clients: Count = 20
    """Number of clients."""
    classes: Count = 2
    """Classes of one client."""
    sizes: Literal["equal", "random"] = "equal"
    """How a class is divided among its holders; `random` draws lognormal shares."""
    spread: Positive = 1.0
    """Standard deviation of the logarithm of a random share."""
    least: Count = 1
    """Fewest samples of one class that a holder of it gets."""

    def __post_init__(self) -> None:
        check(self)

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Deal classes to clients, then samples to the holders of each class."""
        pools = _pools(dataset, "label-skew")
        _check_classes(dataset, self.classes, len(pools))
        if self.clients * self.classes < len(pools):
            raise ConfigError(
                f"label-skew: {self.clients} clients with {self.classes} classes each "
                f"cannot hold all {len(pools)} classes of {dataset.name}. Raise one."
            )
        draw = generator(seed, "partition")
        holders: list[list[int]] = [[] for _ in pools]
        for client in range(self.clients):
            keys = draw.permutation(len(pools))
            rank = np.lexsort((keys, np.array([len(h) for h in holders])))
            for chosen in rank[: self.classes]:
                holders[chosen].append(client)
        members: list[list[Indices]] = [[] for _ in range(self.clients)]
        for pool, held in zip(pools, holders, strict=True):
            label = int(dataset.targets[pool[0]])
            if len(pool) < self.least * len(held):
                raise ConfigError(
                    f"label-skew: class {label} has {len(pool)} samples for "
                    f"{len(held)} clients, at least {self.least} each. Use fewer "
                    "clients or fewer classes per client."
                )
            draw.shuffle(pool)
            weights = np.ones(len(held))
            if self.sizes == "random":
                weights = _lognormal(draw, self.spread, len(held))
            counts = apportion(len(pool), weights, least=self.least)
            for client, part in zip(held, _cut(pool, counts), strict=True):
                members[client].append(part)
        return _numbered([np.concatenate(parts) for parts in members])


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Classes cut into slices of random length: the label skew of pFedVEM.

    Clients form groups that share out all classes, `classes` to each. The samples of
    a class are cut at random points, the same for all classes, and every group takes
    one slice of each class. So a client has equally much of each of its classes, the
    clients of a group are equally large, and groups differ in size. A class larger
    than the smallest one has its cut points stretched in proportion.
    """

    clients: Count = 20
    """Number of clients."""
    classes: Count | None = None
    """Classes of one client, a divisor of their number; all of them if not given."""

    def __post_init__(self) -> None:
        check(self)

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Deal classes within each group, then a slice of each class to each group."""
        pools = _pools(dataset, "slices")
        each = len(pools) if self.classes is None else self.classes
        _check_classes(dataset, each, len(pools))
        group = len(pools) // each
        if len(pools) % each or self.clients % group:
            raise ConfigError(
                f"slices: groups of clients must share out {len(pools)} classes, "
                f"{each} to each, but {self.clients} clients do not form such groups. "
                "Let classes divide the number of classes and clients be a multiple "
                "of the quotient; or use label-skew."
            )
        groups = self.clients // group
        smallest = min(len(pool) for pool in pools)
        if groups > smallest:
            raise ConfigError(
                f"slices: the smallest class has {smallest} samples for {groups} "
                "clients. Use fewer clients or fewer classes per client."
            )
        draw = generator(seed, "partition")
        dealt = [np.split(draw.permutation(len(pools)), group) for _ in range(groups)]
        for pool in pools:
            draw.shuffle(pool)
        cuts = np.sort(draw.choice(smallest - 1, groups - 1, replace=False)) + 1
        slices = [np.split(pool, cuts * len(pool) // smallest) for pool in pools]
        # As in the authors' code, the first group takes the last slice.
        return _numbered(
            [
                np.concatenate([slices[c][groups - 1 - g] for c in held])
                for g, hands in enumerate(dealt)
                for held in hands
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Dirichlet:
    """Each class is spread over the clients by one draw of a Dirichlet distribution.

    A draw that leaves a client below `least` is drawn anew a bounded number of times.
    After that the best one is repaired: clients below the minimum receive samples, one
    at a time, from whoever is largest at that moment.
    """

    clients: Count = 20
    """Number of clients."""
    alpha: Positive = 0.5
    """Concentration; small means that a class sits with few clients."""
    least: Count = 1
    """Fewest samples of a client."""

    def __post_init__(self) -> None:
        check(self)

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Draw, and repair if need be; it always returns."""
        pools = _pools(dataset, "dirichlet")
        _check_enough(dataset, self.clients, self.least)
        draw = generator(seed, "partition")
        best, missing = self._draw(pools, draw)
        for _ in range(_DRAWS - 1):
            if missing == 0:
                break
            counts, lacking = self._draw(pools, draw)
            if lacking < missing:
                best, missing = counts, lacking
        members: list[list[Indices]] = [[] for _ in range(self.clients)]
        for pool, shares in zip(pools, best, strict=True):
            draw.shuffle(pool)
            for held, part in zip(members, _cut(pool, shares), strict=True):
                held.append(part)
        joined = [draw.permutation(np.concatenate(parts)) for parts in members]
        return _numbered(_repair(joined, self.least) if missing else joined)

    def _draw(
        self, pools: Sequence[Indices], draw: np.random.Generator
    ) -> tuple[list[Indices], int]:
        """Counts per class and client, and how many samples are missing to the rule."""
        counts = []
        for pool in pools:
            share = draw.dirichlet(np.full(self.clients, self.alpha))
            if not np.isfinite(share).all() or share.sum() <= 0:
                # Out of the range of floating numbers: the limit of the distribution.
                share = np.full(self.clients, 1.0 / self.clients)
                if self.alpha < 1:
                    share = np.eye(self.clients)[draw.integers(self.clients)]
            ends = np.round(np.cumsum(share)[:-1] * len(pool)).astype(np.int64)
            ends = np.concatenate([[0], np.minimum(ends, len(pool)), [len(pool)]])
            counts.append(np.diff(ends))
        sizes = np.sum(counts, axis=0)
        return counts, int(np.maximum(self.least - sizes, 0).sum())


@dataclass(frozen=True, kw_only=True)
class PowerLaw:
    """Samples dealt at random, sizes very different."""

    clients: Count = 20
    """Number of clients."""
    law: Literal["lognormal", "power"] = "lognormal"
    """Random lognormal sizes, or the k-th client in proportion to k^-exponent."""
    spread: Positive = 2.0
    """Lognormal: standard deviation of the logarithm of a size."""
    exponent: Positive = 1.0
    """Power: how fast sizes fall."""
    least: Count = 1
    """Fewest samples of a client."""

    def __post_init__(self) -> None:
        check(self)

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Draw sizes, shuffle, and cut."""
        _check_enough(dataset, self.clients, self.least)
        draw = generator(seed, "partition")
        if self.law == "lognormal":
            weights = _lognormal(draw, self.spread, self.clients)
        else:
            weights = np.arange(1.0, self.clients + 1.0) ** -self.exponent
        counts = apportion(len(dataset), weights, least=self.least)
        return _numbered(_cut(draw.permutation(len(dataset)), counts))


@dataclass(frozen=True, kw_only=True)
class Natural:
    """The clients that the dataset itself names, in sorted order."""

    least: Count = 1
    """Clients with fewer samples are left out."""

    def __post_init__(self) -> None:
        check(self)

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Group the samples by owner; the seed changes nothing."""
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
        pieces = _cut(np.argsort(inverse, kind="stable"), counts)
        kept = [i for i, piece in enumerate(pieces) if len(piece) >= self.least]
        if not kept:
            raise DataError(
                f"{dataset.name}: no client has {self.least} samples, the largest has "
                f"{counts.max()}. Lower least."
            )
        return Assignment(
            members=tuple(pieces[i] for i in kept),
            names=tuple(str(owners[i]) for i in kept),
        )


@dataclass(frozen=True, kw_only=True)
class Given:
    """The user's own lists of sample indices."""

    members: tuple[tuple[int, ...], ...]
    """For each client the indices of its samples; no sample may occur twice."""

    def __post_init__(self) -> None:
        plain = tuple(
            tuple(np.asarray(one).tolist()) if isinstance(one, np.ndarray) else one
            for one in self.members
        )
        object.__setattr__(self, "members", plain)
        check(self)
        if not plain:
            raise ConfigError("Given: members is empty; give one list per client.")

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Check the lists against the dataset; the seed changes nothing."""
        members = [np.asarray(one, dtype=np.int64) for one in self.members]
        holder = np.full(len(dataset), -1)
        for client, held in enumerate(members):
            if len(held) == 0:
                raise ConfigError(
                    f"given: client {client} has no samples. Remove its list."
                )
            outside = held[(held < 0) | (held >= len(dataset))]
            if len(outside):
                raise ConfigError(
                    f"given: client {client} has index {outside[0]}, but "
                    f"{dataset.name} has samples 0..{len(dataset) - 1}."
                )
            taken = held[holder[held] >= 0]
            if len(taken):
                raise ConfigError(
                    f"given: sample {taken[0]} is held by clients {holder[taken[0]]} "
                    f"and {client}. Give each sample to one client."
                )
            holder[held] = client
            values, times = np.unique(held, return_counts=True)
            if len(values) < len(held):
                raise ConfigError(
                    f"given: client {client} holds sample {values[times > 1][0]} "
                    "twice. Give each sample once."
                )
        return _numbered(members)


PARTITIONS: dict[str, type[Partition]] = {
    "dirichlet": Dirichlet,
    "given": Given,
    "iid": Iid,
    "label-skew": LabelSkew,
    "natural": Natural,
    "power-law": PowerLaw,
    "slices": Slices,
}
"""Every partition by its name in a config."""


def _numbered(members: Sequence[Indices]) -> Assignment:
    return Assignment(
        members=tuple(held.astype(np.int64) for held in members),
        names=tuple(str(i) for i in range(len(members))),
    )


def _cut(values: Indices, counts: Indices) -> list[Indices]:
    return np.split(values, np.cumsum(counts)[:-1])


def _lognormal(
    draw: np.random.Generator, spread: float, count: int
) -> NDArray[np.float64]:
    """Lognormal weights up to a factor; the largest is 1, so that none overflows."""
    exponents = spread * draw.standard_normal(count)
    weights: NDArray[np.float64] = np.exp(exponents - exponents.max())
    return weights


def _pools(dataset: Dataset, what: str) -> list[Indices]:
    """The samples of every class that occurs."""
    if dataset.classes is None:
        raise ConfigError(
            f"{what}: {dataset.name} is a regression and has no classes. Choose iid, "
            "power-law, natural or given."
        )
    labels = dataset.targets.numpy()
    counts = np.bincount(labels, minlength=dataset.classes)
    pools = _cut(np.argsort(labels, kind="stable"), counts)
    return [pool.copy() for pool in pools if len(pool)]


def _check_classes(dataset: Dataset, wanted: int, present: int) -> None:
    if wanted > present:
        raise ConfigError(
            f"a client cannot hold {wanted} classes: {dataset.name} has {present}. "
            "Lower classes."
        )


def _check_enough(dataset: Dataset, clients: int, least: int = 1) -> None:
    if clients * least > len(dataset):
        raise ConfigError(
            f"{clients} clients with at least {least} samples each need "
            f"{clients * least}, but {dataset.name} has {len(dataset)}. Use fewer "
            "clients or a smaller minimum."
        )


def _repair(members: Sequence[Indices], least: int) -> list[Indices]:
    """Move samples from the largest clients to those below `least`."""
    held = [one.tolist() for one in members]
    largest = [(-len(one), client) for client, one in enumerate(held)]
    heapq.heapify(largest)
    for one in [one for one in held if len(one) < least]:
        while len(one) < least:
            size, giver = largest[0]
            one.append(held[giver].pop())
            heapq.heapreplace(largest, (size + 1, giver))
    return [np.asarray(one, dtype=np.int64) for one in held]
