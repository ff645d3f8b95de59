"""A run is a directory: written while the run goes on, readable at any moment.

    config.toml            the resolved settings
    manifest.json          versions, seed, commit, hardware, digests; last of the head
    split.npz              who holds which sample, and which samples belong together
    federation.json        the clients as they enrolled, where they are elsewhere
    start.safetensors      the first model, where the settings do not determine it
    model_source.py        a copy of the file of the user's own module, to be looked at
    rounds.jsonl, clients.arrows, client_log.arrows, arrays.arrows
                           the rows, which only grow: see `fedloom.results.row_files`
    outcomes/round-00020.npz  what personal models said of every held-out sample at the
                           last round, and the work of each client
    outcomes/alone.npz     the same of training alone with as much work
    gain.parquet           each client against training alone, if that was asked for
    checkpoint.safetensors all that is needed to go on; beside it the one before
    failure.json           why and where the run could not go on, if it diverged
    remarks.json           what the method has to say of the run, if anything
    rounds.csv, tensorboard/, mlflow.json  what trackers keep, if there were any
    .run.lock              held by the process that writes
    .run.replaced.json     the manifest of a run that is being replaced, until the next
                           run has its own

Never pickle. A file that is replaced is replaced whole. Only files under these names
are ever removed, and only where the manifest says that the directory is a run's: those
of trackers if it lists the tracker, outcomes up to the last round that it plans.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedloom.core.digests import (
    Extent,
    check_extent,
    extent_of,
    read_checked_json,
    write_checked_json,
)
from fedloom.core.errors import ConfigError, DataError, MessageError
from fedloom.core.files import (
    atomic_write,
    cannot_write,
    is_private_folder,
    remove,
    remove_if_empty,
    remove_private_folders,
    sync,
    write_text,
)
from fedloom.core.reading import UNREADABLE, not_whole
from fedloom.core.remarks import Remark
from fedloom.results.gain import Gain
from fedloom.results.lock import hold
from fedloom.results.outcomes import RunOutcomes, read_outcomes
from fedloom.results.row_files import RowFiles
from fedloom.results.rows import Round

COMPARISON = "compare.toml"
"""What says that a directory holds a comparison; its runs lie two levels below."""

FORMAT = "fedloom-run-2"
"""What a manifest names as its format. The first had a file for every round."""

_FORMATS = re.compile(r"fedloom-run-\d+")
_KEYS: Mapping[str, type] = {
    "fedloom": str,
    "algorithm": str,
    "dataset": str,
    "clients": int,
    "parameters": int,
    "metric": str,
    "seed": int,
    "device": str,
    "torch": str,
    "threads": int,
    "split": str,
    "is_own": bool,
    "config": dict,
    "files": dict,
    "rows": dict,
}
"""What every manifest has."""
_OUTCOMES = re.compile(r"round-(\d{5,})\.npz")
_EVENTS = re.compile(r"events\.out\.tfevents\.\d+\..+\.\d+\.\d+")
"""As TensorBoard calls its files: the time, the machine, the process, a number."""


def checkpoint_before(checkpoint: Path) -> Path:
    """Where the checkpoint before the newest lies."""
    return checkpoint.with_stem(f"{checkpoint.stem}-before")


TRACKED = ("csv", "mlflow", "tensorboard")
"""The trackers that keep files in the directory of a run."""


def _runs_in(path: Path) -> Iterator[Path]:
    """Runs that lie in a directory, such as those of a method of a comparison."""
    return (file.parent for file in path.glob("*/manifest.json"))


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.toml"
        self.manifest = path / "manifest.json"
        self.split = path / "split.npz"
        self.start = path / "start.safetensors"
        self.model_source = path / "model_source.py"
        self.federation = path / "federation.json"
        self.rows = RowFiles(path)
        self.checkpoint = path / "checkpoint.safetensors"
        self.failure = path / "failure.json"
        self.remarks = path / "remarks.json"
        self.ledger = path / "privacy.json"
        self.gain = path / "gain.parquet"
        self.outcomes = path / "outcomes"
        self.alone_outcomes = path / "outcomes" / "alone.npz"
        self.rounds_csv = path / "rounds.csv"
        self.mlflow = path / "mlflow.json"
        self.tensorboard = path / "tensorboard"
        self.lock = path / ".run.lock"
        self.replaced = path / ".run.replaced.json"
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
        made.refuse_others()
        if made.manifest.exists() and not fresh:
            raise ConfigError(
                f"{path}: already holds a run. Choose another --out, go on with it by "
                f"`fedloom resume {path}` (fedloom.resume in Python), or replace it "
                "with --fresh."
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be created ({error.strerror})."
            ) from error
        with made.hold():
            made.refuse_others()
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
            runs = [] if path.is_file() else sorted(_runs_in(path))
            if not path.exists():
                runs = sorted(_runs_in(path.parent))
            meant = f" Did you mean {runs[0]}?" if runs else ""
            raise DataError(
                f"{path}: holds no run (there is no manifest.json).{meant} Give the "
                "directory that `fedloom run` named at its end. If the run was stopped "
                "before it began, nothing is lost: give the command that started it "
                "again."
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

    @property
    def is_ours(self) -> bool:
        """Whether a run, or what is left of one that was not to be, lies here.

        A manifest says so by its format, also that of a run which was being replaced.
        Before there is one, there is the lock, and nothing that no run has.
        """
        if self.manifest.exists():
            return _is_manifest(_read_json(self.manifest))
        if _is_manifest(_read_json(self.replaced)):
            return True
        return self.lock.is_file() and self._stranger() is None

    def refuse_others(self) -> None:
        """Refuse a directory that holds something else than a run.

        Raises:
            ConfigError: it does, or is no directory.
        """
        for path in (self.path.parent, self.path):
            if path.exists() and not path.is_dir():
                raise ConfigError(f"{path}: expected a directory, found a file.")
        if not self.path.exists() or not any(self.path.iterdir()) or self.is_ours:
            return
        if self.manifest.exists():
            raise ConfigError(
                f"{self.path}: holds a manifest.json that no run of this version "
                "wrote, or one that was damaged. Choose another --out; nothing is "
                "removed."
            )
        raise ConfigError(
            f"{self.path}: is not empty and holds no run ({self._stranger()}). Choose "
            "another --out."
        )

    def _stranger(self) -> str | None:
        """The name of something that is here and that no run has."""
        names = {file.name for file in (*self._head(), self.lock)}
        if self.config.is_file() and not _is_written_by_program(self.config):
            names.remove(self.config.name)
        for path in sorted(self.path.iterdir()):
            if path.name not in names and not is_private_folder(path):
                return path.name
        return f"no {self.lock.name}" if not self.lock.is_file() else None

    def _head(self) -> list[Path]:
        """What a run writes before its manifest."""
        own = [self.config, self.split, self.start, self.model_source]
        return [*own, *filter(_is_checked, [self.federation])]

    def _files(self) -> list[Path]:
        """All that the run which lies here wrote but its manifest, by what that says.

        A manifest says enough for this be it damaged, as long as it is a run's.
        """
        if not _is_manifest(self._any_manifest()):
            return self._head()
        return [
            *self._head(),
            *(file.path for file in self.rows.files.values()),
            self.checkpoint,
            checkpoint_before(self.checkpoint),
            *filter(_is_checked, (self.failure, self.remarks, self.ledger)),
            self.gain,
            self.alone_outcomes,
            *(at for at in map(self.outcomes_at, self.outcome_rounds()) if _holds(at)),
            *(file for name in TRACKED for file in self.tracked_by(name)),
        ]

    def _any_manifest(self) -> dict[str, Any]:
        """The manifest of the run, or of the one before it that is being replaced.

        Nothing if there is none; unlike `read_manifest` it takes a damaged one.
        """
        is_new = self.manifest.exists()
        manifest = _read_json(self.manifest if is_new else self.replaced)
        return manifest if isinstance(manifest, dict) else {}

    def clear(self) -> None:
        """Remove the files of a run, and only those.

        The manifest first, for without it what is left is no run; but under another
        name, so that what was begun here can be ended if the process is killed.

        Raises:
            DataError: one cannot be removed.
        """
        if self.manifest.exists():
            try:
                self.manifest.replace(self.replaced)
            except OSError as error:
                raise cannot_write(self.manifest, error) from error
        for file in self._files():
            remove(file)
        for folder in (self.outcomes, self.tensorboard):
            remove_private_folders(folder)
            remove_if_empty(folder)
        self.rows = RowFiles(self.path)
        self.tidy()

    def tidy(self) -> None:
        """Remove what a killed process was just writing."""
        for folder in (self.path, self.outcomes):
            remove_private_folders(folder)
        if self.manifest.exists():
            remove(self.replaced)

    def sync(self) -> None:
        """Have all rows on the disk itself, before a checkpoint relies on them.

        The manifest then says how much of them must be there, and its digests.
        """
        self.rows.sync()
        for file in sorted(self._unsynced):
            try:
                sync(file)
                sync(file.parent)
            except OSError as error:
                raise cannot_write(file, error) from error
        self._unsynced.clear()
        self._record_rows()

    def read_rounds(self) -> list[Round]:
        """The rows so far; a line cut short by a crash is left out."""
        return self.rows.read_rounds()

    def truncate_rows(self, last: int) -> list[Round]:
        """Forget the rows after what `rows.go_on_after` took, to go on from there.

        Args:
            last: the last round that is kept; -1 keeps none.
        """
        self.tidy()
        # First the manifest: at no moment does it ask for more than there is.
        self._record_rows()
        self.rows.truncate()
        for round_ in self.outcome_rounds():
            if round_ > last:
                remove(self.outcomes_at(round_))
                remove(self.alone_outcomes)
        return self.rows.read_rounds()

    def _record_rows(self) -> None:
        manifest = self.read_manifest()
        rows = {name: list(extent) for name, extent in self.rows.extents.items()}
        if manifest["rows"] != rows:
            write_checked_json(self.manifest, {**manifest, "rows": rows})

    def write_text(self, path: Path, text: str) -> None:
        """Write a file whole or not at all; it is on disk when this returns."""
        with atomic_write(path, lasting=True) as part:
            write_text(part, text)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Say what ran, on what.

        What must be as it was to go on, or to be believed, is written with its digest:
        the manifest itself, the settings, the split and the first model, and from every
        checkpoint on the rows.
        """
        head = (self.config, self.split, self.start, self.model_source)
        files = [file for file in head if file.is_file()]
        table = {
            "format": FORMAT,
            **manifest,
            "files": {file.name: list(extent_of(file)) for file in files},
            "rows": {},
        }
        write_checked_json(self.manifest, table)
        remove(self.replaced)

    def read_manifest(self) -> dict[str, Any]:
        """What ran, on what.

        Raises:
            MessageError: it was damaged or changed, or is not that of a run.
        """
        try:
            manifest = read_checked_json(
                self.manifest, "the manifest of a run", _KEYS, format_=FORMAT
            )
            self._check_manifest(manifest)
            return manifest
        except MessageError as error:
            raise MessageError(
                f"{error} Put back a copy of it, or start a new run in another "
                "directory."
            ) from error

    def _check_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Refuse one that says what none of ours does, whatever its digest."""
        for key, kind in _KEYS.items():
            if not isinstance(manifest[key], kind):
                raise MessageError(
                    f"{self.manifest}: {key} must be of the type {kind.__name__}, "
                    f"found {manifest[key]!r}."
                )
        head = (self.config, self.split, self.start, self.model_source)
        known = {*(file.name for file in head), *self.rows.files}
        for name, extent in (manifest["files"] | manifest["rows"]).items():
            is_extent = isinstance(extent, list) and [int, str] == [*map(type, extent)]
            if name not in known or not is_extent:
                raise MessageError(
                    f"{self.manifest}: expected the size and digest of a file of the "
                    f"run, found {extent!r} for {name!r}."
                )

    def check_file(self, file: Path) -> None:
        """Make sure that a file of the head is as it was written.

        Raises:
            MessageError: it was damaged, changed or removed.
        """
        written = self.read_manifest()["files"].get(file.name)
        if written is not None:
            check_extent(file, Extent(*written))

    def claim_tracked(self, name: str) -> None:
        """Write down that a tracker keeps its file here, before it does.

        Raises:
            ConfigError: a file of that name is there which no tracker of the run wrote.
        """
        manifest = self.read_manifest()
        trackers = _trackers(manifest)
        if name in trackers:
            return
        file = {"csv": self.rounds_csv, "mlflow": self.mlflow}.get(name)
        if file is not None and file.exists():
            raise ConfigError(
                f"{file} is there already, and no tracker of this run wrote it; move "
                "it away"
            )
        trackers = sorted({*trackers, name})
        write_checked_json(self.manifest, {**manifest, "trackers": trackers})

    def tracked_by(self, name: str) -> list[Path]:
        """The files here that a tracker keeps; none if it did not follow this run."""
        if name not in _trackers(self._any_manifest()):
            return []
        if name == "tensorboard":
            events = sorted(self.tensorboard.glob("*"))
            return [f for f in events if _EVENTS.fullmatch(f.name) and f.is_file()]
        return [self.rounds_csv if name == "csv" else self.mlflow]

    def write_failure(self, why: str, round_: int, exchange: int) -> None:
        """Say why the run could not go on, and where it stood."""
        failure = {"why": why, "round": round_, "exchange": exchange}
        write_checked_json(self.failure, failure)

    def read_failure(self) -> str | None:
        """Why the run could not go on; None if nothing stopped it.

        Raises:
            MessageError: the file was damaged.
        """
        if not self.failure.is_file():
            return None
        return str(self._failure()["why"])

    def failed_at(self) -> tuple[int, int] | None:
        """The round and exchange that could not be finished; None if nothing failed.

        Raises:
            MessageError: the file was damaged.
        """
        if not self.failure.is_file():
            return None
        failure = self._failure()
        return failure["round"], failure["exchange"]

    def _failure(self) -> dict[str, Any]:
        try:
            keys = ("why", "round", "exchange")
            return read_checked_json(self.failure, "a failure", keys)
        except MessageError as error:
            raise MessageError(
                f"{error} Remove it and resume, to come to the same failure again."
            ) from error

    def write_ledger(self, spent: Sequence[float | None]) -> None:
        """What the rounds have cost of privacy: epsilon after each of them."""
        mechanism = self.read_manifest().get("privacy", {})
        rows = [{"round": n, "epsilon": e} for n, e in enumerate(spent, start=1)]
        write_checked_json(self.ledger, {**mechanism, "rounds": rows})

    def read_ledger(self) -> dict[str, Any]:
        """The same, as it was written; what it covers stands beside it."""
        return read_checked_json(self.ledger, "a privacy ledger", ("rounds",))

    def write_remarks(self, remarks: Sequence[Remark]) -> None:
        """Keep what the method has to say of the run; no file if that is nothing."""
        if not remarks:
            if _is_checked(self.remarks):
                remove(self.remarks)
            return
        texts = [remark._asdict() for remark in remarks]
        write_checked_json(self.remarks, {"remarks": texts})

    def read_remarks(self) -> tuple[Remark, ...]:
        """What the method had to say of the run.

        Raises:
            MessageError: the file was damaged.
        """
        if not self.remarks.is_file():
            return ()
        texts = read_checked_json(self.remarks, "remarks", ("remarks",))["remarks"]
        return tuple(Remark(**text) for text in texts)

    def write_gain(self, gain: Gain) -> None:
        """Every client's gain over training alone, gain.parquet."""
        with atomic_write(self.gain, lasting=True) as part:
            table = pa.table(gain.columns())
            pq.write_table(table, part, write_page_checksum=True)

    def read_gain(self) -> dict[str, NDArray[np.float64]] | None:
        """(clients,) each: `together`, `alone` and `gain`; None if there is no gain.

        Raises:
            DataError: gain.parquet is not a whole table of the run's gains.
        """
        if not self.gain.is_file():
            return None
        try:
            return self._gain_columns()
        except DataError as error:
            raise DataError(
                f"{error} Remove it, or make it again with --gain or result.gain()."
            ) from error

    def _gain_columns(self) -> dict[str, NDArray[np.float64]]:
        clients = self._clients()
        try:
            table = pq.read_table(self.gain, page_checksum_verification=True)
            if clients not in (None, table.num_rows):
                raise ValueError(f"{table.num_rows} rows for {clients} clients")
            return {
                name: np.asarray(
                    table[name].to_numpy(zero_copy_only=False), dtype=np.float64
                )
                for name in ("together", "alone", "gain")
            }
        except (pa.ArrowException, *UNREADABLE) as error:
            raise not_whole(self.gain, "table of gains", error) from error

    def write_outcomes(self, round_: int, outcomes: RunOutcomes) -> None:
        """What personal models said of every held-out sample at one round."""
        path = self.outcomes_at(round_)
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
        return read_outcomes(self.outcomes_at(round_), self._clients())

    def read_alone_outcomes(self) -> RunOutcomes | None:
        """The outcomes of training alone with as much work; None if there are none.

        Raises:
            DataError: the file is not whole.
        """
        return read_outcomes(self.alone_outcomes, self._clients())

    def _clients(self) -> int | None:
        """How many clients the run has, if the manifest says so."""
        clients = self._any_manifest().get("clients")
        return clients if type(clients) is int else None

    def outcome_rounds(self) -> list[int]:
        """The rounds whose outcomes were written, ascending.

        None after the last round that the manifest plans: such a file is not the run's.
        """
        names = (_OUTCOMES.fullmatch(file.name) for file in self.outcomes.glob("*"))
        rounds = sorted(int(match[1]) for match in names if match is not None)
        config = self._any_manifest().get("config")
        last = config.get("rounds") if isinstance(config, dict) else None
        return [r for r in rounds if not isinstance(last, int) or r <= last]

    def outcomes_at(self, round_: int) -> Path:
        """Where the outcomes of a round lie."""
        return self.outcomes / f"round-{round_:05d}.npz"


def _read_json(path: Path) -> Any:
    """What a file says; None if it is not there or not whole."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except UNREADABLE:
        return None


def _is_checked(file: Path) -> bool:
    """Whether a file is one of ours, whole, by the digest that it carries."""
    try:
        read_checked_json(file, "a file of a run")
    except MessageError:
        return False
    return True


def _holds(outcomes: Path) -> bool:
    """Whether a file holds outcomes of a run."""
    try:
        read_outcomes(outcomes)
    except DataError:
        return False
    return True


def _is_written_by_program(config: Path) -> bool:
    """Whether settings are in the form that a run writes them, without a remark."""
    import tomllib

    import tomli_w

    try:
        text = config.read_text(encoding="utf-8")
        return tomli_w.dumps(tomllib.loads(text)) == text
    except UNREADABLE:
        return False


def _is_manifest(table: Any) -> bool:
    """Whether this is the manifest of a run, of any version and be it damaged."""
    return (
        isinstance(table, dict)
        and _FORMATS.fullmatch(str(table.get("format"))) is not None
        and all(key in table for key in _KEYS)
    )


def _trackers(manifest: Mapping[str, Any]) -> list[str]:
    """Who followed a run and keeps files in its directory."""
    names = manifest.get("trackers")
    return [n for n in names if n in TRACKED] if isinstance(names, list) else []
