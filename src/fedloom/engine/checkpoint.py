"""Checkpoints: all that changes in a run, in one safetensors file, whole or not at all.

The random streams need no saving: they depend on counters alone. The checkpoint before
the newest is kept beside it, for when the newest is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedloom.core.errors import DataError, MessageError
from fedloom.core.records import from_named, named
from fedloom.engine.rounds import Loom, Tally

_FORMAT = "fedloom-checkpoint-2"


class Position(NamedTuple):
    """Where in a run a checkpoint was written."""

    round: int
    exchange: int


def before(path: Path) -> Path:
    """Where the checkpoint before the newest lies."""
    return path.with_stem(f"{path.stem}-before")


def save(loom: Loom, path: Path) -> None:
    """Write the state of a run; the old file stays until the new one is whole.

    Raises:
        DataError: it cannot be written; the checkpoints that are there are untouched.
    """
    state = loom.state
    tensors = {
        # Cloned, because safetensors refuses fields that share memory.
        f"server.{name}": tensor.detach().cpu().contiguous().clone()
        for name, tensor in named(state.server).items()
    }
    tensors |= {name: t.contiguous() for name, t in state.table.dump().items()}
    position = {
        "format": _FORMAT,
        "algorithm": loom.algorithm.name,
        "split": loom.federation.hash,
        "seed": loom.seed,
        "round": state.round,
        "exchange": state.exchange,
        "tally": asdict(state.tally),
        "digest": _digest(tensors),
    }
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, part, metadata={"fedloom": json.dumps(position)})
        with part.open("rb") as file:
            os.fsync(file.fileno())
        if path.exists():
            path.replace(before(path))
        part.replace(path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise DataError(
            f"{path}: the checkpoint of round {state.round} cannot be written "
            f"({error}). Make room or choose another place; what was written before "
            f"is whole, and `fedloom resume {path.parent}` goes on from it."
        ) from error


def positions(path: Path) -> list[Position]:
    """Where the checkpoints of a run that are whole were written, the newest first."""
    found = []
    for file in (path, before(path)):
        try:
            position, _ = _read(file)
            found.append(Position(position["round"], position["exchange"]))
        except (MessageError, KeyError):
            continue
    return found


def restore(loom: Loom, path: Path, at: Position | None = None) -> str:
    """Put a run back to where a checkpoint left it.

    Args:
        loom: the run.
        path: its newest checkpoint; if that is damaged, the one before is used.
        at: the one that was written there, instead of the newest.

    Returns:
        A remark for the user; empty if the newest was whole.

    Raises:
        MessageError: no checkpoint is whole, or they belong to another method, split
            or seed.
    """
    damaged: MessageError | None = None
    for file in (path, before(path)):
        try:
            position, tensors = _read(file)
        except MessageError as error:
            damaged = damaged or error
            continue
        _check(position, loom, file)
        if at is None or at == (position["round"], position["exchange"]):
            _put_back(loom, position, tensors, file)
            return f"{damaged} The one before it is used." if damaged else ""
    if damaged is not None:
        raise damaged
    assert at is not None
    raise MessageError(f"{path}: there is no checkpoint of round {at.round}.")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A checkpoint's position and tensors, checked against their digest."""
    try:
        with safe_open(path, framework="pt") as file:
            position = json.loads((file.metadata() or {}).get("fedloom", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise MessageError(f"{path}: not a whole checkpoint ({error}).") from error
    if position.get("format") == _FORMAT and position["digest"] != _digest(tensors):
        raise MessageError(f"{path}: not a whole checkpoint (its checksum is wrong).")
    return position, tensors


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of everything that was saved."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check(position: Mapping[str, Any], loom: Loom, path: Path) -> None:
    expected = {
        "format": _FORMAT,
        "algorithm": loom.algorithm.name,
        "split": loom.federation.hash,
        "seed": loom.seed,
    }
    for what, value in expected.items():
        if position.get(what) != value:
            raise MessageError(
                f"{path}: {what} is {position.get(what)!r}, this run has {value!r}. "
                "Resume with the run's own settings and data."
            )


def _put_back(
    loom: Loom, position: Mapping[str, Any], tensors: dict[str, Tensor], path: Path
) -> None:
    state, device = loom.state, loom.task.device
    prefix = "server."
    server = {
        name.removeprefix(prefix): tensor.to(device)
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    restored = from_named(state.server, server, str(path))
    state.table.restore(tensors, str(path))
    state.server = restored
    state.round, state.exchange = position["round"], position["exchange"]
    state.tally = Tally(**position["tally"])
