"""Every method on the embedded digits, in its default configuration, over seeds.

    fedloom reproduce digits

Twenty clients with five digits each and unequal sizes, an MLP with 100 hidden units, 50
rounds, everybody taking part. The question is modest: does a method's personal model
beat training alone, and beat FedAvg's shared model, without any tuning?
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.algorithms import REGISTRY
from fedloom.comparison import parse_comparison, run_comparison, run_directory
from fedloom.experiments.tables import markdown, write
from fedloom.results.directory import RunDirectory
from fedloom.results.table import closing_table

ROUNDS, SEEDS = 50, 5

ELSEWHERE = {"fedbn"}
"""Methods for models with normalisation layers, which this one does not have."""

ARMS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in REGISTRY if name not in ELSEWHERE},
    "local, 5 epochs": {"name": "local", "epochs": 5},
    "fedavg, 5 epochs, fine-tuned": {"name": "fedavg", "epochs": 5, "tuning": 5},
}
"""Methods as they are, and two baselines with as much local work as the systems."""


class Row(NamedTuple):
    """One method with one seed, at the last round."""

    method: str
    seed: int
    kind: str
    mean: float
    weighted: float
    worst_decile: float
    steps: int
    """Gradient steps per client and round."""


def reproduce(out: Path, seed: int) -> str:
    """Run `SEEDS` seeds from `seed` on, write all rows and the table."""
    tables = {
        "rounds": ROUNDS,
        "evaluate_every": ROUNDS,
        "checkpoint_every": ROUNDS,
        "seeds": list(range(seed, seed + SEEDS)),
        "methods": ARMS,
        "teams": {"name": "blocks", "teams": 2},
    }
    comparison = parse_comparison(tables)
    run_comparison(comparison, out / "runs")
    rows = [
        row
        for arm in comparison.arms
        for s in comparison.seeds
        for row in _read(arm, s, RunDirectory(run_directory(out / "runs", arm, s)))
    ]
    return write(out, "digits", Row._fields, rows, to_markdown(rows))


def _read(arm: str, seed: int, directory: RunDirectory) -> Iterator[Row]:
    """The last round of one run, one row per kind of model."""
    rounds = list(directory.read_rounds())
    steps = sum(row.steps for row in rounds)
    per_client = round(steps / ROUNDS / directory.read_manifest()["clients"])
    for row in closing_table(rounds, "accuracy"):
        numbers = row["mean"], row["weighted"], row["worst_decile"]
        yield Row(arm, seed, row["kind"], *numbers, per_client)


def to_markdown(rows: list[Row]) -> str:
    """Mean and standard error over seeds, in percent; gains are paired by seed."""
    alone = _numbers(rows, "local", "personal")
    shared = _numbers(rows, "fedavg", "shared")
    head = ("method", "model", "mean over clients", "worst 10 %", "over Local")
    lines = []
    for name, kind in dict.fromkeys((r.method, r.kind) for r in rows):
        own, worst = (_numbers(rows, name, kind, n) for n in ("mean", "worst_decile"))
        steps = next(r.steps for r in rows if r.method == name)
        cells = [_cell(own), _cell(worst), _cell(own - alone), _cell(own - shared)]
        lines.append((name, kind, *cells, str(steps)))
    return markdown((*head, "over FedAvg's shared", "steps"), lines)


def _numbers(
    rows: list[Row], method: str, kind: str, number: str = "mean"
) -> NDArray[np.float64]:
    wanted = [row for row in rows if (row.method, row.kind) == (method, kind)]
    return np.array([getattr(row, number) for row in wanted])


def _cell(values: NDArray[np.float64]) -> str:
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{100 * values.mean():.1f} ({100 * error:.1f})"
