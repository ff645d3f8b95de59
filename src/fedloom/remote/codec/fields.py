"""Named tensors of a message as typed records, of exactly the declared fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import MessageError
from fedloom.core.messages import CohortDownload
from fedloom.core.records import (
    client_dims,
    from_named,
    leaves,
    named,
    of_type,
    rebuild,
)
from fedloom.core.task import Task
from fedloom.remote.wire import Header, WireMessage, below, refuse_infinite

Tensors = dict[str, Tensor]


def where_of(header: Header) -> str:
    """How reasons call the place: what was sent, by whom, and when."""
    sender = header.name or "a client"
    return f"{header.kind!r} of {sender}, {header.place}"


def under(prefix: str, record: Any) -> Tensors:
    """A record's tensors by the names that they have as one part of a message."""
    return {f"{prefix}.{name}": tensor for name, tensor in named(record).items()}


def read_record(tensors: Mapping[str, Tensor], part: str, like: Any, where: str) -> Any:
    """One record of a message, of exactly the fields, types and shapes of another.

    Raises:
        MessageError: It is not.
    """
    sent = below(tensors, part)
    extra = sorted(sent.keys() - named(like).keys())
    if extra:
        raise MessageError(f"{where}: field {extra[0]!r} of {part} is not declared.")
    return from_named(like, sent, f"{where}, {part}")


def read_download(
    message: WireMessage, kind: type[Any], task: Task, where: str
) -> CohortDownload:
    """The download of one client, with a row where its type has one per client.

    Raises:
        MessageError: It is not what its type declares.
    """
    sent = below(message.tensors, "download")
    refuse_infinite(sent, where)
    record = of_type(kind, sent, f"{where}, download")
    rows = [
        (leaf[None] if dims else leaf).to(task.device)
        for leaf, dims in zip(leaves(record), client_dims(record), strict=True)
    ]
    return CohortDownload.of(rebuild(record, rows))


def read_scalar(tensors: Tensors, name: str, dtype: torch.dtype, where: str) -> Tensor:
    """One number of a part.

    Raises:
        MessageError: It is not there, or is something else.
    """
    value = tensors.get(name)
    if value is None or value.dtype != dtype or value.shape != ():
        raise MessageError(f"{where}: field {name!r} should be one {dtype}.")
    return value


def refuse_others(
    tensors: Mapping[str, Tensor], parts: tuple[str, ...], where: str
) -> None:
    """Refuse fields that do not belong to any of these parts.

    Raises:
        MessageError: There is one.
    """
    for name in tensors:
        if name.partition(".")[0] not in parts:
            known = f"the fields of {', '.join(parts)}" if parts else "none"
            raise MessageError(
                f"{where}: field {name!r} is not declared; known are {known}."
            )


def read_constants(
    message: WireMessage, shapes: Mapping[str, tuple[int, ...]], where: str
) -> Tensors:
    """What standardises samples, as it came with a message, checked.

    Args:
        message: what came.
        shapes: of what is standardised: "inputs", "targets".
        where: how messages call the place.

    Raises:
        MessageError: It does not fit the samples.
    """
    constants = below(message.tensors, "constants")
    expected = {name: (torch.float64, (2, *shape)) for name, shape in shapes.items()}
    sent = {name: (t.dtype, tuple(t.shape)) for name, t in constants.items()}
    if sent != expected:
        raise MessageError(
            f"{where}: expected constants that standardise {expected}, found {sent}."
        )
    refuse_infinite(constants, where)
    return constants
