"""Where commands speak: results on one stream, remarks on the other."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from fedloom.core.files import write_csv
from fedloom.core.foreign_text import terminal_text
from fedloom_command import let_ctrl_c_interrupt


class PlainConsole(Console):
    """A console on which text that others wrote cannot move the terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is printed; only control codes of the console's own stay."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else terminal_text(text), style, control)


out = PlainConsole(emoji=False, width=None if sys.stdout.isatty() else 110)
progress = PlainConsole(emoji=False, width=None if sys.stdout.isatty() else 110)
"""How the work goes on; nothing of it with --quiet."""
err = PlainConsole(stderr=True, emoji=False, width=None if sys.stderr.isatty() else 110)


def set_quiet(is_quiet: bool) -> bool:
    """Say no word of progress, or say it again."""
    progress.quiet = is_quiet
    out.quiet = is_quiet and out.stderr
    return is_quiet


def set_json(is_json: bool) -> bool:
    """Keep standard output for one JSON document, or give it back to everything."""
    global _lacks_document
    out.stderr = progress.stderr = _lacks_document = is_json
    out.quiet = is_json and progress.quiet
    return is_json


_lacks_document = False
"""Whether a JSON document is asked for that has not been printed yet."""


def lacks_document() -> bool:
    """Whether a JSON document is asked for that has not been printed yet."""
    return _lacks_document


def print_json(document: Mapping[str, Any]) -> None:
    """Write the one JSON document of a command to standard output.

    Args:
        document: what it holds. A number that is not finite is written as null.
    """
    global _lacks_document
    _lacks_document = False
    text = json.dumps(_plain_values(document), indent=2)
    sys.stdout.write(f"{text}\n")


def _plain_values(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Mapping):
        return {str(key): _plain_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_values(inner) for inner in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # a number or an array of NumPy
        return _plain_values(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def say(text: str) -> None:
    """One line of result, as it is."""
    out.print(text, highlight=False, soft_wrap=True, markup=False)


def tell(text: str) -> None:
    """One line on how the work goes on."""
    progress.print(text, highlight=False, soft_wrap=True, markup=False)


def aside(text: str) -> None:
    """The same on standard error, where the result itself is lines of the same kind."""
    if not progress.quiet:
        remark(text)


def remark(text: str) -> None:
    """One line that is no result."""
    err.print(text, highlight=False, soft_wrap=True, markup=False)


def print_csv(rows: Sequence[Mapping[str, object]]) -> None:
    """Rows as CSV on standard output; on a terminal nothing in them can move it.

    What goes to another program or to a file is UTF-8, as in the files that we write.
    """
    if not sys.stdout.isatty():
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="strict")
        write_csv(rows, sys.stdout)
        return
    text = io.StringIO()
    write_csv(rows, text)
    sys.stdout.write(terminal_text(text.getvalue()))


def make_table(*columns: str, numbers: Sequence[str] = (), title: str = "") -> Table:
    """A table without lines; columns of numbers stand on the right and come last."""
    table = Table(*columns, box=None, pad_edge=False, title_justify="left")
    table.title = title or None
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def print_numbers(
    labels: Sequence[str],
    numbers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str = "",
) -> None:
    """Print a table all of whose columns are seen, on a narrow terminal too.

    Headings of numbers are broken between words, and what does not fit beside the
    labels stands below, with the labels again.

    Args:
        labels: headings of the first columns, which say what a row is about.
        numbers: headings of the others.
        rows: texts, those of the labels first.
        title: what stands above the table.
    """
    columns = list(zip(*rows, strict=True)) or [()] * (len(labels) + len(numbers))
    label_columns = columns[: len(labels)]
    label_room = sum(
        _widest(heading, *cells) + _GAP
        for heading, cells in zip(labels, label_columns, strict=True)
    )
    parts: list[list[tuple[str, int, tuple[str, ...]]]] = [[]]
    room = out.width - label_room
    for heading, cells in zip(numbers, columns[len(labels) :], strict=True):
        width = _widest(*heading.split(" "), *cells)
        if parts[-1] and sum(w + _GAP for _, w, _ in parts[-1]) + width > room:
            parts.append([])
        parts[-1].append((heading, width, cells))
    for part in parts:
        table = make_table(title=title if part is parts[0] else "")
        table.padding = (0, _GAP, 0, 0)
        for heading in labels:
            table.add_column(heading, no_wrap=True, vertical="bottom")
        for heading, width, _ in part:
            table.add_column(heading, justify="right", width=width, vertical="bottom")
        for cells in zip(*label_columns, *(own for *_, own in part), strict=True):
            table.add_row(*map(plain, cells))
        out.print(table)


_GAP = 2
"""Blanks between two columns."""


def _widest(*texts: str) -> int:
    return max(map(cell_len, texts))


def plain(text: str) -> str:
    """Text that rich must not read as markup."""
    return text.replace("[", r"\[")


@contextmanager
def stoppable(hint: str = "") -> Iterator[None]:
    """Say how to go on after Ctrl-C or SIGTERM: the hint, or what the run says."""
    let_ctrl_c_interrupt()
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        remark(f"Stopped. {hint}".strip())
        show_notes(error)
        if isinstance(error, SystemExit):
            raise
        raise typer.Exit(130) from error


def show_notes(error: BaseException) -> None:
    """Say what the notes of an error have to add."""
    for note in getattr(error, "__notes__", ()):
        remark(note)
