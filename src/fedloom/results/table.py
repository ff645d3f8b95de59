"""The closing table: the last round, one line per kind of model and part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedloom.core.metrics import METRICS
from fedloom.results.rows import Round

_SUMMARIES = {
    "weighted": "by samples",
    "worst_decile": "worst 10 %",
    "largest_decile": "largest 10 %",
    "spread": "spread",
}
_HEADINGS = {
    "kind": "model",
    "part": "data",
    "mean": "mean over clients",
    **_SUMMARIES,
}
_LEFT_OUT = ("nll", "brier")
"""Metrics that say again what the loss and the ECE say."""

Write = Callable[[str, Sequence[float]], list[str]]


def _in_four_places(metric: str, values: Sequence[float]) -> list[str]:
    return ["-" if math.isnan(value) else f"{value:.4f}" for value in values]


@dataclass(frozen=True)
class ClosingTable:
    """What a run came to; prints as text, iterates as rows."""

    metric: str
    round: int
    rows: tuple[dict[str, Any], ...]
    scored: str = ""
    """Who was scored, such as `4 sampled clients`; empty if everybody was."""

    @property
    def title(self) -> str:
        """What the numbers are, and of when and whom."""
        whose = f", of {self.scored}" if self.scored else ""
        return f"{self.metric} after round {self.round}{whose}"

    def cells(self, write: Write = _in_four_places) -> list[list[str]]:
        """The heading and every row as text.

        Args:
            write: makes texts of a column, from the name of its metric and its values.
        """
        shown = _HEADINGS | {
            name: METRICS[name].title
            for row in self.rows
            for name in row
            if name in METRICS
        }
        columns = [[row[key] for row in self.rows] for key in list(shown)[:2]]
        for key in list(shown)[2:]:
            values = [row.get(key, math.nan) for row in self.rows]
            columns.append(write(key if key in METRICS else self.metric, values))
        return [list(shown.values()), *map(list, zip(*columns, strict=True))]

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __str__(self) -> str:
        lines = self.cells()
        widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
        text = [self.title]
        for line in lines:
            cells = [
                cell.ljust(width) if n < 2 else cell.rjust(width)
                for n, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            text.append("  ".join(cells).rstrip())
        return "\n".join(text)


def closing_table(rounds: list[Round], metric: str, scored: str = "") -> ClosingTable:
    """The table of the last evaluated round.

    Args:
        rounds: the rows of a run.
        metric: the one that the task is judged by.
        scored: who was, as the title says it; empty if everybody was.
    """
    evaluated = [row for row in rounds if row.scores]
    if not evaluated:
        return ClosingTable(metric, 0, (), scored)
    last = evaluated[-1]
    rows = []
    for kind, parts in last.scores.items():
        for part, numbers in parts.items():
            rows.append(
                {
                    "kind": kind,
                    "part": part,
                    "mean": numbers[metric],
                    **{name: numbers[f"{metric}_{name}"] for name in _SUMMARIES},
                    **{
                        name: numbers[name]
                        for name in METRICS
                        if name in numbers and name not in (metric, *_LEFT_OUT)
                    },
                }
            )
    return ClosingTable(metric, last.round, tuple(rows), scored)
