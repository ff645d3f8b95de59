"""How every experiment writes its rows and its table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedloom.core.files import atomic_write, write_csv, write_text


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; a row that is too short ends in empty cells."""
    lines = []
    for row in (head, *rows):
        cells = [*row, *[""] * (len(head) - len(row))]
        lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    rule = "|" + "---|" * len(head)
    return "\n".join([lines[0], rule, *lines[1:]]) + "\n"


def write(
    out: Path,
    name: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    table: str,
) -> str:
    """Write rows to `name`.csv and the table to `name`.md, and give back the table."""
    dicts = [dict(zip(columns, row, strict=True)) for row in rows]
    write_csv(dicts, out / f"{name}.csv")
    with atomic_write(out / f"{name}.md") as part:
        write_text(part, table)
    return table
