"""Numbers as a reader wants them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from fedloom.core.metrics import METRICS
from fedloom.results.statistics import Estimate

NOTHING = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
SPACE = "\N{NO-BREAK SPACE}"
TIMES = "\N{MULTIPLICATION SIGN}"

_SUMMARIES = (
    "weighted",
    "worst_decile",
    "largest_decile",
    "smallest_decile",
    "spread",
    "error",
    "pooled",
)
"""How numbers over clients are summed up, as the ends of their names."""

_LOPSIDED = 1.1
"""An interval that goes so many times as far to one side is written with its ends."""

_LARGE, _SMALL = 1e3, 1e-6
"""What is so many times the usual score is not written with the digits of that. What is
a thousandth of it still is: differences that small are as good as none."""


@dataclass(frozen=True)
class Unit:
    """How scores of one metric are written."""

    is_share: bool = False
    """Whether the scores lie between 0 and 1 and are shown in percent."""
    size: float = 0.1
    """How large a usual score is, which says how many digits are worth writing."""

    @property
    def scale(self) -> float:
        """What a score is multiplied by."""
        return 100.0 if self.is_share else 1.0

    @property
    def suffix(self) -> str:
        """What stands after a score."""
        return f"{SPACE}%" if self.is_share else ""

    @property
    def heading(self) -> str:
        """What stands after the name of a score, over a column or beside an axis."""
        return f",{SPACE}%" if self.is_share else ""

    @property
    def points(self) -> str:
        """What stands after a difference."""
        return " points" if self.is_share else ""

    @property
    def bounds(self) -> tuple[float, float | None]:
        """The least and the largest score that there can be."""
        return 0.0, 1.0 if self.is_share else None

    def number(
        self, value: float, error: float = math.nan, beside: float = math.nan
    ) -> str:
        """A score without its suffix, in as many digits as all scores of its kind.

        Args:
            value: the score.
            error: how far it may be off, if that is known: no more than two digits of
                that are worth writing.
            beside: the middle of a lopsided interval that it is an end of: two digits
                of that are written too.
        """
        if not math.isfinite(value):
            return NOTHING
        if self.is_share:
            return _sign(f"{value * self.scale:.1f}", value)
        size = abs(value) if self._is_far(value) else self.size
        power = _power(size)
        decimals = _decimals(max(size, abs(value)), power)
        if 0 < error < math.inf:
            own = [_second_digit(v, power) for v in (error, abs(beside)) if v > 0]
            decimals = min(_decimals(size, power), max(own))
        text = f"{value / 10**power:,.{decimals}f}"
        return _sign(text + (f"e{power}" if power else ""), value)

    def _is_far(self, value: float) -> bool:
        """Whether the digits of usual scores would hide a score, or make it long."""
        is_large = abs(value) >= _LARGE * self.size
        return is_large or (self.size >= 1e6 and 0 < abs(value) < self.size * _SMALL)

    def tick(self, value: float) -> str:
        """A score on an axis, in as few digits as it needs."""
        text, exponent, power = f"{value * self.scale:.6g}".partition("e")
        return _sign(f"{text}e{int(power)}" if exponent else text, value)

    def gap_tick(self, value: float) -> str:
        """A difference on an axis."""
        return ("+" if value > 0 else "") + self.tick(value)

    def score(self, value: float) -> str:
        """A score."""
        return self.number(value) + self.suffix if math.isfinite(value) else NOTHING

    def gap(
        self, value: float, error: float = math.nan, beside: float = math.nan
    ) -> str:
        """A difference, always with its sign, in the digits of `number`."""
        if not math.isfinite(value):
            return NOTHING
        return _with_sign(self.number(abs(value), error, beside), value)

    def estimate(self, estimate: Estimate) -> str:
        """A score with half its interval's width, or with the ends of the interval.

        With its ends where mean and half of a lopsided interval read as if the score
        could be below 0 or above 100 %, or as if an error were surer than it is.
        """
        half, (least, most) = _half(estimate), self.bounds
        is_below = estimate.mean - half < least <= estimate.low
        is_above = most is not None and estimate.high <= most < estimate.mean + half
        if is_below or is_above or (not self.is_share and _is_lopsided(estimate)):
            ends = (estimate.mean, estimate.low, estimate.high)
            mean, low, high = (self.number(v, half, estimate.mean) for v in ends)
            return f"{mean} ({low} to {high})"
        return self._with_half(self.number(estimate.mean, half), estimate)

    def score_estimate(self, estimate: Estimate) -> str:
        """The same with its suffix."""
        text, space, rest = self.estimate(estimate).partition(" (")
        return text + self.suffix + space + rest

    def gap_estimate(self, estimate: Estimate) -> str:
        """A difference with half its interval's width, or with its ends.

        With its ends where the interval is so lopsided that half of it misleads.
        """
        half = _half(estimate)
        if _is_lopsided(estimate):
            ends = (estimate.mean, estimate.low, estimate.high)
            mean, low, high = (self.gap(v, half, estimate.mean) for v in ends)
            return f"{mean} ({low} to {high})"
        return self._with_half(self.gap(estimate.mean, half), estimate)

    def gap_with_error(self, gap: float, error: float) -> str:
        """A difference and its standard error, if that is known."""
        return self._with_error(self.gap(gap, error), error)

    def _with_half(self, text: str, estimate: Estimate) -> str:
        if estimate.count == 0:
            return NOTHING
        return self._with_error(text, _half(estimate))

    def _with_error(self, text: str, error: float) -> str:
        if not math.isfinite(error):
            return text
        return f"{text} ± {self.number(error, error)}"


def _half(estimate: Estimate) -> float:
    return (estimate.high - estimate.low) / 2


def _is_lopsided(estimate: Estimate) -> bool:
    low, high = estimate.mean - estimate.low, estimate.high - estimate.mean
    return max(low, high) > _LOPSIDED * min(low, high) > 0


def unit_of(number: str, scores: Iterable[float] = ()) -> Unit:
    """How a number is written.

    Args:
        number: a metric, or what sums it up, such as `auc_pooled`.
        scores: some of its values, which show how large they are; by default they may
            be as small as a tenth.
    """
    metric = metric_of(number)
    is_share = metric in METRICS and METRICS[metric].is_share
    sizes = [abs(score) for score in scores if math.isfinite(score) and score != 0]
    return Unit(is_share, statistics.median(sizes) if sizes else 0.1)


def metric_of(number: str) -> str:
    """The metric that a number sums up: `accuracy` for `accuracy_worst_decile`."""
    for ending in _SUMMARIES:
        number = number.removesuffix(f"_{ending}")
    return number


def is_zero(text: str) -> bool:
    """Whether a number was so small that only noughts are written of it."""
    digits, _, _ = text.partition("e")
    return not set(digits) & set("123456789")


def title_of(number: str) -> str:
    """What a number is called over a column."""
    return METRICS[number].title if number in METRICS else number.replace("_", " ")


def count(value: float) -> str:
    """A large whole number: 950, 12.3 k, 4.56 M."""
    return _prefixed(value, ("", " k", " M", " G", " T"))


def size(value: float) -> str:
    """Bytes: 950 B, 12.3 kB, 4.56 MB."""
    return _prefixed(value, (" B", " kB", " MB", " GB", " TB"))


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
    if value < 7200:
        return f"{value / 60:.3g} min"
    hours = value / 3600
    return f"{hours:.3g} h" if hours < 999.5 else f"{hours:.0f} h"


def plain(value: float) -> str:
    """Any number, in few digits."""
    if not math.isfinite(value):
        return NOTHING
    if value == 0 or (float(value).is_integer() and abs(value) < 1e6):
        return _sign(f"{value:.0f}", value)
    return _sign(f"{value:.3g}", value)


def times(value: float) -> str:
    """How many times as much: 1.0, 7.5, 120."""
    if not math.isfinite(value):
        return NOTHING
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def signed(value: float) -> str:
    """A number between -1 and 1, with its sign."""
    return _with_sign(f"{abs(value):.2f}", value)


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


def _prefixed(value: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return NOTHING
    place = 0
    while abs(value) >= 1000 and place < len(units) - 1:
        value /= 1000
        place += 1
    text = f"{value:.0f}" if place == 0 or abs(value) >= 100 else f"{value:.3g}"
    return text + units[place]


def _sign(text: str, value: float) -> str:
    return text.replace("-", MINUS) if math.isfinite(value) else NOTHING


def _power(size: float) -> int:
    """The power of ten that large numbers are written with, the same for all of them.

    It is a multiple of three, and 0 below a million.
    """
    return 3 * int(math.log10(size) // 3) if size >= 1e6 else 0


def _decimals(size: float, power: int) -> int:
    """Places after the point: four digits in all."""
    return max(3 - math.floor(math.log10(size)) + power, 0)


def _second_digit(value: float, power: int) -> int:
    """Places after the point that show two digits of a number."""
    return max(1 - math.floor(math.log10(value / 10**power)), 0)


def _with_sign(text: str, value: float) -> str:
    if is_zero(text):
        return text
    return ("+" if value > 0 else MINUS) + text
