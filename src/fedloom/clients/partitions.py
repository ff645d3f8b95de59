"""Who holds which samples. Every partition is disjoint and leaves no client empty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedloom.clients.assignment import (
    Assignment,
    Indices,
    Partition,
    check_classes,
    check_enough,
    class_pools,
    cut,
    lognormal,
    numbered,
)
from fedloom.clients.consecutive import Consecutive, DrawnSizes
from fedloom.clients.counts import apportion
from fedloom.clients.natural import Natural
from fedloom.clients.ragged import Ragged
from fedloom.clients.slices import ConceptDrift, Slices
from fedloom.core.errors import ConfigError
from fedloom.core.reprs import without_values
from fedloom.core.settings import Count, Positive
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset

_DRAWS = 20
"""How often `dirichlet` draws at most before it repairs the best draw."""

_SHARES = 20_000_000
"""Shares that it draws at most for that: with very many clients, one of whom has too
little in every draw, it draws less often."""

_KEYS = 10_000_000
"""Numbers that `label-skew` draws at a time, to deal to many clients at once."""


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Samples dealt at random, sizes equal up to one."""

    clients: Count = 20
    """Number of clients."""

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Shuffle and cut into equal pieces."""
        check_enough(dataset, self.clients)
        order = generator(seed, "partition").permutation(len(dataset))
        sizes = np.full(self.clients, len(order) // self.clients)
        sizes[: len(order) % self.clients] += 1
        return numbered(Ragged.cut(order, sizes))


@dataclass(frozen=True, kw_only=True)
class LabelSkew(Partition):
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

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Deal classes to clients, then samples to the holders of each class."""
        check_enough(dataset, self.clients)
        pools = class_pools(dataset, "label-skew")
        check_classes(dataset, self.classes, len(pools))
        if self.clients * self.classes < len(pools):
            raise ConfigError(
                f"label-skew: {self.clients} clients with {self.classes} classes each "
                f"cannot hold all {len(pools)} classes of {dataset.name}. Raise one."
            )
        draw = generator(seed, "partition")
        owners = []
        for pool, held in zip(pools, self._holders(len(pools), draw), strict=True):
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
                weights = lognormal(draw, self.spread, len(held))
            counts = apportion(len(pool), weights, least=self.least)
            owners.append(np.repeat(held, counts))
        return numbered(_gather(pools, owners, self.clients))

    def _holders(self, classes: int, draw: np.random.Generator) -> list[Indices]:
        """The clients that hold each class, ascending.

        After every so many clients all classes have as many holders, and dealing
        begins anew: clients at the same place of these turns are dealt at once.
        """
        turn = classes // math.gcd(classes, self.classes)
        width = turn * max(1, _KEYS // (turn * classes))
        hands = []
        for first in range(0, self.clients, width):
            count = min(width, self.clients - first)
            keys = draw.permuted(np.tile(np.arange(classes), (count, 1)), axis=1)
            hand = np.empty((count, self.classes), dtype=np.int64)
            holders = np.zeros((-(-count // turn), classes), dtype=np.int64)
            for place in range(min(turn, count)):
                # By fewest holders, then by the key.
                rank = holders[: len(keys[place::turn])] * classes + keys[place::turn]
                dealt = np.argsort(rank, axis=1)[:, : self.classes]
                hand[place::turn] = dealt
                holders[np.arange(len(dealt))[:, None], dealt] += 1
            hands.append(hand)
        held = np.concatenate(hands).reshape(-1)
        clients = np.argsort(held, kind="stable") // self.classes
        return cut(clients, np.bincount(held, minlength=classes))


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
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
    cap: bool = False
    """Whether, class by class, a client that holds its fair share already (samples /
    clients) gets nothing more, as in some libraries. Sizes and skew become milder."""

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Draw, and repair if need be; it always returns."""
        pools = class_pools(dataset, "dirichlet")
        check_enough(dataset, self.clients, self.least)
        draw = generator(seed, "partition")
        best, missing = self._draw(pools, draw)
        most = min(_DRAWS, max(1, _SHARES // (self.clients * len(pools))))
        for _ in range(most - 1):
            if missing == 0:
                break
            counts, lacking = self._draw(pools, draw)
            if lacking < missing:
                best, missing = counts, lacking
        for pool in pools:
            draw.shuffle(pool)
        everyone = np.arange(self.clients)
        owners = [np.repeat(everyone, shares) for shares in best]
        members = _gather(pools, owners, self.clients)
        if not missing:
            return numbered(members)
        for held in members:
            draw.shuffle(held)  # so that givers give of every class
        return numbered(_repair(members, self.least))

    def _draw(
        self, pools: Sequence[Indices], draw: np.random.Generator
    ) -> tuple[list[Indices], int]:
        """Counts per class and client, and how many samples are missing to the rule."""
        counts = []
        sizes = np.zeros(self.clients, dtype=np.int64)
        fair = sum(len(pool) for pool in pools) / self.clients
        for pool in pools:
            share = draw.dirichlet(np.full(self.clients, self.alpha))
            if not np.isfinite(share).all() or share.sum() <= 0:
                # Out of the range of floating numbers: the limit of the distribution.
                share = np.full(self.clients, 1.0 / self.clients)
                if self.alpha < 1:
                    share = np.eye(self.clients)[draw.integers(self.clients)]
            if self.cap:
                is_open = sizes < fair
                open_share = np.where(is_open, share, 0.0)
                # All that was drawn may have gone to clients that are full by now.
                share = open_share if open_share.sum() > 0 else is_open.astype(float)
                share /= share.sum()
            ends = np.round(np.cumsum(share)[:-1] * len(pool)).astype(np.int64)
            ends = np.concatenate([[0], np.minimum(ends, len(pool)), [len(pool)]])
            counts.append(np.diff(ends))
            sizes += counts[-1]
        return counts, int(np.maximum(self.least - sizes, 0).sum())


@dataclass(frozen=True, kw_only=True)
class PowerLaw(Partition):
    """Samples dealt at random, sizes very different."""

    clients: Count = 20
    """Number of clients."""
    law: Literal["lognormal", "power"] = "lognormal"
    """How sizes are made: random lognormal ones, or that of the k-th client in
    proportion to k^-exponent."""
    spread: Positive = 2.0
    """Standard deviation of the logarithm of a size, for lognormal sizes."""
    exponent: Positive = 1.0
    """How fast sizes fall, for the law `power`."""
    least: Count = 1
    """Fewest samples of a client."""

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Draw sizes, shuffle, and cut."""
        check_enough(dataset, self.clients, self.least)
        draw = generator(seed, "partition")
        if self.law == "lognormal":
            weights = lognormal(draw, self.spread, self.clients)
        else:
            weights = np.arange(1.0, self.clients + 1.0) ** -self.exponent
        counts = apportion(len(dataset), weights, least=self.least)
        return numbered(Ragged.cut(draw.permutation(len(dataset)), counts))


@without_values
@dataclass(frozen=True, kw_only=True)
class Given(Partition):
    """The user's own lists of sample indices."""

    members: tuple[tuple[int, ...], ...]
    """For each client the indices of its samples; no sample may occur twice."""

    def __post_init__(self) -> None:
        members: Any = self.members
        if isinstance(members, list | tuple):
            members = tuple(
                tuple(held.tolist()) if isinstance(held, np.ndarray) else held
                for held in members
            )
            object.__setattr__(self, "members", members)
        super().__post_init__()
        if not members:
            raise ConfigError("Given: members is empty; give one list per client.")

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Check the lists against the dataset; the seed changes nothing."""
        members = [np.asarray(held, dtype=np.int64) for held in self.members]
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
        return numbered(members)


PARTITIONS: dict[str, type[Partition]] = {
    "concept-drift": ConceptDrift,
    "consecutive": Consecutive,
    "dirichlet": Dirichlet,
    "drawn-sizes": DrawnSizes,
    "given": Given,
    "iid": Iid,
    "label-skew": LabelSkew,
    "natural": Natural,
    "power-law": PowerLaw,
    "slices": Slices,
}
"""Every partition by its name in a config."""


def _gather(
    pools: Sequence[Indices], owners: Sequence[Indices], clients: int
) -> Ragged:
    """The samples of every client, from pools of samples and the owner of each."""
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=clients)
    return Ragged.cut(np.concatenate(pools)[order], sizes)


def _repair(members: Ragged, least: int) -> Ragged:
    """Move samples from the largest clients to those below `least`.

    One at a time, the last sample of whoever is largest at that moment, the first of
    several; so a client of n samples gives when the others are down to n, to n - 1, ...
    """
    sizes = members.sizes
    needs = np.maximum(least - sizes, 0)
    total = int(needs.sum())
    level = _level(sizes, total)
    surplus = np.maximum(sizes - level, 0)
    giver = np.repeat(np.arange(len(sizes)), surplus)
    # The size at which each of these samples is given: n, n - 1, ... down to level + 1.
    nth = np.arange(len(giver)) - np.repeat(np.cumsum(surplus) - surplus, surplus)
    size = sizes[giver] - nth
    gifts = np.lexsort((giver, -size))[:total]
    places = members.offsets[giver[gifts]] + size[gifts] - 1
    owner = members.owners
    stays = np.ones(len(owner), dtype=np.bool_)
    stays[places] = False
    receiver = np.repeat(np.arange(len(sizes)), needs)
    return _gather(
        [members.indices[stays], members.indices[places]],
        [owner[stays], receiver],
        len(sizes),
    )


def _level(sizes: Indices, total: int) -> int:
    """The highest size to which cutting the largest clients frees `total` samples."""
    low, high = 0, int(sizes.max())
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.maximum(sizes - middle, 0).sum()) >= total:
            low = middle
        else:
            high = middle - 1
    return low
