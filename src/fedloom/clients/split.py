"""Which samples are dealt to clients, and what each client does with its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.clients.counts import apportion, round_share
from fedloom.clients.ragged import Ragged
from fedloom.core.errors import ConfigError, DataError
from fedloom.core.settings import Count, Share, check
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Split:
    """How much of a client's data is set aside; counts are rounded, a half up."""

    test: Share = 0.25
    """Share of a client's samples kept for testing. Not used if `fixed`."""
    validation: Share = 0.0
    """Share of what is left after testing, kept to choose rounds and settings."""
    stratified: bool = True
    """Whether samples are set aside from every class in proportion (classification
    only)."""
    fixed: bool = False
    """Whether clients test on exactly those samples that the source designates."""
    shared: bool = False
    """Whether, with `fixed`, the designated samples are dealt to nobody and each client
    tests on all of those whose classes (and subclasses) it trains on, as in pFedVEM."""
    per_class: Count | None = None
    """How many samples of each class, the first ones, are dealt to clients (limited
    data); designated test samples do not count if `fixed`."""
    most: Count | None = None
    """Most training samples of a client. Those beyond are not used at all; validation
    and test stay as they are."""

    def __post_init__(self) -> None:
        check(self)
        if self.shared and not self.fixed:
            raise ConfigError(
                "Split: shared is true, so fixed must be true as well: only samples "
                "that the source designates for testing can be shared."
            )

    def pool(self, dataset: Dataset) -> Indices:
        """The samples that a partition deals to clients, in ascending order.

        Raises:
            ConfigError: `per_class` is set for data without classes.
            DataError: The source designates no test samples although `fixed` asks for
                them, or only test samples.
        """
        is_test = self._designated(dataset)
        is_dealt = ~is_test if self.shared else np.ones_like(is_test)
        if self.per_class is not None:
            if dataset.classes is None:
                raise ConfigError(
                    f"split: per_class is set, but {dataset.name} is a regression and "
                    "has no classes. Leave it out."
                )
            candidates = np.flatnonzero(~is_test)
            labels = dataset.targets.numpy()[candidates]
            is_dealt[candidates[_rank_in_class(labels) >= self.per_class]] = False
        dealt = np.flatnonzero(is_dealt)
        if len(dealt) == 0:
            raise DataError(
                f"{dataset.name} designates all samples for testing; none is left to "
                "train on. Set fixed = false."
            )
        return dealt

    def apply(
        self,
        dataset: Dataset,
        members: Sequence[Indices],
        names: Sequence[str],
        seed: int,
    ) -> tuple[Ragged, Ragged, Ragged]:
        """Split every client's samples; each list comes out sorted.

        Args:
            dataset: What the indices point into.
            members: The samples of each client.
            names: What messages call the clients.
            seed: A client's split depends on (seed, client) alone.

        Returns:
            Training, validation and test samples of every client.

        Raises:
            DataError: A client is left without a training sample, or the source
                designates no test samples although `fixed` asks for them.
        """
        is_test = self._designated(dataset)
        kinds = _kinds(dataset)
        tests = np.flatnonzero(is_test)
        parts: tuple[list[Indices], list[Indices], list[Indices]] = ([], [], [])
        for client, (held, name) in enumerate(zip(members, names, strict=True)):
            draw = generator(seed, "split", client)
            if self.fixed:
                rest, test = held[~is_test[held]], held[is_test[held]]
            else:
                count = round_share(self.test, len(held))
                rest, test = self._take(dataset, held, count, draw)
            count = round_share(self.validation, len(rest))
            train, validation = self._take(dataset, rest, count, draw)
            if len(train) == 0:
                raise DataError(
                    f"client {name} has {len(held)} samples and none is left for "
                    f"training: {len(test)} for testing, {len(validation)} for "
                    "validation. Lower the shares, or give clients a larger minimum."
                )
            if self.shared:
                test = tests[np.isin(kinds[tests], np.unique(kinds[train]))]
            if self.most is not None and len(train) > self.most:
                _, train = self._take(dataset, train, self.most, draw)
            for part, indices in zip(parts, (train, validation, test), strict=True):
                part.append(np.sort(indices))
        return Ragged.of(parts[0]), Ragged.of(parts[1]), Ragged.of(parts[2])

    def _designated(self, dataset: Dataset) -> NDArray[np.bool_]:
        """(N,) whether the source's word makes it a test sample."""
        if not self.fixed:
            return np.zeros(len(dataset), dtype=np.bool_)
        if dataset.fixed_test is None:
            raise DataError(
                f"{dataset.name} does not designate test samples. Set fixed = false; "
                "then a share of each client's samples is kept for testing."
            )
        return dataset.fixed_test

    def _take(
        self,
        dataset: Dataset,
        held: Indices,
        count: int,
        draw: np.random.Generator,
    ) -> tuple[Indices, Indices]:
        """What stays and what is taken, of one client's samples."""
        if count == 0:
            return held, held[:0]
        order = draw.permutation(np.sort(held))
        if not self.stratified or dataset.classes is None:
            return order[count:], order[:count]
        labels = dataset.targets.numpy()[order]
        _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        quota = apportion(count, sizes.astype(np.float64), ties=draw)
        taken = _rank_in_class(labels) < quota[inverse]
        return order[~taken], order[taken]


def _rank_in_class(labels: Indices) -> Indices:
    """How many earlier entries have the same label."""
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    rank = np.empty(len(labels), dtype=np.int64)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    rank[np.argsort(inverse, kind="stable")] = np.arange(len(labels)) - starts
    return rank


def _kinds(dataset: Dataset) -> Indices:
    """(N,) one number for each pair of class and subclass; all alike without any."""
    if dataset.classes is None:
        return np.zeros(len(dataset), dtype=np.int64)
    kinds: Indices = dataset.targets.numpy()
    if dataset.subclass is None:
        return kinds
    finer = dataset.subclass - dataset.subclass.min()
    pairs: Indices = kinds * (finer.max() + 1) + finer
    return pairs
