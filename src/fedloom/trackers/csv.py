"""The rounds as one table, for a spreadsheet."""

from __future__ import annotations

from pathlib import Path

from fedloom.core.errors import ConfigError
from fedloom.core.files import write_csv
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round
from fedloom.trackers.tracker import About, Ending


class Csv:
    """rounds.csv: a line per round, a column per number.

    Args:
        folder: where the file goes; the run's directory if not given.
    """

    name = "csv"

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._rows: list[Round] = []

    def start(self, about: About) -> None:
        """Take in the rows of an earlier part of the run."""
        self._folder = self._folder or about.path
        if self._folder is None:
            raise ConfigError("a run without a directory; give Csv a folder.")
        if about.path is not None and self._folder == about.path:
            RunDirectory(about.path).claim_tracked(self.name)
        if about.path is not None and about.first:
            earlier = RunDirectory(about.path).read_rounds()
            self._rows = [row for row in earlier if row.round <= about.first]

    def round(self, row: Round) -> None:
        """Keep the row; columns are known when all rows are."""
        self._rows.append(row)

    def end(self, ending: Ending) -> None:
        """Write the file whole."""
        assert self._folder is not None
        lines = [{"round": row.round, **row.numbers()} for row in self._rows]
        write_csv(lines, self._folder / "rounds.csv")
