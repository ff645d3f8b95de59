"""What crosses for a secure sum, beside reports: who is called, keys, shares, masks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import MessageError
from fedloom.remote.codec.fields import Tensors, refuse_others, where_of
from fedloom.remote.wire import WireMessage
from fedloom.secure.plan import KEYS_BYTES
from fedloom.secure.primitives import SEALED_BYTES, SIGNATURE_BYTES, Words
from fedloom.secure.shamir import SHARE_BYTES

SECURE = "secure"
"""The part of a message that these fields make up."""
SEALED_PAIR_BYTES = 2 * SHARE_BYTES + SEALED_BYTES
"""The shares of a client's two secrets, sealed for another."""


def call_tensors(clients: Sequence[int], most: float) -> Tensors:
    """What an order says of its secure sum.

    Args:
        clients: whose summands are added, by number, ascending.
        most: training samples that count as 1 where clients count by samples.
    """
    return {
        "secure.clients": torch.tensor(clients, dtype=torch.int64),
        "secure.most": torch.tensor(most, dtype=torch.float64),
    }


def read_call(message: WireMessage) -> tuple[list[int], float]:
    """What `call_tensors` wrote.

    Raises:
        MessageError: It is not there, or is something else.
    """
    most = _field(message, "most", torch.float64, ())
    if not 0 < float(most) < float("inf"):
        raise MessageError(f"{where_of(message.header)}: 'most' must be above 0.")
    return _numbers(message, "clients"), float(most)


def keys_tensors(keys: bytes, *, is_opened: bool) -> Tensors:
    """A client's keys, and whether it has opened the sum that they are of."""
    return {"secure.keys": _bytes(keys), "secure.opened": torch.tensor(is_opened)}


def read_keys(message: WireMessage) -> tuple[bytes, bool]:
    """What `keys_tensors` wrote.

    Raises:
        MessageError: It is not there, or is something else.
    """
    keys = _field(message, "keys", torch.uint8, (KEYS_BYTES,))
    return keys.numpy().tobytes(), bool(_field(message, "opened", torch.bool, ()))


def rows_tensors(rows: Mapping[int, bytes], width: int) -> Tensors:
    """As many bytes by or for each of several clients."""
    ordered = sorted(rows)
    joined = _bytes(b"".join(rows[client] for client in ordered))
    return {
        "secure.clients": torch.tensor(ordered, dtype=torch.int64),
        "secure.rows": joined.reshape(len(ordered), width),
    }


def read_rows(message: WireMessage, width: int) -> dict[int, bytes]:
    """What `rows_tensors` wrote.

    Raises:
        MessageError: It is not there, or is something else.
    """
    _refuse_fields(message, ("clients", "rows"))
    clients = _numbers(message, "clients")
    rows = _field(message, "rows", torch.uint8, (len(clients), width)).numpy()
    return {client: row.tobytes() for client, row in zip(clients, rows, strict=True)}


def masked_tensors(masked: Words) -> Tensors:
    """A masked summand."""
    return {"secure.masked": torch.from_numpy(masked.view(np.int32))}


def read_masked(message: WireMessage, length: int) -> Words:
    """What `masked_tensors` wrote.

    Raises:
        MessageError: It is not there, or is something else.
    """
    _refuse_fields(message, ("masked",))
    words: Words = (
        _field(message, "masked", torch.int32, (length,)).numpy().view(np.uint32)
    )
    return words


def lists_tensors(alive: Collection[int], dead: Collection[int]) -> Tensors:
    """Who is in a total, and who dropped out."""
    lists = {"secure.alive": alive, "secure.dead": dead}
    return {n: torch.tensor(sorted(c), dtype=torch.int64) for n, c in lists.items()}


def read_lists(message: WireMessage) -> tuple[list[int], list[int]]:
    """What `lists_tensors` wrote.

    Raises:
        MessageError: It is not there, or is something else.
    """
    _refuse_fields(message, ("alive", "dead"))
    return _numbers(message, "alive"), _numbers(message, "dead")


def signature_tensors(signature: bytes) -> Tensors:
    """A client's signature."""
    return {"secure.signature": _bytes(signature)}


def read_signature(message: WireMessage) -> bytes:
    """What `signature_tensors` wrote.

    Raises:
        MessageError: It is not there, or is something else.
    """
    _refuse_fields(message, ("signature",))
    shape = (SIGNATURE_BYTES,)
    return _field(message, "signature", torch.uint8, shape).numpy().tobytes()


def _refuse_fields(message: WireMessage, names: Collection[str]) -> None:
    where = where_of(message.header)
    refuse_others(message.tensors, (SECURE,), where)
    extra = sorted(message.tensors.keys() - {f"{SECURE}.{name}" for name in names})
    if extra:
        raise MessageError(f"{where}: field {extra[0]!r} is not declared.")


def _numbers(message: WireMessage, name: str) -> list[int]:
    """Clients by number, ascending."""
    numbers = message.tensors.get(f"{SECURE}.{name}", torch.zeros(()))
    if numbers.dim() != 1 or numbers.dtype != torch.int64:
        numbers = torch.tensor([1, 0])
    clients: list[int] = numbers.tolist()
    if clients != sorted(set(clients)) or any(client < 0 for client in clients):
        raise MessageError(
            f"{where_of(message.header)}: field {name!r} should be clients by number, "
            "ascending."
        )
    return clients


def _field(
    message: WireMessage, name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> Tensor:
    value = message.tensors.get(f"{SECURE}.{name}")
    if value is None or value.dtype != dtype or value.shape != shape:
        raise MessageError(
            f"{where_of(message.header)}: field {name!r} should be {dtype} {shape}."
        )
    return value


def _bytes(raw: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(raw, np.uint8).copy())
