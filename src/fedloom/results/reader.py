"""The one reader of run directories, for all who look at runs and do not write them.

A run may be going on while it is read, or may have been killed: what is not there yet,
or not whole, reads as nothing, except what a run cannot be without.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloom.core.digests import Extent, check_extent
from fedloom.core.errors import DataError, MessageError
from fedloom.core.reading import UNREADABLE, not_whole, read_npz
from fedloom.core.remarks import Remark
from fedloom.core.reprs import without_values
from fedloom.results.audit import Audit
from fedloom.results.directory import COMPARISON, RunDirectory
from fedloom.results.outcomes import Outcomes, RunOutcomes, read_outcomes
from fedloom.results.row_files import GrowingFile, read_arrays, read_batches
from fedloom.results.rows import Round, RowTail

T = TypeVar("T")

YARDSTICKS = "yardsticks"
"""Folder of a comparison that holds what its methods are measured by."""

ALONE = "alone"
"""Folder of a comparison whose runs train alone as long as its methods work."""

_DEPTH = 4
"""How far below a directory runs are looked for."""

_KEYS = ("round", "client", "name", "kind", "part")
"""Columns of clients.arrows that say what a row is about."""


@without_values
@dataclass(frozen=True, eq=False)
class ClientScores:
    """Numbers of the clients that were scored in one run at one round."""

    clients: NDArray[np.int64]
    """(clients,) their numbers, ascending."""
    names: tuple[str, ...]
    columns: Mapping[tuple[str, str], Mapping[str, NDArray[np.float64]]]
    """By (kind of model, part of the data), then by number: (clients,) each."""

    def get(self, kind: str, part: str, number: str) -> NDArray[np.float64]:
        """(clients,) one number; nan where it was not recorded."""
        nothing = np.full(len(self.names), np.nan)
        return self.columns.get((kind, part), {}).get(number, nothing)


@without_values
@dataclass(frozen=True, eq=False)
class ClientData:
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
    groups: NDArray[np.int64] | None = None
    """(samples,) group of each sample of the dataset; None if the split has none."""
    time: str = ""
    """Column by which the last samples of every client are its test; empty if tests are
    not the last ones."""


@dataclass(frozen=True)
class ComparisonFile:
    """What compare.toml says."""

    source: str
    """Its text."""
    methods: tuple[str, ...]
    seeds: tuple[int, ...]


class RunReader:
    """The files of one run, to look at.

    Args:
        path: the run's directory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = RunDirectory(path)
        """Where each file lies."""
        self._tail = RowTail(self.files.rows.rounds.path)

    def manifest(self) -> dict[str, Any]:
        """What ran, on what."""
        return self.files.read_manifest()

    def config(self) -> dict[str, Any]:
        """The resolved settings, as the manifest has them under its digest."""
        config: dict[str, Any] = self.manifest()["config"]
        return config

    def rounds(self) -> list[Round]:
        """The rows so far; only what was added since the last call is read."""
        return self._tail.read()

    def last_written(self) -> float:
        """When the last row was written, in seconds since 1970."""
        return self.files.rows.rounds.path.stat().st_mtime

    def failure(self) -> str | None:
        """Why the run could not go on; None if nothing stopped it."""
        return self.files.read_failure()

    def remarks(self) -> tuple[Remark, ...]:
        """What the method has to say of the run; nothing before it is over."""
        try:
            return self.files.read_remarks()
        except (MessageError, *UNREADABLE):
            return ()

    def scores(self, round_: int) -> ClientScores | None:
        """Every client's numbers at a round; None if they were not written."""
        if not self._is_whole(self.files.rows.clients):
            return None
        batches = read_batches(self.files.rows.clients.path)
        tables = [b for b in batches if b["round"][0].as_py() == round_]
        if not tables:
            return None
        table = pa.Table.from_batches(tables[-1:]).sort_by("client")
        kinds, parts, names = (
            np.array(table[key].to_pylist(), dtype=object)
            for key in ("kind", "part", "name")
        )
        columns = {}
        for kind, part in dict.fromkeys(zip(kinds, parts, strict=True)):
            rows = (kinds == kind) & (parts == part)
            columns[kind, part] = {
                name: _numbers(table, name)[rows]
                for name in table.column_names
                if name not in _KEYS
            }
        clients = np.asarray(table["client"].to_numpy(), dtype=np.int64)[rows]
        return ClientScores(clients, tuple(names[rows].tolist()), columns)

    def client_data(self) -> ClientData | None:
        """Who held what; None if the split cannot be read."""
        if self.files.split.name in self.damage:
            return None
        try:
            return _client_data(read_npz(self.files.split, "split"))
        except (DataError, *UNREADABLE):
            return None

    def gain(self) -> dict[str, NDArray[np.float64]] | None:
        """The columns of gain.parquet, if there is one and it is whole."""
        try:
            return self.files.read_gain()
        except DataError:
            return None

    def audit(self) -> Audit | None:
        """What attacks on the run came to, if there were any and the file is whole."""
        try:
            return self.files.read_audit()
        except MessageError:
            return None

    @property
    def outcomes(self) -> dict[str, Outcomes] | None:
        """By part, what personal models said of every held-out sample at the end.

        None if it was not written, as in a real federation.
        """
        return _parts(self._outcomes())

    @property
    def alone_outcomes(self) -> dict[str, Outcomes] | None:
        """The same samples in the same order, by training alone with as much work."""
        return _parts(self._alone_outcomes())

    @property
    def work(self) -> NDArray[np.int64] | None:
        """(clients,) gradient-samples of each client, adaptation included."""
        outcomes = self._outcomes()
        return outcomes.work if outcomes is not None else None

    @property
    def alone_work(self) -> NDArray[np.int64] | None:
        """(clients,) gradient-samples that training alone took."""
        outcomes = self._alone_outcomes()
        return outcomes.work if outcomes is not None else None

    def _outcomes(self) -> RunOutcomes | None:
        try:
            return self.files.read_outcomes()
        except DataError:
            return None

    def _alone_outcomes(self) -> RunOutcomes | None:
        try:
            return self.files.read_alone_outcomes()
        except DataError:
            return None

    def client_log(self, most: int) -> Iterator[pa.Table]:
        """What drove participants, in the last exchange of each round.

        Args:
            most: how many rounds are read at most, evenly apart.
        """
        log = self.files.rows.client_log
        if not self._is_whole(log):
            return
        rounds: dict[int, int] = {}
        for place, batch in enumerate(read_batches(log.path, ["round"])):
            rounds[batch["round"][0].as_py()] = place
        chosen = set(thin(list(rounds.values()), most))
        for place, batch in enumerate(read_batches(log.path)):
            if place in chosen:
                table = pa.Table.from_batches([batch])
                has_exchange = "exchange" in table.column_names
                yield table.drop_columns("exchange") if has_exchange else table

    def arrays(self) -> tuple[int, dict[str, NDArray[Any]]] | None:
        """The last recorded arrays, with their round."""
        file = self.files.rows.arrays
        if not self._is_whole(file):
            return None
        count = sum(1 for _ in read_batches(file.path, ["round"]))
        for place, batch in enumerate(read_batches(file.path), 1):
            if place == count:
                return batch["round"][0].as_py(), read_arrays(batch)
        return None

    @cached_property
    def damage(self) -> Mapping[str, str]:
        """What is wrong with files whose digests the manifest has, by their names."""
        wrong: dict[str, str] = {}
        if not self.files.manifest.is_file():
            return wrong
        manifest = self.manifest()
        for section, may_grow in (("files", False), ("rows", True)):
            for name, extent in manifest[section].items():
                try:
                    check_extent(self.path / name, Extent(*extent), may_grow=may_grow)
                except MessageError as error:
                    wrong[name] = str(error)
        last = [self.files.outcomes_at(r) for r in self.files.outcome_rounds()[-1:]]
        readers: list[tuple[Path, Callable[[], object]]] = [
            *((file, self.files.read_outcomes) for file in last),
            (self.files.alone_outcomes, self.files.read_alone_outcomes),
            (self.files.gain, self.files.read_gain),
            (self.files.audit, self.files.read_audit),
        ]
        for file, read in readers:
            try:
                read()
            except (DataError, MessageError) as error:
                wrong[file.name] = str(error)
        if self.files.config.name not in wrong:
            wrong |= self._other_settings(manifest["config"])
        return wrong

    def _other_settings(self, config: Mapping[str, Any]) -> dict[str, str]:
        """What is wrong with config.toml where the manifest has no digest of it."""
        file = self.files.config
        try:
            is_same = tomllib.loads(file.read_text(encoding="utf-8")) == config
        except UNREADABLE as error:
            return {file.name: str(not_whole(file, "file of settings", error))}
        if is_same:
            return {}
        return {
            file.name: f"{file}: its settings are not those of the run, which are in "
            f"{self.files.manifest.name}. The file was changed or damaged; put back a "
            "copy of it."
        }

    def _is_whole(self, file: GrowingFile) -> bool:
        """Whether a file of rows is there and begins as it was written."""
        return file.path.is_file() and file.path.name not in self.damage


def arm_of(path: Path) -> str:
    """What a comparison calls the method of one of its runs; empty for other runs."""
    is_compared = (path.parent.parent / COMPARISON).is_file()
    return path.parent.name if is_compared else ""


def is_comparison(path: Path) -> bool:
    """Whether a directory holds a comparison."""
    return (path / COMPARISON).is_file()


def is_run(path: Path) -> bool:
    """Whether a directory holds a run that has begun, be it damaged.

    Other programs have a manifest.json too.
    """
    directory = RunDirectory(path)
    if not directory.manifest.is_file():
        return False
    return directory.is_ours or directory.rows.rounds.path.is_file()


def find_runs(path: Path, depth: int = _DEPTH) -> Iterator[Path]:
    """Run directories at or below a path, those of comparisons included.

    Of a comparison only the methods' runs, not those of training alone beside them.
    """
    if is_run(path):
        yield path
    elif is_comparison(path):
        yield from (run for run in sorted(path.glob("*/seed-*")) if is_run(run))
    elif depth and path.is_dir():
        for child in _children(path):
            if child.is_dir() and not child.name.startswith("."):
                yield from find_runs(child, depth - 1)


def _children(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []  # nobody may look into it


def read_comparison(path: Path) -> ComparisonFile:
    """What a comparison was asked for.

    Args:
        path: its directory.

    Raises:
        DataError: its file cannot be read.
    """
    file = path / COMPARISON
    try:
        source = file.read_text(encoding="utf-8")
        tables = tomllib.loads(source)
        methods = tuple(str(name) for name in tables["methods"])
        return ComparisonFile(source, methods, tuple(int(s) for s in tables["seeds"]))
    except UNREADABLE as error:
        raise DataError(
            f"{file}: not the file of a comparison ({type(error).__name__}: {error})."
        ) from error


@dataclass(frozen=True, eq=False)
class Yardstick:
    """What a simple or an impossible model says of a comparison's held-out samples."""

    about: str
    """How it was made, in sentences."""
    outcomes: Mapping[int, dict[str, Outcomes]]
    """By seed, then by part: the samples of the runs of that seed, in their order."""
    rounds: Mapping[int, int] = field(default_factory=dict)
    """By seed, for how many rounds it trained, where validation data chose that."""


def read_yardsticks(path: Path) -> dict[str, Yardstick]:
    """The yardsticks of a comparison by name; those that are not there are left out.

    Args:
        path: the comparison's directory.
    """
    folder = path / YARDSTICKS
    try:
        entries = json.loads(
            (folder / f"{YARDSTICKS}.json").read_text(encoding="utf-8")
        )
        about = {str(name): _about(entry) for name, entry in dict(entries).items()}
    except UNREADABLE:
        return {}
    yardsticks = {}
    for name, (sentences, rounds) in about.items():
        outcomes = {
            int(file.stem.removeprefix("seed-")): parts
            for file in sorted((folder / name).glob("seed-*.npz"))
            if (parts := _parts(_whole_outcomes(file))) is not None
        }
        yardsticks[name] = Yardstick(sentences, outcomes, rounds)
    return yardsticks


def _about(entry: Any) -> tuple[str, dict[int, int]]:
    """How a yardstick was made, and by seed for how many rounds, if that was chosen."""
    if isinstance(entry, str):
        return entry, {}
    rounds = {int(seed): int(number) for seed, number in dict(entry["rounds"]).items()}
    return str(entry["about"]), rounds


def _whole_outcomes(path: Path) -> RunOutcomes | None:
    try:
        return read_outcomes(path)
    except DataError:
        return None


def _parts(outcomes: RunOutcomes | None) -> dict[str, Outcomes] | None:
    return dict(outcomes.parts) if outcomes is not None else None


def thin(items: list[T], most: int) -> list[T]:
    """At most so many, evenly apart, the first and the last among them."""
    if len(items) <= most:
        return items
    places = np.unique(np.linspace(0, len(items) - 1, most).round().astype(int))
    return [items[n] for n in places]


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    return np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)


def _client_data(arrays: Mapping[str, NDArray[Any]]) -> ClientData:
    names = tuple(str(name) for name in arrays["names"].tolist())
    labels = arrays.get("train_labels", np.zeros((len(names), 0)))
    classes = arrays.get("class_names", np.arange(labels.shape[1])).tolist()
    return ClientData(
        names=names,
        sizes=np.diff(arrays["train_offsets"]).astype(np.int64),
        labels=labels.astype(np.int64),
        classes=tuple(str(name) for name in classes or range(labels.shape[1])),
        teams=arrays["teams"].astype(np.int64),
        holdings=_holdings(arrays, names),
        groups=_groups(arrays),
        time=str(arrays.get("time", "")),
    )


def _groups(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.int64] | None:
    groups = arrays.get("groups")
    if groups is None:
        return None
    if groups.shape != (int(arrays["samples"]),):
        raise ValueError(f"groups of {groups.shape} for {arrays['samples']} samples")
    return groups.astype(np.int64)


def _holdings(
    arrays: Mapping[str, NDArray[Any]], names: tuple[str, ...]
) -> tuple[str, frozenset[int]] | tuple[()]:
    """Which client holds which samples of which data, whatever the part they are in."""
    if "targets" not in arrays:
        return ()
    held = set()
    for n, name in enumerate(names):
        own = []
        for part in ("train", "validation", "test"):
            first, last = arrays[f"{part}_offsets"][n : n + 2]
            own.append(arrays[f"{part}_indices"][first:last])
        held.add(hash((name, np.sort(np.concatenate(own)).tobytes())))
    return str(arrays["targets"]), frozenset(held)
