"""Matrices in shades."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedloom.reports.axes import Show, fair_range
from fedloom.reports.charts import LETTER, WIDTH, Numbers, chart_data
from fedloom.reports.svg import at, distinct, drawing, element, num, path, text

SIDE = 48
"""Most rows and columns."""

_SHADES = 9
"""Steps from pale to dark."""

_ROW_NAME, _COLUMN_NAME = (14, 34), 24
"""Most letters of a label: those of rows have more where there are few columns."""

_SMALL = 0.85
"""How much smaller labels are than other letters."""


def heat_map(
    values: Numbers,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    description: str,
    *,
    row_title: str,
    column_title: str,
    show: Show,
    bars: Numbers | None = None,
    low: float = 0.0,
    raw: Numbers | None = None,
) -> Markup:
    """A matrix in shades, perhaps with a bar at the end of every row.

    Args:
        values: what decides on the shades.
        rows: names of the rows.
        columns: names of the columns.
        title: what it is.
        description: what it shows, for whoever cannot see it.
        row_title: what a row is.
        column_title: what a column is.
        show: writes a value for a pointer.
        bars: a number for every row.
        low: the value of the palest shade.
        raw: the numbers behind the shades, if these are not the values.
    """
    raw = values if raw is None else raw
    letter = _SMALL * LETTER
    beside = 96.0 if bars is not None else 10.0
    fitting = int((WIDTH - beside - 12 - 30.0 * len(columns)) / letter)
    least, most = _ROW_NAME
    labels = distinct(rows, min(max(fitting, least), most))
    left = 12 + letter * max((len(name) for name in [row_title, *labels]), default=0)
    room = WIDTH - left - beside
    side = min(30.0, room / max(len(columns), 1))
    tall = min(max(side, 9.0), 17.0, max(4.0, 640.0 / max(len(rows), 1)))
    heads = distinct(columns, _COLUMN_NAME)
    longest = max((len(name) for name in heads), default=0)
    is_upright = letter * longest > side - 4 and longest > 3
    top = 26.0 + (letter * longest if is_upright else 12.0)
    height = top + tall * len(rows) + 8
    _, high = fair_range([values[np.isfinite(values)].tolist()])
    ways: dict[int, str] = defaultdict(str)
    for r, c in np.argwhere(np.isfinite(values)).tolist():
        share = (float(values[r, c]) - low) / (high - low) if high > low else 1.0
        step = min(_SHADES, max(0, math.ceil(share * _SHADES)))
        box = f"h{num(side - 1)}v{num(tall - 1)}h{num(1 - side)}z"
        ways[step] += f"M{at(left + c * side + 0.5, top + r * tall + 0.5)}{box}"
    body = Markup().join(path(f"q{step}", way) for step, way in sorted(ways.items()))
    body += text(left, 12, column_title, kind="name")
    body += text(left - 6, top - 8, row_title, "end", "name")
    wide = 11.0 if is_upright else letter * max(longest, 1) + 4
    stride = math.ceil(wide / side)
    for c, name in list(enumerate(heads))[::stride]:
        x = left + (c + 0.5) * side
        body += _head(x, top - 6, name, is_upright=is_upright)
    skip = math.ceil(10.0 / tall)
    for r, name in list(enumerate(labels))[::skip]:
        body += text(left - 6, top + (r + 0.5) * tall + 4, name, "end", "label")
    if bars is not None:
        start = left + side * len(columns) + (8 if len(columns) else 0)
        reach = 46.0 if len(columns) else WIDTH - start - 50
        body += _bars(bars, start, reach, top, tall, skip)
    cells = "|".join(
        ",".join(show(float(v)) if math.isfinite(v) else "" for v in row)
        for row in values
    )
    cover = element(
        "rect",
        class_="cover",
        x=left,
        y=top,
        width=side * len(columns),
        height=tall * len(rows),
        data_cells=cells,
        data_rows="|".join(name.replace("|", "/") for name in rows),
        data_columns="|".join(name.replace("|", "/") for name in columns),
        data_names=f"{row_title}|{column_title}",
    )
    named = [[name, *row.tolist()] for name, row in zip(rows, raw, strict=True)]
    header = [row_title, *(f"{column_title} {name}" for name in columns)]
    if bars is not None:
        header.append("samples")
        named = [[*row, float(n)] for row, n in zip(named, bars, strict=True)]
    data = chart_data(header, named)
    return drawing(WIDTH, height, title, description, body, cover, data=data)


def _head(x: float, y: float, name: str, *, is_upright: bool) -> Markup:
    """The label of a column, upright where it does not fit otherwise."""
    if not is_upright:
        return text(x, y, name, "middle", "label")
    turn = f"translate({at(x + 4, y)}) rotate(-90)"
    return element("text", name, transform=turn, class_="label")


def _bars(
    values: Numbers, left: float, reach: float, top: float, tall: float, skip: int
) -> Markup:
    most = max(float(values.max(initial=0)), 1.0)
    way, labels = "", text(left, top - 8, "samples", kind="name")
    for n, value in enumerate(values):
        long = max(1.0, float(value) / most * reach)
        spot = f"M{at(left, top + n * tall + 1)}"
        way += f"{spot}h{num(long)}v{num(tall - 2)}h{num(-long)}z"
        if n % skip == 0:
            labels += text(left + long + 4, top + (n + 0.5) * tall + 4, f"{value:.0f}")
    return path("bar", way) + labels


def block_mean(values: Numbers) -> tuple[Numbers, list[str], list[str]]:
    """A matrix of at most `SIDE` rows and columns, by means of blocks, with names."""
    rows, columns = (
        np.array_split(np.arange(count), min(count, SIDE)) for count in values.shape
    )
    small = np.array([[values[np.ix_(r, c)].mean() for c in columns] for r in rows])
    return small, _block_names(rows), _block_names(columns)


def _block_names(blocks: Sequence[NDArray[Any]]) -> list[str]:
    return [str(b[0]) if len(b) == 1 else f"{b[0]}-{b[-1]}" for b in blocks]
