"""Signs that a random split tears apart rows that belong together.

Visits of a patient, windows of a recording, days in a row: where such rows are nearly
the same and some of them are tested while others are trained on, scores flatter. Nobody
can prove it from numbers alone, so that a warning needs strong signs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedloom.core.wording import percent

if TYPE_CHECKING:
    from fedloom.clients.federation import Federation

_LEAST_ROWS = 50
_MOST_ROWS = 50_000
"""Rows in which signs are looked for: those of every n-th client of more."""
_LEAST_FEATURES = 3
_ALIKE = 0.6
"""Mean squared difference of neighbours, in ranks, over that of any two rows of a
client: 1 if the order of rows means nothing, give or take the root of how many
neighbours there are."""
_DEVIATIONS = 4.0
_TWINS = 0.05
"""Share of test rows that have a twin among their client's training rows."""
_MANY_VALUES = 20
"""Different values of a feature above which it can hardly be a code or a count."""
_RISING = 0.95

_TIME_WORDS = {"time", "date", "datetime", "timestamp", "day", "days", "week", "hour"}
_GROUP_WORDS = {
    "episode",
    "group",
    "id",
    "patient",
    "person",
    "recording",
    "session",
    "subject",
    "trial",
    "user",
    "visit",
    "window",
}

_ADVICE = (
    "If such rows belong together, a random split puts some of them into training and "
    "others into the test, and scores flatter. Name what must stay together "
    "(split.group, or groups= in Python) or split in time (split.time, or time=)."
)


def torn_groups(federation: Federation) -> str:
    """What looks as if rows of one group were torn apart; empty if nothing does.

    Only a random split of a table without groups is looked at. The signs are a feature
    that is called and behaves like a time or like the number of a group; rows that are
    more like their neighbours in the file than like others of the same client and
    class; test rows that are also training rows of the same client.
    """
    split, data = federation.split, federation.dataset
    if split is None or not split.is_random or split.group is not None:
        return ""
    is_table = len(data.inputs) == 1 and data.inputs[0].ndim == 2
    if not (is_table and data.inputs[0].is_floating_point()):
        return ""
    if not len(federation.test.indices) or len(data) < _LEAST_ROWS:
        return ""
    step = -(-len(data) // _MOST_ROWS)
    if step > 1:
        federation = federation.only(range(0, federation.count, step))
    sign = _named_column(federation) or _neighbours(federation) or _twins(federation)
    return f"{data.name}: {sign}. {_ADVICE}" if sign else ""


def _rows(federation: Federation) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All rows by client, in the order of the file, and the client of each."""
    clients = np.arange(federation.count)
    rows = np.concatenate([part.indices for part in federation.parts])
    client = np.concatenate([np.repeat(clients, p.sizes) for p in federation.parts])
    order = np.lexsort((rows, client))
    return rows[order], client[order]


def _named_column(federation: Federation) -> str:
    names = federation.dataset.features or ()
    rows, client = _rows(federation)
    is_next = client[1:] == client[:-1]
    if not is_next.any():
        return ""
    x = federation.dataset.inputs[0].numpy()[rows]
    for column, name in enumerate(names):
        words = {*re.findall(r"[a-z]+", re.sub(r"([A-Z])", r" \1", name).lower())}
        values = x[:, column]
        steps = np.diff(values)[is_next]
        different = len(np.unique(np.stack([client, values]), axis=1)[0])
        is_rising = different > 2 * federation.count and (
            (steps >= 0).mean() >= _RISING
        )
        if words & _TIME_WORDS and is_rising:
            return f"the feature {name!r} looks like the time of each row"
        repeats = 2 * federation.count <= different <= len(rows) / 2
        if words & _GROUP_WORDS and repeats and (values == np.floor(values)).all():
            return f"the feature {name!r} looks like the number of a group of rows"
    return ""


def _neighbours(federation: Federation) -> str:
    rows, client = _rows(federation)
    data = federation.dataset
    targets = data.targets.numpy()[rows]
    kind = client
    if data.classes is not None:
        # Files are often sorted by class, and rows of one class are alike.
        kind = client * data.classes + targets
        order = np.lexsort((rows, kind))
        rows, kind = rows[order], kind[order]
    is_next = kind[1:] == kind[:-1]
    neighbours = int(is_next.sum())
    if neighbours < _LEAST_ROWS:
        return ""
    if data.classes is None and targets.ndim == 1:
        steps = np.diff(targets)[is_next]
        if (steps >= 0).all() or (steps <= 0).all():
            return ""  # sorted by what is predicted
    x = data.inputs[0].numpy()[rows]
    ranks = np.stack([_ranks(kind, values) for values in x.T], axis=1)
    # A file that is sorted, by a score perhaps that is no column, goes up or down alike
    # for all clients, and no rows of it belong together.
    place = _ranks(kind, np.arange(len(kind)))
    ranks -= np.outer(place, place @ ranks / (place @ place))
    spread = (ranks**2).sum(axis=0)
    varies = spread > 1e-9 * len(ranks)
    if varies.sum() < _LEAST_FEATURES:
        return ""
    between = (np.diff(ranks, axis=0)[is_next] ** 2).sum(axis=0)
    ratio = np.median(between[varies] / (2 * spread[varies]))
    if ratio >= min(_ALIKE, 1 - _DEVIATIONS / neighbours**0.5):
        return ""
    return (
        "rows that follow one another in the file are much more alike than other rows "
        "of the same client"
    )


def _ranks(kind: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.float64]:
    """The rank of each value among those of its kind, from -1/2 to 1/2.

    Equal values have the same rank, the mean of theirs.
    """
    order = np.lexsort((values, kind))
    kinds, ordered = kind[order], values[order]
    starts = np.r_[True, kinds[1:] != kinds[:-1]]
    _, first, sizes = np.unique(kinds, return_index=True, return_counts=True)
    place = np.arange(len(kinds)) - np.repeat(first, sizes)
    share = (place + 0.5) / np.repeat(sizes, sizes) - 0.5
    tie = np.cumsum(starts | np.r_[True, ordered[1:] != ordered[:-1]]) - 1
    mean = np.bincount(tie, share) / np.bincount(tie)
    ranks = np.empty(len(kinds))
    ranks[order] = mean[tie]
    return ranks


def _twins(federation: Federation) -> str:
    train, test = federation.train, federation.test
    rows = np.concatenate([train.indices, test.indices])
    x = federation.dataset.inputs[0].numpy()[rows]
    # Rows of codes and counts are often equal by chance.
    measured = [n for n in range(x.shape[1]) if _is_measured(x[:, n])]
    if len(measured) < _LEAST_FEATURES:
        return ""
    _, code = np.unique(x[:, measured], axis=0, return_inverse=True)
    trained, tested = np.split(code.reshape(-1), [len(train.indices)])
    trainer, tester = train.owners, test.owners
    own = np.isin(
        tested * federation.count + tester, trained * federation.count + trainer
    )
    if own.mean() < _TWINS:
        return ""
    share = percent(own.mean())
    return f"{share} of the test rows are training rows of the same client, too"


def _is_measured(values: NDArray[np.floating]) -> bool:
    is_fraction = bool((values != np.floor(values)).any())
    return is_fraction and len(np.unique(values)) > _MANY_VALUES
