"""Drawings with a row for every method: estimates, and swarms of clients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from markupsafe import Markup

from fedloom.reports.charts import CROWD, WIDTH, Numbers, Scale, series, widest
from fedloom.reports.svg import (
    Axis,
    Place,
    Style,
    area,
    at,
    axis,
    dots,
    drawing,
    num,
    path,
    shorten,
    text,
)
from fedloom.results.statistics import Estimate


@dataclass(frozen=True)
class Bar:
    """One method's estimate, and perhaps a second one beside it."""

    name: str
    style: Style
    first: Estimate
    tip: str
    second: Estimate | None = None
    second_tip: str = ""


@dataclass(frozen=True)
class Swarm:
    """One method's clients."""

    name: str
    style: Style
    values: Numbers
    tips: Sequence[str]
    mean: float
    low: float = math.nan
    """Mean of the worst tenth, or nan to leave the sign out."""


RowT = TypeVar("RowT", Bar, Swarm)


def forest(bars: Sequence[Bar], title: str, description: str, scale: Scale) -> Markup:
    """Estimates with intervals, one method a row: first solid, second hollow."""
    estimates = [e for b in bars for e in (b.first, b.second) if e is not None]
    values = [v for e in estimates for v in (e.low, e.mean, e.high)]
    x = axis(values, 16 + widest(bar.name for bar in bars), WIDTH - 14)

    def row(bar: Bar, middle: float) -> Markup:
        if bar.second is None:
            return _whisker(x, bar.first, middle, "dot", bar.tip)
        return _whisker(x, bar.first, middle - 6, "dot", bar.tip) + _whisker(
            x, bar.second, middle + 6, "dot open", bar.second_tip
        )

    body, height = _rows(bars, row, x, scale, tall=34.0, top=12.0)
    return drawing(WIDTH, height, title, description, body)


def _rows(
    rows: Sequence[RowT],
    draw: Callable[[RowT, float], Markup],
    x: Axis,
    scale: Scale,
    *,
    tall: float,
    top: float,
    zero: float | None = None,
) -> tuple[Markup, float]:
    """A chart whose rows are methods, and its height."""
    end = top + tall * len(rows)
    lines, body = "", Markup()
    for tick in x.ticks():
        lines += f"M{at(x.at(tick), top)}V{num(end)}"
        body += text(x.at(tick), end + 16, scale.show(tick), "middle")
    if zero is not None and x.low <= zero <= x.high:
        body += path("zero", f"M{at(x.at(zero), top)}V{num(end)}")
    body += text((x.start + x.end) / 2, end + 33, scale.title, "middle", "name")
    for n, row in enumerate(rows):
        middle = top + tall * (n + 0.5)
        name = text(0, middle + 4, shorten(row.name), kind="who")
        body += series(row.name, row.style, name, draw(row, middle))
    return path("grid", lines) + body, end + 40


def _whisker(x: Axis, estimate: Estimate, y: float, kind: str, tip: str) -> Markup:
    if estimate.count == 0:
        return Markup()
    place, whisker = x.at(estimate.mean), Markup()
    if estimate.has_interval:
        low, high = x.at(estimate.low), x.at(estimate.high)
        ends = f"M{at(low, y - 4)}v8M{at(high, y - 4)}v8"
        whisker = path("whisker", f"M{at(low, y)}H{num(high)}{ends}")
    circle = f"M{at(place - 4.5, y)}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z"
    return whisker + path(kind, circle, data_tips=tip, data_at=at(place, y))


def swarm_chart(
    swarms: Sequence[Swarm],
    title: str,
    description: str,
    scale: Scale,
    *,
    zero: float | None = None,
) -> Markup:
    """Every client as a dot, one method a row; a shape where they are too many."""
    values = [float(v) for s in swarms for v in s.values]
    values += [zero] if zero is not None else []
    least, most = scale.bounds
    left = 16 + widest(swarm.name for swarm in swarms)
    x = axis(values, left, WIDTH - 14, least=least, most=most, pad=0.02)
    tall = 46.0

    def row(swarm: Swarm, middle: float) -> Markup:
        inside = Markup()
        known = [k for k, v in enumerate(swarm.values) if math.isfinite(v)]
        if len(known) > CROWD:
            inside += _shape(x, swarm.values[known], middle, tall * 0.42)
        elif known:
            places = _swarm(x, [float(swarm.values[k]) for k in known], middle, tall)
            tips = "|".join(swarm.tips[k] for k in known)
            inside += path("dots", dots(places), data_tips=tips)
        if math.isfinite(swarm.mean):
            inside += path("mean", f"M{at(x.at(swarm.mean), middle - 17)}v34")
        if math.isfinite(swarm.low):
            inside += path("low", f"M{at(x.at(swarm.low), middle + 12)}l4 7h-8z")
        return inside

    body, height = _rows(swarms, row, x, scale, tall=tall, top=8.0, zero=zero)
    return drawing(WIDTH, height, title, description, body)


def _swarm(x: Axis, values: list[float], middle: float, row: float) -> list[Place]:
    """Dots in columns, stacked from the middle outward, closer where they are many."""
    columns: dict[int, list[int]] = defaultdict(list)
    for n, value in enumerate(values):
        columns[round(x.at(value) / 5.0)].append(n)
    most = max(len(column) for column in columns.values())
    gap = min(5.0, (row - 12) / max(most - 1, 1))
    places = [(0.0, 0.0)] * len(values)
    for column in columns.values():
        for k, n in enumerate(sorted(column, key=lambda n: values[n])):
            side = (k + 1) // 2 * (1 if k % 2 else -1)
            places[n] = (x.at(values[n]), middle + side * gap)
    return places


def _shape(x: Axis, values: Numbers, middle: float, half: float) -> Markup:
    """A histogram, mirrored."""
    counts, edges = np.histogram(values, bins=40, range=(x.low, x.high))
    above, below = [], []
    for n, height in enumerate(counts / max(counts.max(), 1) * half):
        for edge in (edges[n], edges[n + 1]):
            above.append((x.at(float(edge)), middle - float(height)))
            below.append((x.at(float(edge)), middle + float(height)))
    return area("area", above, below)
