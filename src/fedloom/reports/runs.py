"""One run directory, read."""

from __future__ import annotations

import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fedloom.core.errors import DataError
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round
from fedloom.results.statistics import choose_round

COMPARISON = "compare.toml"
"""The file that says that a directory holds a comparison."""


KIND = "personal"
"""The model that a method is judged by: what a client leaves with."""


_DEPTH = 4
"""How far below a given directory runs are looked for."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Every client's numbers in one run at one round."""

    round: int
    names: tuple[str, ...]
    columns: Mapping[tuple[str, str], Mapping[str, NDArray[np.float64]]]
    """By (kind of model, part of the data), then by number: (clients,) each."""

    def get(self, kind: str, part: str, number: str) -> NDArray[np.float64]:
        """(clients,) one number; nan where it was not recorded."""
        nothing = np.full(len(self.names), np.nan)
        return self.columns.get((kind, part), {}).get(number, nothing)


@dataclass(frozen=True, eq=False)
class Shares:
    """Who held what, as split.npz has it."""

    names: tuple[str, ...]
    sizes: NDArray[np.int64]
    """(clients,) training samples."""
    labels: NDArray[np.int64]
    """(clients, classes) training samples of each class; no columns if unknown."""
    classes: tuple[str, ...]
    """What the classes are called."""
    teams: NDArray[np.int64]
    """(clients,) team of each client."""
    holdings: tuple[str, frozenset[int]] | tuple[()] = ()
    """Fingerprint of all targets, and of which client holds which samples."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory."""

    path: Path
    method: str
    """What reports call the method with these settings."""
    seed: int
    manifest: Mapping[str, Any]
    config: Mapping[str, Any]
    rounds: tuple[Round, ...]
    planned: int
    """Rounds that the run was meant to have; 0 if unknown."""
    failure: str | None
    """Why it could not go on."""

    @property
    def state(self) -> str:
        """finished, failed or unfinished."""
        if self.failure is not None:
            return "failed"
        last = self.rounds[-1].round if self.rounds else -1
        return "finished" if last >= self.planned else "unfinished"

    @property
    def metric(self) -> str:
        """What `scores` are judged by."""
        return str(self.manifest["metric"])

    @cached_property
    def evaluated(self) -> tuple[Round, ...]:
        """Rounds that have scores."""
        return tuple(row for row in self.rounds if row.scores)

    @cached_property
    def part(self) -> str:
        """The data that are reported on: test, or validation if there are no others."""
        for row in self.evaluated:
            return "test" if "test" in row.scores.get(KIND, {}) else "validation"
        return "test"

    @cached_property
    def last_round(self) -> int | None:
        """The last evaluated round."""
        return self.evaluated[-1].round if self.evaluated else None

    @cached_property
    def chosen_round(self) -> int | None:
        """The round that does best on validation data; None without any."""
        if self.part == "validation":
            return None
        scores = {
            row.round: row.scores[KIND]["validation"][self.metric]
            for row in self.evaluated
            if self.metric in row.scores.get(KIND, {}).get("validation", {})
        }
        return choose_round(scores, self.metric)

    def number(
        self, round_: int | None, name: str, *, kind: str = KIND, part: str = ""
    ) -> float:
        """A number of one round, summed up over clients; nan if it is not there."""
        for row in self.evaluated:
            if row.round == round_:
                found = row.scores.get(kind, {}).get(part or self.part, {})
                return float(found.get(name, np.nan))
        return float("nan")

    def scores(self, round_: int | None) -> Scores | None:
        """Every client's numbers at a round; None if they were not written."""
        if round_ is None:
            return None
        return _read_scores(self.path / "clients" / f"{round_:06d}.parquet", round_)

    @cached_property
    def last(self) -> Scores | None:
        """Every client's numbers at the last evaluated round."""
        return self.scores(self.last_round)

    @cached_property
    def shares(self) -> Shares | None:
        """Who held what; None if the split cannot be read."""
        return _read_shares(self.path / "split.npz")

    @cached_property
    def alone(self) -> Mapping[str, NDArray[np.float64]] | None:
        """The columns `together` and `alone` of gain.parquet, if there is one."""
        path = self.path / "gain.parquet"
        if not path.is_file():
            return None
        table = pq.read_table(path)
        return {name: _numbers(table, name) for name in ("together", "alone")}

    @cached_property
    def client_log(self) -> tuple[pa.Table, ...]:
        """What drove participants, of at most 40 rounds evenly apart."""
        files = sorted((self.path / "client_log").glob("*.parquet"))
        return tuple(pq.read_table(file) for file in _thin(files, 40))

    def arrays(self) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """The last recorded arrays, with their round."""
        files = sorted((self.path / "arrays").glob("*.safetensors"))
        if not files:
            return None
        return int(files[-1].stem), load_file(files[-1])


def arm_of(path: Path) -> str:
    """What a comparison calls the method of one of its runs; empty for other runs."""
    is_compared = (path.parent.parent / COMPARISON).is_file()
    return path.parent.name if is_compared else ""


def find_runs(path: Path) -> Iterator[Path]:
    """Run directories at or below a path, those of comparisons included."""
    yield from _find(path, _DEPTH)


def _find(path: Path, depth: int) -> Iterator[Path]:
    if (path / "manifest.json").is_file():
        yield path
    elif depth and path.is_dir():
        for child in sorted(path.iterdir()):
            if child.is_dir() and not child.name.startswith("."):
                yield from _find(child, depth - 1)


def read_run(path: Path, method: str = "") -> Run:
    """One run directory.

    Args:
        path: the directory.
        method: what to call the method; by default its published name.

    Raises:
        DataError: it holds no run, or not a whole one.
    """
    directory = RunDirectory.open(path)
    try:
        manifest = directory.read_manifest()
        config = tomllib.loads(directory.config.read_text())
        rounds = tuple(directory.read_rounds())
        failure = directory.read_failure()
        return Run(
            path=path,
            method=method or str(manifest["algorithm"]),
            seed=int(manifest["seed"]),
            manifest=manifest,
            config=config,
            rounds=rounds,
            planned=int(config.get("rounds", 0)),
            failure=failure,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not a whole run directory ({type(error).__name__}: {error}). "
            "Leave it out, or run it again with --fresh."
        ) from error


def _read_scores(path: Path, round_: int) -> Scores | None:
    if not path.is_file():
        return None
    table = pq.read_table(path)
    kinds = np.array(table["kind"].to_pylist(), dtype=object)
    parts = np.array(table["part"].to_pylist(), dtype=object)
    clients = np.asarray(table["client"].to_numpy())
    names = np.array(table["name"].to_pylist(), dtype=object)
    order = np.argsort(clients, kind="stable")
    known = ("round", "client", "name", "kind", "part")
    numbers = {
        name: _numbers(table, name) for name in table.column_names if name not in known
    }
    columns: dict[tuple[str, str], dict[str, NDArray[np.float64]]] = {}
    for key in dict.fromkeys(zip(kinds, parts, strict=True)):
        rows = order[(kinds[order] == key[0]) & (parts[order] == key[1])]
        columns[key] = {name: values[rows] for name, values in numbers.items()}
        own = tuple(str(name) for name in names[rows])
    return Scores(round_, own, columns)


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.asarray(
        table[name].to_numpy(zero_copy_only=False), dtype=np.float64
    )
    return found


def _read_shares(path: Path) -> Shares | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        names = tuple(str(name) for name in arrays["names"].tolist())
        offsets = arrays["train_offsets"]
        labels = arrays.get("train_labels", np.zeros((len(names), 0)))
        classes = tuple(
            str(c) for c in arrays.get("class_names", np.array([])).tolist()
        )
        return Shares(
            names=names,
            sizes=np.diff(offsets).astype(np.int64),
            labels=labels.astype(np.int64),
            classes=classes or tuple(str(c) for c in range(labels.shape[1])),
            teams=arrays["teams"].astype(np.int64),
            holdings=_holdings(arrays, names),
        )
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None


def _holdings(
    arrays: Mapping[str, NDArray[Any]], names: tuple[str, ...]
) -> tuple[str, frozenset[int]] | tuple[()]:
    """Which client holds which samples of which data, whatever the part they are in."""
    if "targets" not in arrays:
        return ()
    held = set()
    for n, name in enumerate(names):
        mine = []
        for part in ("train", "validation", "test"):
            offsets = arrays[f"{part}_offsets"]
            mine.append(arrays[f"{part}_indices"][offsets[n] : offsets[n + 1]])
        held.add(hash((name, np.sort(np.concatenate(mine)).tobytes())))
    return str(arrays["targets"]), frozenset(held)


def _thin(files: list[Path], most: int) -> list[Path]:
    if len(files) <= most:
        return files
    places = np.unique(np.linspace(0, len(files) - 1, most).round().astype(int))
    return [files[n] for n in places]
