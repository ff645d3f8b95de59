"""Tables once, written as Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


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


@dataclass(frozen=True)
class Table:
    """Columns and rows under a caption; the first column names the row."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def to_markdown(self) -> str:
        """A pipe table with its caption below."""
        lines = [
            _pipes([column.title for column in self.columns]),
            _pipes(
                ["---:" if c.is_number else "---" for c in self.columns], is_raw=True
            ),
        ]
        for row in self.rows:
            lines.append(
                _pipes(
                    [f"**{c.text}**" if c.is_strong and c.text else c.text for c in row]
                )
            )
        return "\n".join([*lines, "", self.caption]) + "\n"

    def to_latex(self, label: str) -> str:
        r"""A table for the package booktabs.

        Args:
            label: for \ref.
        """
        shape = "".join("r" if column.is_number else "l" for column in self.columns)
        lines = [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{latex(self.caption)}}}",
            rf"  \label{{tab:{label}}}",
            rf"  \begin{{tabular}}{{{shape}}}",
            r"    \toprule",
            "    " + " & ".join(latex(c.title) for c in self.columns) + r" \\",
            r"    \midrule",
        ]
        for row in self.rows:
            cells = [
                rf"\textbf{{{latex(c.text)}}}" if c.is_strong else latex(c.text)
                for c in row
            ]
            lines.append("    " + " & ".join(cells) + r" \\")
        lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
        return "\n".join(lines) + "\n"

    def to_html(self, identity: str, *, is_sortable: bool = True) -> str:
        """A table with a caption, in a box that scrolls sideways.

        Args:
            identity: unique on the page.
            is_sortable: whether headings are buttons.
        """
        head = []
        for column in self.columns:
            title = escape(column.title)
            if is_sortable:
                title = f'<button type="button">{title}</button>'
            kind = ' class="n"' if column.is_number else ""
            note = f' title="{escape(column.note)}"' if column.note else ""
            head.append(f'<th scope="col"{kind}{note}>{title}</th>')
        body = []
        for row in self.rows:
            cells = [
                _cell(c, self.columns[n], is_first=n == 0) for n, c in enumerate(row)
            ]
            body.append(f"<tr>{''.join(cells)}</tr>")
        kind = ' class="sortable"' if is_sortable else ""
        return (
            f'<div class="scroll" role="region" tabindex="0" '
            f'aria-labelledby="{identity}-caption"><table{kind} id="{identity}">'
            f'<caption id="{identity}-caption"><span>{escape(self.caption)}</span>'
            "</caption>"
            f"<thead><tr>{''.join(head)}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )


def to_csv(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows of raw values; a number that is not there is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow(["" if _is_missing(value) else value for value in row])
    return text.getvalue()


def latex(text: str) -> str:
    """Text that LaTeX sets as it stands."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\N{MINUS SIGN}": "$-$",
    "\N{PLUS-MINUS SIGN}": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{EN DASH}": "--",
    "\N{NO-BREAK SPACE}": "~",
}


def _cell(cell: Cell, column: Column, *, is_first: bool) -> str:
    classes = [
        name
        for name, given in (
            ("n", column.is_number),
            ("strong", cell.is_strong),
            (cell.tone, bool(cell.tone)),
        )
        if given
    ]
    kind = f' class="{" ".join(classes)}"' if classes else ""
    value = ""
    if cell.value is not None and math.isfinite(cell.value):
        value = f' data-v="{cell.value:.6g}"'
    if is_first:
        return f'<th scope="row"{kind}{value}>{escape(cell.text)}</th>'
    return f"<td{kind}{value}>{escape(cell.text)}</td>"


def _pipes(cells: list[str], *, is_raw: bool = False) -> str:
    if not is_raw:
        cells = [cell.replace("|", r"\|").replace("<", "&lt;") for cell in cells]
    return "| " + " | ".join(cells) + " |"


def _is_missing(value: object) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))
