"""A few ratios that tell whether something became slower, in one short run.

Each is a time of a simple way over a time of ours, measured in the same process, so
that a slower machine changes both. Images are random: nothing need be downloaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedloom.bench import engine, seeds
from fedloom.core.errors import DataError
from fedloom.engine.threads import on_threads

TOLERANCE = 0.6
"""Share of a stored ratio that a new one must reach. Of three runs on two cores that
were also used for other things, the lowest was at 0.7 to 0.98 of the middle one."""
_THREADS = 2
_MODELS = ("mlr", "mlp")
_SAMPLES = 20_000
_CLIENTS = {"mlr": 400, "mlp": 100}
_REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How many times faster ours is than a simple way."""

    name: str
    """What is measured: model, work and mode."""
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A ratio beside the stored one."""

    name: str
    ratio: float
    stored: float | None
    """None where none is stored."""
    is_slower: bool
    """Whether it is less than `TOLERANCE` of the stored one."""


def measure() -> Iterator[Ratio]:
    """Measure all ratios, on two threads of the CPU."""
    with on_threads(_THREADS):
        for model in _MODELS:
            for row in engine.measure(
                engine.random_images(_SAMPLES),
                [model],
                repeats=_REPEATS,
                modes=["plain", "weave", "weave-compiled", "native"],
                clients=_CLIENTS[model],
            ):
                if row.mode != "plain":
                    name = f"{model} {row.work} {row.mode}"
                    yield Ratio(name=name, ratio=row.ratio)
        for bundle in seeds.measure(["fedavg"]):
            yield Ratio(name=f"{bundle.method} seeds together", ratio=bundle.ratio)


def compare(measured: Sequence[Ratio], stored: Mapping[str, float]) -> list[Comparison]:
    """Set ratios beside the stored ones."""
    return [
        Comparison(
            name=row.name,
            ratio=row.ratio,
            stored=stored.get(row.name),
            is_slower=row.ratio < TOLERANCE * stored.get(row.name, 0.0),
        )
        for row in measured
    ]


def read(path: Path) -> dict[str, float]:
    """Stored ratios by name.

    Raises:
        DataError: There is no such file, or it has no ratios.
    """
    try:
        return {
            str(row["name"]): float(row["ratio"])
            for row in json.loads(path.read_text(encoding="utf-8"))
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}: expected rows with name and ratio, found {error!r}. Write it "
            "with: fedloom bench ratios --json FILE."
        ) from error
