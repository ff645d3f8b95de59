"""One client's samples dealt into parts, label by label, groups kept in one piece."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def deal_rows(labels: Indices, parts: int, draw: np.random.Generator) -> Indices:
    """(n,) the part of each sample: parts, and every label in them, equal up to one.

    Args:
        labels: (n,) label of each sample.
        parts: How many parts there are; some stay empty if there are fewer samples.
        draw: Who is where, and which parts are the larger ones.
    """
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = (np.arange(len(labels)) + draw.integers(parts)) % parts
    return place


def deal_groups(
    groups: Indices,
    labels: Indices,
    shares: NDArray[np.float64] | Indices,
    draw: np.random.Generator,
) -> Indices:
    """(n,) the part of each sample, that of its group.

    From the largest group to the smallest, each goes where it brings sizes and labels
    nearest to the shares; equally good parts are drawn from.

    Args:
        groups: (n,) group of each sample.
        labels: (n,) label of each sample.
        shares: Share of the samples that each part should have, up to a factor.
        draw: Decides between groups of equal size and between equally good parts.
    """
    _, group = np.unique(groups, return_inverse=True)
    _, label = np.unique(labels, return_inverse=True)
    sizes = np.bincount(group)
    counts = np.zeros((len(sizes), label.max() + 2))
    np.add.at(counts, (group, label), 1.0)
    counts[:, -1] = sizes
    totals = counts.sum(axis=0)
    lacking = np.outer(shares / shares.sum(), totals)
    shuffled = draw.permutation(len(sizes))
    part = np.empty(len(sizes), dtype=np.int64)
    for n in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        # How much farther from the shares the group would bring each part.
        change = ((lacking - counts[n]) ** 2 - lacking**2) / totals
        best = np.round(change.sum(axis=1), 9)
        candidates = np.flatnonzero(best == best.min())
        part[n] = candidates[draw.integers(len(candidates))]
        lacking[part[n]] -= counts[n]
    return part[group]
