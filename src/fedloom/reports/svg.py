"""Elements, axes and styles of inline SVG.

Colours are CSS classes, so that one drawing serves light, dark and print. Every number
that enters a drawing is checked to be finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Place = tuple[float, float]

_COLOURS = 8
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2")
_MARKS = 6


@dataclass(frozen=True)
class Style:
    """How one method looks in every chart: colour, dashes and mark together."""

    place: int
    """In the ranking."""
    is_baseline: bool = False

    @property
    def css(self) -> str:
        """The class that sets the colour."""
        return "base" if self.is_baseline else f"c{self.place % _COLOURS}"

    @property
    def dash(self) -> str:
        """A stroke's pattern; empty for a solid line."""
        return "3 3" if self.is_baseline else _DASHES[self.place % len(_DASHES)]

    def mark(self, x: float, y: float, r: float = 4.0) -> Markup:
        """The sign at the end of a line."""
        shape = 5 if self.is_baseline else self.place % _MARKS
        if shape == 0:
            return element("circle", class_="mark", cx=x, cy=y, r=r)
        way = {
            1: f"M{at(x - r, y - r)}h{num(2 * r)}v{num(2 * r)}h{num(-2 * r)}z",
            2: f"M{at(x, y - r)}l{at(r, 2 * r)}h{num(-2 * r)}z",
            3: f"M{at(x, y - 1.2 * r)}l{at(r, 1.2 * r)}"
            f"l{at(-r, 1.2 * r)}l{at(-r, -1.2 * r)}z",
            4: f"M{at(x, y + r)}l{at(r, -2 * r)}h{num(-2 * r)}z",
            5: f"M{at(x - r, y)}h{num(2 * r)}M{at(x, y - r)}v{num(2 * r)}",
        }[shape]
        return path("mark open" if shape == 5 else "mark", way)


@dataclass(frozen=True)
class Axis:
    """From values to places along one direction."""

    low: float
    high: float
    start: float
    """Where `low` is drawn."""
    end: float
    """Where `high` is drawn."""
    is_log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; values outside are drawn at the edge."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values to label."""
        if self.is_log:
            return log_ticks(self.low, self.high)
        return nice_ticks(self.low, self.high, most)


def axis(
    values: Iterable[float],
    start: float,
    end: float,
    *,
    is_log: bool = False,
    least: float | None = None,
    most: float | None = None,
    pad: float = 0.04,
) -> Axis:
    """An axis on which all values have room.

    Args:
        values: what will be drawn; what is not finite is left out.
        start: where the axis begins.
        end: where it ends.
        is_log: logarithmic; values must be above 0.
        least: the axis does not begin below this.
        most: the axis does not end above this.
        pad: room on either side, as a share of the range.
    """
    known = [v for v in values if math.isfinite(v) and not (is_log and v <= 0)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if is_log:
        if low == high:
            low, high = low / 2, high * 2
        room = (high / low) ** pad
        return Axis(low / room, high * room, start, end, is_log=True)
    if low == high:
        room = abs(low) * 0.1 or 0.5
        low, high = low - room, high + room
    room = (high - low) * pad
    low, high = low - room, high + room
    if least is not None:
        low = max(low, least)
    if most is not None:
        high = min(high, most)
    if low >= high:
        low, high = low - 0.5, high + 0.5
    return Axis(low, high, start, end)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two values."""
    raw = (high - low) / (most + 0.5)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [n * step for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2s and 5s where the range is short."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        every = [f * 10.0**p for p in powers for f in factors]
        ticks = [t for t in every if low * 0.999 <= t <= high * 1.001]
        if len(ticks) >= 3:
            break
    return ticks[:: math.ceil(len(ticks) / 6)]


def num(value: float) -> str:
    """A coordinate in few characters.

    Raises:
        ValueError: it is not finite, which would spoil the drawing silently.
    """
    if not math.isfinite(value):
        raise ValueError(f"A drawing needs finite numbers, found {value}.")
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


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


def area(kind: str, above: Sequence[Place], below: Sequence[Place]) -> Markup:
    """What lies between two lines."""
    return path(kind, points([*above, *reversed(below)]) + "z")


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
    width: float, height: float, title: str, description: str, *children: Markup
) -> Markup:
    """A whole SVG that a screen reader can name and describe."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *children,
        class_="chart",
        role="img",
        viewBox=f"0 0 {at(width, height)}",
        aria_label=f"{title}. {description}",
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
    lines, labels, edge = "", Markup(), max(y.start, y.end)
    for tick in y.ticks(y_most):
        place = y.at(tick)
        lines += f"M{at(x.start, place)}H{num(x.end)}"
        labels += text(x.start - 6, place + 4, show_y(tick), "end")
    for tick in x.ticks(x_most):
        place = x.at(tick)
        labels += text(place, edge + 16, show_x(tick), "middle")
        lines += f"M{at(place, edge)}v4"
    base = path("axis", f"M{at(x.start, edge)}H{num(x.end)}")
    if x_title:
        labels += text((x.start + x.end) / 2, edge + 33, x_title, "middle", "name")
    if y_title:
        labels += text(0, min(y.start, y.end) - 10, y_title, "", "name")
    return path("grid", lines) + base + labels


def shorten(name: str, most: int = 22) -> str:
    """A name that fits."""
    return name if len(name) <= most else name[: most - 1] + "…"


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
