"""Checkpoints: all that changes in a run, in one safetensors file, whole or not at all.

The random streams need no saving: they depend on counters alone. The checkpoint before
the newest is kept beside it, for when the newest is damaged. A digest of the header,
which has one of all tensors, covers every byte that decides.

What the server keeps of every client is written by the rows of those that differ from a
client that never took part, where these are few and there are very many clients.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedloom.core.digests import Extent, table_digest
from fedloom.core.errors import MessageError
from fedloom.core.files import atomic_write, cannot_write, remove, sync
from fedloom.core.reading import UNREADABLE
from fedloom.core.records import (
    client_dims,
    from_named,
    map_record,
    named,
    tensors_digest,
)
from fedloom.results.directory import checkpoint_before
from fedloom.server.coordinator import NONE_TAKEN, RoundCost, ServerState
from fedloom.server.training import Training

_FORMAT = "fedloom-checkpoint-8"
_READABLE = (_FORMAT, "fedloom-checkpoint-7")
"""The one before has every row of every client."""
_PACKED_BYTES = 1 << 20
"""What is smaller is written with the rows of all clients."""
_ROWS_AT_ONCE = 1 << 16
_COST = {field.name for field in fields(RoundCost)}


class Position(NamedTuple):
    """Where in a run a checkpoint was written."""

    round: int
    exchange: int


START = Position(0, 0)
"""Before the first exchange, which needs no checkpoint."""


before = checkpoint_before
"""Where the checkpoint before the newest lies."""


def save(
    training: Training, path: Path, rows: Mapping[str, Extent] = MappingProxyType({})
) -> None:
    """Write the state of a run; the old file stays until the new one is whole.

    Args:
        training: the run.
        path: of the file.
        rows: how much of each file of rows belongs to it.

    Raises:
        DataError: it cannot be written; the checkpoints that are there are untouched.
    """
    state = training.state
    tensors = _server_tensors(state)
    tensors |= {
        f"clients.{name}": tensor.contiguous()
        for name, tensor in training.fleet.save().items()
    }
    position = {
        "format": _FORMAT,
        "algorithm": training.algorithm.name,
        **training.fleet.hashes,
        "seed": training.seed,
        "round": state.round,
        "exchange": state.exchange,
        "cost": asdict(state.cost),
        "rows": {name: list(extent) for name, extent in rows.items()},
        "tensors": tensors_digest(tensors),
    }
    position["digest"] = table_digest(position)
    with atomic_write(path, errors=(SafetensorError,), lasting=True) as part:
        save_file(tensors, part, metadata={"fedloom": json.dumps(position)})
        sync(part)
        if path.exists():
            path.replace(before(path))


def _server_tensors(state: ServerState) -> dict[str, Tensor]:
    """What the server keeps, by the names of a checkpoint."""
    tensors: dict[str, Tensor] = {}
    of_clients = {"taken": state.taken, "work": state.work}
    dims = client_dims(state.server)
    for (name, tensor), dim in zip(named(state.server).items(), dims, strict=True):
        plain = tensor.detach().cpu().contiguous()
        if dim:
            of_clients[f"server.{name}"] = plain
        else:
            # Cloned, because safetensors refuses fields that share memory.
            tensors[f"server.{name}"] = plain.clone()
    idle = ((state.taken == NONE_TAKEN) & (state.work == 0)).nonzero()[:1, 0].cpu()
    for name, tensor in of_clients.items():
        tensors |= _packed(name, tensor.cpu(), idle)
    return tensors


def _packed(name: str, rows: Tensor, idle: Tensor) -> dict[str, Tensor]:
    """Rows of all clients: that of `idle`, if there is one, and those that differ."""
    if len(idle) and rows.nbytes >= _PACKED_BYTES:
        by_byte = rows.view(len(rows), -1).view(torch.uint8)
        differs = torch.cat(
            [
                (some != by_byte[idle]).any(1)
                for some in torch.split(by_byte, _ROWS_AT_ONCE)
            ]
        )
        at = differs.nonzero()[:, 0]
        if len(at) < len(rows) // 2:
            return {
                f"packed.{name}.at": at,
                f"packed.{name}.rows": rows[at],
                f"packed.{name}.others": rows[idle],
            }
    return {name: rows.clone()}


def _unpacked(tensors: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    """The tensors of a checkpoint with the rows of all of `count` clients."""
    packed = {n: t for n, t in tensors.items() if n.startswith("packed.")}
    plain = {n: t for n, t in tensors.items() if n not in packed}
    for name, at in packed.items():
        if name.endswith(".at"):
            stem = name.removesuffix(".at")
            rows = packed[f"{stem}.others"].repeat_interleave(count, 0)
            rows[at] = packed[f"{stem}.rows"]
            plain[stem.removeprefix("packed.")] = rows
    return plain


def exists(path: Path) -> bool:
    """Whether a run has a checkpoint, whole or not."""
    return count(path) > 0


def count(path: Path) -> int:
    """How many checkpoints a run has, whole or not."""
    return path.is_file() + before(path).is_file()


def newest_position(path: Path) -> Position | None:
    """Where the newest checkpoint was written, by its header; None without one.

    Its tensors are not read, so a damage of theirs is not seen.
    """
    header = _read_header(path)
    return None if header is None else _position(header)


def rows_at(path: Path, at: Position) -> dict[str, Extent]:
    """How much of each file of rows belongs to the checkpoint that was written there.

    Raises:
        MessageError: there is no such checkpoint.
    """
    for file in (path, before(path)):
        header = _read_header(file)
        if header is not None and _position(header) == at:
            return {name: Extent(*extent) for name, extent in header["rows"].items()}
    raise MessageError(f"{path}: there is no checkpoint of round {at.round}.")


def whole_positions(path: Path) -> list[Position]:
    """Where the checkpoints of a run that are whole were written, the newest first.

    Every byte of them is read and checked.
    """
    positions = (_whole_position(file) for file in (path, before(path)))
    return [position for position in positions if position is not None]


def restore(training: Training, path: Path, at: Position | None = None) -> str:
    """Put a run back to where a checkpoint left it; no file is changed.

    Args:
        training: the run.
        path: its newest checkpoint; if that is damaged, the one before is used.
        at: the one that was written there, instead of the newest.

    Returns:
        A remark for the user; empty if the newest was whole.

    Raises:
        MessageError: no checkpoint is whole, or they belong to another method, split,
            data or seed.
    """
    damaged: MessageError | None = None
    for file in (path, before(path)):
        if file == path and not path.is_file() and before(path).is_file():
            continue  # the process was killed between two names; nothing is damaged
        try:
            position, tensors = _read(file)
        except MessageError as error:
            damaged = damaged or error
            continue
        _check(position, training, file)
        if at is None or at == (position["round"], position["exchange"]):
            _put_back(training, position, tensors, file)
            return f"{damaged} The one before it is used." if damaged else ""
    if damaged is not None or at is None:
        raise damaged or MessageError(f"{path}: there is no checkpoint.")
    raise MessageError(f"{path}: there is no checkpoint of round {at.round}.")


def forget_after(path: Path, at: Position) -> None:
    """Make the checkpoint of `at` the newest, before the run goes on from there.

    Otherwise the next one would push it out and leave a later or a damaged one.

    Raises:
        DataError: the files cannot be changed.
    """
    if at == START:
        remove(path)
        remove(before(path))
    elif _whole_position(path) != at:
        try:
            before(path).replace(path)
        except OSError as error:
            raise cannot_write(path, error) from error


def _whole_position(file: Path) -> Position | None:
    """Where a checkpoint was written; None if it is not whole."""
    try:
        return _position(_read(file)[0])
    except MessageError:
        return None


def _position(header: Mapping[str, Any]) -> Position:
    return Position(header["round"], header["exchange"])


def _read_header(path: Path) -> dict[str, Any] | None:
    """What a checkpoint says of itself; None if that is not whole."""
    try:
        with safe_open(path, framework="pt") as file:
            return _header(file)
    except (SafetensorError, *UNREADABLE):
        return None


def _header(file: Any) -> dict[str, Any]:
    """What an open checkpoint says of itself, checked against its digest."""
    header: Any = json.loads((file.metadata() or {}).get("fedloom", "{}"))
    if not isinstance(header, dict):
        raise ValueError("its header is damaged")
    if header.get("format") not in _READABLE:
        raise ValueError(
            f"its format is {header.get('format')!r}, expected {_FORMAT!r}"
        )
    if header.pop("digest", None) != table_digest(header):
        raise ValueError("the checksum of its header is wrong")
    cost = header.get("cost")
    is_sound = isinstance(cost, dict) and cost.keys() == _COST
    is_sound &= isinstance(header.get("rows"), dict)
    for name in ("round", "exchange"):
        is_sound &= type(header.get(name)) is int
    if not is_sound:
        raise ValueError("its header is damaged")
    return header


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint's position and tensors, checked against their digests."""
    try:
        with safe_open(path, framework="pt") as file:
            position = _header(file)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if position.get("tensors") != tensors_digest(tensors):
            raise ValueError("its checksum is wrong")
    except (SafetensorError, *UNREADABLE) as error:
        raise MessageError(f"{path}: not a whole checkpoint ({error}).") from error
    return position, tensors


def _check(position: Mapping[str, Any], training: Training, path: Path) -> None:
    expected = {
        "algorithm": training.algorithm.name,
        **training.fleet.hashes,
        "seed": training.seed,
    }
    for what, value in expected.items():
        if position.get(what) != value:
            raise MessageError(
                f"{path}: {what} is {position.get(what)!r}, this run has {value!r}. "
                "Resume with the run's own settings and data."
            )


def _put_back(
    training: Training,
    position: Mapping[str, Any],
    tensors: dict[str, Tensor],
    path: Path,
) -> None:
    state, device = training.state, training.task.device
    coordinator = training.coordinator
    tensors = _unpacked(tensors, coordinator.roster.count)
    server = from_named(state.server, _below(tensors, "server."), str(path))
    for name in ("taken", "work"):
        if name not in tensors:
            raise MessageError(f"{path}: field {name!r} is missing.")
    request = coordinator.model_request(coordinator.everyone)
    training.fleet.restore(_below(tensors, "clients."), request, str(path))
    # In memory of its own: where a file happens to place a tensor may change the order
    # in which vector instructions add it up, and so the last bits.
    state.server = map_record(lambda tensor: tensor.clone().to(device), server)
    state.taken = tensors["taken"].clone().to(device)
    state.work = tensors["work"].clone().to(device)
    state.round, state.exchange = position["round"], position["exchange"]
    state.cost = RoundCost(**position["cost"])


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
