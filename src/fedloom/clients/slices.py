"""Label skew and concept drift of pFedVEM: slices of classes, cut at common points."""

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
    numbered,
)
from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset


@dataclass(frozen=True, kw_only=True)
class Slices(Partition):
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
    sizes: Literal["random", "equal"] = "random"
    """Whether the cut points are drawn or evenly spaced."""

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Deal classes within each group, then a slice of each class to each group."""
        check_enough(dataset, self.clients)
        pools = class_pools(dataset, "slices")
        each = len(pools) if self.classes is None else self.classes
        check_classes(dataset, each, len(pools))
        group = len(pools) // each
        if len(pools) % each or self.clients % group:
            raise ConfigError(
                f"slices: groups of clients must share out {len(pools)} classes, "
                f"{each} to each, but {self.clients} clients do not form such groups. "
                "Let classes divide the number of classes and clients be a multiple "
                "of the quotient; or use label-skew."
            )
        groups = self.clients // group
        draw = generator(seed, "partition")
        dealt = [np.split(draw.permutation(len(pools)), group) for _ in range(groups)]
        hands = [held for of_group in dealt for held in of_group]
        slices = _slice(pools, groups, self.sizes, draw, "slices: the smallest class")
        return _take(slices, hands, group)


@dataclass(frozen=True, kw_only=True)
class ConceptDrift(Partition):
    """All classes for everybody, each with subclasses of one's own, as in pFedVEM.

    The task is to tell classes; a client knows only `subclasses` of each class's
    subclasses. Clients form groups that share out the subclasses of every class at
    random. The samples of a subclass are cut at random points, the same for all, and
    every group takes one slice of each. A larger subclass has its points stretched.
    """

    clients: Count = 20
    """Number of clients."""
    subclasses: Count | None = 1
    """Subclasses of each class that a client holds, a divisor of their number; "none"
    gives everybody all of them (the homogeneous control)."""
    sizes: Literal["random", "equal"] = "random"
    """Whether the cut points are drawn or evenly spaced."""

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Deal subclasses within each group, then a slice of each to each group."""
        check_enough(dataset, self.clients)
        pools, of_class = _subclass_pools(dataset)
        counts = sorted({len(subclasses) for subclasses in of_class})
        total = counts[0]
        each = total if self.subclasses is None else self.subclasses
        if len(counts) > 1 or total % each:
            raise ConfigError(
                f"concept-drift: every class must have as many subclasses, a multiple "
                f"of the {each} that a client holds; {dataset.name} has {counts} to a "
                "class. Change subclasses."
            )
        group = total // each
        if self.clients % group:
            raise ConfigError(
                f"concept-drift: groups of {group} clients share out {total} "
                f"subclasses of each class, {each} to each; {self.clients} clients do "
                f"not form such groups. Use a multiple of {group}."
            )
        groups = self.clients // group
        draw = generator(seed, "partition")
        hands = []
        for _ in range(groups):
            shuffled = [np.split(draw.permutation(pool), group) for pool in of_class]
            hands += [np.concatenate(hand) for hand in zip(*shuffled, strict=True)]
        what = "concept-drift: the smallest subclass"
        return _take(_slice(pools, groups, self.sizes, draw, what), hands, group)


def _subclass_pools(dataset: Dataset) -> tuple[list[Indices], list[Indices]]:
    """Samples of every subclass, and for each class the numbers of its pools."""
    if dataset.subclass is None or dataset.classes is None:
        raise ConfigError(
            f"concept-drift: {dataset.name} has no subclasses. Choose data that have, "
            "such as cifar100, or another partition: slices, label-skew, ..."
        )
    pools: list[Indices] = []
    of_class: list[Indices] = []
    for pool in class_pools(dataset, "concept-drift"):
        finer = dataset.subclass[pool]
        parts = [pool[finer == value] for value in np.unique(finer)]
        of_class.append(np.arange(len(pools), len(pools) + len(parts)))
        pools += parts
    return pools, of_class


def _slice(
    pools: Sequence[Indices],
    groups: int,
    sizes: str,
    draw: np.random.Generator,
    what: str,
) -> list[list[Indices]]:
    """Every pool, shuffled, in `groups` pieces that are cut at the same places."""
    smallest = min(len(pool) for pool in pools)
    if groups > smallest:
        raise ConfigError(
            f"{what} has {smallest} samples for {groups} clients. Use fewer clients, "
            "or fewer classes or subclasses per client."
        )
    for pool in pools:
        draw.shuffle(pool)
    if sizes == "equal":
        cuts = np.arange(1, groups) * smallest // groups
    else:
        cuts = np.sort(draw.choice(smallest - 1, groups - 1, replace=False)) + 1
    return [np.split(pool, cuts * len(pool) // smallest) for pool in pools]


def _take(
    slices: Sequence[Sequence[Indices]], hands: Sequence[Indices], group: int
) -> Assignment:
    """To every client its group's piece of each pool in its hand."""
    groups = len(hands) // group
    # As in the authors' code, the first group takes the last slice.
    return numbered(
        [
            np.concatenate([slices[pool][groups - 1 - n // group] for pool in held])
            for n, held in enumerate(hands)
        ]
    )
