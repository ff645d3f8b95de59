"""Tables once, written as Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fedloom.core.files import write_csv_lines
from fedloom.reports.markup import render

T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """A heading."""

    title: str
    is_number: bool = True
    """Numbers are set to the right and sorted by value."""
    note: str = ""
    """What it means, in a few words."""


@dataclass(frozen=True)
class Cell:
    """What stands in one place."""

    text: str
    value: float | None = None
    """The number behind the text, for sorting and for CSV."""
    is_strong: bool = False
    """Whether the text stands out."""
    tone: str = ""
    """good or bad, for a reader who looks; the text says it too."""

    @property
    def sort_key(self) -> str:
        """The number that the page sorts by; empty if there is none."""
        return "" if _is_missing(self.value) else f"{self.value:.6g}"


@dataclass(frozen=True)
class Table:
    """Columns and rows under a caption; the first column names the row."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def to_markdown(self) -> str:
        """A pipe table with its caption below."""
        return render("table.md", table=self)

    def to_latex(self, label: str) -> str:
        r"""A table for the package booktabs.

        Args:
            label: for \ref.
        """
        return render("table.tex", table=self, label=label)

    def to_html(self, identity: str, *, is_sortable: bool = True) -> str:
        """A table with a caption, in a box that scrolls sideways.

        Args:
            identity: unique on the page.
            is_sortable: whether headings are buttons.
        """
        return render(
            "table.html", table=self, identity=identity, is_sortable=is_sortable
        )


class TableBuilder(Generic[T]):
    """A table with a row for every item, made column by column.

    Args:
        items: what the rows are about.
    """

    def __init__(self, items: Iterable[T]) -> None:
        self._items = tuple(items)
        self._columns: list[Column] = []
        self._cells: list[list[Cell]] = []

    def words(self, title: str, cell: Callable[[T], Cell | str]) -> None:
        """Add a column of text: what stands in it for one item."""
        self._columns.append(Column(title, is_number=False))
        self._add(cell)

    def numbers(
        self, title: str, cell: Callable[[T], Cell | str], note: str = ""
    ) -> None:
        """Add a column of numbers, perhaps with a few words on what they mean."""
        self._columns.append(Column(title, note=note))
        self._add(cell)

    def table(self, caption: str) -> Table:
        """The table under its caption."""
        return Table(
            caption, tuple(self._columns), tuple(zip(*self._cells, strict=True))
        )

    def _add(self, cell: Callable[[T], Cell | str]) -> None:
        made = [cell(item) for item in self._items]
        self._cells.append([Cell(c) if isinstance(c, str) else c for c in made])


def to_csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows of raw values; a number that is not there is an empty field."""
    text = io.StringIO()
    lines = (["" if _is_missing(value) else value for value in row] for row in rows)
    write_csv_lines([header, *lines], text)
    return text.getvalue()


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))
