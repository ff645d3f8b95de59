"""What a partition gives, and what all partitions are made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.clients.ragged import Ragged
from fedloom.core.errors import ConfigError
from fedloom.core.reprs import without_values
from fedloom.core.settings import check
from fedloom.data.dataset import Dataset

Indices = NDArray[np.int64]


@without_values
@dataclass(frozen=True, eq=False)
class Assignment:
    """Samples of every client, and what the clients are called."""

    members: Ragged
    names: tuple[str, ...]


class Partition(ABC):
    """Settings of one way to divide a dataset among clients.

    A partition is a frozen dataclass whose fields are checked against their
    annotations.
    """

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Divide the samples; the same seed gives the same clients."""


def numbered(members: Ragged | Sequence[Indices]) -> Assignment:
    """Clients without names of their own are called by their numbers."""
    if not isinstance(members, Ragged):
        members = Ragged.of(members)
    return Assignment(members, tuple(map(str, range(len(members)))))


def cut(values: Indices, counts: Indices) -> list[Indices]:
    """Consecutive pieces of these lengths."""
    return np.split(values, np.cumsum(counts)[:-1])


def lognormal(
    draw: np.random.Generator, spread: float, count: int
) -> NDArray[np.float64]:
    """Lognormal weights up to a factor; the largest is 1, so that none overflows."""
    exponents = spread * draw.standard_normal(count)
    weights: NDArray[np.float64] = np.exp(exponents - exponents.max())
    return weights


def class_pools(dataset: Dataset, what: str) -> list[Indices]:
    """The samples of every class that occurs, in the order of the labels.

    Raises:
        ConfigError: The dataset has no classes.
    """
    if dataset.classes is None:
        raise ConfigError(
            f"{what}: {dataset.name} is a regression and has no classes. Choose iid, "
            "power-law, natural or given."
        )
    labels = dataset.targets.numpy()
    counts = np.bincount(labels, minlength=dataset.classes)
    pools = cut(np.argsort(labels, kind="stable"), counts)
    return [pool.copy() for pool in pools if len(pool)]


def check_classes(dataset: Dataset, wanted: int, present: int) -> None:
    """Refuse more classes for a client than there are.

    Raises:
        ConfigError: There are fewer.
    """
    if wanted > present:
        raise ConfigError(
            f"a client cannot hold {wanted} classes: {dataset.name} has {present}. "
            "Lower classes."
        )


def check_enough(dataset: Dataset, clients: int, least: int = 1) -> None:
    """Refuse more clients than the samples suffice for.

    Raises:
        ConfigError: They do not suffice.
    """
    if clients * least > len(dataset):
        raise ConfigError(
            f"{clients} clients with at least {least} samples each need "
            f"{clients * least}, but {dataset.name} has {len(dataset)}. Use fewer "
            "clients or a smaller minimum."
        )
