"""Read run directories: a comparison, one run, or any list of runs."""

from __future__ import annotations

import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    def notes(self) -> tuple[pa.Table, ...]:
        """What drove participants, of at most 40 rounds evenly apart."""
        files = sorted((self.path / "notes").glob("*.parquet"))
        return tuple(pq.read_table(file) for file in _thin(files, 40))

    def arrays(self) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """The last recorded arrays, with their round."""
        files = sorted((self.path / "arrays").glob("*.safetensors"))
        if not files:
            return None
        return int(files[-1].stem), load_file(files[-1])


@dataclass(frozen=True, eq=False)
class Collection:
    """All runs of a report."""

    title: str
    paths: tuple[Path, ...]
    methods: tuple[str, ...]
    """In the order in which they were asked for."""
    seeds: tuple[int, ...]
    runs: Mapping[tuple[str, int], Run]
    """By method and seed."""
    absent: tuple[tuple[str, int], ...] = ()
    """Runs of a comparison that never began."""
    source: str = ""
    """The text of compare.toml, for a comparison."""
    remarks: tuple[str, ...] = ()
    """What a reader must know before believing anything."""

    @cached_property
    def metric(self) -> str:
        """What all runs are judged by."""
        return next(iter(self.runs.values())).metric if self.runs else "accuracy"

    @cached_property
    def counted(self) -> Mapping[tuple[str, int], Run]:
        """Runs whose scores are summed up: finished ones.

        If none is finished, all that have scores and did not fail.
        """
        done = {k: run for k, run in self.runs.items() if run.state == "finished"}
        return done or {
            k: run
            for k, run in self.runs.items()
            if run.state == "unfinished" and run.evaluated
        }

    @cached_property
    def is_paired(self) -> bool:
        """Whether all methods met the same clients in every seed."""
        for seed in self.seeds:
            met = {
                run.manifest.get("split")
                for (_, s), run in self.runs.items()
                if s == seed
            }
            if len(met) > 1:
                return False
        return True

    @cached_property
    def has_same_clients(self) -> bool:
        """Whether a client's name means the same client in every seed.

        It does if it holds the same samples of the same data. A partition that is
        drawn anew for every seed makes new clients, whatever they are called.
        """
        found = []
        for seed in self.seeds:
            run = self.first_run(seed)
            if run is not None:
                found.append(run.shares.holdings if run.shares is not None else ())
        return bool(found) and found[0] != () and all(h == found[0] for h in found)

    def first_run(
        self, seed: int | None = None, method: str | None = None
    ) -> Run | None:
        """The first counted run, perhaps of one seed or method."""
        for m in self.methods:
            for s in self.seeds:
                if seed in (None, s) and method in (None, m) and (m, s) in self.counted:
                    return self.counted[m, s]
        return None

    @cached_property
    def baseline(self) -> str | None:
        """The method that trains alone; the one called so, if there are several."""
        able = [
            m
            for m in self.methods
            if self.algorithm(m) == "local" and self.first_run(method=m) is not None
        ]
        if len(self.methods) < 2 or not able:
            return None
        return "local" if "local" in able else able[0]

    def of(self, method: str) -> list[Run | None]:
        """A method's counted runs, one entry per seed."""
        return [self.counted.get((method, seed)) for seed in self.seeds]

    def algorithm(self, method: str) -> str:
        """The published name behind what reports call a method."""
        for (m, _), run in self.runs.items():
            if m == method:
                return str(run.manifest["algorithm"])
        return method

    def state_counts(self, method: str) -> dict[str, int]:
        """How many runs of a method finished, failed, are unfinished or never began."""
        counts = {"finished": 0, "failed": 0, "unfinished": 0, "never begun": 0}
        for (m, _), run in self.runs.items():
            if m == method:
                counts[run.state] += 1
        counts["never begun"] = sum(m == method for m, _ in self.absent)
        return counts


def collect(paths: Sequence[Path]) -> Collection:
    """All runs at or below some directories.

    Args:
        paths: comparisons, run directories, or folders that hold such.

    Raises:
        DataError: there is no run, or runs cannot be put into one report.
    """
    if len(paths) == 1 and (paths[0] / COMPARISON).is_file():
        return _collect_comparison(paths[0])
    directories = list(dict.fromkeys(d for path in paths for d in find_runs(path)))
    if not directories:
        named = ", ".join(str(path) for path in paths)
        raise DataError(
            f"{named}: there is no run there (no manifest.json). Give directories "
            "that `fedloom run` or `fedloom compare` named at their end."
        )
    runs = _named([read_run(d, arm_of(d)) for d in directories])
    _check_metric(runs)
    methods = tuple(dict.fromkeys(run.method for run in runs))
    seeds = tuple(sorted({run.seed for run in runs}))
    title = _title(runs[0]) if len(runs) == 1 else f"{len(runs)} runs"
    return _with_remarks(
        Collection(
            title=title,
            paths=tuple(paths),
            methods=methods,
            seeds=seeds,
            runs={(run.method, run.seed): run for run in runs},
        )
    )


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


def _collect_comparison(path: Path) -> Collection:
    file = path / COMPARISON
    try:
        source = file.read_text()
        tables = tomllib.loads(source)
        methods = tuple(str(name) for name in tables["methods"])
        seeds = tuple(int(seed) for seed in tables["seeds"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file}: not the file of a comparison ({type(error).__name__}: {error})."
        ) from error
    runs, absent = {}, []
    for method in methods:
        for seed in seeds:
            directory = path / method / f"seed-{seed}"
            if (directory / "manifest.json").is_file():
                runs[method, seed] = read_run(directory, method)
            else:
                absent.append((method, seed))
    if runs:
        _check_metric(list(runs.values()))
    first = next(iter(runs.values()), None)
    about = _title(first).partition(" on ")[2] if first is not None else path.name
    return _with_remarks(
        Collection(
            title=f"{len(methods)} methods on {about}",
            paths=(path,),
            methods=methods,
            seeds=seeds,
            runs=runs,
            absent=tuple(absent),
            source=source,
        )
    )


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


def _title(run: Run) -> str:
    return f"{run.manifest['algorithm']} on {run.manifest['dataset']}"


def _named(runs: list[Run]) -> list[Run]:
    """Loose runs under names that tell them apart.

    Runs of a comparison keep the names they have there. Other runs with the same
    [algorithm] section and different seeds are one method; where several sections share
    a name, the settings that differ are added. Where all that is not enough, the name
    of the directory is added.
    """
    sections = [dict(run.config.get("algorithm", {})) for run in runs]
    names = []
    for run, section in zip(runs, sections, strict=True):
        others = [
            s
            for r, s in zip(runs, sections, strict=True)
            if r.method == run.method == r.manifest["algorithm"]
        ]
        differing = [
            key for key in section if any(s.get(key) != section[key] for s in others)
        ]
        text = ", ".join(f"{key}={section[key]}" for key in differing)
        names.append(run.method + (f" ({text})" if text else ""))
    keys = [(name, run.seed) for name, run in zip(names, runs, strict=True)]
    found = []
    for n, run in enumerate(runs):
        name = names[n]
        if keys.count(keys[n]) > 1:
            name = f"{name} [{_place(run.path)}]"
        found.append(replace(run, method=name))
    return found


def _place(path: Path) -> str:
    """The directory that tells runs apart: the run's, or that of its comparison."""
    path = path.resolve()
    return path.parent.parent.name if arm_of(path) else path.name


def _check_metric(runs: Sequence[Run]) -> None:
    metrics = {run.metric: run.path for run in runs}
    if len(metrics) > 1:
        found = ", ".join(f"{metric} in {path}" for metric, path in metrics.items())
        raise DataError(
            f"report: runs of one report need the same metric, found {found}. Make "
            "one report for each."
        )


def _with_remarks(found: Collection) -> Collection:
    return replace(found, remarks=tuple(_remarks(found)))


def _remarks(found: Collection) -> Iterator[str]:
    runs = found.runs.values()
    several = len(found.methods) > 1
    if several and not found.is_paired:
        yield (
            "The methods did not meet the same clients: splits of one seed differ. "
            "Differences between them are not paired, so nothing is tested and no "
            "gain is computed."
        )
    if len({run.manifest["dataset"] for run in runs}) > 1:
        yield "The runs are on different datasets; their scores do not compare."
    if len({run.planned for run in runs}) > 1:
        yield "The runs were meant to have different numbers of rounds."
    if several and len(found.seeds) == 1:
        yield (
            "There is one seed. Intervals are over clients and do not say what another "
            "seed would give; no test between methods is possible. Five seeds or more "
            "are better."
        )
    if runs and not any(run.state == "finished" for run in runs):
        yield "No run has finished; the scores are those of the last evaluated round."
    if any(run.evaluated and run.part == "validation" for run in runs):
        yield "There are no test data; all scores are on validation data."
    elif runs and all(run.chosen_round is None for run in runs):
        yield (
            "There are no validation data, so no round and no method could be chosen "
            "without looking at the test data. Set split.validation=0.1 for that."
        )


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
