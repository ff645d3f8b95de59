"""The closing table: the last round, one line per kind of model and part."""

from __future__ import annotations

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
    "ece": "ECE",
}


@dataclass(frozen=True)
class ClosingTable:
    """What a run came to; prints as text, iterates as rows."""

    metric: str
    round: int
    rows: tuple[dict[str, Any], ...]

    def cells(self) -> list[list[str]]:
        """The heading and every row as text."""
        lines = [list(_HEADINGS.values())]
        for row in self.rows:
            numbers = [
                f"{row[key]:.4f}" if row[key] is not None else "-"
                for key in list(_HEADINGS)[2:]
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
                    "ece": numbers.get("ece"),
                }
            )
    return ClosingTable(metric, last.round, tuple(rows))
