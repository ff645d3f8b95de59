"""The numbers of one run, as tables and figures want them, from its files.

run_scores(path)["personal"]["accuracy_weighted"]   at the end, by kind of model
score_curve(path, "accuracy_weighted", part="train")    round by round
scores_by_size(path)                                against training samples
client_log(path)["wanted"]                          what drove clients, as recorded
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError, DataError, unknown
from fedloom.core.reprs import without_values
from fedloom.results.by_size import BySize, by_size
from fedloom.results.directory import RunDirectory
from fedloom.results.reader import RunReader
from fedloom.results.rows import Round

Run = str | Path | Sequence[Round]
"""The directory of a run, or the rows of one."""


@without_values
class Curve(NamedTuple):
    """One number of a run over its rounds."""

    rounds: NDArray[np.int64]
    """(evaluations,) the evaluated rounds; 0 is the start, before any training."""
    values: NDArray[np.float64]
    """(evaluations,) the number after each of them."""


def run_scores(
    run: Run, part: str = "test", *, last: int = 1
) -> dict[str, dict[str, float]]:
    """All that sums up the scores of clients, by kind of model and by name.

    Names are those of the rows: `accuracy` is the mean over clients,
    `accuracy_weighted` that over samples, `accuracy_worst_decile`,
    `accuracy_largest_decile` and `accuracy_smallest_decile` are of a tenth of the
    clients: those who do worst, and those with most and with fewest training samples.

    Args:
        run: the directory of a run, or its rows.
        part: train, validation or test.
        last: how many evaluations, the last ones, each number is the mean of. A shared
            model of few uploads swings from one to the next.

    Raises:
        ConfigError: `last` is less than 1.
        DataError: this is no run, or it was not scored on that part so often.
    """
    if last < 1:
        raise ConfigError(f"run_scores: last must be at least 1, found {last}.")
    by_kind: dict[str, list[dict[str, float]]] = {}
    for row in _rows(run):
        for kind, parts in row.scores.items():
            if part in parts and row.round > 0:
                by_kind.setdefault(kind, []).append(parts[part])
    found = max(map(len, by_kind.values()), default=0)
    if found < last:
        raise DataError(
            f"{_name(run)}: expected at least {last} evaluations on {part} data, found "
            f"{found}. Evaluate more often (evaluate_every; evaluate_train for "
            "training data), or ask for fewer."
        )
    return {
        kind: {
            name: float(np.mean([numbers[name] for numbers in scored[-last:]]))
            for name in scored[-1]
        }
        for kind, scored in by_kind.items()
    }


def score_curve(
    run: Run, number: str, kind: str = "personal", part: str = "test"
) -> Curve:
    """One number over the rounds.

    Args:
        run: as for `run_scores`.
        number: its name, as `run_scores` has it.
        kind: shared, team, personal or averaged.
        part: as for `run_scores`.

    Raises:
        ConfigError: no evaluation has such a number.
        DataError: this is no run, or such models were never scored on that part.
    """
    scored = {
        row.round: row.scores[kind][part]
        for row in _rows(run)
        if part in row.scores.get(kind, {})
    }
    if not scored:
        raise DataError(f"{_name(run)}: has no {kind} scores on {part} data.")
    known = dict.fromkeys(name for numbers in scored.values() for name in numbers)
    if number not in known:
        raise ConfigError(f"{_name(run)}: {unknown('number', number, known)}")
    values = [numbers.get(number, np.nan) for numbers in scored.values()]
    return Curve(np.array(list(scored), dtype=np.int64), np.array(values))


def scores_by_size(
    path: str | Path,
    kind: str = "personal",
    part: str = "test",
    number: str | None = None,
    *,
    bins: int = 10,
) -> BySize:
    """Mean score at the last evaluation against how many training samples clients have.

    Args:
        path: the directory of a run.
        kind: as for `score_curve`.
        part: as for `run_scores`.
        number: name of a metric; the one that the task is judged by, if none is given.
        bins: groups of clients at most.

    Raises:
        DataError: this is no run, or it lacks these scores or its split.
    """
    reader = _reader(path)
    name = number if number is not None else str(reader.manifest()["metric"])
    evaluated = [row.round for row in reader.rounds() if row.scores]
    scores = reader.scores(evaluated[-1]) if evaluated else None
    data = reader.client_data()
    if scores is None or name not in scores.columns.get((kind, part), {}):
        raise DataError(
            f"{reader.path}: has no {name} of {kind} models on {part} data."
        )
    if data is None:
        raise DataError(
            f"{reader.path}: its split, which says how many samples clients have, is "
            "not there or damaged."
        )
    values = scores.get(kind, part, name)
    return by_size(data.sizes[scores.clients], values, bins=bins)


def client_log(path: str | Path) -> dict[str, NDArray[Any]]:
    """What drove clients: by name, one entry per round and client that took part.

    Always there are `round`, `client`, `train_loss`, `steps` (those taken) and
    `gradients`; the rest is what the method records, as `fedloom describe` lists it.
    Of rounds of several exchanges it is the last one.

    Args:
        path: the directory of a run.

    Raises:
        DataError: this is no run, or it has no such log.
    """
    reader = _reader(path)
    tables = list(reader.client_log(sys.maxsize))
    if not tables:
        raise DataError(
            f"{reader.path}: has no log of its clients, or a damaged one. In a real "
            "federation clients keep it to themselves."
        )
    table = pa.concat_tables(tables)
    return {name: np.array(table[name].to_numpy()) for name in table.column_names}


def _reader(path: str | Path) -> RunReader:
    return RunReader(RunDirectory.open(Path(path)).path)


def _rows(run: Run) -> Sequence[Round]:
    if not isinstance(run, str | Path):
        return run
    reader = _reader(run)
    name = reader.files.rows.rounds.path.name
    if name in reader.damage:
        raise DataError(reader.damage[name])
    return reader.rounds()


def _name(run: Run) -> str:
    """How messages call a run."""
    return str(run) if isinstance(run, str | Path) else "this run"
