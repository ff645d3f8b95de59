"""Results as they are stored: a small JSON file for every experiment and scale."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.core.errors import DataError
from fedloom.core.files import atomic_write, write_text
from fedloom.core.version import VERSION
from fedloom.plan import checkout_commit

COMMIT = "FEDLOOM_COMMIT"
"""Environment variable that names the commit where the sources lie in no checkout."""


@dataclass(frozen=True, kw_only=True)
class StoredUnit:
    """What is kept of an arm in a setting."""

    digest: str
    """Of the settings that the experiment's file states."""
    seeds: tuple[int, ...]
    seconds: float
    """How long it took; of a unit that was stopped, its last part."""
    created: str
    environment: Mapping[str, Any]
    """Commit, versions and hardware that it was made with."""
    rounds: tuple[int, ...] = ()
    """After which models were scored."""
    curves: Mapping[str, list[list[float | None]]] = field(default_factory=dict)
    """By number, one list of scores for every seed; None of one that diverged."""
    spent: Mapping[str, list[float]] = field(default_factory=dict)
    """Steps and uploads of the average client up to those rounds, mean over seeds."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why a seed diverged."""
    values: Mapping[str, list[float | None]] = field(default_factory=dict)
    """Numbers of a program: a mean and its standard error."""
    drawn: Mapping[str, Any] = field(default_factory=dict)
    """What figures show beside curves."""


def now() -> str:
    """The date of a result."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes")


def environment(device: torch.device) -> dict[str, Any]:
    """With what results are computed here and now.

    `sources` is a digest of the package's own files, which tells programs apart where
    there is no commit.
    """
    is_gpu = device.type == "cuda"
    return {
        "fedloom": VERSION,
        "commit": checkout_commit() or os.environ.get(COMMIT),
        "sources": _sources(),
        "device": torch.cuda.get_device_name(device) if is_gpu else _processor(),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    """What the processor calls itself, where the system says it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "cpu"


@cache
def _sources() -> str:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted([*package.rglob("*.py"), *package.rglob("*.c")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def stored_file(folder: Path, name: str, scale: str) -> Path:
    """Where the results of an experiment lie."""
    return folder / f"{name}.{scale}.json"


def read_stored(folder: Path, name: str, scale: str) -> dict[str, StoredUnit]:
    """Results by the names of their units; empty if there are none.

    Raises:
        DataError: the file is not whole.
    """
    file = stored_file(folder, name, scale)
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        return {
            unit: _read(own, document["environments"])
            for unit, own in document["units"].items()
        }
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"{file}: not results of this version ({error}). Move it away, and run "
            "the experiment again."
        ) from error


def write_stored(
    folder: Path, name: str, scale: str, units: Mapping[str, StoredUnit]
) -> None:
    """Write the results of an experiment, in one go.

    Args:
        folder: of all results.
        name: of the experiment.
        scale: small or paper.
        units: by their names, in the order of the experiment.
    """
    file = stored_file(folder, name, scale)
    file.parent.mkdir(parents=True, exist_ok=True)
    environments: list[Mapping[str, Any]] = []
    for own in units.values():
        if own.environment not in environments:
            environments.append(own.environment)
    table = {
        "experiment": name,
        "scale": scale,
        "environments": environments,
        "units": {unit: _filled(own, environments) for unit, own in units.items()},
    }
    with atomic_write(file) as part:
        write_text(part, _json(table) + "\n")


def _filled(unit: StoredUnit, environments: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What a unit has; what is empty is left out."""
    own = {**asdict(unit), "environment": environments.index(unit.environment)}
    return {key: value for key, value in own.items() if value not in ({}, [], ())}


def _read(own: dict[str, Any], environments: list[Any]) -> StoredUnit:
    made_in = environments[own["environment"]]
    rounds, seeds = tuple(own.get("rounds", ())), tuple(own["seeds"])
    changed = {"rounds": rounds, "seeds": seeds, "environment": made_in}
    return StoredUnit(**{**own, **changed})


def _json(value: Any, indent: str = "") -> str:
    """JSON that a person can read: lists stand on one line each."""
    if isinstance(value, Mapping) and value:
        inner = indent + " "
        lines = [
            f"{inner}{json.dumps(key)}: {_json(own, inner)}"
            for key, own in value.items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        inner = indent + " "
        lines = [inner + json.dumps(own) for own in value]
        return "[\n" + ",\n".join(lines) + f"\n{indent}]"
    return json.dumps(value)


def rounded(value: float) -> float | None:
    """A number in as many digits as anybody needs; None if it is not finite."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
