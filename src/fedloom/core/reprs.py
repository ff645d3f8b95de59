"""How objects that hold samples show themselves: by counts, never by rows.

Samples may be patients. A notebook shows the last value of every cell, and programs put
the values of variables into their logs, so no repr says more than shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from html import escape
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound=type[Any])

_FEW = 4
"""Shapes that are written out one by one."""


def without_values(kind: Kind) -> Kind:
    """Give a dataclass or a named tuple a repr of shapes and counts.

    Text, flags, numbers and what has such a repr itself stay as they are.
    """
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.repr]
    else:
        names = list(kind._fields)

    def describe(self: Any) -> str:
        parts = ", ".join(f"{name}={shape_of(getattr(self, name))}" for name in names)
        return f"{kind.__name__}({parts})"

    describe.says_shapes = True  # type: ignore[attr-defined]
    kind.__repr__ = describe  # type: ignore[assignment]
    return kind


def shape_of(value: object) -> str:
    """What a value is, without the values in it.

    >>> import torch
    >>> shape_of(torch.ones(3, 2)), shape_of(["ann", "bob"]), shape_of(3)
    ('float32 (3, 2)', '2 entries', '3')
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        is_safe = hasattr(type(value).__repr__, "says_shapes")
        return repr(value) if is_safe else type(value).__name__
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Mapping | Set):
        return counted_entries(len(value))
    if isinstance(value, Sequence):
        shapes = [shape_of(entry) for entry in value] if len(value) <= _FEW else []
        are_arrays = shapes and all(hasattr(entry, "dtype") for entry in value)
        return f"[{', '.join(shapes)}]" if are_arrays else counted_entries(len(value))
    return type(value).__name__


def counted_entries(number: int) -> str:
    """`1 entry`, `3 entries`."""
    return "1 entry" if number == 1 else f"{number} entries"


def html_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    title: str = "",
    notes: Sequence[str] = (),
) -> str:
    """A table for a notebook; whatever it is given is text, whoever wrote it.

    Args:
        headings: of the columns, the first of which says what a row is about.
        rows: what stands below them.
        title: what stands above the table.
        notes: sentences below it.
    """
    head = "".join(f"<th>{escape(str(cell))}</th>" for cell in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>"
        for row in rows
    )
    above = f"<p><b>{escape(title)}</b></p>" if title else ""
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div>{above}{table if rows else ''}{below}</div>"


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as lines of text: the first column on the left, the others right."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
