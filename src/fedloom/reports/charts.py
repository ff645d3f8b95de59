"""The drawings of a report, each a function from numbers to SVG text."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.reports.svg import (
    Axis,
    Style,
    axis,
    dots,
    drawing,
    element,
    grid,
    num,
    points,
    shade,
    shorten,
    spread,
    text,
)
from fedloom.results.statistics import Estimate

WIDTH = 480.0
"""Of a drawing, in its own units; pages scale it."""

_LETTER = 6.4
"""Width of a letter, about."""

Show = Callable[[float], str]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One method's way."""

    name: str
    style: Style
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float]
    """Half the height of the band; nan draws none."""
    tips: Sequence[str]
    """What a pointer is told at every place."""


@dataclass(frozen=True)
class Bar:
    """One method's estimate, and a second one beside it."""

    name: str
    style: Style
    first: Estimate
    second: Estimate | None
    tips: tuple[str, str]


@dataclass(frozen=True)
class Swarm:
    """One method's clients."""

    name: str
    style: Style
    values: Numbers
    tips: Sequence[str]
    mean: float
    low: float
    """Mean of the worst tenth, or nan to leave the sign out."""


def series(name: str, style: Style, *children: str) -> str:
    """What belongs to one method, so that it can be hidden."""
    return element("g", *children, class_=f"series {style.css}", data_method=name)


def line_chart(
    curves: Sequence[Curve],
    title: str,
    description: str,
    *,
    x_title: str,
    y_title: str,
    show_x: Show,
    show_y: Show,
    bounds: tuple[float | None, float | None] = (None, None),
) -> str:
    """Curves with bands and their names at the end; flat if a method's x is all 0."""
    height, names = 300.0, [shorten(c.name) for c in curves]
    right = WIDTH - 14 - _LETTER * max((len(n) for n in names), default=0)
    ends = [max(c.x) for c in curves if max(c.x) > 0]
    is_log = bool(ends) and max(ends) / min(ends) > 8
    every_y = [v for c in curves for v in c.y]
    every_x = [v for c in curves for v in c.x if v > 0 or not is_log]
    x = axis(every_x, 46, right, is_log=is_log, pad=0.0 if not is_log else 0.02)
    y = axis(every_y, height - 46, 26, least=bounds[0], most=bounds[1])
    body, lasts = [], []
    for curve in curves:
        is_flat = max(curve.x) <= 0
        kept = [n for n, v in enumerate(curve.x) if v > 0 or not is_log]
        kept = [n for n in kept if math.isfinite(curve.y[n])]
        if is_flat:
            level = y.at(curve.y[-1])
            places = [(x.start, level), (x.end, level)]
            tips = [curve.tips[-1]] * 2
            band = ""
        elif not kept:
            continue
        else:
            places = [(x.at(curve.x[n]), y.at(curve.y[n])) for n in kept]
            tips = [curve.tips[n] for n in kept]
            band = _band(curve, kept, x, y)
        line = element(
            "path",
            class_="line",
            d=points(places),
            stroke_dasharray=curve.style.dash or None,
            data_tips="|".join(tips),
        )
        body.append((curve, band + line + curve.style.mark(*places[-1])))
        lasts.append(places[-1])
    heights = spread([p[1] for p in lasts], 13.0, 30, height - 46)
    drawn = ""
    for (curve, inside), (px, py), label in zip(body, lasts, heights, strict=True):
        leader = ""
        if abs(label - py) > 5 or x.end - px > 8:
            way = f"M{num(px + 5)} {num(py)}L{num(right + 6)} {num(label)}"
            leader = element("path", class_="leader", d=way)
        name = text(right + 9, label + 4, shorten(curve.name), kind="who")
        drawn += series(curve.name, curve.style, inside, leader, name)
    scale = " (logarithmic)" if is_log else ""
    lines = grid(x, y, show_x, show_y, x_title=x_title + scale, y_title=y_title)
    return drawing(WIDTH, height, title, description, lines, drawn)


def _band(curve: Curve, kept: Sequence[int], x: Axis, y: Axis) -> str:
    known = [n for n in kept if math.isfinite(curve.error[n])]
    if len(known) < 2:
        return ""
    above = [(x.at(curve.x[n]), y.at(curve.y[n] + curve.error[n])) for n in known]
    below = [(x.at(curve.x[n]), y.at(curve.y[n] - curve.error[n])) for n in known]
    return element("path", class_="band", d=points([*above, *reversed(below)]) + "z")


def forest(
    bars: Sequence[Bar],
    title: str,
    description: str,
    *,
    x_title: str,
    show: Show,
    zero: float | None = None,
) -> str:
    """Estimates with intervals, one method a row: first solid, second hollow."""
    row, top = 34.0, 12.0
    left = 16 + _LETTER * max((len(shorten(b.name)) for b in bars), default=0)
    height = top + row * len(bars) + 40
    every = [v for b in bars for v in _span(b.first)]
    every += [v for b in bars if b.second is not None for v in _span(b.second)]
    x = axis([*every, *([zero] if zero is not None else [])], left, WIDTH - 14)
    base = Axis(0, 1, height - 40, top)
    body = _vertical(x, base, show, x_title, zero)
    for n, bar in enumerate(bars):
        middle = top + row * (n + 0.5)
        inside = text(0, middle + 4, shorten(bar.name), kind="who")
        offset = 6.0 if bar.second is not None else 0.0
        inside += _whisker(x, bar.first, middle - offset, "", bar.tips[0])
        if bar.second is not None:
            inside += _whisker(x, bar.second, middle + offset, " open", bar.tips[1])
        body += series(bar.name, bar.style, inside)
    return drawing(WIDTH, height, title, description, body)


def _span(estimate: Estimate) -> list[float]:
    return [v for v in (estimate.low, estimate.mean, estimate.high) if math.isfinite(v)]


def _whisker(x: Axis, estimate: Estimate, y: float, kind: str, tip: str) -> str:
    if estimate.count == 0:
        return ""
    place, found = x.at(estimate.mean), ""
    if estimate.has_interval:
        low, high = x.at(estimate.low), x.at(estimate.high)
        ends = f"M{num(low)} {num(y - 4)}v8M{num(high)} {num(y - 4)}v8"
        way = f"M{num(low)} {num(y)}H{num(high)}{ends}"
        found = element("path", class_="whisker", d=way)
    return found + element(
        "path",
        class_="dot" + kind,
        d=f"M{num(place - 4.5)} {num(y)}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
        data_tips=tip,
        data_at=f"{num(place)} {num(y)}",
    )


def _vertical(x: Axis, y: Axis, show: Show, x_title: str, zero: float | None) -> str:
    """Grid of a chart whose rows are methods."""
    lines, labels = "", ""
    for tick in x.ticks():
        lines += f"M{num(x.at(tick))} {num(y.end)}V{num(y.start)}"
        labels += text(x.at(tick), y.start + 16, show(tick), "middle")
    found = element("path", class_="grid", d=lines) + labels
    if zero is not None and x.low <= zero <= x.high:
        way = f"M{num(x.at(zero))} {num(y.end)}V{num(y.start)}"
        found += element("path", class_="zero", d=way)
    middle = (x.start + x.end) / 2
    return found + text(middle, y.start + 33, x_title, "middle", "name")


def swarm_chart(
    swarms: Sequence[Swarm],
    title: str,
    description: str,
    *,
    x_title: str,
    show: Show,
    zero: float | None = None,
    bounds: tuple[float | None, float | None] = (None, None),
) -> str:
    """Every client as a dot, one method a row; a shape where they are too many."""
    row, top = 46.0, 8.0
    left = 16 + _LETTER * max((len(shorten(s.name)) for s in swarms), default=0)
    height = top + row * len(swarms) + 40
    every = [float(v) for s in swarms for v in s.values if math.isfinite(v)]
    x = axis(
        [*every, *([zero] if zero is not None else [])],
        left,
        WIDTH - 14,
        least=bounds[0],
        most=bounds[1],
        pad=0.02,
    )
    body = _vertical(x, Axis(0, 1, height - 40, top), show, x_title, zero)
    for n, swarm in enumerate(swarms):
        middle = top + row * (n + 0.5)
        inside = text(0, middle + 4, shorten(swarm.name), kind="who")
        known = [k for k, v in enumerate(swarm.values) if math.isfinite(v)]
        if len(known) > 400:
            inside += _shape(x, swarm.values[known], middle, row * 0.42)
        elif known:
            places = _swarm(x, [float(swarm.values[k]) for k in known], middle, row)
            tips = "|".join(swarm.tips[k] for k in known)
            inside += element("path", class_="dots", d=dots(places), data_tips=tips)
        if math.isfinite(swarm.mean):
            way = f"M{num(x.at(swarm.mean))} {num(middle - 17)}v34"
            inside += element("path", class_="mean", d=way)
        if math.isfinite(swarm.low):
            place = x.at(swarm.low)
            way = f"M{num(place)} {num(middle + 12)}l4 7h-8z"
            inside += element("path", class_="low", d=way)
        body += series(swarm.name, swarm.style, inside)
    return drawing(WIDTH, height, title, description, body)


def _swarm(
    x: Axis, values: list[float], middle: float, row: float
) -> list[tuple[float, float]]:
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


def _shape(x: Axis, values: Numbers, middle: float, half: float) -> str:
    """A histogram, mirrored."""
    counts, edges = np.histogram(values, bins=40, range=(x.low, x.high))
    tall = counts / max(counts.max(), 1) * half
    above, below = [], []
    for n, height in enumerate(tall):
        for edge in (edges[n], edges[n + 1]):
            above.append((x.at(float(edge)), middle - float(height)))
            below.append((x.at(float(edge)), middle + float(height)))
    return element("path", class_="area", d=points([*above, *reversed(below)]) + "z")


def scatter(
    name: str,
    style: Style,
    x_values: Numbers,
    y_values: Numbers,
    tips: Sequence[str],
    title: str,
    *,
    reference: tuple[Numbers, Numbers] | None,
    x_range: tuple[float, float],
    y_range: tuple[float, float],
    show_x: Show,
    show_y: Show,
) -> str:
    """One small panel: clients as dots, the mean in thirds by x, and a reference's."""
    width, height = 240.0, 172.0
    x = axis(x_range, 40, width - 8, is_log=x_range[1] / x_range[0] > 4, pad=0.04)
    y = axis(y_range, height - 24, 26, pad=0.05)
    known = [
        n
        for n in range(len(x_values))
        if math.isfinite(y_values[n]) and x_values[n] > 0
    ]
    places = [(x.at(float(x_values[n])), y.at(float(y_values[n]))) for n in known]
    inside = ""
    if places:
        kept = known if len(known) <= 400 else known[:: math.ceil(len(known) / 400)]
        shown = [places[known.index(n)] for n in kept] if kept != known else places
        inside = element(
            "path",
            class_="dots",
            d=dots(shown),
            data_tips="|".join(tips[n] for n in kept),
        )
        inside += element(
            "path", class_="line", d=points(_thirds(x, y, x_values, y_values))
        )
    body = grid(x, y, show_x, show_y, x_most=4, y_most=4)
    if reference is not None:
        way = _thirds(x, y, *reference)
        if way:
            line = element("path", class_="line", d=points(way), stroke_dasharray="3 3")
            body += element("g", line, class_="base")
    body += series(name, style, text(0, 12, shorten(name, 34), kind="who"), inside)
    average = float(np.nanmean(y_values)) if len(known) else math.nan
    described = (
        f"{len(known)} clients, mean {show_y(average)}" if known else "no client"
    )
    return drawing(width, height, title, described, body)


def _thirds(
    x: Axis, y: Axis, x_values: Numbers, y_values: Numbers
) -> list[tuple[float, float]]:
    """Means of the clients in thirds by size."""
    known = np.flatnonzero(np.isfinite(y_values) & (x_values > 0))
    order = known[np.argsort(x_values[known], kind="stable")]
    found = []
    for part in np.array_split(order, 3):
        if len(part):
            middle = float(np.exp(np.log(x_values[part]).mean()))
            found.append((x.at(middle), y.at(float(y_values[part].mean()))))
    return found


def small_lines(
    title: str,
    rounds: Sequence[int],
    middle: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    style: Style,
    show: Show,
) -> str:
    """How one recorded number went over rounds: mean, and where most clients were."""
    width, height = 240.0, 128.0
    known = [n for n, v in enumerate(middle) if math.isfinite(v)]
    x = axis([float(r) for r in rounds], 48, width - 8, pad=0.0)
    y = axis([*middle, *low, *high], height - 24, 14)
    places = [(x.at(float(rounds[n])), y.at(middle[n])) for n in known]
    band = ""
    if any(high[n] > low[n] for n in known):
        above = [(x.at(float(rounds[n])), y.at(high[n])) for n in known]
        below = [(x.at(float(rounds[n])), y.at(low[n])) for n in known]
        way = points([*above, *reversed(below)]) + "z"
        band = element("path", class_="band", d=way)
    tips = "|".join(f"round {rounds[n]}: {show(middle[n])}" for n in known)
    line = element("path", class_="line", d=points(places), data_tips=tips)
    lines = grid(x, y, lambda v: f"{v:.0f}", show, x_most=4, y_most=3)
    first, last = middle[known[0]], middle[known[-1]]
    described = f"from {show(first)} to {show(last)} in round {rounds[known[-1]]}"
    inside = element("g", band, line, class_=f"series {style.css}")
    return drawing(width, height, title, described, lines, inside)


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
) -> str:
    """A matrix in shades, with a bar at the end of every row if given."""
    widest = max((len(shorten(r, 12)) for r in [row_title, *rows]), default=0)
    left = 12 + _LETTER * widest
    room = WIDTH - left - (96 if bars is not None else 10)
    side = min(30.0, room / max(len(columns), 1))
    tall = min(max(side, 9.0), 17.0, max(4.0, 640.0 / max(len(rows), 1)))
    top, height = 38.0, 38.0 + tall * len(rows) + 8
    high = float(np.nanmax(values)) if np.isfinite(values).any() else 1.0
    ways: dict[int, str] = defaultdict(str)
    for r in range(len(rows)):
        for c in range(len(columns)):
            value = float(values[r, c])
            if not math.isfinite(value):
                continue
            share = (value - low) / (high - low) if high > low else 1.0
            spot = f"M{num(left + c * side + 0.5)} {num(top + r * tall + 0.5)}"
            box = f"h{num(side - 1)}v{num(tall - 1)}h{num(1 - side)}z"
            ways[shade(share)] += spot + box
    body = "".join(
        element("path", class_=f"q{step}", d=way) for step, way in sorted(ways.items())
    )
    body += text(left, 12, column_title, kind="name")
    body += text(left - 6, 30, row_title, "end", "name")
    stride = math.ceil(_LETTER * max(len(c) for c in columns) / side) if columns else 1
    for c, name in enumerate(columns):
        if c % stride == 0:
            body += text(left + (c + 0.5) * side, 30, shorten(name, 8), "middle")
    skip = math.ceil(11.0 / tall)
    for r, name in enumerate(rows):
        if r % skip == 0:
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
) -> str:
    most = max(float(values.max(initial=0)), 1.0)
    way, labels = "", text(left, 30, "samples", kind="name")
    for n, value in enumerate(values):
        long = max(1.0, float(value) / most * reach)
        spot = f"M{num(left)} {num(top + n * tall + 1)}"
        way += f"{spot}h{num(long)}v{num(tall - 2)}h{num(-long)}z"
        if n % skip == 0:
            labels += text(left + long + 4, top + (n + 0.5) * tall + 4, f"{value:.0f}")
    return element("path", class_="bar", d=way) + labels


def legend_sign(style: Style) -> str:
    """A piece of a method's line with its mark, for a legend."""
    line = element(
        "path", class_="line", d="M1 7H31", stroke_dasharray=style.dash or None
    )
    inside = element("g", line, style.mark(16, 7, 3.6), class_=f"series {style.css}")
    return element(
        "svg", inside, viewBox="0 0 32 14", class_="sign", aria_hidden="true"
    )


def block_mean(values: Numbers, most: int) -> tuple[Numbers, list[str], list[str]]:
    """A matrix of at most `most` rows and columns, by means of blocks, with names."""
    found = []
    for count in values.shape:
        found.append(np.array_split(np.arange(count), min(count, most)))
    small = np.array(
        [[values[np.ix_(r, c)].mean() for c in found[1]] for r in found[0]]
    )
    names = [
        [str(b[0]) if len(b) == 1 else f"{b[0]}-{b[-1]}" for b in blocks]
        for blocks in found
    ]
    return small, names[0], names[1]
