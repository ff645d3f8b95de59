"""What came of a comparison: the answer, scores, gains, the page, and every run."""

from __future__ import annotations

import shutil
import weakref
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.comparison.settings import Comparison, run_directory
from fedloom.comparison.train import failures
from fedloom.core.errors import ConfigError, unknown
from fedloom.core.reprs import html_table, text_table
from fedloom.core.wording import counted
from fedloom.reports.collect import collect
from fedloom.reports.csv_tables import client_rows
from fedloom.reports.files import FORMATS, report
from fedloom.reports.findings import Findings, work_out
from fedloom.reports.headline import headline
from fedloom.reports.report_tables import ranking_table
from fedloom.reports.summary import summary
from fedloom.results.statistics import Estimate
from fedloom.runs import Result, load

if TYPE_CHECKING:
    import pandas as pd


class ComparisonResult:
    """Several methods on the same clients, and which of them to use.

    Prints as the ranking and the answer, and shows itself as such in a notebook. It
    says just what `fedloom compare` says of the same runs.

    Args:
        comparison: what was compared.
        folder: where its runs lie.
        is_temporary: whether that folder goes away with this.
    """

    def __init__(
        self, comparison: Comparison, folder: Path, *, is_temporary: bool = False
    ) -> None:
        self._comparison, self._folder = comparison, folder
        self._is_temporary = is_temporary
        if is_temporary:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    @property
    def path(self) -> Path | None:
        """The directory of the comparison; None if it was not written anywhere."""
        return None if self._is_temporary else self._folder

    def __fspath__(self) -> str:
        """The directory of the runs, for functions that take a path."""
        return str(self._folder)

    @cached_property
    def findings(self) -> Findings:
        """Everything that reports work out, for whoever needs more than is below."""
        return work_out(collect([self._folder]))

    @property
    def headline(self) -> str:
        """The answer, in a sentence or two."""
        return headline(self.findings)

    @property
    def summary(self) -> tuple[str, ...]:
        """What else should be known, in sentences."""
        return tuple(summary(self.findings))

    @property
    def pick(self) -> str | None:
        """The method to use, which may be training alone; None without an answer."""
        return self.findings.pick

    @property
    def methods(self) -> tuple[str, ...]:
        """The titles of the methods, the best first."""
        return tuple(standing.method for standing in self.findings.ranking.standings)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that every method was trained with."""
        return self._comparison.seeds

    @property
    def metric(self) -> str:
        """What scores are: accuracy, or mse."""
        return self.findings.metric

    @property
    def scores(self) -> dict[str, Estimate]:
        """By method, the mean score of the personal models on test data."""
        return {s.method: s.last for s in self.findings.ranking.standings}

    @property
    def gains(self) -> dict[str, Estimate]:
        """By method, the mean gain over training alone with as much work.

        Positive is better for every metric. A method that trains alone has none.
        """
        gains = self.findings.gains
        return {g.method: g.mean for g in gains.methods} if gains is not None else {}

    @property
    def failures(self) -> tuple[str, ...]:
        """Which runs diverged and what to do about it; empty if none did."""
        return tuple(failures(self._comparison, self._folder))

    def table(self) -> str:
        """The ranking as text."""
        headings, rows = self._cells()
        return text_table(headings, rows)

    def to_pandas(self) -> pd.DataFrame:
        """One row for each method, seed and client: samples, scores and gain.

        Raises:
            ConfigError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ConfigError(
                "to_pandas needs pandas, which is not installed. Install it with: pip "
                "install pandas"
            ) from error
        headings, rows = client_rows(self.findings)
        return pd.DataFrame(rows, columns=headings)

    def report(self, out: str | Path | None = None, *, format_: str = "html") -> Path:
        """Write the page with all tables beside it, or another format.

        Args:
            out: the file; by default `report.html` in the directory of the comparison,
                or in the working directory if it has none.
            format_: html, md, latex or csv.

        Returns:
            The file that was written.
        """
        if out is None and self._is_temporary and format_ in FORMATS:
            out = Path(f"report{FORMATS[format_][0]}")
        return report(self._folder, out, format_=format_)

    def run(self, method: str, seed: int | None = None) -> Result:
        """One of the runs, with every client's model.

        Args:
            method: its title.
            seed: one of `seeds`; the first by default.
        """
        comparison = self._comparison
        if method not in comparison.arms:
            raise ConfigError(f"run: {unknown('method', method, comparison.arms)}")
        seed = comparison.seeds[0] if seed is None else seed
        if seed not in comparison.seeds:
            listed = ", ".join(map(str, comparison.seeds))
            raise ConfigError(f"run: seed must be one of {listed}; found {seed!r}.")
        path, own = run_directory(self._folder, method, seed), comparison.own
        assert own is not None
        return load(
            path,
            own.model,
            comparison.own_clients(seed),
            algorithm=own.algorithms[method],
            loss=own.loss,
            head=own.head,
        )

    def save(self, path: str | Path) -> Path:
        """Copy all runs to a new directory, which `fedloom report` reads.

        Args:
            path: of the directory, which must not be there yet.

        Raises:
            ConfigError: it is there.
        """
        path = Path(path)
        if path.exists():
            raise ConfigError(f"{path}: is already there. Choose another path.")
        return Path(shutil.copytree(self._folder, path))

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        table = ranking_table(self.findings, is_short=True)
        headings = [column.title for column in table.columns]
        return headings, [[cell.text for cell in row] for row in table.rows]

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.headline}"

    def __repr__(self) -> str:
        methods = counted(len(self._comparison.arms), "method")
        seeds = counted(len(self.seeds), "seed")
        return f"ComparisonResult({methods}, {seeds}: {self.headline})"

    def _repr_html_(self) -> str:
        """The ranking and the answer for a notebook."""
        headings, rows = self._cells()
        notes = [*self.summary, *self.failures]
        return html_table(headings, rows, title=self.headline, notes=notes)
