"""Numbers as a reader wants them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedloom.results.statistics import Estimate

NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
SPACE = "\N{NO-BREAK SPACE}"
TIMES = "\N{MULTIPLICATION SIGN}"

_SHARES = frozenset({"accuracy", "auc", "f1", "ece"})
"""Numbers between 0 and 1 that are shown in percent."""


@dataclass(frozen=True)
class Unit:
    """How scores of one metric are written."""

    scale: float
    suffix: str
    digits: int
    points: str
    """What a difference is counted in."""

    def number(self, value: float) -> str:
        """A score without its suffix."""
        return _sign(f"{value * self.scale:.{self.digits}f}", value)

    def tick(self, value: float) -> str:
        """A score on an axis, in as few digits as it needs."""
        return _sign(f"{round(value * self.scale, 9):.6g}", value)

    def gap_tick(self, value: float) -> str:
        """A difference on an axis."""
        return ("+" if value > 0 else "") + self.tick(value)

    def score(self, value: float) -> str:
        """A score."""
        return self.number(value) + self.suffix if math.isfinite(value) else NOTHING

    def gap(self, value: float) -> str:
        """A difference, always with its sign."""
        if not math.isfinite(value):
            return NOTHING
        text = f"{abs(value) * self.scale:.{self.digits}f}"
        if float(text) == 0.0:
            return text
        return ("+" if value > 0 else MINUS) + text

    def half(self, estimate: Estimate) -> str:
        """Half the width of an interval."""
        half = (estimate.high - estimate.low) / 2 * self.scale
        return f"{half:.{self.digits}f}" if math.isfinite(half) else NOTHING

    def estimate(self, estimate: Estimate) -> str:
        """A mean with half its interval's width."""
        if estimate.count == 0:
            return NOTHING
        text = self.number(estimate.mean)
        return f"{text} ± {self.half(estimate)}" if estimate.has_interval else text

    def gap_estimate(self, estimate: Estimate) -> str:
        """A difference with half its interval's width."""
        if estimate.count == 0:
            return NOTHING
        text = self.gap(estimate.mean)
        return f"{text} ± {self.half(estimate)}" if estimate.has_interval else text


def unit_of(metric: str) -> Unit:
    """How a metric is written."""
    if metric in _SHARES:
        return Unit(100.0, f"{SPACE}%", 1, "points")
    return Unit(1.0, "", 4, "")


def count(value: float) -> str:
    """A large whole number: 950, 12.3 k, 4.56 M."""
    return _prefixed(value, 1000.0, ("", " k", " M", " G", " T"))


def size(value: float) -> str:
    """Bytes: 950 B, 12.3 kB, 4.56 MB."""
    return _prefixed(value, 1000.0, (" B", " kB", " MB", " GB", " TB"))


def seconds(value: float) -> str:
    """A time: 40 ms, 3.2 s, 5.0 min, 2.1 h."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0:
        return "0 s"
    if value < 1:
        return f"{value * 1000:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"


def plain(value: float) -> str:
    """Any number, in few digits."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0 or (float(value).is_integer() and abs(value) < 1e6):
        return _sign(f"{value:.0f}", value)
    return _sign(f"{value:.3g}", value)


def signed(value: float) -> str:
    """A number between -1 and 1, with its sign."""
    text = f"{abs(value):.2f}"
    if float(text) == 0:
        return text
    return ("+" if value > 0 else MINUS) + text


def p_value(value: float) -> str:
    """A p-value."""
    if not math.isfinite(value):
        return NOTHING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def words(names: list[str], most: int = 4) -> str:
    """`a`, `a and b`, `a, b and c`, `a, b, c and 7 others`."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} others"
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _prefixed(value: float, base: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return NOTHING
    place = 0
    while abs(value) >= base and place < len(units) - 1:
        value /= base
        place += 1
    text = f"{value:.0f}" if place == 0 or abs(value) >= 100 else f"{value:.3g}"
    return text + units[place]


def _sign(text: str, value: float) -> str:
    return text.replace("-", MINUS) if math.isfinite(value) else NOTHING
