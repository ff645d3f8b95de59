"""Some of a client's samples, drawn from every label in proportion.

Twice: for one client from its generator, which is easy to read, and for many clients at
once, which is quick. Both give the same samples; a test holds them to that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedloom.clients.counts import apportion, apportion_each
from fedloom.clients.ragged import Ragged
from fedloom.core.client_streams import ClientStreams

Indices = NDArray[np.int64]


def draw_samples(
    labels: Indices | None, held: Indices, count: int, draw: np.random.Generator
) -> tuple[Indices, Indices]:
    """What stays and what is drawn, of one client's samples.

    Args:
        labels: label of every sample of the dataset; without it they do not count.
        held: the client's samples.
        count: how many are drawn.
        draw: the client's generator.
    """
    order = draw.permutation(np.sort(held))
    if labels is None:
        return order[count:], order[:count]
    of = labels[order]
    _, inverse, sizes = np.unique(of, return_inverse=True, return_counts=True)
    quota = apportion(count, sizes.astype(np.float64), ties=draw)
    taken = rank_in_class(of) < quota[inverse]
    return order[~taken], order[taken]


def draw_from_each(
    labels: Indices | None, held: Ragged, counts: Indices, streams: ClientStreams
) -> tuple[Ragged, Ragged]:
    """The same for the samples of many clients; lists come sorted and go sorted.

    Args:
        labels: as there.
        held: the samples of each client, ascending.
        counts: (clients,) how many are drawn; where it is 0 the stream is not touched.
        streams: the clients' generators.
    """
    is_asked = counts > 0
    sizes = np.where(is_asked, held.sizes, 0)
    places = np.flatnonzero(np.repeat(is_asked, held.sizes))
    order = streams.permutation(places, sizes)
    owner = np.repeat(np.arange(len(held)), sizes)
    is_taken = np.zeros(len(held.indices), dtype=np.bool_)
    if labels is None:
        rank = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        is_taken[order[rank < counts[owner]]] = True
    else:
        label = labels[held.indices[order]]
        # All of one client and label in a row, in the order that was drawn.
        order = order[
            np.argsort(owner * (label.max(initial=0) + 1) + label, kind="stable")
        ]
        label = labels[held.indices[order]]
        is_first = np.ones(len(order), dtype=np.bool_)
        is_first[1:] = (owner[1:] != owner[:-1]) | (label[1:] != label[:-1])
        starts = np.flatnonzero(is_first)
        weights = np.diff(starts, append=len(order))
        different = np.bincount(owner[starts], minlength=len(held))
        keys = Ragged.cut(np.arange(len(starts)), different)
        ties = streams.permutation(keys.indices - keys.offsets[keys.owners], different)
        quota = apportion_each(counts, Ragged.cut(weights, different), ties)
        rank = np.arange(len(order)) - np.repeat(starts, weights)
        is_taken[order[rank < np.repeat(quota, weights)]] = True
    return held.only_where(~is_taken), held.only_where(is_taken)


def rank_in_class(labels: Indices) -> Indices:
    """How many earlier entries have the same label."""
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    rank = np.empty(len(labels), dtype=np.int64)
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    rank[np.argsort(inverse, kind="stable")] = np.arange(len(labels)) - starts
    return rank
