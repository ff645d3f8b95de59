"""Is the answer of a comparison right? Asked in worlds where that is known.

    fedloom reproduce worlds
    fedloom reproduce worlds-in-groups

Every world is a file of rows with a column of clients, on which six methods are
compared over five seeds as the main job compares them. The report says what to use;
the world knows what every model is worth on endless data of its client.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from fedloom.comparison.workers import hand_out, workers
from fedloom.core.files import atomic_write, write_csv, write_text
from fedloom.experiments.tables import markdown
from fedloom.experiments.worlds.answers import (
    MethodRow,
    WorldRow,
    judge,
    read_answer,
)
from fedloom.experiments.worlds.training import ALONE, train_worlds
from fedloom.experiments.worlds.world import KINDS, draw_world, in_groups

WORLDS = 20 * len(KINDS)
"""How many worlds the study has: twenty of every kind."""

GROUPED = 5 * len(KINDS)
"""How many of them are studied in groups."""

TOGETHER = 12
"""Most worlds that train in the same passes."""


def reproduce(out: Path, seed: int, jobs: int | None = None) -> str:
    """Run the study, or what is left of it, and write its rows and its table.

    Args:
        out: where worlds.csv, methods.csv and worlds.md go.
        seed: of all worlds.
        jobs: processes at the same time; by default one per core.
    """
    return study(range(WORLDS), out, seed, jobs=jobs)


def reproduce_groups(out: Path, seed: int, jobs: int | None = None) -> str:
    """The same where rows come in groups that are never torn apart.

    Args:
        out: as for `reproduce`; another folder.
        seed: of all worlds.
        jobs: as for `reproduce`.
    """
    return study(range(GROUPED), out, seed, jobs=jobs, has_groups=True)


def study(
    numbers: Iterable[int],
    out: Path,
    seed: int = 0,
    *,
    jobs: int | None = None,
    has_groups: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> str:
    """The same for some of the worlds.

    Args:
        numbers: which worlds.
        out: as for `reproduce`; worlds that are finished there are not run again.
        seed: of all worlds.
        jobs: as for `reproduce`.
        has_groups: whether rows come in groups.
        tell: is told of every batch of worlds that is finished.
    """
    numbers = list(numbers)
    left = [n for n in numbers if not _file(out, seed, n).is_file()]
    batches = [",".join(map(str, batch)) for batch in _batches(left, seed)]
    count = min(jobs if jobs is not None else os.cpu_count() or 1, len(batches))
    if count <= 1:
        _begin_worker(out, seed, has_groups)
        for batch in batches:
            tell(_work(batch))
    else:
        with workers(count, _begin_worker, (out, seed, has_groups)) as start:
            hand_out(
                batches,
                lambda batch: start(_work, batch),
                count,
                lambda _, text: tell(text),
            )
    worlds, methods = _read(out, seed, numbers)
    write_csv([dataclasses.asdict(row) for row in worlds], out / "worlds.csv")
    write_csv([dataclasses.asdict(row) for row in methods], out / "methods.csv")
    table = to_markdown(worlds, methods)
    with atomic_write(out / "worlds.md") as part:
        write_text(part, table)
    return table


def _batches(numbers: Sequence[int], seed: int) -> list[tuple[int, ...]]:
    """Worlds whose models have the same shape, largest batches first."""
    shapes: dict[tuple[int, int], list[int]] = {}
    for number in numbers:
        world = draw_world(number, seed)
        shapes.setdefault((world.features, world.outputs), []).append(number)
    batches = []
    for members in shapes.values():
        size = -(-len(members) // -(-len(members) // TOGETHER))
        starts = range(0, len(members), size)
        batches += [tuple(members[at : at + size]) for at in starts]
    return sorted(batches, key=len, reverse=True)


_here: dict[str, tuple[Path, int, bool]] = {}
"""In a worker: where the study lies, its seed, and whether rows come in groups."""


def _begin_worker(out: Path, seed: int, has_groups: bool) -> None:
    # Small models leave several threads waiting for one another.
    torch.set_num_threads(1)
    _here["study"] = out, seed, has_groups


def _work(batch: str) -> str:
    """Train and judge some worlds; only what came of it stays."""
    out, seed, has_groups = _here["study"]
    worlds = [draw_world(int(number), seed) for number in batch.split(",")]
    if has_groups:
        worlds = [in_groups(world) for world in worlds]
    runs = out / f"worlds-{batch.replace(',', '-')}"
    shutil.rmtree(runs, ignore_errors=True)
    folders = [runs / f"world-{world.number}" for world in worlds]
    truths = train_worlds(worlds, folders)
    for world, folder in zip(worlds, folders, strict=True):
        row, methods = judge(world, read_answer(folder), truths)
        text = {
            "world": dataclasses.asdict(row),
            "methods": [dataclasses.asdict(method) for method in methods],
        }
        with atomic_write(_file(out, seed, world.number)) as part:
            write_text(part, json.dumps(text, indent=1))
    shutil.rmtree(runs)
    return f"worlds {batch}"


def _file(out: Path, seed: int, number: int) -> Path:
    return out / "finished" / f"seed-{seed}" / f"{number:04d}.json"


def _read(
    out: Path, seed: int, numbers: Iterable[int]
) -> tuple[list[WorldRow], list[MethodRow]]:
    texts = [
        json.loads(_file(out, seed, number).read_text(encoding="utf-8"))
        for number in numbers
    ]
    worlds = [WorldRow(**text["world"]) for text in texts]
    methods = [MethodRow(**row) for text in texts for row in text["methods"]]
    return worlds, methods


HEAD = (
    "world",
    "worlds",
    "no answer",
    "a federated method recommended",
    "of these, no true gain",
    "2 points worse than alone",
    "3 points to be had",
    "of these, within 1 point of the best",
    "scores in their interval",
    "gains in their interval",
    "points that the recommended score is too high",
)


def to_markdown(worlds: Sequence[WorldRow], methods: Sequence[MethodRow]) -> str:
    """One line for each kind of world, one for all, and what is asked of them."""
    kinds = [kind for kind in KINDS if any(row.kind == kind for row in worlds)]
    lines = [
        _line(
            kind,
            [row for row in worlds if row.kind == kind],
            [row for row in methods if row.kind == kind],
        )
        for kind in kinds
    ]
    lines.append(_line("all", worlds, methods))
    return (
        markdown(HEAD, lines)
        + "\n"
        + markdown(("asked", "of", "is"), _demands(worlds, methods))
    )


def _line(
    name: str, worlds: Sequence[WorldRow], methods: Sequence[MethodRow]
) -> tuple[str, ...]:
    federated = [row for row in worlds if row.is_federated]
    rich = [row for row in worlds if row.best_lead >= 3]
    return (
        name,
        str(len(worlds)),
        str(sum(not row.answer for row in worlds)),
        str(len(federated)),
        str(sum(_is_in_vain(row) for row in federated)),
        str(sum(row.lead <= -2 for row in federated)),
        str(len(rich)),
        str(sum(_is_near_best(row) for row in rich)),
        _share(_scores_held(methods)),
        _share(_gains_held(methods)),
        _bias(worlds),
    )


def _scores_held(methods: Sequence[MethodRow]) -> list[bool]:
    """Of every interval of a score, whether it holds the truth."""
    return _held((m.score_low, m.score, m.score_high) for m in methods)


def _gains_held(methods: Sequence[MethodRow]) -> list[bool]:
    others = (m for m in methods if m.method != ALONE)
    return _held((m.gain_low, m.gain, m.gain_high) for m in others)


def _held(intervals: Iterable[tuple[float, float, float]]) -> list[bool]:
    """Whether the middle number is between the others, where all three are known."""
    known = [numbers for numbers in intervals if np.isfinite(numbers).all()]
    return [low <= value <= high for low, value, high in known]


def _bias(worlds: Sequence[WorldRow]) -> str:
    """Mean of what is said that the recommended one reaches, minus the truth."""
    known = [r.said_score - r.score for r in worlds if np.isfinite(r.said_score)]
    return f"{np.mean(known):+.1f}" if known else ""


def _demands(
    worlds: Sequence[WorldRow], methods: Sequence[MethodRow]
) -> list[tuple[str, ...]]:
    """What an answer that can be trusted must do, and how often this one does."""
    poor = [row for row in worlds if row.best_gain <= _NOTHING]
    risky = [row for row in worlds if row.worst_lead <= -2]
    rich = [row for row in worlds if row.best_lead >= 3]
    return [
        (
            "no method gains: a federated one is recommended",
            *_part([row.is_federated for row in poor]),
        ),
        (
            "a method is 2 points worse than alone: such a one is recommended",
            *_part([row.is_federated and row.lead <= -2 for row in risky]),
        ),
        (
            "3 points to be had: what is recommended is within 1 point of the best",
            *_part([_is_near_best(row) for row in rich]),
        ),
        ("worlds with an answer", *_part([bool(row.answer) for row in worlds])),
        ("scores in their interval", *_part(_scores_held(methods), "intervals")),
        ("gains in their interval", *_part(_gains_held(methods), "intervals")),
        (
            "points that the recommended score is too high",
            f"{len(worlds)} worlds",
            _bias(worlds),
        ),
    ]


_NOTHING = 1e-9
"""Points below which a gain is none but for rounding."""


def _is_in_vain(row: WorldRow) -> bool:
    return row.gain <= _NOTHING


def _is_near_best(row: WorldRow) -> bool:
    return row.score >= row.best_score - 1


def _share(flags: Sequence[bool]) -> str:
    return f"{sum(flags)} of {len(flags)}"


def _part(flags: Sequence[bool], of: str = "worlds") -> tuple[str, str]:
    percent = f"{100 * np.mean(flags):.1f} %" if flags else ""
    return f"{len(flags)} {of}", f"{sum(flags)}, {percent}"
