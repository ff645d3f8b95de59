"""Records: NamedTuples of tensors, nested as one likes.

What the server keeps, what a client keeps, what goes down, what exists during a round
and what goes up are each a record. A record can be stacked over clients, counted in
bytes, written to disk and sent, because it is nothing but named tensors.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor

from fedloom.core.errors import ContractError, MessageError

R = TypeVar("R")
T = TypeVar("T")
L = TypeVar("L")


class _ClientDims(NamedTuple):
    """How many of a tensor's leading dimensions count clients."""

    dims: int
    is_of_team: bool = False
    """Whether clients of one team have the same."""


PerClient = Annotated[T, _ClientDims(1)]
"""A field with one row per client: `PerClient[Tensor]`, or a record of such.

In a `Download` or a log, the clients are those of the cohort, and each client gets its
row; a field that is not marked is the same for all and is sent as it is. In a `Server`
they are all clients, by number.
"""

PerTeam = Annotated[T, _ClientDims(1, is_of_team=True)]
"""The same in a `Download` where all clients of a team get the same row.

Where uploads are summed securely team by team, clients then make sure that the others
of their team were sent what they were.
"""

PerPair = Annotated[T, _ClientDims(2)]
"""A field of a `Server` with one place for each two clients, (M, M, ...)."""


class WholeNumbers(NamedTuple):
    """The whole numbers that a field of an `Upload` may have.

    A server refuses an upload with others:
    `cluster: Annotated[Tensor, WholeNumbers(below="cluster_count")]`.
    """

    least: int = 0
    below: int | str | None = None
    """The first that is too large, or the method's setting that says it; None if there
    is none."""


class Empty(NamedTuple):
    """The empty record: nothing is kept, or nothing is sent."""


class Logged(NamedTuple, Generic[R, L]):
    """What `download` or `aggregate` made, and what drove it.

    A log is a record for the run's files; its field docstrings are what
    `fedloom describe` shows. A field that is `PerClient[Tensor]` goes to the rows of
    the cohort's clients, a scalar to that of the round, anything larger to a file.
    """

    record: R
    log: L


def without_log(made: R | Logged[R, Any]) -> tuple[R, Any]:
    """The record that a method made, and its log; an empty one if it kept none."""
    return (made.record, made.log) if isinstance(made, Logged) else (made, Empty())


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
    tensors: dict[str, Tensor] = {}
    for field, branch in zip(fields, record, strict=True):
        tensors |= named(branch, f"{prefix}.{field}" if prefix else str(field))
    return tensors


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


def of_type(kind: type[T], tensors: Mapping[str, Tensor], where: str) -> T:
    """A record of a type from dotted names: the fields that it declares and no others.

    Args:
        kind: the record's type.
        tensors: by dotted name, as `named` gives them.
        where: how messages call the place.

    Raises:
        MessageError: A field is missing, or there is one that the type does not have.
    """
    declared = declared_names(kind)
    missing = [name for name in declared if name not in tensors]
    unknown = sorted(tensors.keys() - set(declared))
    if missing or unknown:
        listed, sent = (", ".join(names) for names in (declared, sorted(tensors)))
        raise MessageError(
            f"{where}: expected {listed or 'nothing'}, found {sent or 'nothing'}."
        )
    return _of_type(kind, iter(tensors[name] for name in declared))  # type: ignore[no-any-return]


def declared_names(kind: Any, prefix: str = "") -> list[str]:
    """The dotted names of all tensors that a record type declares, in their order."""
    if kind is Tensor:
        return [prefix]
    hints = get_type_hints(kind)
    return [
        name
        for field in kind._fields
        for name in declared_names(
            hints[field], f"{prefix}.{field}" if prefix else field
        )
    ]


def declared_ranges(kind: Any, prefix: str = "") -> dict[str, WholeNumbers]:
    """By dotted name, the tensors that a record type marks with `WholeNumbers`."""
    ranges: dict[str, WholeNumbers] = {}
    if kind is Tensor:
        return ranges
    marked, plain = get_type_hints(kind, include_extras=True), get_type_hints(kind)
    for field in kind._fields:
        name = f"{prefix}.{field}" if prefix else field
        for mark in getattr(marked[field], "__metadata__", ()):
            if isinstance(mark, WholeNumbers):
                ranges[name] = mark
        ranges |= declared_ranges(plain[field], name)
    return ranges


def _of_type(kind: Any, values: Iterator[Tensor]) -> Any:
    if kind is Tensor:
        return next(values)
    hints = get_type_hints(kind)
    return kind(*(_of_type(hints[field], values) for field in kind._fields))


def tensors_digest(tensors: Mapping[str, Tensor], *, size: int = 16) -> str:
    """The digest of tensors with their names, types and shapes, in whatever order.

    Args:
        tensors: by name.
        size: bytes of the digest. 16 find accidents; where somebody may look for two
            sets of tensors with one digest it takes 32.
    """
    digest = hashlib.blake2b(digest_size=size)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        plain = tensor.detach().cpu().contiguous().reshape(-1)
        if len(plain):  # an empty one may have strides that cannot be viewed
            digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def add_place(record: R, larger: R, where: str) -> R:
    """A record with one more place in whatever has one per client.

    Args:
        record: as it is.
        larger: the same as it begins with one client more; gives the new places.
        where: how messages call the record.

    Raises:
        ContractError: a tensor is larger in another way than by what it is marked as.
    """
    values, new = [], named(larger)
    for (name, tensor), dims in zip(
        named(record).items(), client_dims(record), strict=True
    ):
        grown = tuple(side + (n < dims) for n, side in enumerate(tensor.shape))
        if new[name].shape != grown:
            raise ContractError(
                f"{where}: {name} has the shape {tuple(tensor.shape)} and, with one "
                f"client more, {tuple(new[name].shape)}, so a client cannot be added "
                "to a trained run. Mark what has a place per client with PerClient."
            )
        place = new[name].to(tensor.dtype).clone()
        place[tuple(slice(side) for side in tensor.shape)] = tensor
        values.append(place if dims else tensor)
    return rebuild(record, values)


def stack(records: list[R]) -> R:
    """One record with a leading dimension, from one record per client."""
    return map_record(lambda *rows: torch.stack(rows), records[0], *records[1:])


def take(record: R, index: Any) -> R:
    """The same rows of every tensor of a stacked record."""
    return map_record(lambda tensor: tensor[index], record)


def client_dims(record: Any) -> list[int]:
    """For each tensor of a record: how many leading dimensions count clients.

    Read off the types, those of nested records too, never off the shapes.
    """
    return [mark.dims for mark in _marks(record)]


def own_names(download: Any, *, in_team: bool) -> set[str]:
    """The dotted names of what a client's download has for it alone.

    Args:
        download: a record, of whatever shape.
        in_team: whether what the clients of its team have as well does not count.
    """
    return {
        name
        for name, mark in zip(named(download), _marks(download), strict=True)
        if mark.dims and not (in_team and mark.is_of_team)
    }


def _marks(record: Any) -> list[_ClientDims]:
    """For each tensor of a record what its type says of it."""
    if isinstance(record, Tensor):
        return [_ClientDims(0)]
    if not hasattr(record, "_fields"):
        return [mark for branch in record for mark in _marks(branch)]
    marks: list[_ClientDims] = []
    for mark, branch in zip(_declared_marks(type(record)), record, strict=True):  # type: ignore[arg-type]
        marks += [mark] * len(leaves(branch)) if mark.dims else _marks(branch)
    return marks


@cache
def _declared_marks(kind: Any) -> tuple[_ClientDims, ...]:
    """What a record type says of each of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    marks = [getattr(hints[name], "__metadata__", ()) for name in kind._fields]
    return tuple(
        next((mark for mark in m if isinstance(mark, _ClientDims)), _ClientDims(0))
        for m in marks
    )


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
        t.element_size() * (math.prod(t.shape[1:]) if has_row else t.numel())
        for t, has_row in zip(tensors, flags, strict=True)
    )
