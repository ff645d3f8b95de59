"""The drawings of a report, each a function from numbers to SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedloom.reports.axes import Axis, Scale, Show, axis, fair_axis
from fedloom.reports.held_out import Who
from fedloom.reports.svg import (
    Place,
    Style,
    area,
    at,
    beyond,
    dots,
    drawing,
    element,
    grid,
    path,
    plot,
    points,
    shorten,
    spread,
    text,
    window,
)
from fedloom.reports.tables import to_csv

WIDTH = 480.0
"""Width of a drawing, in its own units; pages scale it."""

LETTER = 7.0
"""Width of a letter, about; some fonts are narrower."""

CROWD = 400
"""Most clients that are drawn one by one."""

ROOM = 6.0
"""Beyond an axis, so that what is drawn at its very end is not cut in half."""

LEADERS = 3
"""Curves that carry their names, besides the baseline, if there are more than these."""

NAMED = 5
"""If there are no more curves, all of them carry their names."""

_HARDLY = 0.02
"""A method that takes less than this share of what is usual is a flat line."""

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


def learnt(places: int) -> int:
    """The first place of a curve that its chart makes room for.

    Before it, models have hardly learnt anything; a curve comes from outside.
    """
    return max(1, places // 4) if places > 2 else 0


def line_chart(
    curves: Sequence[Curve],
    title: str,
    description: str,
    x_scale: Scale,
    y_scale: Scale,
) -> Markup:
    """Curves with bands, the leaders' with their names at the end.

    They come best first. The line of a method whose x is all but 0 is flat.
    """
    height = 300.0
    right = WIDTH - 14 - widest(curve.name for curve in curves)
    usual = median([max(c.x) for c in curves if max(c.x) > 0] or [0.0])
    ends = [max(c.x) for c in curves if max(c.x) > _HARDLY * usual]
    is_log = bool(ends) and max(ends) / min(ends) > 8
    every_x = [v for c in curves for v in c.x if v > _HARDLY * usual or not is_log]
    x = axis(every_x, 46, right, is_log=is_log, pad=0.02 if is_log else 0.0)
    flat = {c.name for c in curves if max(c.x) <= _HARDLY * usual}
    matters = [c.y[-1:] if c.name in flat else c.y[learnt(len(c.y)) :] for c in curves]
    y = fair_axis(matters, height - 46, 26, y_scale)
    inside = ((x.start - 1, x.end + ROOM), (y.end - ROOM, y.start))
    body: list[tuple[Curve, Markup, Place]] = []
    for curve in curves:
        kept = [
            n
            for n, v in enumerate(curve.x)
            if (v > 0 or not is_log) and math.isfinite(curve.y[n])
        ]
        if curve.name in flat:
            level = y.at(curve.y[-1])
            places, tips = [(x.start, level), (x.end, level)], [curve.tips[-1]] * 2
            kept = [len(curve.y) - 1] * 2
        elif kept:
            places = [(x.at(curve.x[n]), y.at(curve.y[n])) for n in kept]
            tips = [curve.tips[n] for n in kept]
        else:
            continue
        flat_css = " flat" if curve.name in flat else ""
        line = plot(
            f"line{flat_css}",
            points(places),
            stroke_dasharray=curve.style.dash or None,
            data_tips="|".join(tips),
        )
        sign = curve.style.mark(*places[-1], flat_css)
        part = window(*inside, _band(curve, kept, x, y), line, sign)
        part += _beyond_top_or_bottom(y, [curve.y[n] for n in kept], places)
        body.append((curve, part, places[-1]))
    drawn = Markup()
    labels = _end_labels([(c, place) for c, _, place in body], y, right)
    for (curve, part, _), label in zip(body, labels, strict=True):
        drawn += series(curve.name, curve.style, part, label)
    lines = grid(
        x,
        y,
        x_scale.show,
        y_scale.show,
        x_title=x_scale.title + (" (logarithmic)" if is_log else ""),
        y_title=y_scale.title + (" (logarithmic)" if y.is_log else ""),
    )
    axes = (
        x.for_script("x", (y.start, y.start + 4), x_scale, isWhole=True, hasBase=True),
        y.for_script("y", (x.start, x.end), y_scale, hasStart=True, leaders=LEADERS),
    )
    header = ("method", x_scale.title, y_scale.title, "standard error")
    return drawing(
        WIDTH,
        height,
        title,
        description,
        lines,
        drawn,
        axes=axes,
        data=chart_data(
            header,
            (
                (c.name, *row)
                for c in curves
                for row in zip(c.x, c.y, c.error, strict=True)
            ),
        ),
    )


def chart_data(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """What a drawing shows, in more digits than it can show."""
    return to_csv(
        header,
        [
            [float(f"{v:.4g}") if isinstance(v, float) else v for v in row]
            for row in rows
        ],
    )


def _band(curve: Curve, kept: Sequence[int], x: Axis, y: Axis) -> Markup:
    known = [n for n in dict.fromkeys(kept) if math.isfinite(curve.error[n])]
    if len(known) < 2:
        return Markup()
    above = [(x.at(curve.x[n]), y.at(curve.y[n] + curve.error[n])) for n in known]
    below = [(x.at(curve.x[n]), y.at(curve.y[n] - curve.error[n])) for n in known]
    return area("band", above, below)


def _beyond_top_or_bottom(
    y: Axis, values: Sequence[float], places: Sequence[Place]
) -> Markup:
    """Marks where a curve is last outside, but for its beginning."""
    last: dict[int, float] = {}
    for n in range(learnt(len(values)), len(values)):
        last[y.side(values[n])] = places[n][0]
    return Markup().join(
        beyond(y, "y", side, across) for side, across in last.items() if side
    )


def _end_labels(
    curves: Sequence[tuple[Curve, Place]], y: Axis, right: float
) -> list[Markup]:
    """Names at the ends of curves, far enough apart; those of followers are hidden."""
    leaders = [c for c, _ in curves if not c.style.is_baseline][:LEADERS]
    named = [
        len(curves) <= NAMED or c.style.is_baseline or c in leaders for c, _ in curves
    ]
    tops = [min(max(place[1], y.end), y.start) for _, place in curves]
    heights = spread(
        [top for top, is_named in zip(tops, named, strict=True) if is_named],
        14.0,
        y.end + 4,
        y.start,
    )
    left, labels = iter(heights), []
    for (curve, place), top, is_named in zip(curves, tops, named, strict=True):
        height = next(left) if is_named else top
        line = path("leader", f"M{at(place[0] + 5, top)}L{at(right + 6, height)}")
        name = text(right + 9, height + 4, shorten(curve.name), kind="who")
        hidden = None if is_named else "hidden"
        labels.append(element("g", line, name, class_="end", hidden=hidden))
    return labels


def scatter(
    name: str,
    style: Style,
    x_values: Numbers,
    y_values: Numbers,
    clients: Sequence[Who],
    tips: Sequence[str],
    title: str,
    *,
    reference: tuple[Numbers, Numbers] | None,
    x_range: tuple[float, float],
    y: Axis,
    x_scale: Scale,
    y_scale: Scale,
) -> Markup:
    """One small panel: clients as dots, the mean in thirds by x, and a reference's."""
    width, height = 240.0, 172.0
    x = axis(x_range, 40, width - 8, is_log=x_range[1] / x_range[0] > 4, pad=0.04)
    known = np.flatnonzero(np.isfinite(y_values) & (x_values > 0)).tolist()
    inside, marks, described = Markup(), Markup(), "no client"
    if known:
        shown = known[:: math.ceil(len(known) / CROWD)]
        places = [(x.at(float(x_values[n])), y.at(float(y_values[n]))) for n in shown]
        words = "|".join(tips[n] for n in shown)
        inside = plot("dots", dots(places), data_tips=words)
        inside += plot("line", points(_thirds(x, y, x_values, y_values)))
        mean = y_scale.show(float(np.nanmean(y_values)))
        described = f"{len(known)} clients, mean {mean}"
        last = {y.side(float(y_values[n])): x.at(float(x_values[n])) for n in shown}
        marks = Markup().join(
            beyond(y, "y", side, across) for side, across in last.items() if side
        )
    edges = ((x.start - ROOM, x.end + ROOM), (y.end - ROOM, y.start + ROOM))
    body = grid(x, y, x_scale.show, y_scale.show, x_most=4, y_most=4)
    way = _thirds(x, y, *reference) if reference is not None else []
    if way:
        line = plot("line", points(way), stroke_dasharray="3 3")
        body += element("g", window(*edges, line), class_="base")
    who = text(0, 12, shorten(name, 30), kind="who")
    body += series(name, style, who, window(*edges, inside), marks)
    rows = (
        (name, clients[n].name, clients[n].seed, int(x_values[n]), float(y_values[n]))
        for n in known
    )
    header = ("method", "client", "seed", x_scale.title, y_scale.title)
    across = (x.start, x.end)
    return drawing(
        width,
        height,
        title,
        described,
        body,
        axes=[y.for_script("y", across, y_scale, most=4)],
        data=chart_data(header, rows),
    )


PANEL = (148.0, 26.0)
"""Where the upright axis of a small panel begins and ends."""


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
    columns = list(zip(*course, strict=True))[1:]
    y = fair_axis(columns, height - 24, 14, Scale("", show))

    def way(values: Iterable[float]) -> list[Place]:
        return [
            (x.at(float(m.round)), y.at(v)) for m, v in zip(course, values, strict=True)
        ]

    band = Markup()
    if any(moment.high > moment.low for moment in course):
        band = area("band", way(m.high for m in course), way(m.low for m in course))
    tips = "|".join(f"round {m.round}: {show(m.middle)}" for m in course)
    middle = way(m.middle for m in course)
    line = plot("line", points(middle), data_tips=tips)
    last = {y.side(m.middle): place[0] for m, place in zip(course, middle, strict=True)}
    marks = [beyond(y, "y", side, across) for side, across in last.items() if side]
    lines = grid(x, y, lambda v: f"{v:.0f}", show, x_most=4, y_most=3)
    first, final = course[0], course[-1]
    described = (
        f"from {show(first.middle)} to {show(final.middle)} in round {final.round}"
    )
    edges = ((x.start - ROOM, x.end + ROOM), (y.end - ROOM, y.start + ROOM))
    part = window(*edges, band, line)
    inside = element("g", part, *marks, class_=f"series {style.css}")
    header = ("round", "mean over clients", "tenth percentile", "ninetieth percentile")
    data = chart_data(header, course)
    return drawing(width, height, title, described, lines, inside, data=data)


def legend_sign(style: Style) -> Markup:
    """A piece of a method's line with its mark, for a legend."""
    line = path("line", "M1 7H31", stroke_dasharray=style.dash or None)
    inside = element("g", line, style.mark(16, 7), class_=f"series {style.css}")
    return element(
        "svg", inside, viewBox="0 0 32 14", class_="sign", aria_hidden="true"
    )
