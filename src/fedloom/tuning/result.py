"""What came of a search: the best settings of every method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.reprs import html_table, text_table
from fedloom.core.wording import counted
from fedloom.reports.units import unit_of


@dataclass(frozen=True, kw_only=True)
class TunedMethod:
    """What came of the search for one method; prints as a sentence."""

    method: str
    """The method's name, or its title where a comparison gives it one."""
    settings: Mapping[str, Any]
    """The best values of what was searched."""
    score: float
    """Score of the best trial on validation data, mean over clients and seeds."""
    before: float | None
    """The same with the settings that the search began with; None if that failed."""
    metric: str
    """What the scores are: accuracy, or mse."""
    trials: int
    """Trials that were run, failed ones included."""
    failed: int
    """Trials that diverged."""
    algorithm: AnyAlgorithm
    """The method with its best settings, which `fedloom.compare` takes."""

    def __str__(self) -> str:
        _, score, before, _, values = self.cells()
        return (
            f"{self.method}: {self.metric} {score} on validation data "
            f"({before} at first), {counted(self.trials, 'trial')}, {self.failed} "
            f"failed; {values}"
        )

    def cells(self) -> tuple[str, ...]:
        """The method, both scores, the trials and the settings, as texts."""
        unit = unit_of(self.metric, [self.score])
        before = "failed" if self.before is None else unit.score(self.before)
        values = ", ".join(f"{k} = {v}" for k, v in self.settings.items())
        trials = (
            f"{self.trials} ({self.failed} failed)" if self.failed else str(self.trials)
        )
        score = unit.score(self.score)
        return self.method, score, before, trials, values or "nothing to search"


class TuningResult(tuple[TunedMethod, ...]):
    """What came of a search, method by method; prints as a table.

    A method all of whose trials failed is left out.
    """

    @property
    def methods(self) -> dict[str, AnyAlgorithm]:
        """Every method with its best settings by its title, for `fedloom.compare`."""
        return {tuned.method: tuned.algorithm for tuned in self}

    @property
    def settings(self) -> dict[str, Mapping[str, Any]]:
        """By method, the best values of what was searched."""
        return {tuned.method: tuned.settings for tuned in self}

    def table(self) -> str:
        """The methods, their scores on validation data and their settings as text."""
        return text_table(self._headings, [tuned.cells() for tuned in self])

    @property
    def _headings(self) -> tuple[str, ...]:
        metric = self[0].metric if self else "score"
        return "method", metric, "at first", "trials", "best settings"

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"TuningResult({counted(len(self), 'method')})"

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        rows = [tuned.cells() for tuned in self]
        return html_table(self._headings, rows, title="Scores on validation data")
