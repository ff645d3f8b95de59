"""Each client's samples into training, validation and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import DataError
from fedloom.core.settings import Share, check
from fedloom.core.streams import generator
from fedloom.data.dataset import Dataset
from fedloom.federation.counts import apportion, round_share
from fedloom.federation.ragged import Ragged

Indices = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Split:
    """How much of a client's data is set aside; counts are rounded, a half up."""

    test: Share = 0.25
    """Share of a client's samples kept for testing. Not used if `fixed`."""
    validation: Share = 0.0
    """Share of what is left after testing, kept to choose rounds and settings."""
    stratified: bool = True
    """Take from every class in proportion (classification only)."""
    fixed: bool = False
    """Test on exactly those samples that the source itself designates."""

    def __post_init__(self) -> None:
        check(self)

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
        if self.fixed and dataset.fixed_test is None:
            raise DataError(
                f"{dataset.name} does not designate test samples. Set fixed = false; "
                "then a share of each client's samples is kept for testing."
            )
        parts: tuple[list[Indices], list[Indices], list[Indices]] = ([], [], [])
        for client, (held, name) in enumerate(zip(members, names, strict=True)):
            draw = generator(seed, "split", client)
            if self.fixed and dataset.fixed_test is not None:
                is_test = dataset.fixed_test[held]
                rest, test = held[~is_test], held[is_test]
            else:
                rest, test = self._take(dataset, held, self.test, draw)
            train, validation = self._take(dataset, rest, self.validation, draw)
            if len(train) == 0:
                raise DataError(
                    f"client {name} has {len(held)} samples and none is left for "
                    f"training: {len(test)} for testing, {len(validation)} for "
                    "validation. Lower the shares, or give clients a larger minimum."
                )
            for part, indices in zip(parts, (train, validation, test), strict=True):
                part.append(np.sort(indices))
        return Ragged.of(parts[0]), Ragged.of(parts[1]), Ragged.of(parts[2])

    def _take(
        self,
        dataset: Dataset,
        held: Indices,
        share: float,
        draw: np.random.Generator,
    ) -> tuple[Indices, Indices]:
        """What stays and what is taken, of one client's samples."""
        count = round_share(share, len(held))
        if count == 0:
            return held, held[:0]
        order = draw.permutation(np.sort(held))
        if not self.stratified or dataset.classes is None:
            return order[count:], order[:count]
        labels = dataset.targets.numpy()[order]
        _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        quota = apportion(count, sizes.astype(np.float64), ties=draw)
        by_class = np.argsort(inverse, kind="stable")
        within = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        taken = np.zeros(len(order), dtype=np.bool_)
        taken[by_class] = within < quota[inverse[by_class]]
        return order[~taken], order[taken]
