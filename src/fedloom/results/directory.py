"""A run is a directory: written while the run goes on, readable at any moment.

    config.toml            the resolved settings
    manifest.json          versions, seed, commit, hardware, split hash
    split.npz              who holds which sample
    rounds.jsonl           one line per round
    clients/000010.parquet every client's scores at round 10
    notes/000010.parquet   what drove each participant of round 10
    gain.parquet           each client against training alone, if that was asked for
    arrays/000010.safetensors  larger things a method recorded, such as a matrix
    checkpoint.safetensors all that is needed to go on; beside it the one before
    failure.json           why the run could not go on, if it diverged
    rounds.csv, tensorboard/, mlflow.json  what trackers keep, if there were any

Never pickle. A file that is replaced is replaced whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import save_file

from fedloom.core.errors import ConfigError, DataError
from fedloom.results.gain import Gain
from fedloom.results.rows import Round
from fedloom.results.scores import Scores


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.manifest = path / "manifest.json"
        self.split = path / "split.npz"
        self.rounds = path / "rounds.jsonl"
        self.checkpoint = path / "checkpoint.safetensors"
        self.failure = path / "failure.json"

    @classmethod
    def create(cls, path: Path, *, fresh: bool = False) -> RunDirectory:
        """Claim an empty directory for a run.

        Args:
            path: created with its parents if it is not there.
            fresh: remove the files of a run that is already there.

        Raises:
            ConfigError: the directory already holds a run or something else.
        """
        made = cls(path)
        if path.exists() and not path.is_dir():
            raise ConfigError(f"{path}: expected a directory, found a file.")
        if made.manifest.exists():
            if not fresh:
                raise ConfigError(
                    f"{path}: already holds a run. Choose another --out, go on with "
                    f"`fedloom resume {path}`, or replace it with --fresh."
                )
            made.clear()
        elif path.exists() and any(path.iterdir()):
            raise ConfigError(
                f"{path}: is not empty and holds no run. Choose another --out."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be created ({error.strerror})."
            ) from error
        return made

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run.

        Raises:
            DataError: there is none.
        """
        found = cls(path)
        if not found.manifest.is_file():
            raise DataError(
                f"{path}: holds no run (there is no manifest.json). "
                "Give the directory that `fedloom run` named at its end."
            )
        return found

    def clear(self) -> None:
        """Remove the files of a run, and only those."""
        for folder in ("clients", "notes", "arrays", "memory", "tensorboard"):
            for file in (self.path / folder).glob("*"):
                file.unlink()
            if (self.path / folder).is_dir():
                (self.path / folder).rmdir()
        for file in (
            self.manifest,
            self.config,
            self.split,
            self.rounds,
            *self.path.glob("checkpoint*"),
            self.failure,
            self.path / "gain.parquet",
            self.path / "rounds.csv",
            self.path / "mlflow.json",
        ):
            file.unlink(missing_ok=True)

    def write_text(self, path: Path, text: str) -> None:
        """Write a file whole or not at all."""
        part = path.with_name(path.name + ".part")
        part.write_text(text)
        part.replace(path)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Say what ran, on what."""
        self.write_text(self.manifest, json.dumps(manifest, indent=2) + "\n")

    def read_manifest(self) -> dict[str, Any]:
        """What ran, on what."""
        found: dict[str, Any] = json.loads(self.manifest.read_text())
        return found

    def write_failure(self, why: str) -> None:
        """Say why the run could not go on."""
        self.write_text(self.failure, json.dumps({"why": why}, indent=2) + "\n")

    def read_failure(self) -> str | None:
        """Why the run could not go on; None if nothing stopped it."""
        if not self.failure.is_file():
            return None
        why: str = json.loads(self.failure.read_text())["why"]
        return why

    def append(self, row: Round) -> None:
        """Add one line to rounds.jsonl; it is on disk when this returns."""
        with self.rounds.open("a") as file:
            file.write(json.dumps(row.as_json(), allow_nan=True) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def read_rounds(self) -> Iterator[Round]:
        """The rows so far; a last line cut short by a crash is left out."""
        if not self.rounds.exists():
            return
        for line in self.rounds.read_text().splitlines():
            try:
                yield Round(**json.loads(line))
            except json.JSONDecodeError:
                return

    def keep_rounds(self, last: int) -> list[Round]:
        """Forget what was written after round `last`, to go on from there."""
        kept = [row for row in self.read_rounds() if row.round <= last]
        lines = "".join(json.dumps(r.as_json(), allow_nan=True) + "\n" for r in kept)
        self.write_text(self.rounds, lines)
        for folder in ("clients", "notes", "arrays"):
            for file in (self.path / folder).glob("*.*"):
                if int(file.stem) > last:
                    file.unlink()
        return kept

    def write_scores(
        self, round_: int, names: tuple[str, ...], found: list[Scores]
    ) -> None:
        """Every client's scores at one round, one row per client, kind and part."""
        if not found:
            return
        count = len(names)
        columns: dict[str, Any] = {
            "round": np.full(count * len(found), round_, dtype=np.int32),
            "client": np.tile(np.arange(count, dtype=np.int32), len(found)),
            "name": list(names) * len(found),
            "kind": np.repeat([s.kind for s in found], count),
            "part": np.repeat([s.part for s in found], count),
            "samples": np.concatenate([s.samples for s in found]),
            "loss": np.concatenate([s.loss for s in found]),
            found[0].metric: np.concatenate([s.score for s in found]),
        }
        if found[0].metric != "mse":
            for name in ("nll", "brier", "ece"):
                columns[name] = np.concatenate([getattr(s, name) for s in found])
        for name in found[0].more:
            columns[name] = np.concatenate([s.more[name] for s in found])
        self._write_parquet("clients", round_, columns)

    def write_notes(self, round_: int, columns: Mapping[str, NDArray[Any]]) -> None:
        """What drove each participant of a round, one row per participant."""
        self._write_parquet("notes", round_, columns)

    def write_arrays(self, round_: int, arrays: dict[str, NDArray[Any]]) -> None:
        """Larger things a method recorded of a round."""
        path = self._numbered("arrays", round_, "safetensors")
        save_file(
            {name: np.ascontiguousarray(a) for name, a in arrays.items()},
            path.with_suffix(".part"),
        )
        path.with_suffix(".part").replace(path)

    def write_gain(self, gain: Gain) -> None:
        """Every client's gain over training alone, gain.parquet."""
        path = self.path / "gain.parquet"
        part = path.with_suffix(".part")
        pq.write_table(pa.table(gain.columns()), part)
        part.replace(path)

    def read_clients(self) -> pa.Table:
        """All rows of clients/, as one table."""
        return self._read_parquet("clients")

    def read_notes(self) -> pa.Table:
        """All rows of notes/, as one table."""
        return self._read_parquet("notes")

    def _numbered(self, folder: str, round_: int, suffix: str) -> Path:
        (self.path / folder).mkdir(exist_ok=True)
        return self.path / folder / f"{round_:06d}.{suffix}"

    def _write_parquet(
        self, folder: str, round_: int, columns: Mapping[str, Any]
    ) -> None:
        path = self._numbered(folder, round_, "parquet")
        part = path.with_suffix(".part")
        pq.write_table(pa.table(dict(columns)), part)
        part.replace(path)

    def _read_parquet(self, folder: str) -> pa.Table:
        files = sorted((self.path / folder).glob("*.parquet"))
        if not files:
            raise DataError(f"{self.path}: there are no rows in {folder}/ yet.")
        tables = [pq.read_table(file) for file in files]
        return pa.concat_tables(tables, promote_options="default")
