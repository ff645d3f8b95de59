"""Our messages as Flower's records: named arrays, and a config record beside them.

To Flower every array is two objects, and each is a request of its own, at the SuperLink
and at the SuperNode. A score has dozens of small tensors, so these go together.
"""

from __future__ import annotations

from dataclasses import asdict
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedloom.core.errors import MessageError, shown
from fedloom.remote.wire import (
    LARGEST_BYTES,
    STAGES,
    Kind,
    WireMessage,
    from_parts,
    refuse_large,
)

ARRAYS = "arrays"
"""The record with a message's large tensors, each under its dotted name."""
HEADER = "header"
"""The record with a message's header and digest, and with its small tensors."""
SMALL = "small"
"""Where in it these are, in the format of safetensors."""

_SMALL_BYTES = 4096
"""Largest tensor that does not become an array."""

_NUMPY = "numpy.ndarray"
_LONGEST_ARRAY_HEADER = 10_000

MESSAGE_TYPES: dict[Kind, str] = {
    "enrol": "query",
    "train": "train",
    "score": "evaluate",
    "end": "query",
    **dict.fromkeys(STAGES, "query"),
}
"""The type that Flower calls each of our messages to a client."""


def to_records(message: WireMessage) -> RecordDict:
    """A message as Flower carries it."""
    arrays: dict[str, Array] = {}
    small: dict[str, Tensor] = {}
    for name, tensor in message.tensors.items():
        if tensor.nbytes > _SMALL_BYTES:
            arrays[name] = Array(tensor.detach().cpu().numpy())
        else:
            # Cloned, because safetensors refuses tensors that share memory.
            small[name] = tensor.detach().cpu().contiguous().clone()
    header = {**asdict(message.header), "digest": message.digest, SMALL: save(small)}
    return RecordDict({ARRAYS: ArrayRecord(arrays), HEADER: ConfigRecord(header)})


def from_records(content: RecordDict, *, largest: int = LARGEST_BYTES) -> WireMessage:
    """What `to_records` made, and nothing else.

    Args:
        content: what came.
        largest: most bytes of all arrays that are looked at.

    Raises:
        MessageError: There is too much, it was damaged, or it is no message.
    """
    arrays, header = content.get(ARRAYS), content.get(HEADER)
    if (
        content.keys() != {ARRAYS, HEADER}
        or not isinstance(arrays, ArrayRecord)
        or not isinstance(header, ConfigRecord)
    ):
        raise MessageError(
            f"message: expected the records {ARRAYS} and {HEADER}, found "
            f"{shown(sorted(content))}."
        )
    table = dict(header)
    raw = table.pop(SMALL, None)
    size = len(raw) if isinstance(raw, bytes) else 0
    refuse_large(size + sum(len(array.data) for array in arrays.values()), largest)
    tensors = _small_tensors(raw)
    for name, array in arrays.items():
        if name in tensors:
            raise MessageError(f"message: tensor {shown(name)} is there twice.")
        tensors[name] = _tensor(name, array)
    return from_parts(table, tensors)


def _small_tensors(raw: object) -> dict[str, Tensor]:
    """The tensors that lie beside the header."""
    try:
        if not isinstance(raw, bytes):
            raise TypeError(f"expected bytes, found {type(raw).__name__}")
        tensors = load(raw)
    except (
        *(SafetensorError, ValueError, KeyError, TypeError),
        *(RecursionError, OverflowError, RuntimeError, MemoryError),
    ) as error:
        raise MessageError(
            f"message: its small tensors are not whole ({error})."
        ) from error
    if save(tensors) != raw:
        raise MessageError(
            "message: its small tensors are not written as their content is. It was "
            "damaged on its way."
        )
    return tensors


def _tensor(name: str, array: Array) -> Tensor:
    """The tensor of an array, read without a pickle and without trust in its size."""
    file = BytesIO(array.data)
    try:
        if array.stype != _NUMPY or np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("it is not in numpy's format 1.0")
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(
            file, max_header_size=_LONGEST_ARRAY_HEADER
        )
        expected: tuple[Any, ...] = (array.shape, array.dtype)
        if (shape, str(dtype)) != expected or is_fortran or dtype.hasobject:
            raise ValueError(f"it says {expected} and holds {(shape, str(dtype))}")
        size = dtype.itemsize * int(np.prod(shape, dtype=object))
        if len(array.data) - file.tell() != size:
            raise ValueError(f"expected {size} bytes after its header")
        values = np.frombuffer(array.data, dtype, offset=file.tell()).reshape(shape)
        return torch.from_numpy(values.copy())
    except (ValueError, TypeError, OverflowError, SyntaxError) as error:
        raise MessageError(
            f"message: array {shown(name)} is not whole ({error})."
        ) from error
