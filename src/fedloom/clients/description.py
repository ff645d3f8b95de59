"""A federation in one sentence: what was understood of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedloom.core.wording import counted, percent
from fedloom.data.dataset import Dataset

if TYPE_CHECKING:
    from fedloom.clients.federation import Federation
    from fedloom.clients.split import Split

_LONG = 5
"""Names that are written out one by one."""


def describe(federation: Federation, *, has_all_folds: bool = False) -> str:
    """The task, its target and features, who the clients are, and what is tested.

    Args:
        federation: who holds what.
        has_all_folds: whether it is one of several that test on one fold each.
    """
    data = federation.dataset
    clients = counted(federation.count, "client")
    clients = f"{clients} {federation.clients_from}".rstrip()
    parts = [_task(federation), _inputs(data), clients]
    if federation.split is not None:
        parts.append(_split(federation, federation.split, has_all_folds))
    return f"{data.name}: {'; '.join(parts)}"


def _task(federation: Federation) -> str:
    data = federation.dataset
    target = "" if data.target_name is None else f" of {data.target_name!r}"
    if data.classes is not None:
        names = f" ({_listed(data.class_names)})" if data.class_names else ""
        return f"classification{target} into {data.classes} classes{names}"
    how = ", standardised for training" if federation.standardises_targets else ""
    return f"regression{target}, scores in its own units{how}"


def _inputs(data: Dataset) -> str:
    if data.features is None:
        shapes = [" x ".join(map(str, x.shape[1:])) or "1" for x in data.inputs]
        if len(data.inputs) == 1 and data.inputs[0].ndim == 2 and data.tokens is None:
            return f"{shapes[0]} features"
        return f"inputs of {' and '.join(shapes)}"
    text = f"{_counted(data.features, 'feature')} ({_listed(data.features)})"
    if data.left_out:
        columns = _counted(data.left_out, "column")
        text += f", {columns} left out ({_listed(data.left_out)})"
    return text


def _split(federation: Federation, split: Split, has_all_folds: bool) -> str:
    text = _tested(federation, split, has_all_folds)
    if not (split.validation and federation.validation.sizes.any()):
        return text
    return f"{text}; validated on {percent(split.validation)} of the rest"


def _tested(federation: Federation, split: Split, has_all_folds: bool) -> str:
    if split.fixed:
        return "tested on what the source designates"
    if split.test_column is not None:
        return f"tested on what column {split.test_column!r} says"
    groups = "" if split.group is None else f", groups of {split.group!r} kept whole"
    if split.time is not None:
        share = percent(split.test)
        return f"tested on the last {share} by {split.time!r}{groups}"
    if split.folds is not None and split.fold is not None:
        if has_all_folds:
            sizes = sum(part.sizes for part in federation.parts)
            whose = f" of a client with {split.folds} rows or more"
            whose = whose if np.any(sizes < split.folds) else ""
            return f"every row{whose} is tested once, in {split.folds} folds{groups}"
        return f"tested on fold {split.fold + 1} of {split.folds}{groups}"
    share = percent(split.test)
    return f"tested on {share} of each client's rows, at random{groups}"


def _counted(names: tuple[str, ...], noun: str) -> str:
    return f"{len(names)} {noun}{'s' if len(names) > 1 else ''}"


def _listed(names: tuple[str, ...]) -> str:
    more = len(names) - _LONG
    text = ", ".join(names[:_LONG])
    return f"{text} and {more} more" if more > 0 else text
