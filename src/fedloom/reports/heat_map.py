"""Matrices in shades."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedloom.reports.charts import LETTER, WIDTH, Numbers, Show
from fedloom.reports.svg import at, drawing, element, num, path, shorten, text

SIDE = 48
"""Most rows and columns."""

_SHADES = 9
"""Steps from pale to dark."""


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
) -> Markup:
    """A matrix in shades, perhaps with a bar at the end of every row."""
    widest = max((len(shorten(r, 12)) for r in [row_title, *rows]), default=0)
    left = 12 + LETTER * widest
    room = WIDTH - left - (96 if bars is not None else 10)
    side = min(30.0, room / max(len(columns), 1))
    tall = min(max(side, 9.0), 17.0, max(4.0, 640.0 / max(len(rows), 1)))
    top, height = 38.0, 38.0 + tall * len(rows) + 8
    high = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    ways: dict[int, str] = defaultdict(str)
    for r, c in np.argwhere(np.isfinite(values)).tolist():
        share = (float(values[r, c]) - low) / (high - low) if high > low else 1.0
        step = min(_SHADES, max(0, math.ceil(share * _SHADES)))
        box = f"h{num(side - 1)}v{num(tall - 1)}h{num(1 - side)}z"
        ways[step] += f"M{at(left + c * side + 0.5, top + r * tall + 0.5)}{box}"
    body = Markup().join(path(f"q{step}", way) for step, way in sorted(ways.items()))
    body += text(left, 12, column_title, kind="name")
    body += text(left - 6, 30, row_title, "end", "name")
    stride = math.ceil(LETTER * max(len(c) for c in columns) / side) if columns else 1
    for c, name in list(enumerate(columns))[::stride]:
        body += text(left + (c + 0.5) * side, 30, shorten(name, 8), "middle")
    skip = math.ceil(11.0 / tall)
    for r, name in list(enumerate(rows))[::skip]:
        body += text(left - 6, top + (r + 0.5) * tall + 4, shorten(name, 12), "end")
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
    return drawing(WIDTH, height, title, description, body, cover)


def _bars(
    values: Numbers, left: float, reach: float, top: float, tall: float, skip: int
) -> Markup:
    most = max(float(values.max(initial=0)), 1.0)
    way, labels = "", text(left, 30, "samples", kind="name")
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
