"""Numbers that are no plain mean over samples, for every client at once.

Each takes the client of every sample as `owner` and gives one number per client; with
one owner for all samples it is the pooled number. A number that is not defined is nan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Clients = NDArray[np.int64]


def auc(
    margins: Numbers, is_positive: NDArray[np.bool_], owner: Clients, count: int
) -> Numbers:
    """(count,) area under the ROC curve: how often a positive outranks a negative.

    (R - P (P + 1) / 2) / (P N) with P positives, N negatives and R the sum of the
    positives' ranks; equal margins share their mean rank. nan without both classes.

    Args:
        margins: (samples,) what ranks them; only the order counts.
        is_positive: (samples,) whether each is of class 1.
        owner: (samples,) client of each, 0..count - 1.
        count: number of clients.
    """
    if len(margins) == 0:
        return np.full(count, np.nan)
    order = np.lexsort((margins, owner))
    of, value, positive = owner[order], margins[order], is_positive[order]
    differs = (of[1:] != of[:-1]) | (value[1:] != value[:-1])
    starts = np.flatnonzero(np.concatenate([[True], differs]))
    ends = np.append(starts[1:], len(order))
    mean_place = np.repeat((starts + ends + 1) / 2, ends - starts)
    rank = mean_place - np.searchsorted(of, of)
    positives = np.bincount(of, positive, minlength=count)
    negatives = np.bincount(of, ~positive, minlength=count)
    ranks = np.bincount(of, rank * positive, minlength=count)
    found = _ratio(ranks - positives * (positives + 1) / 2, positives * negatives)
    found[np.bincount(owner, np.isnan(margins), minlength=count) > 0] = np.nan
    return found


def f1(
    margins: Numbers, is_positive: NDArray[np.bool_], owner: Clients, count: int
) -> Numbers:
    """(count,) F1 of class 1: 2 TP / (2 TP + FP + FN), called where the margin is > 0.

    nan for a client without positives none of whose samples is called positive.

    Args:
        margins: (samples,) log-odds of class 1.
        is_positive: (samples,) whether each is of class 1.
        owner: (samples,) client of each, 0..count - 1.
        count: number of clients.
    """
    is_called = margins > 0
    right = np.bincount(owner, is_called & is_positive, minlength=count)
    wrong = np.bincount(owner, is_called != is_positive, minlength=count)
    return _ratio(2 * right, 2 * right + wrong)


def explained_variance(
    squared_errors: Numbers, targets: Numbers, owner: Clients, count: int
) -> Numbers:
    """(count,) 1 - squared errors / squared deviations from the mean target: R squared.

    nan for a client whose targets do not vary.

    Args:
        squared_errors: (count,) sum over a client's samples and outputs.
        targets: (samples, outputs).
        owner: (samples,) client of each, 0..count - 1.
        count: number of clients.
    """
    if len(targets) == 0:
        return np.full(count, np.nan)
    # From the client's first target on, so that equal ones are exactly 0.
    _, first = np.unique(owner, return_index=True)
    origin = np.zeros((count, targets.shape[1]))
    origin[owner[first]] = targets[first]
    moved = targets - origin[owner]
    sums = np.zeros((count, targets.shape[1]))
    np.add.at(sums, owner, moved)
    sizes = np.bincount(owner, minlength=count)
    mean = sums / np.maximum(sizes, 1)[:, None]
    deviations = np.bincount(
        owner, np.square(moved - mean[owner]).sum(1), minlength=count
    )
    return 1 - _ratio(squared_errors, deviations)


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> Numbers:
    """Their quotient; nan where there is nothing to divide by."""
    found = np.full(len(below), np.nan)
    np.divide(above, below, out=found, where=below > 0)
    return found
