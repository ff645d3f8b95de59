"""From run directories to the few numbers that are stored of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.comparison.seeds import Clients
from fedloom.core.metrics import METRICS
from fedloom.experiments.experiment import Experiment, Figure, Unit
from fedloom.experiments.stored import rounded
from fedloom.results.by_size import by_size
from fedloom.results.directory import RunDirectory
from fedloom.results.row_files import read_batches
from fedloom.results.rows import Round

ALWAYS = tuple(
    f"{kind}/test/{name}"
    for kind in ("shared", "personal")
    for name in ("accuracy", "accuracy_weighted")
)
"""Scores that are kept whether a table shows them or not."""

_BINS = 20
_DECILES = 10


def collect(
    experiments: Sequence[Experiment],
    unit: Unit,
    directories: Sequence[RunDirectory],
    clients: Clients,
) -> dict[str, Any]:
    """What is stored of the runs of a unit, one for each seed.

    Args:
        experiments: that show it; their numbers and figures say what is kept.
        unit: which arm, in which setting.
        directories: of its runs, all at their end.
        clients: of every seed.
    """
    failures: dict[str, str] = {}
    every: list[list[Round]] = []
    for directory, (config, _) in zip(directories, clients, strict=True):
        why = directory.read_failure()
        if why is not None:
            failures[str(config.schedule.seed)] = why
            every.append([])
            continue
        every.append(directory.read_rounds())
    scored = [[row for row in rows if row.scores] for rows in every]
    longest = max(scored, key=len)
    done = [d for d in directories if d.read_failure() is None]
    asked = [number.of for e in experiments for number in e.numbers.values()]
    kept = dict.fromkeys([*ALWAYS, *asked])
    curves = {
        name: [[_number(row, name) for row in rows] for rows in scored]
        for name in kept
        if any(name in row.numbers() for row in longest)
    }
    drawn = {
        figure.title: _drawn(figure, experiment, done, clients)
        for experiment in experiments
        for figure in experiment.figures
        if figure.kind != "lines"
        and figure.setting == unit.setting
        and unit.arm in (figure.arms or experiment.arms)
        and done
    }
    return {
        "rounds": tuple(row.round for row in longest),
        "curves": curves,
        "spent": _spent([rows for rows in every if rows], clients),
        "failures": failures,
        "drawn": {title: own for title, own in drawn.items() if own is not None},
    }


def _number(row: Round, name: str) -> float | None:
    return rounded(row.numbers().get(name, float("nan")))


def _spent(
    every: Sequence[Sequence[Round]], clients: Clients
) -> dict[str, list[float]]:
    """Steps and uploads of the average client up to every scored round."""
    if not every:
        return {}
    size = clients[0][1].count
    kept = [n for n, row in enumerate(every[0]) if row.scores]
    spent = {}
    for name, title in (("steps", "steps"), ("participants", "uploads")):
        sums = [np.cumsum([getattr(row, name) for row in rows]) for rows in every]
        mean = np.mean(sums, axis=0) / size
        spent[title] = [float(f"{mean[n]:.5g}") for n in kept]
    return spent


def _drawn(
    figure: Figure,
    experiment: Experiment,
    directories: Sequence[RunDirectory],
    clients: Clients,
) -> Any:
    if figure.kind in ("log", "log-histogram"):
        return _logged(figure, directories)
    number = experiment.numbers[figure.number]
    kind, part, summary = number.of.split("/")
    # A client has the metric itself, whatever sums it up.
    name = next(m for m in METRICS if f"{summary}_".startswith(f"{m}_"))
    values, sizes = [], []
    for directory in directories:
        seed = directory.read_manifest()["seed"]
        (federation,) = (f for config, f in clients if config.schedule.seed == seed)
        own = np.full(federation.count, np.nan)
        for who, score in _last_scores(directory, kind, part, name):
            own[who] = score
        values.append(own)
        sizes.append(federation.sizes)
    joined, held = np.concatenate(values), np.concatenate(sizes)
    if figure.kind == "sizes":
        groups = by_size(held, joined, bins=_DECILES)
        return {
            "sizes": [rounded(v) for v in groups.sizes],
            "scores": [rounded(v) for v in groups.scores],
            "errors": [rounded(v) for v in groups.errors],
        }
    counts, edges = np.histogram(joined[~np.isnan(joined)], _BINS, (0.0, 1.0))
    return {"edges": [rounded(v) for v in edges], "counts": counts.tolist()}


def _last_scores(
    directory: RunDirectory, kind: str, part: str, name: str
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Clients and their scores, round after round; the last one counts."""
    for batch in read_batches(directory.rows.clients.path):
        table = {
            c: batch.column(c).to_numpy(zero_copy_only=False)
            for c in batch.schema.names
        }
        wanted = (table["kind"] == kind) & (table["part"] == part)
        if name in table:
            yield table["client"][wanted], table[name][wanted]


def _logged(figure: Figure, directories: Sequence[RunDirectory]) -> Any:
    """A number of the method's own log: of one round, or of one client."""
    logs = [directory.rows.read_client_log() for directory in directories]
    if not all(figure.log in log for log in logs):
        return None
    if figure.kind == "log-histogram":
        at = [log[figure.log][log["round"] == _round(figure, log)] for log in logs]
        values = np.concatenate(at)
        top = max(1.0, float(values.max()))
        counts, edges = np.histogram(values, _BINS, (0.0, top))
        return {"edges": [rounded(v) for v in edges], "counts": counts.tolist()}
    first = logs[0]
    busiest = np.bincount(first["client"]).argmax()
    own = first["client"] == busiest
    return {
        "rounds": first["round"][own].tolist(),
        "values": [rounded(v) for v in first[figure.log][own]],
    }


def _round(figure: Figure, log: Mapping[str, NDArray[Any]]) -> int:
    """The round that a histogram is of, or the last one of a shorter run."""
    return min(figure.round, int(log["round"].max()))
