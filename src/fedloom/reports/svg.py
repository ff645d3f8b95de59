"""Elements, axes and styles of inline SVG.

Colours are CSS classes, so that one drawing serves light, dark and print. Every number
that enters a drawing is checked to be finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

SHADES = 9
"""Steps of a heat map."""

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

    def mark(self, x: float, y: float, r: float = 4.0) -> str:
        """The sign at the end of a line."""
        shape = self.place % _MARKS
        if self.is_baseline:
            shape = 5
        paths = {
            1: f"M{num(x - r)} {num(y - r)}h{num(2 * r)}v{num(2 * r)}h{num(-2 * r)}z",
            2: f"M{num(x)} {num(y - r)}l{num(r)} {num(2 * r)}h{num(-2 * r)}z",
            3: f"M{num(x)} {num(y - 1.2 * r)}l{num(r)} {num(1.2 * r)}"
            f"l{num(-r)} {num(1.2 * r)}l{num(-r)} {num(-1.2 * r)}z",
            4: f"M{num(x)} {num(y + r)}l{num(r)} {num(-2 * r)}h{num(-2 * r)}z",
            5: f"M{num(x - r)} {num(y)}h{num(2 * r)}"
            f"M{num(x)} {num(y - r)}v{num(2 * r)}",
        }
        if shape in paths:
            kind = "mark open" if shape == 5 else "mark"
            return element("path", class_=kind, d=paths[shape])
        return element("circle", class_="mark", cx=x, cy=y, r=r)


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
        return (
            log_ticks(self.low, self.high)
            if self.is_log
            else nice_ticks(self.low, self.high, most)
        )


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
        found = [f * 10.0**p for p in powers for f in factors]
        found = [t for t in found if low * 0.999 <= t <= high * 1.001]
        if len(found) >= 3:
            break
    stride = math.ceil(len(found) / 6)
    return found[::stride]


def num(value: float) -> str:
    """A coordinate in few characters.

    Raises:
        ValueError: it is not finite, which would spoil the drawing silently.
    """
    if not math.isfinite(value):
        raise ValueError(f"A drawing needs finite numbers, found {value}.")
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def element(name: str, *children: str, **attributes: object) -> str:
    """One element. Attributes lose a trailing underscore; others become hyphens."""
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        shown = num(value) if isinstance(value, float) else str(value)
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{escape(shown)}"')
    opening = " ".join(parts)
    return f"<{opening}>{''.join(children)}</{name}>" if children else f"<{opening}/>"


def text(x: float, y: float, words: str, anchor: str = "", kind: str = "") -> str:
    """Words at a place."""
    return element(
        "text",
        escape(words),
        x=float(x),
        y=float(y),
        text_anchor=anchor or None,
        class_=kind or None,
    )


def drawing(
    width: float, height: float, title: str, description: str, *children: str
) -> str:
    """A whole SVG that a screen reader can name and describe."""
    return element(
        "svg",
        element("title", escape(title)),
        element("desc", escape(description)),
        *children,
        class_="chart",
        role="img",
        viewBox=f"0 0 {num(width)} {num(height)}",
        aria_label=f"{title}. {description}",
    )


def points(places: Sequence[tuple[float, float]]) -> str:
    """A line through places, as path data."""
    return "M" + "L".join(f"{num(x)} {num(y)}" for x, y in places)


def dots(places: Sequence[tuple[float, float]]) -> str:
    """A dot at every place, as path data for a stroke with round ends."""
    return "".join(f"M{num(x)} {num(y)}h0" for x, y in places)


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
) -> str:
    """Grid lines with labels; y runs upward."""
    lines, labels = "", []
    for tick in y.ticks(y_most):
        place = y.at(tick)
        lines += f"M{num(x.start)} {num(place)}H{num(x.end)}"
        labels.append(text(x.start - 6, place + 4, show_y(tick), "end"))
    edge = max(y.start, y.end)
    for tick in x.ticks(x_most):
        place = x.at(tick)
        labels.append(text(place, edge + 16, show_x(tick), "middle"))
        lines += f"M{num(place)} {num(edge)}v4"
    found = element("path", class_="grid", d=lines)
    found += element(
        "path", class_="axis", d=f"M{num(x.start)} {num(edge)}H{num(x.end)}"
    )
    found += "".join(labels)
    if x_title:
        found += text((x.start + x.end) / 2, edge + 33, x_title, "middle", "name")
    if y_title:
        found += text(0, min(y.start, y.end) - 10, y_title, "", "name")
    return found


def shade(share: float) -> int:
    """The step of a heat map for a share of its largest value."""
    return min(SHADES, max(0, math.ceil(share * SHADES)))


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
    found = [0.0] * len(places)
    below = low - gap
    for n in order:
        below = max(places[n], below + gap)
        found[n] = below
    above = high + gap
    for n in reversed(order):
        above = min(found[n], above - gap)
        found[n] = above
    return found
