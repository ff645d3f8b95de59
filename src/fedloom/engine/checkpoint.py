"""Checkpoints: all that changes in a run, in one safetensors file, whole or not at all.

The random streams need no saving: they depend on counters alone. The checkpoint before
the newest is kept beside it, for when the newest is damaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedloom.core.errors import MessageError
from fedloom.core.files import cannot_write, partial_path, remove, sync
from fedloom.core.records import from_named, named
from fedloom.engine.rounds import RoundCost, Simulation

_FORMAT = "fedloom-checkpoint-3"


class Position(NamedTuple):
    """Where in a run a checkpoint was written."""

    round: int
    exchange: int


START = Position(0, 0)
"""Before the first exchange, which needs no checkpoint."""


def before(path: Path) -> Path:
    """Where the checkpoint before the newest lies."""
    return path.with_stem(f"{path.stem}-before")


def save(simulation: Simulation, path: Path) -> None:
    """Write the state of a run; the old file stays until the new one is whole.

    Raises:
        DataError: it cannot be written; the checkpoints that are there are untouched.
    """
    state = simulation.state
    tensors = {
        # Cloned, because safetensors refuses fields that share memory.
        f"server.{name}": tensor.detach().cpu().contiguous().clone()
        for name, tensor in named(state.server).items()
    }
    tensors |= {name: t.contiguous() for name, t in state.table.dump().items()}
    position = {
        "format": _FORMAT,
        "algorithm": simulation.algorithm.name,
        "split": simulation.federation.hash,
        "data": simulation.federation.dataset.hash,
        "seed": simulation.seed,
        "round": state.round,
        "exchange": state.exchange,
        "tally": asdict(state.tally),
        "digest": _digest(tensors),
    }
    part = partial_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, part, metadata={"fedloom": json.dumps(position)})
        sync(part)
        if path.exists():
            path.replace(before(path))
        part.replace(path)
        sync(path.parent)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def exists(path: Path) -> bool:
    """Whether a run has a checkpoint, whole or not."""
    return path.is_file() or before(path).is_file()


def positions(path: Path) -> list[Position]:
    """Where the checkpoints of a run that are whole were written, the newest first."""
    found = (_position(file) for file in (path, before(path)))
    return [position for position in found if position is not None]


def restore(simulation: Simulation, path: Path, at: Position | None = None) -> str:
    """Put a run back to where a checkpoint left it; no file is changed.

    Args:
        simulation: the run.
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
        _check(position, simulation, file)
        if at is None or at == (position["round"], position["exchange"]):
            _put_back(simulation, position, tensors, file)
            return f"{damaged} The one before it is used." if damaged else ""
    if damaged is not None:
        raise damaged
    assert at is not None
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
    elif _position(path) != at:
        try:
            before(path).replace(path)
        except OSError as error:
            raise cannot_write(path, error) from error


def _position(file: Path) -> Position | None:
    """Where a checkpoint was written; None if it is not whole."""
    try:
        position, _ = _read(file)
        return Position(position["round"], position["exchange"])
    except (MessageError, KeyError):
        return None


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


def _check(position: Mapping[str, Any], simulation: Simulation, path: Path) -> None:
    expected = {
        "format": _FORMAT,
        "algorithm": simulation.algorithm.name,
        "split": simulation.federation.hash,
        "data": simulation.federation.dataset.hash,
        "seed": simulation.seed,
    }
    for what, value in expected.items():
        if position.get(what) != value:
            raise MessageError(
                f"{path}: {what} is {position.get(what)!r}, this run has {value!r}. "
                "Resume with the run's own settings and data."
            )


def _put_back(
    simulation: Simulation,
    position: Mapping[str, Any],
    tensors: dict[str, Tensor],
    path: Path,
) -> None:
    state, device = simulation.state, simulation.task.device
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
    state.tally = RoundCost(**position["tally"])
