"""What a tracker is: something that keeps a run's numbers where other tools see them.

A tracker only listens. It cannot change a number, and if it fails the run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedloom.config import flatten
from fedloom.results.rows import Round
from fedloom.results.table import ClosingTable


@dataclass(frozen=True, kw_only=True)
class About:
    """A run that is about to begin, or to go on."""

    name: str
    """What to call it: its directory, or its method if it has none."""
    path: Path | None
    """Its directory."""
    config: Mapping[str, Any]
    """The resolved settings, section by section."""
    manifest: Mapping[str, Any]
    """Versions, seed, hardware, hash of the split; empty without a directory."""
    first: int
    """The last round that was already there: 0 for a new run."""

    def settings(self) -> dict[str, Any]:
        """The config with one name per setting: `algorithm.lr`."""
        return flatten(self.config)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended."""

    table: ClosingTable
    """The scores of the last evaluated round."""
    failure: str | None
    """Why it stopped before its last round, if it did."""


class Tracker(Protocol):
    """Follows a run; see `docs/how-to/trackers.md` for one in fifteen lines."""

    name: str
    """What messages call it."""

    def start(self, about: About) -> None:
        """The run begins, or goes on."""

    def round(self, row: Round) -> None:
        """A round is finished and written; `row.numbers()` has its numbers."""

    def end(self, ending: Ending) -> None:
        """The run is over."""
