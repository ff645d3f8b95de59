"""Records: NamedTuples of tensors, nested as one likes.

What the server keeps, what a client keeps, what goes down, what exists during a round
and what goes up are each a record. A record can be stacked over clients, counted in
bytes, written to disk and sent, because it is nothing but named tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor

from fedloom.core.errors import ContractError, MessageError

R = TypeVar("R")

_ROWS = "one row per client"

PerClient = Annotated[Tensor, _ROWS]
"""A `Download` field that differs between clients.

The server makes it with one row per client of the cohort; each client gets its row.
A field that is a plain `Tensor` is the same for all and is sent as it is.
"""


class Empty(NamedTuple):
    """The empty record: nothing is kept, or nothing is sent."""


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a record in the order of its fields."""
    if isinstance(tree, Tensor):
        return [tree]
    return [leaf for branch in tree for leaf in leaves(branch)]


def rebuild(like: R, values: list[Tensor]) -> R:
    """A record of the shape of `like` with other tensors; the inverse of `leaves`."""
    return _take(like, iter(values))  # type: ignore[no-any-return]


def _take(like: Any, values: Iterator[Tensor]) -> Any:
    if not isinstance(like, tuple):
        return next(values)
    branches = [_take(branch, values) for branch in like]
    return type(like)(*branches) if hasattr(like, "_fields") else tuple(branches)


def skeleton(record: R) -> R:
    """The shape of a record without its tensors, for `rebuild`."""
    return rebuild(record, [None] * len(leaves(record)))  # type: ignore[list-item]


def map_record(function: Callable[..., Tensor], record: R, *others: R) -> R:
    """Apply a function to each tensor of one or several records of the same shape."""
    columns = zip(*(leaves(r) for r in (record, *others)), strict=True)
    return rebuild(record, [function(*column) for column in columns])


def named(record: Any, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a record under dotted names: `{"personal.at": ...}`."""
    if isinstance(record, Tensor):
        return {prefix: record}
    fields = getattr(record, "_fields", range(len(record)))
    found: dict[str, Tensor] = {}
    for field, branch in zip(fields, record, strict=True):
        found |= named(branch, f"{prefix}.{field}" if prefix else str(field))
    return found


def from_named(like: R, tensors: dict[str, Tensor], where: str) -> R:
    """Rebuild a record from dotted names; what is missing or misshapen is named."""
    values = []
    for name, old in named(like).items():
        if name not in tensors:
            raise MessageError(f"{where}: field {name!r} is missing.")
        new = tensors[name]
        if new.shape != old.shape or new.dtype != old.dtype:
            raise MessageError(
                f"{where}: field {name!r} should be {old.dtype} {tuple(old.shape)}, "
                f"found {new.dtype} {tuple(new.shape)}."
            )
        values.append(new)
    return rebuild(like, values)


def grow(record: R, begun: R, count: int, where: str) -> R:
    """A record with a place for one more client.

    Args:
        record: as it is for `count` clients.
        begun: the same as it begins for one more; gives shapes and the new places.
        count: how many clients there are.
        where: how messages call the record.

    Raises:
        ContractError: a tensor is larger in another way than by one client.
    """
    values, old, new = [], named(record), named(begun)
    for name, tensor in old.items():
        pairs = set(zip(tensor.shape, new[name].shape, strict=True))
        others = {pair for pair in pairs if pair[0] != pair[1]}
        if others - {(count, count + 1)}:
            raise ContractError(
                f"{where}: {name} has the shape {tuple(tensor.shape)} for {count} "
                f"clients and {tuple(new[name].shape)} for {count + 1}, so a client "
                "cannot be added to a trained run."
            )
        if others:
            grown = new[name].to(tensor.dtype).clone()
            grown[tuple(slice(side) for side in tensor.shape)] = tensor
        values.append(grown if others else tensor)
    return rebuild(record, values)


def stack(records: list[R]) -> R:
    """One record with a leading dimension, from one record per client."""
    return map_record(lambda *rows: torch.stack(rows), records[0], *records[1:])


def take(record: R, index: Any) -> R:
    """The same rows of every tensor of a stacked record."""
    return map_record(lambda tensor: tensor[index], record)


def row_fields(download: Any) -> list[bool]:
    """For each leaf of a `Download`: whether it has one row per client."""
    hints = get_type_hints(type(download), include_extras=True)
    flags: list[bool] = []
    for name, branch in zip(download._fields, download, strict=True):
        has_rows = _ROWS in getattr(hints[name], "__metadata__", ())
        flags += [has_rows] * len(leaves(branch))
    return flags


def message_bytes(record: Any, *, has_rows: list[bool] | None = None) -> int:
    """Bytes that one client sends or receives, from the types of the message alone.

    Args:
        record: an `Upload` stacked over clients, or a `Download` as the server made it.
        has_rows: for each tensor, whether its first dimension counts clients; all do
            when not given.
    """
    tensors = leaves(record)
    flags = has_rows if has_rows is not None else [True] * len(tensors)
    return sum(
        t.element_size() * (t[0].numel() if has_row else t.numel())
        for t, has_row in zip(tensors, flags, strict=True)
    )
