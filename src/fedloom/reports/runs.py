"""One run, as a report sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloom.core.digests import read_checked_json
from fedloom.core.errors import DataError, FedloomError
from fedloom.results.audit import Audit
from fedloom.results.directory import RunDirectory
from fedloom.results.outcomes import Outcomes
from fedloom.results.reader import ClientData, ClientScores, RunReader
from fedloom.results.rows import Round
from fedloom.results.statistics import choose_round

KIND = "personal"
"""The model that a method is judged by: what a client leaves with."""

_LOGS = 40
"""Most rounds whose client logs are read."""


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory."""

    reader: RunReader
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
    def path(self) -> Path:
        """Its directory."""
        return self.reader.path

    @property
    def is_federation(self) -> bool:
        """Whether its clients were elsewhere, and sent what they had to alone."""
        return (self.path / "federation.json").is_file()

    @cached_property
    def enrolled(self) -> tuple[str, ...]:
        """Names of the clients of a federation, by number; empty if not known."""
        try:
            file = self.path / "federation.json"
            return tuple(read_checked_json(file, "a federation", ("names",))["names"])
        except (OSError, FedloomError):
            return ()

    @property
    def algorithm(self) -> str:
        """The method's published name."""
        return str(self.manifest["algorithm"])

    @property
    def metric(self) -> str:
        """What `scores` are judged by."""
        return str(self.manifest["metric"])

    @property
    def reached(self) -> int:
        """The last finished round; -1 before the first row."""
        return self.rounds[-1].round if self.rounds else -1

    @property
    def state(self) -> str:
        """finished, failed or unfinished."""
        if self.failure is not None:
            return "failed"
        return "finished" if self.reached >= self.planned else "unfinished"

    @cached_property
    def evaluated(self) -> Mapping[int, Round]:
        """Rounds that have scores, by their number."""
        return {row.round: row for row in self.rounds if row.scores}

    @cached_property
    def part(self) -> str:
        """The data that are reported on: test, or validation if there are no others."""
        for row in self.evaluated.values():
            return "test" if "test" in row.scores.get(KIND, {}) else "validation"
        return "test"

    @cached_property
    def last_round(self) -> int | None:
        """The last evaluated round."""
        return max(self.evaluated, default=None)

    @cached_property
    def chosen_round(self) -> int | None:
        """The round that does best on validation data; None without any."""
        if self.part == "validation":
            return None
        scores = {
            n: self.number(n, self.metric, part="validation") for n in self.evaluated
        }
        return choose_round(scores, self.metric)

    @property
    def kinds(self) -> list[str]:
        """Kinds of model that were scored at the last evaluated round."""
        rows = list(self.evaluated.values())
        return list(rows[-1].scores) if rows else []

    def number(
        self, round_: int | None, name: str, *, kind: str = KIND, part: str = ""
    ) -> float:
        """A number of one round, summed up over clients; nan if it is not there."""
        row = self.evaluated.get(round_) if round_ is not None else None
        parts = row.scores.get(kind, {}) if row is not None else {}
        return float(parts.get(part or self.part, {}).get(name, np.nan))

    def total(self, name: str) -> float:
        """A cost of all rounds together, such as `steps`."""
        return float(sum(getattr(row, name) for row in self.rounds))

    def scores(self, round_: int | None) -> ClientScores | None:
        """Every client's numbers at a round; None if they were not written."""
        return self.reader.scores(round_) if round_ is not None else None

    @cached_property
    def last(self) -> ClientScores | None:
        """Every client's numbers at the last evaluated round."""
        return self.scores(self.last_round)

    @cached_property
    def client_data(self) -> ClientData | None:
        """Who held what; None if the split cannot be read."""
        return self.reader.client_data()

    @cached_property
    def alone(self) -> Mapping[str, NDArray[np.float64]] | None:
        """The columns `together` and `alone` of gain.parquet, if there is one."""
        return self.reader.gain()

    @cached_property
    def audit(self) -> Audit | None:
        """What attacks on the run came to, if there were any."""
        return self.reader.audit()

    @cached_property
    def outcomes(self) -> Mapping[str, Outcomes] | None:
        """By part, what was said of every held-out sample at the last round."""
        return self.reader.outcomes

    @cached_property
    def alone_outcomes(self) -> Mapping[str, Outcomes] | None:
        """The same of training alone with as much work, client by client."""
        return self.reader.alone_outcomes

    @property
    def is_alone(self) -> bool:
        """Whether its clients train alone."""
        return self.algorithm == "local"

    @cached_property
    def client_log(self) -> tuple[pa.Table, ...]:
        """What drove participants, of some rounds evenly apart."""
        return tuple(self.reader.client_log(_LOGS))


def read_run(path: Path, method: str = "") -> Run:
    """One run directory.

    Args:
        path: the directory.
        method: what to call the method; by default its published name.

    Raises:
        DataError: it holds no run, or not a whole one.
    """
    reader = RunReader(RunDirectory.open(path).path)
    run = run_of(reader, method)
    rows = reader.files.rows.rounds.path.name
    if rows in reader.damage:
        raise DataError(reader.damage[rows])
    return run


def run_of(reader: RunReader, method: str = "") -> Run:
    """What there is of a run, as of now.

    Args:
        reader: of the run's directory.
        method: what to call the method; by default its published name.

    Raises:
        DataError: something that every run has is missing.
    """
    try:
        manifest, config = reader.manifest(), reader.config()
        return Run(
            reader=reader,
            method=method or str(manifest["algorithm"]),
            seed=int(manifest["seed"]),
            manifest=manifest,
            config=config,
            rounds=tuple(reader.rounds()),
            planned=int(config.get("rounds", 0)),
            failure=reader.failure(),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise DataError(
            f"{reader.path}: not a whole run directory ({type(error).__name__}: "
            f"{error}). Leave it out, or run it again with --fresh."
        ) from error
