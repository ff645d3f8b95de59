"""Axes: from values to places, over a range that outliers do not ruin.

What lies outside is drawn at the edge with a mark. When methods are hidden, the script
of the page (assets/charts.js) finds ranges and ticks anew by the same rules.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

_RUINED = 5.0
"""So many times as wide a range, for the sake of a few, would squash all others."""

_MOST_KEPT = 0.6
"""At least this share of the methods is inside."""

_FENCE = 3.0
"""Values so many times the middle half's width beyond it are outliers of a method."""

_FEWEST = 8
"""A method with fewer values has no outliers of its own."""

_ORDERS = 30.0
"""Errors whose largest is so many times the smallest are drawn on a log axis."""

_FARTHEST = 1e30
"""Lengths of the axis: what is farther away is drawn as if it were there."""

Show = Callable[[float], str]
Span = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """What an axis is called and how its values are written."""

    title: str
    show: Show
    bounds: tuple[float | None, float | None] = (None, None)
    """Values that the axis does not go beyond."""
    notation: str = "number"
    """How the script of the page writes its values: number, percent, gap, points,
    count, size or seconds."""

    @property
    def may_be_log(self) -> bool:
        """Whether values of very different size can be drawn on a log axis."""
        return self.bounds[0] == 0 and self.bounds[1] is None


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
        """The place of a value, which may be far outside."""
        if not self.is_log:
            share = (value - self.low) / (self.high - self.low)
        elif value > 0:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = -1.0
        share = min(max(share, -_FARTHEST), _FARTHEST)
        return self.start + share * (self.end - self.start)

    def side(self, value: float) -> int:
        """-1 below the axis, 1 above it, 0 on it."""
        room = 1e-9 * (self.high - self.low)
        return int(value > self.high + room) - int(value < self.low - room)

    def ticks(self, most: int = 6) -> list[float]:
        """Round values to label."""
        if self.is_log:
            return log_ticks(self.low, self.high)
        return nice_ticks(self.low, self.high, most)

    def for_script(
        self, along: str, across: Span, scale: Scale, **rules: object
    ) -> str:
        """What the script of the page needs to draw it anew, as JSON.

        Args:
            along: x or y.
            across: where its grid lines begin and end.
            scale: how its values are written, and their bounds.
            **rules: how its range follows from what is shown.
        """
        return json.dumps(
            {
                "along": along,
                "low": _few_digits(self.low),
                "high": _few_digits(self.high),
                "start": round(self.start, 2),
                "end": round(self.end, 2),
                "isLog": self.is_log,
                "across": [round(place, 2) for place in across],
                "bounds": scale.bounds,
                "notation": scale.notation,
            }
            | rules
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


def fair_axis(
    methods: Sequence[Sequence[float]],
    start: float,
    end: float,
    scale: Scale,
    *,
    pad: float = 0.04,
    zero: float | None = None,
) -> Axis:
    """An axis on which most methods have room; outliers lie outside.

    Args:
        methods: the values of each method.
        start: where the axis begins.
        end: where it ends.
        scale: its bounds, and whether it may be logarithmic.
        pad: room on either side, as a share of the range.
        zero: a value that is always on it.
    """
    known = [[v for v in values if math.isfinite(v)] for values in methods]
    every = [v for values in known for v in values]
    is_log = scale.may_be_log and bool(every) and min(every) > 0
    is_log = is_log and max(every) / min(every) > _ORDERS
    if is_log:
        known = [[math.log(v) for v in values] for values in known]
    low, high = fair_range(known)
    if is_log:
        low, high = math.exp(low), math.exp(min(high, 700.0))
    ends = [low, high] if zero is None else [low, high, zero]
    least, most = scale.bounds
    return axis(ends, start, end, is_log=is_log, least=least, most=most, pad=pad)


def fair_range(methods: Iterable[Sequence[float]]) -> Span:
    """From the least to the largest value, but for a few that would ruin a chart.

    A few methods are left out if the range without them is far narrower; and so are
    values far from all others of their method.
    """
    kept = [_usual(values) for values in methods if len(values)]
    if not kept:
        return 0.0, 1.0
    spare = len(kept) - math.ceil(_MOST_KEPT * len(kept))
    while (rest := _without_few(kept, spare)) is not None:
        spare -= len(kept) - len(rest)
        kept = rest
    return min(low for low, _ in kept), max(high for _, high in kept)


def _usual(values: Sequence[float]) -> Span:
    """The range of one method's values, without its outliers."""
    low, high = min(values), max(values)
    if len(values) < _FEWEST:
        return low, high
    first, third = np.quantile(values, [0.25, 0.75]).tolist()
    reach = _FENCE * (third - first)
    inside = [v for v in values if first - reach <= v <= third + reach]
    width = max(inside) - min(inside)
    if 0 < _RUINED * width < high - low:
        return min(inside), max(inside)
    return low, high


def _without_few(spans: Sequence[Span], most: int) -> list[Span] | None:
    """What is left if as few as possible go, and the range gets far narrower."""
    width = _width(spans)
    for count in range(1, most + 1):
        without_low = sorted(spans, key=lambda span: span[0])[count:]
        without_high = sorted(spans, key=lambda span: span[1])[:-count]
        rest = min(without_low, without_high, key=_width)
        if 0 < _RUINED * _width(rest) < width:
            return rest
    return None


def _width(spans: Sequence[Span]) -> float:
    return max(high for _, high in spans) - min(low for low, _ in spans)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two values."""
    raw = (high - low) / (most + 0.5)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    if last <= first and most < _FEWEST:  # one label says little
        return nice_ticks(low, high, most + 1)
    return [n * step for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, with 2s and 5s where the range is short, or any round values."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        every = [f * 10.0**p for p in powers for f in factors]
        ticks = [t for t in every if low * 0.999 <= t <= high * 1.001]
        if len(ticks) >= 3:
            break
    if len(ticks) < 2:
        return nice_ticks(low, high)
    return ticks[:: math.ceil(len(ticks) / 6)]


def _few_digits(value: float) -> float:
    return float(f"{value:.9g}")
