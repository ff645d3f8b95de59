"""Drawings with a row for every method: estimates, and swarms of clients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedloom.reports.axes import Axis, Scale, fair_axis
from fedloom.reports.charts import (
    CROWD,
    ROOM,
    WIDTH,
    Numbers,
    chart_data,
    series,
    widest,
)
from fedloom.reports.held_out import Who
from fedloom.reports.svg import (
    Place,
    Style,
    area,
    at,
    beyond,
    dots,
    drawing,
    num,
    path,
    plot,
    shorten,
    text,
    ticks,
    window,
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

    @property
    def values(self) -> list[float]:
        """What must fit on an axis."""
        estimates = [e for e in (self.first, self.second) if e is not None and e.count]
        return [v for e in estimates for v in (e.low, e.mean, e.high)]


@dataclass(frozen=True)
class Swarm:
    """One method's clients."""

    name: str
    style: Style
    values: Numbers
    clients: Sequence[Who]
    tips: Sequence[str]
    mean: float
    low: float = math.nan
    """Mean of the worst tenth, or nan to leave the sign out."""
    is_sure: NDArray[np.bool_] | None = None
    """Where the interval of a value excludes 0: other dots are grey. None: all."""


RowT = TypeVar("RowT", Bar, Swarm)


def forest(bars: Sequence[Bar], title: str, description: str, scale: Scale) -> Markup:
    """Estimates with intervals, one method a row: first solid, second hollow."""
    left = 16 + widest(bar.name for bar in bars)
    x = fair_axis([bar.values for bar in bars], left, WIDTH - 14, scale)

    def row(bar: Bar, middle: float) -> Markup:
        if bar.second is None:
            return _whisker(x, bar.first, middle, "dot", bar.tip)
        return _whisker(x, bar.first, middle - 6, "dot", bar.tip) + _whisker(
            x, bar.second, middle + 6, "dot open", bar.second_tip
        )

    has_second = any(bar.second is not None for bar in bars)
    header = ["method", scale.title, "low", "high"]
    header += ["at the chosen round", "low", "high"] if has_second else []
    rows = []
    for bar in bars:
        estimates = [bar.first, bar.second] if bar.second else [bar.first]
        ends = [v for e in estimates for v in (e.mean, e.low, e.high)]
        rows.append([bar.name, *ends])
    return _row_chart(
        bars, row, x, scale, title, description, (header, rows), tall=34.0, top=12.0
    )


def _row_chart(
    rows: Sequence[RowT],
    draw: Callable[[RowT, float], Markup],
    x: Axis,
    scale: Scale,
    title: str,
    description: str,
    data: tuple[Sequence[str], Sequence[Sequence[object]]],
    *,
    tall: float,
    top: float,
    zero: float | None = None,
    pad: float = 0.04,
) -> Markup:
    """A chart whose rows are methods."""
    end = top + tall * len(rows)
    lines, labels, body = "", Markup(), Markup()
    for tick in x.ticks():
        lines += f"M{at(x.at(tick), top)}V{num(end)}"
        labels += text(x.at(tick), end + 16, scale.show(tick), "middle")
    named = scale.title + (" (logarithmic)" if x.is_log else "")
    # Under a long row of names the middle of the axis is far to the right.
    reach = 3.2 * len(named)
    middle = min((x.start + x.end) / 2, max(WIDTH - reach, reach))
    body += text(middle, end + 33, named, "middle", "name")
    for n, row in enumerate(rows):
        middle = top + tall * (n + 0.5)
        name = text(0, middle + 4, shorten(row.name), kind="who")
        edges = (x.start - ROOM, x.end + ROOM), (middle - tall / 2, middle + tall / 2)
        inside = window(*edges, draw(row, middle))
        sides = {x.side(float(v)) for v in row.values if math.isfinite(v)} - {0}
        marks = [beyond(x, "x", side, middle) for side in sorted(sides)]
        body += series(row.name, row.style, name, inside, *marks)
    rules = {"zero": zero, "pad": pad}
    if zero is not None:
        body = path("zero", f"M{at(x.at(zero), top)}V{num(end)}") + body
    return drawing(
        WIDTH,
        end + 40,
        title,
        description,
        ticks("x", path("grid", lines), labels),
        body,
        axes=[x.for_script("x", (top, end), scale, **rules)],
        data=chart_data(*data),
    )


def _whisker(x: Axis, estimate: Estimate, y: float, kind: str, tip: str) -> Markup:
    if estimate.count == 0:
        return Markup()
    place, whisker = x.at(estimate.mean), Markup()
    if estimate.has_interval:
        low, high = x.at(estimate.low), x.at(estimate.high)
        ends = f"M{at(low, y - 4)}v8M{at(high, y - 4)}v8"
        whisker = plot("whisker", f"M{at(low, y)}H{num(high)}{ends}")
    circle = f"M{at(place, y)}m-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z"
    return whisker + plot(kind, circle, data_tips=tip)


def swarm_chart(
    swarms: Sequence[Swarm],
    title: str,
    description: str,
    scale: Scale,
    *,
    zero: float | None = None,
) -> Markup:
    """Every client as a dot, one method a row; a shape where they are too many."""
    left = 16 + widest(swarm.name for swarm in swarms)
    values = [swarm.values.tolist() for swarm in swarms]
    x = fair_axis(values, left, WIDTH - 14, scale, pad=0.02, zero=zero)
    tall = 46.0

    def row(swarm: Swarm, middle: float) -> Markup:
        inside = Markup()
        known = [k for k, v in enumerate(swarm.values) if math.isfinite(v)]
        if len(known) > CROWD:
            inside += _shape(x, swarm.values[known], middle, tall * 0.42)
        elif known:
            places = _swarm(x, [float(swarm.values[k]) for k in known], middle, tall)
            sure = swarm.is_sure
            for kind, is_drawn in (("dots unsure", False), ("dots", True)):
                drawn = [
                    (k, place)
                    for k, place in zip(known, places, strict=True)
                    if (sure is None or bool(sure[k])) == is_drawn
                ]
                if drawn:
                    tips = "|".join(swarm.tips[k] for k, _ in drawn)
                    way = dots([place for _, place in drawn])
                    inside += plot(kind, way, data_tips=tips)
        if math.isfinite(swarm.mean):
            inside += plot("mean", f"M{at(x.at(swarm.mean), middle - 17)}v34")
        if math.isfinite(swarm.low):
            inside += plot("low", f"M{at(x.at(swarm.low), middle + 12)}l4 7h-8z")
        return inside

    header = ["method", "client", "seed", "training samples", scale.title]
    rows = [
        [swarm.name, who.name, who.seed, who.samples, float(value)]
        for swarm in swarms
        for who, value in zip(swarm.clients, swarm.values, strict=True)
    ]
    return _row_chart(
        swarms,
        row,
        x,
        scale,
        title,
        description,
        (header, rows),
        tall=tall,
        top=8.0,
        zero=zero,
        pad=0.02,
    )


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
