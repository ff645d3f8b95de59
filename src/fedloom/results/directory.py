"""A run is a directory: written while the run goes on, readable at any moment.

    config.toml            the resolved settings
    manifest.json          versions, seed, commit, hardware, hashes; last of the head
    split.npz              who holds which sample
    start.safetensors      the first model, where the settings do not determine it
    rounds.jsonl           one line per round
    clients/000010.parquet every client's scores at round 10
    client_log/000010.parquet  what drove each participant of round 10; with several
                           exchanges a round, 000010-003.parquet for the fourth
    outcomes/round-00020.npz  what personal models said of every held-out sample at the
                           last round, and the work of each client
    outcomes/alone.npz     the same of training alone with as much work
    gain.parquet           each client against training alone, if that was asked for
    arrays/000010.safetensors  larger things a method recorded, such as a matrix
    checkpoint.safetensors all that is needed to go on; beside it the one before
    failure.json           why and where the run could not go on, if it diverged
    remarks.json           what the method has to say of the run, if anything
    rounds.csv, tensorboard/, mlflow.json  what trackers keep, if there were any
    .run.lock              held by the process that writes

Never pickle. A file that is replaced is replaced whole; one that is being written is
hidden and its name ends in .part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from fedloom.core.errors import ConfigError, DataError, MessageError
from fedloom.core.files import PART, atomic_write, cannot_write, remove, sync
from fedloom.core.remarks import Remark
from fedloom.results.gain import Gain
from fedloom.results.lock import hold
from fedloom.results.outcomes import RunOutcomes, read_outcomes
from fedloom.results.rows import Round, RowTail
from fedloom.results.scores import Scores

COMPARISON = "compare.toml"
"""What says that a directory holds a comparison; its runs lie two levels below."""

_NUMBERED = ("clients", "client_log", "arrays")
"""Folders with one file per round."""


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.manifest = path / "manifest.json"
        self.split = path / "split.npz"
        self.start = path / "start.safetensors"
        self.rounds = path / "rounds.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.failure = path / "failure.json"
        self.remarks = path / "remarks.json"
        self.gain = path / "gain.parquet"
        self.outcomes = path / "outcomes"
        self.alone_outcomes = path / "outcomes" / "alone.npz"
        self.clients = path / "clients"
        self.client_log = path / "client_log"
        self.arrays = path / "arrays"
        self.lock = path / ".run.lock"
        self._unsynced: set[Path] = set()

    @classmethod
    @contextmanager
    def create(cls, path: Path, *, fresh: bool = False) -> Iterator[RunDirectory]:
        """Claim an empty directory for a run, and hold it while the run goes on.

        What a process left there that was killed before the manifest was written is
        removed.

        Args:
            path: created with its parents if it is not there.
            fresh: remove the files of a run that is already there.

        Raises:
            ConfigError: the directory already holds a run or something else, or another
                process writes to it.
            DataError: it cannot be written to.
        """
        made = cls(path)
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path}: expected a directory, found a file.")
        if made.manifest.exists() and not fresh:
            raise ConfigError(
                f"{path}: already holds a run. Choose another --out, go on with it by "
                f"`fedloom resume {path}` (fedloom.resume in Python), or replace it "
                "with --fresh."
            )
        is_ours = made.manifest.exists() or made.lock.exists()
        if not is_ours and path.exists() and any(path.iterdir()):
            raise ConfigError(
                f"{path}: is not empty and holds no run. Choose another --out."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be created ({error.strerror})."
            ) from error
        with made.hold():
            if made.manifest.exists() and not fresh:
                raise ConfigError(
                    f"{path}: another process has just begun a run in it."
                )
            made.clear()
            yield made

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run, to read.

        Raises:
            DataError: there is none.
        """
        directory = cls(path)
        if (path / COMPARISON).is_file():
            raise DataError(
                f"{path}: holds a comparison, not one run. Give one of its runs, "
                f"METHOD/seed-N, or go on with all of it: `fedloom resume {path}`."
            )
        if not directory.manifest.is_file():
            raise DataError(
                f"{path}: holds no run (there is no manifest.json). Give the directory "
                "that `fedloom run` named at its end. If the run was stopped before it "
                "began, nothing is lost: give the command that started it again."
            )
        return directory

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep other processes from writing here.

        Raises:
            ConfigError: another process already does.
        """
        with hold(self.lock):
            yield

    def clear(self) -> None:
        """Remove the files of a run, and only those.

        Raises:
            DataError: one cannot be removed.
        """
        # The manifest first, for without it what is left is no run.
        for file in (
            self.manifest,
            self.config,
            self.split,
            self.start,
            self.rounds,
            *self.path.glob("checkpoint*"),
            self.failure,
            self.remarks,
            self.gain,
            self.path / "rounds.csv",
            self.path / "mlflow.json",
        ):
            remove(file)
        for folder in (*_NUMBERED, "outcomes", "memory", "tensorboard"):
            for file in (self.path / folder).glob("*"):
                remove(file)
            if (self.path / folder).is_dir():
                (self.path / folder).rmdir()
        self.tidy()

    def tidy(self) -> None:
        """Remove what a killed process was just writing."""
        for folder in ("", *_NUMBERED, "outcomes"):
            for file in (self.path / folder).glob(f"*{PART}"):
                remove(file)

    def sync(self) -> None:
        """Have all rows on the disk itself, before a checkpoint relies on them."""
        for file in sorted(self._unsynced):
            try:
                sync(file)
            except OSError as error:
                raise cannot_write(file, error) from error
        for folder in sorted({file.parent for file in self._unsynced}):
            sync(folder)
        self._unsynced.clear()

    def write_text(self, path: Path, text: str) -> None:
        """Write a file whole or not at all; it is on disk when this returns."""
        with atomic_write(path, lasting=True) as part:
            part.write_text(text)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Say what ran, on what."""
        self.write_text(self.manifest, json.dumps(manifest, indent=2) + "\n")

    def read_manifest(self) -> dict[str, Any]:
        """What ran, on what."""
        try:
            manifest: dict[str, Any] = json.loads(self.manifest.read_text())
        except ValueError as error:
            raise MessageError(
                f"{self.manifest}: not a whole manifest ({error}). Put back a copy of "
                "it, or start anew with --fresh."
            ) from error
        return manifest

    def write_failure(self, why: str, round_: int, exchange: int) -> None:
        """Say why the run could not go on, and where it stood."""
        failure = {"why": why, "round": round_, "exchange": exchange}
        self.write_text(self.failure, json.dumps(failure, indent=2) + "\n")

    def read_failure(self) -> str | None:
        """Why the run could not go on; None if nothing stopped it."""
        if not self.failure.is_file():
            return None
        why: str = json.loads(self.failure.read_text())["why"]
        return why

    def failed_at(self) -> tuple[int, int] | None:
        """The round and exchange that could not be finished; None if nothing failed."""
        if not self.failure.is_file():
            return None
        failure = json.loads(self.failure.read_text())
        return failure["round"], failure["exchange"]

    def write_remarks(self, remarks: Sequence[Remark]) -> None:
        """Keep what the method has to say of the run; no file if that is nothing."""
        if not remarks:
            remove(self.remarks)
            return
        texts = [remark._asdict() for remark in remarks]
        self.write_text(self.remarks, json.dumps(texts, indent=2) + "\n")

    def read_remarks(self) -> tuple[Remark, ...]:
        """What the method had to say of the run."""
        if not self.remarks.is_file():
            return ()
        return tuple(Remark(**texts) for texts in json.loads(self.remarks.read_text()))

    def append(self, row: Round) -> None:
        """Add one line to rounds.jsonl; another process sees it when this returns."""
        line = json.dumps(row.as_json(), allow_nan=True) + "\n"
        try:
            with self.rounds.open("a") as file:
                file.write(line)
        except OSError as error:
            raise cannot_write(self.rounds, error) from error
        self._unsynced.add(self.rounds)

    def read_rounds(self) -> list[Round]:
        """The rows so far; a line cut short by a crash is left out."""
        return RowTail(self.rounds).read()

    def keep_rounds(self, last: int, exchanges: int = 0) -> list[Round]:
        """Forget what was written after round `last`, to go on from there.

        Args:
            last: the last round to keep; -1 keeps none.
            exchanges: how many exchanges of the round after that to keep.

        Raises:
            MessageError: an earlier row is missing; nothing was changed.
        """
        kept = [row for row in self.read_rounds() if row.round <= last]
        if [row.round for row in kept] != list(range(last + 1)):
            raise MessageError(
                f"{self.rounds}: expected a line for each of the rounds 0 to {last}, "
                f"found {len(kept)} whole ones. The file was changed or damaged; put "
                "back a copy of it, or start anew with --fresh."
            )
        self.tidy()
        lines = "".join(json.dumps(r.as_json(), allow_nan=True) + "\n" for r in kept)
        self.write_text(self.rounds, lines)
        for folder in _NUMBERED:
            for file in (self.path / folder).glob("*.*"):
                number, _, exchange = file.stem.partition("-")
                is_kept = exchange and int(exchange) < exchanges
                if int(number) > last + bool(is_kept):
                    remove(file)
        for file in self.outcomes.glob("round-*.npz"):
            if int(file.stem.removeprefix("round-")) > last:
                remove(file)
                remove(self.alone_outcomes)
        return kept

    def write_scores(
        self,
        round_: int,
        names: tuple[str, ...],
        scores: list[Scores],
        clients: NDArray[np.int64] | None = None,
    ) -> None:
        """Scores of clients at one round, one row per client, kind and part.

        Args:
            round_: the round, from 0.
            names: what all clients are called.
            scores: of every kind and part.
            clients: (m,) whose scores these are, by number; everybody's by default.
        """
        if not scores:
            return
        clients = np.arange(len(names)) if clients is None else clients
        count = len(clients)
        columns: dict[str, Any] = {
            "round": np.full(count * len(scores), round_, dtype=np.int32),
            "client": np.tile(clients.astype(np.int32), len(scores)),
            "name": [names[client] for client in clients] * len(scores),
            "kind": np.repeat([s.kind for s in scores], count),
            "part": np.repeat([s.part for s in scores], count),
            "samples": np.concatenate([s.samples for s in scores]),
        }
        for name in scores[0].values:
            columns[name] = np.concatenate([s.values[name] for s in scores])
        self._write_parquet("clients", round_, columns)

    def write_client_log(
        self,
        round_: int,
        columns: Mapping[str, NDArray[Any]],
        exchange: int | None = None,
    ) -> None:
        """What drove each participant of a round, one row per participant.

        Args:
            round_: the round, from 1.
            columns: its columns.
            exchange: which of its exchanges, if it has several.
        """
        self._write_parquet("client_log", round_, columns, exchange)

    def read_client_log(self) -> dict[str, NDArray[Any]]:
        """The columns of the client log, all rounds and exchanges after each other."""
        files = sorted(self.client_log.glob("*.parquet"))
        if not files:
            return {}
        tables = [pq.read_table(file) for file in files]
        table = pa.concat_tables(tables, promote_options="default")
        return {name: table[name].to_numpy() for name in table.column_names}

    def write_arrays(
        self,
        round_: int,
        arrays: Mapping[str, NDArray[Any]],
        exchange: int | None = None,
    ) -> None:
        """Larger things a method recorded of a round, or of one of its exchanges."""
        plain = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
        path = self._numbered("arrays", round_, "safetensors", exchange)
        with atomic_write(path, errors=(SafetensorError,)) as part:
            save_file(plain, part)

    def write_gain(self, gain: Gain) -> None:
        """Every client's gain over training alone, gain.parquet."""
        with atomic_write(self.gain, lasting=True) as part:
            pq.write_table(pa.table(gain.columns()), part)

    def write_outcomes(self, round_: int, outcomes: RunOutcomes) -> None:
        """What personal models said of every held-out sample at one round."""
        path = self._outcomes_at(round_)
        outcomes.write(path)
        self._unsynced.add(path)

    def read_outcomes(self, round_: int | None = None) -> RunOutcomes | None:
        """The outcomes of one round, by default the last that has any.

        None if there are none.

        Raises:
            DataError: the file is not whole.
        """
        if round_ is None:
            rounds = self.outcome_rounds()
            if not rounds:
                return None
            round_ = rounds[-1]
        return read_outcomes(self._outcomes_at(round_))

    def outcome_rounds(self) -> list[int]:
        """The rounds whose outcomes were written, ascending."""
        files = self.outcomes.glob("round-*.npz")
        return sorted(int(file.stem.removeprefix("round-")) for file in files)

    def _outcomes_at(self, round_: int) -> Path:
        return self.outcomes / f"round-{round_:05d}.npz"

    def _numbered(
        self, folder: str, round_: int, suffix: str, exchange: int | None = None
    ) -> Path:
        stem = f"{round_:06d}" if exchange is None else f"{round_:06d}-{exchange:03d}"
        path = self.path / folder / f"{stem}.{suffix}"
        self._unsynced.add(path)
        return path

    def _write_parquet(
        self,
        folder: str,
        round_: int,
        columns: Mapping[str, Any],
        exchange: int | None = None,
    ) -> None:
        with atomic_write(self._numbered(folder, round_, "parquet", exchange)) as part:
            pq.write_table(pa.table(dict(columns)), part)
