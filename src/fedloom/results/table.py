"""The closing table: the last round, one line per kind of model and part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fedloom.results.rows import Round

_HEADINGS = {
    "kind": "model",
    "part": "data",
    "mean": "mean over clients",
    "weighted": "by samples",
    "worst_decile": "worst 10 %",
    "largest_decile": "largest 10 %",
    "spread": "spread",
    "loss": "loss",
}
_OPTIONAL = {
    "ece": "ECE",
    "auc": "AUC",
    "f1": "F1",
    "rmse": "RMSE",
    "mae": "MAE",
    "explained_variance": "explained",
}
"""Means over clients that only some tasks have."""


@dataclass(frozen=True)
class ClosingTable:
    """What a run came to; prints as text, iterates as rows."""

    metric: str
    round: int
    rows: tuple[dict[str, Any], ...]

    def cells(self) -> list[list[str]]:
        """The heading and every row as text."""
        shown = _HEADINGS | {
            key: heading
            for key, heading in _OPTIONAL.items()
            if any(row[key] is not None for row in self.rows)
        }
        lines = [list(shown.values())]
        for row in self.rows:
            numbers = [
                f"{row[key]:.4f}"
                if row[key] is not None and not math.isnan(row[key])
                else "-"
                for key in list(shown)[2:]
            ]
            lines.append([row["kind"], row["part"], *numbers])
        return lines

    def __iter__(self) -> Any:
        return iter(self.rows)

    def __str__(self) -> str:
        lines = self.cells()
        widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
        text = [f"{self.metric}, round {self.round}"]
        for line in lines:
            cells = [
                cell.ljust(width) if n < 2 else cell.rjust(width)
                for n, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            text.append("  ".join(cells).rstrip())
        return "\n".join(text)


def closing_table(rounds: list[Round], metric: str) -> ClosingTable:
    """The table of the last evaluated round."""
    evaluated = [row for row in rounds if row.scores]
    if not evaluated:
        return ClosingTable(metric, 0, ())
    last = evaluated[-1]
    rows = []
    for kind, parts in last.scores.items():
        for part, numbers in parts.items():
            found = {
                name: numbers[f"{metric}_{name}"]
                for name in ("weighted", "worst_decile", "largest_decile", "spread")
            }
            rows.append(
                {
                    "kind": kind,
                    "part": part,
                    "mean": numbers[metric],
                    **found,
                    "loss": numbers["loss"],
                    **{name: numbers.get(name) for name in _OPTIONAL},
                }
            )
    return ClosingTable(metric, last.round, tuple(rows))
