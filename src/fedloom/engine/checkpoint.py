"""Checkpoints: all that changes in a run, in one safetensors file, whole or not at all.

The random streams need no saving: they depend on counters alone.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedloom.core.errors import MessageError
from fedloom.core.records import from_named, named
from fedloom.engine.rounds import Loom, Tally

_FORMAT = "fedloom-checkpoint-1"


def save(loom: Loom, path: Path) -> None:
    """Write the state of a run; the old file stays until the new one is whole."""
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
    }
    part = path.with_suffix(".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, part, metadata={"fedloom": json.dumps(position)})
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.replace(path)


def restore(loom: Loom, path: Path) -> None:
    """Put a run back to where a checkpoint left it.

    Raises:
        MessageError: the file is damaged, or belongs to another method or split.
    """
    try:
        with safe_open(path, framework="pt") as file:
            position = json.loads((file.metadata() or {}).get("fedloom", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise MessageError(f"{path}: not a whole checkpoint ({error}).") from error
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
