"""Reference runs: the same settings, trained on other samples of the same clients.

Of every client's samples, training and held-out ones together, each reference holds out
as many as the run does, drawn anew. Over the references every sample is held out about
equally often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedloom.clients import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core import streams


@dataclass(frozen=True, eq=False)
class Pool:
    """All samples of the clients that hold some out."""

    samples: Ragged
    """Of each client, in the order of the dataset; none of a client that holds out
    nothing."""
    is_member: NDArray[np.bool_]
    """(total,) whether the run trained on each."""

    @classmethod
    def of(cls, federation: Federation) -> Pool:
        """Training samples of a federation and those that no model was trained on."""
        held_out = _held_out(federation)
        has_both = np.repeat(held_out.sizes > 0, federation.train.sizes)
        train = federation.train.only_where(has_both)
        lists = [np.concatenate(both) for both in zip(train, held_out, strict=True)]
        samples = Ragged.of(lists).ascending()
        return cls(samples, _is_in(samples, train))

    def trained_by(self, federation: Federation) -> NDArray[np.bool_]:
        """(total,) which of the samples a federation of the same clients trains on."""
        return _is_in(self.samples, federation.train)


def _held_out(federation: Federation) -> Ragged:
    """Validation and test samples; only validation samples where tests are shared."""
    if federation.shares_test:
        return federation.validation
    both = zip(federation.validation, federation.test, strict=True)
    return Ragged.of([np.concatenate(own) for own in both])


def _is_in(samples: Ragged, chosen: Ragged) -> NDArray[np.bool_]:
    # Nobody trains on a sample of somebody else's, so the samples alone tell.
    return np.isin(samples.indices, chosen.indices)


def reference_federations(
    federation: Federation, pool: Pool, count: int, seed: int
) -> list[Federation]:
    """The clients of reference runs.

    Args:
        federation: the clients of the run.
        pool: their samples.
        count: how many references there are.
        seed: seed of who trains on what.
    """
    windows = [
        _windows(federation, pool, client, count, seed)
        for client in range(federation.count)
    ]
    nothing = Ragged.of([np.empty(0, dtype=np.int64)] * federation.count)
    references = []
    for n in range(count):
        train = [
            own[n] if own else federation.train[c] for c, own in enumerate(windows)
        ]
        references.append(
            replace(
                federation,
                train=Ragged.of(train).ascending(),
                validation=nothing,
                test=nothing,
                shares_test=False,
                split=None,
            )
        )
    return references


def _windows(
    federation: Federation, pool: Pool, client: int, count: int, seed: int
) -> list[NDArray[np.int64]]:
    """What a client trains on in each reference; empty if it holds nothing out.

    Samples of one group stay together, as they did in the run.
    """
    samples = pool.samples[client]
    if not len(samples):
        return []
    groups = federation.groups
    unit = np.arange(len(samples)) if groups is None else groups[samples]
    units = np.unique(unit)
    first = pool.samples.offsets[client]
    is_member = pool.is_member[first : first + len(samples)]
    held_out = len(units) - len(np.unique(unit[is_member]))
    draws = _held_out_units(units, max(held_out, 1), seed, client)
    return [samples[~np.isin(unit, next(draws))] for _ in range(count)]


def _held_out_units(
    units: NDArray[np.int64], size: int, seed: int, client: int
) -> Iterator[NDArray[np.int64]]:
    """So many of the units at a time, all of them before one comes again."""
    cycle = 0
    while True:
        order = streams.generator(seed, "audit-references", client, cycle).permutation(
            units
        )
        for start in range(0, len(units) - size + 1, size):
            yield order[start : start + size]
        cycle += 1
