"""Elements and styles of inline SVG.

Colours are CSS classes, so that one drawing serves light, dark and print. Every number
that enters a drawing is checked to be finite.

Paths name the places of values by absolute commands (M, L, H, V), and draw signs around
them by relative ones (m, l, h, v, a). So the script of the page moves them to another
scale without knowing what they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fedloom.reports.axes import Axis, Span

Place = tuple[float, float]

COLOURS = 10
"""Colours c0 to c9 of the style sheet, which colour-blind readers can tell apart."""

_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2")
_MARKS = 6

_FAR = 5000.0
"""Nothing is drawn farther out than this; renderers stumble over it."""

_ABSOLUTE = re.compile(r"([MLHV])([-+.\de]+)(?: ([-+.\de]+))?")


@dataclass(frozen=True)
class Style:
    """How one method looks in every chart: colour, dashes and mark together."""

    place: int
    """Among the methods in the order in which they were asked for."""
    is_baseline: bool = False

    @property
    def css(self) -> str:
        """The class that sets the colour."""
        return "base" if self.is_baseline else f"c{self.place % COLOURS}"

    @property
    def dash(self) -> str:
        """A stroke's pattern; empty for a solid line."""
        return "3 3" if self.is_baseline else _DASHES[self.place % len(_DASHES)]

    @property
    def sign(self) -> str:
        """The sign at the end of a line, as path data from its middle."""
        shape, r = 5 if self.is_baseline else self.place % _MARKS, 4
        return (
            f"m{-r} 0a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
            f"m{-r} {-r}h{2 * r}v{2 * r}h{-2 * r}z",
            f"m0 {-r}l{r} {2 * r}h{-2 * r}z",
            f"m0 {-1.2 * r}l{r} {1.2 * r}l{-r} {1.2 * r}l{-r} {-1.2 * r}z",
            f"m0 {r}l{r} {-2 * r}h{-2 * r}z",
            f"m{-r} 0h{2 * r}m{-r} {-r}v{2 * r}",
        )[shape]

    @property
    def sign_css(self) -> str:
        """The classes of that sign."""
        is_open = self.is_baseline or self.place % _MARKS == 5
        return "mark open" if is_open else "mark"

    def mark(self, x: float, y: float, css: str = "") -> Markup:
        """The sign at a place, perhaps with another class."""
        return plot(f"{self.sign_css}{css}", f"M{at(x, y)}{self.sign}")


def method_styles(methods: Iterable[str], baseline: str | None) -> dict[str, Style]:
    """How methods look, the same in the report and in the live view.

    Args:
        methods: in the order in which they were asked for.
        baseline: the one that trains alone, which is grey.
    """
    methods = list(methods)
    others = [method for method in methods if method != baseline]
    return {
        m: Style(0, is_baseline=True) if m == baseline else Style(others.index(m))
        for m in methods
    }


def num(value: float) -> str:
    """A coordinate in few characters.

    Raises:
        ValueError: it is not finite, which would spoil the drawing silently.
    """
    if not math.isfinite(value):
        raise ValueError(f"A drawing needs finite numbers, found {value}.")
    if abs(value) >= 1e6:
        return f"{value:.6g}"
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def at(x: float, y: float) -> str:
    """A place, or a way from one, in path data."""
    return f"{num(x)} {num(y)}"


def element(name: str, *children: str, **attributes: object) -> Markup:
    """One element; what is no `Markup` is escaped.

    Attributes lose a trailing underscore; others become hyphens.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            shown = num(value) if isinstance(value, float) else str(value)
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{escape(shown)}"')
    opening = " ".join(parts)
    if not children:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{Markup('').join(children)}</{name}>")


def path(kind: str, way: str, **attributes: object) -> Markup:
    """A path with a class."""
    return element("path", class_=kind, d=way, **attributes)


def plot(kind: str, way: str, **attributes: object) -> Markup:
    """A path of values, some of which may lie far outside.

    Those are drawn nearer; where they are is kept for the script of the page.
    """
    near = _ABSOLUTE.sub(_nearer, way)
    kept = way if near != way else None
    return path(kind, near, data_d=kept, **attributes)


def _nearer(found: re.Match[str]) -> str:
    command, *places = found.groups()
    if all(p is None or abs(float(p)) <= _FAR for p in places):
        return found[0]
    held = [min(max(float(p), -_FAR), _FAR) for p in places if p is not None]
    return command + " ".join(num(place) for place in held)


def area(kind: str, above: Sequence[Place], below: Sequence[Place]) -> Markup:
    """What lies between two lines."""
    return plot(kind, points([*above, *reversed(below)]) + "z")


def window(x: Span, y: Span, *children: Markup) -> Markup:
    """What is drawn inside a rectangle, and cut off at its edges.

    Args:
        x: its left and right edge.
        y: its upper and lower edge.
        *children: what is inside.
    """
    box = f"{at(x[0], y[0])} {at(x[1] - x[0], y[1] - y[0])}"
    return element(
        "svg",
        *children,
        class_="window",
        x=x[0],
        y=y[0],
        width=x[1] - x[0],
        height=y[1] - y[0],
        viewBox=box,
    )


def beyond(axis: Axis, along: str, side: int, across: float) -> Markup:
    """A mark at the edge of an axis where a value lies outside.

    Args:
        axis: the axis that the value is not on.
        along: x or y.
        side: -1 if the value is below the axis, 1 if above.
        across: where the value is in the other direction.
    """
    way = "l-5 -4.5v9z" if along == "x" else "l-4.5 5h9z"
    if side < 0:
        way = "l5 -4.5v9z" if along == "x" else "l-4.5 -5h9z"
    edge = axis.end if side > 0 else axis.start
    place = at(edge, across) if along == "x" else at(across, edge)
    return path("beyond", f"M{place}{way}")


def text(x: float, y: float, words: str, anchor: str = "", kind: str = "") -> Markup:
    """Words at a place."""
    return element(
        "text",
        words,
        x=float(x),
        y=float(y),
        text_anchor=anchor or None,
        class_=kind or None,
    )


def drawing(
    width: float,
    height: float,
    title: str,
    description: str,
    *children: Markup,
    data: str,
    axes: Sequence[str] = (),
) -> Markup:
    """A whole SVG that a screen reader can name and describe.

    Args:
        width: in units of its own.
        height: the same.
        title: what it is, in a few words.
        description: what it shows, for whoever cannot see it.
        *children: what is drawn.
        data: what is drawn, as CSV.
        axes: those that follow when methods are hidden, by `Axis.for_script`.
    """
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *children,
        class_="chart",
        role="img",
        viewBox=f"0 0 {at(width, height)}",
        aria_label=f"{title}. {description}",
        data_axes=f"[{', '.join(axes)}]" if axes else None,
        data_csv=data,
    )


def points(places: Sequence[Place]) -> str:
    """A line through places, as path data."""
    return "M" + "L".join(at(*place) for place in places)


def dots(places: Sequence[Place]) -> str:
    """A dot at every place, as path data for a stroke with round ends."""
    return "".join(f"M{at(*place)}h0" for place in places)


def grid(
    x: Axis,
    y: Axis,
    show_x: Callable[[float], str],
    show_y: Callable[[float], str],
    *,
    x_title: str = "",
    y_title: str = "",
    x_most: int = 6,
    y_most: int = 6,
) -> Markup:
    """Grid lines with labels; y runs upward."""
    edge = max(y.start, y.end)
    marks, x_labels = "", Markup()
    for tick in x.ticks(x_most):
        marks += f"M{at(x.at(tick), edge)}v4"
        x_labels += text(x.at(tick), edge + 16, show_x(tick), "middle")
    lines, y_labels = "", Markup()
    for tick in y.ticks(y_most):
        lines += f"M{at(x.start, y.at(tick))}H{num(x.end)}"
        y_labels += text(x.start - 6, y.at(tick) + 4, show_y(tick), "end")
    titles = Markup()
    if x_title:
        titles += text((x.start + x.end) / 2, edge + 33, x_title, "middle", "name")
    if y_title:
        titles += text(0, min(y.start, y.end) - 10, y_title, "", "name")
    return (
        ticks("x", path("grid", marks), x_labels)
        + ticks("y", path("grid", lines), y_labels)
        + path("axis", f"M{at(x.start, edge)}H{num(x.end)}")
        + titles
    )


def ticks(along: str, *children: Markup) -> Markup:
    """Grid lines and labels of one axis, which the script of the page draws anew."""
    return element("g", *children, class_="ticks", data_along=along)


def shorten(name: str, most: int = 22) -> str:
    """A name that fits: its beginning and its end, which tell it from others."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end].rstrip()}…{name[-end:].lstrip()}"


def distinct(names: Sequence[str], most: int) -> list[str]:
    """Names that fit; where they would look alike, what they differ in is kept."""
    short = [shorten(name, most) for name in names]
    if len(set(short)) == len(set(names)):
        return short
    for alike in set(short):
        places = [n for n, name in enumerate(short) if name == alike]
        own = [names[n] for n in places]
        if len(set(own)) > 1:
            letters = enumerate(zip(*own, strict=False))
            first = next((n for n, some in letters if len(set(some)) > 1), most)
            begin = max(0, min(first - most // 3, max(map(len, own)) - most))
            for n in places:
                short[n] = f"…{names[n][begin + 1 : begin + most - 1]}…"
    return short


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Labels near their places, at least `gap` apart, between two edges.

    Where there is no room for all, the gap shrinks.
    """
    if not places:
        return []
    gap = min(gap, (high - low) / max(len(places) - 1, 1))
    order = sorted(range(len(places)), key=lambda n: places[n])
    heights = [0.0] * len(places)
    below = low - gap
    for n in order:
        below = max(places[n], below + gap)
        heights[n] = below
    above = high + gap
    for n in reversed(order):
        above = min(heights[n], above - gap)
        heights[n] = above
    return heights
