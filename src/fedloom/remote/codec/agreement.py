"""What server and clients must have the same, and in what they differ."""

from __future__ import annotations

import json
from dataclasses import asdict

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.digests import table_digest
from fedloom.core.errors import shown
from fedloom.core.records import tensors_digest
from fedloom.core.secure_sums import SecureSums
from fedloom.core.summed import Wrapped
from fedloom.core.task import Task
from fedloom.core.tiers import GlobalTier
from fedloom.core.version import VERSION


def settings_digest(
    algorithm: AnyAlgorithm, task: Task, seed: int, secure: SecureSums | None = None
) -> str:
    """The digest of what server and clients must have the same, data apart.

    The version of Fedloom, the method with its settings, the model with its first
    parameters, what is measured, the seed, and how uploads are summed securely, if they
    are.
    """
    return table_digest(
        {
            "fedloom": VERSION,
            "algorithm": algorithm.name,
            "settings": _settings(algorithm),
            "layout": [[b.name, list(b.shape)] for b in task.layout],
            "start": tensors_digest({"start": task.start}),
            "head": task.base_d,
            "metric": task.metric,
            "dtype": str(task.dtype),
            "seed": seed,
            **_of_sums(secure),
        }
    )


def agreement(
    algorithm: AnyAlgorithm, seed: int, secure: SecureSums | None = None
) -> str:
    """What server and clients must have the same, as text that a client compares."""
    table = {"fedloom": VERSION, "algorithm": algorithm.name, "seed": seed}
    settings = {**_settings(algorithm), **_of_sums(secure)}
    return json.dumps({**table, **settings}, sort_keys=True)


def _of_sums(secure: SecureSums | None) -> dict[str, str]:
    """The settings of secure sums in words; nothing where there are none."""
    if secure is None:
        return {}
    return {f"secure.{name}": repr(value) for name, value in asdict(secure).items()}


def _settings(algorithm: AnyAlgorithm) -> dict[str, str]:
    """A method's settings in words; of a global tier, the method's and that it is."""
    if isinstance(algorithm, GlobalTier):
        return {"clients are": "team servers", **_settings(algorithm.method)}
    if isinstance(algorithm, Wrapped):
        return {**_settings(algorithm.algorithm), **algorithm.parts}
    return {name: repr(value) for name, value in asdict(algorithm).items()}


def disagreement(mine: str, theirs: str) -> str:
    """In what the server's `agreement` differs from a client's; empty if in nothing."""
    own = json.loads(mine)
    try:
        other = dict(json.loads(theirs))
    except (ValueError, TypeError, RecursionError):
        return "what it says of its settings cannot be read"
    return "; ".join(
        f"{key} is {shown(other.get(key))} at the server, {shown(own.get(key))} here"
        for key in dict.fromkeys((*own, *other))
        if own.get(key) != other.get(key)
    )
