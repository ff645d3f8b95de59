"""The drawings of a report, each a function from numbers to SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedloom.reports.svg import (
    Axis,
    Place,
    Style,
    area,
    at,
    axis,
    dots,
    drawing,
    element,
    grid,
    path,
    points,
    shorten,
    spread,
    text,
)

WIDTH = 480.0
"""Width of a drawing, in its own units; pages scale it."""

LETTER = 6.4
"""Width of a letter, about."""

CROWD = 400
"""Most clients that are drawn one by one."""

Show = Callable[[float], str]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """What an axis is called and how its values are written."""

    title: str
    show: Show
    bounds: tuple[float | None, float | None] = (None, None)
    """Values that the axis does not go beyond."""


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


class Moment(NamedTuple):
    """A recorded number in one round."""

    round: int
    middle: float
    """Mean over the clients."""
    low: float
    """Nine tenths of the clients are above it."""
    high: float
    """Nine tenths of the clients are below it."""


def series(name: str, style: Style, *children: Markup) -> Markup:
    """What belongs to one method, so that it can be hidden."""
    return element("g", *children, class_=f"series {style.css}", data_method=name)


def widest(names: Iterable[str]) -> float:
    """Room for the longest name."""
    return LETTER * max((len(shorten(name)) for name in names), default=0)


def line_chart(
    curves: Sequence[Curve],
    title: str,
    description: str,
    x_scale: Scale,
    y_scale: Scale,
) -> Markup:
    """Curves with bands and their names at the end; flat if a method's x is all 0."""
    height = 300.0
    right = WIDTH - 14 - widest(curve.name for curve in curves)
    ends = [max(c.x) for c in curves if max(c.x) > 0]
    is_log = bool(ends) and max(ends) / min(ends) > 8
    every_x = [v for c in curves for v in c.x if v > 0 or not is_log]
    x = axis(every_x, 46, right, is_log=is_log, pad=0.02 if is_log else 0.0)
    least, most = y_scale.bounds
    every_y = [v for c in curves for v in c.y]
    y = axis(every_y, height - 46, 26, least=least, most=most)
    body, lasts = [], []
    for curve in curves:
        kept = [
            n
            for n, v in enumerate(curve.x)
            if (v > 0 or not is_log) and math.isfinite(curve.y[n])
        ]
        if max(curve.x) <= 0:
            level = y.at(curve.y[-1])
            places, tips = [(x.start, level), (x.end, level)], [curve.tips[-1]] * 2
            kept = []
        elif kept:
            places = [(x.at(curve.x[n]), y.at(curve.y[n])) for n in kept]
            tips = [curve.tips[n] for n in kept]
        else:
            continue
        line = path(
            "line",
            points(places),
            stroke_dasharray=curve.style.dash or None,
            data_tips="|".join(tips),
        )
        mark = curve.style.mark(*places[-1])
        body.append((curve, _band(curve, kept, x, y) + line + mark))
        lasts.append(places[-1])
    heights = spread([p[1] for p in lasts], 13.0, 30, height - 46)
    drawn = Markup()
    for (curve, inside), (px, py), label in zip(body, lasts, heights, strict=True):
        if abs(label - py) > 5 or x.end - px > 8:
            inside += path("leader", f"M{at(px + 5, py)}L{at(right + 6, label)}")
        inside += text(right + 9, label + 4, shorten(curve.name), kind="who")
        drawn += series(curve.name, curve.style, inside)
    lines = grid(
        x,
        y,
        x_scale.show,
        y_scale.show,
        x_title=x_scale.title + (" (logarithmic)" if is_log else ""),
        y_title=y_scale.title,
    )
    return drawing(WIDTH, height, title, description, lines, drawn)


def _band(curve: Curve, kept: Sequence[int], x: Axis, y: Axis) -> Markup:
    known = [n for n in kept if math.isfinite(curve.error[n])]
    if len(known) < 2:
        return Markup()
    above = [(x.at(curve.x[n]), y.at(curve.y[n] + curve.error[n])) for n in known]
    below = [(x.at(curve.x[n]), y.at(curve.y[n] - curve.error[n])) for n in known]
    return area("band", above, below)


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
) -> Markup:
    """One small panel: clients as dots, the mean in thirds by x, and a reference's."""
    width, height = 240.0, 172.0
    x = axis(x_range, 40, width - 8, is_log=x_range[1] / x_range[0] > 4, pad=0.04)
    y = axis(y_range, height - 24, 26, pad=0.05)
    known = np.flatnonzero(np.isfinite(y_values) & (x_values > 0)).tolist()
    inside, described = Markup(), "no client"
    if known:
        shown = known[:: math.ceil(len(known) / CROWD)]
        places = [(x.at(float(x_values[n])), y.at(float(y_values[n]))) for n in shown]
        words = "|".join(tips[n] for n in shown)
        inside = path("dots", dots(places), data_tips=words)
        inside += path("line", points(_thirds(x, y, x_values, y_values)))
        described = f"{len(known)} clients, mean {show_y(float(np.nanmean(y_values)))}"
    body = grid(x, y, show_x, show_y, x_most=4, y_most=4)
    way = _thirds(x, y, *reference) if reference is not None else []
    if way:
        line = path("line", points(way), stroke_dasharray="3 3")
        body += element("g", line, class_="base")
    body += series(name, style, text(0, 12, shorten(name, 34), kind="who"), inside)
    return drawing(width, height, title, described, body)


def _thirds(x: Axis, y: Axis, x_values: Numbers, y_values: Numbers) -> list[Place]:
    """Means of the clients in thirds by size."""
    known = np.flatnonzero(np.isfinite(y_values) & (x_values > 0))
    order = known[np.argsort(x_values[known], kind="stable")]
    places = []
    for part in np.array_split(order, 3):
        if len(part):
            middle = float(np.exp(np.log(x_values[part]).mean()))
            places.append((x.at(middle), y.at(float(y_values[part].mean()))))
    return places


def small_lines(
    title: str, course: Sequence[Moment], style: Style, show: Show
) -> Markup:
    """How one recorded number went over rounds: mean, and where most clients were."""
    width, height = 240.0, 128.0
    x = axis([float(moment.round) for moment in course], 48, width - 8, pad=0.0)
    y = axis([value for moment in course for value in moment[1:]], height - 24, 14)

    def way(values: Iterable[float]) -> list[Place]:
        return [
            (x.at(float(m.round)), y.at(v)) for m, v in zip(course, values, strict=True)
        ]

    band = Markup()
    if any(moment.high > moment.low for moment in course):
        band = area("band", way(m.high for m in course), way(m.low for m in course))
    tips = "|".join(f"round {m.round}: {show(m.middle)}" for m in course)
    line = path("line", points(way(m.middle for m in course)), data_tips=tips)
    lines = grid(x, y, lambda v: f"{v:.0f}", show, x_most=4, y_most=3)
    first, last = course[0], course[-1]
    described = (
        f"from {show(first.middle)} to {show(last.middle)} in round {last.round}"
    )
    inside = element("g", band, line, class_=f"series {style.css}")
    return drawing(width, height, title, described, lines, inside)


def legend_sign(style: Style) -> Markup:
    """A piece of a method's line with its mark, for a legend."""
    line = path("line", "M1 7H31", stroke_dasharray=style.dash or None)
    inside = element("g", line, style.mark(16, 7, 3.6), class_=f"series {style.css}")
    return element(
        "svg", inside, viewBox="0 0 32 14", class_="sign", aria_hidden="true"
    )
