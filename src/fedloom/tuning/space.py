"""What is searched, read off the types of a method's settings.

    setting                          range
    number without an upper bound    log-uniform, default / 30 to default * 30
    or with one far above default    the same
    the same, with 0 as default      log-uniform, 1e-5 to 1; the low end stands for 0
    number between two bounds        uniform, all of it
    whole number                     log-uniform, default / 4 to default * 4
    choice, true or false            all of them

A logarithmic range grows while it is searched: by a factor of ten beyond an end at
which the best trial lies, and toward smaller learning rates as long as all diverge.

Unless it is said what to search, it is the learning rate and those numbers of the
method's own that are not whole: counts change how much work is done, and choices which
variant of a method it is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import ConfigError, unknown
from fedloom.core.settings import Interval, alternatives

_FACTOR = 30.0
_COUNT_FACTOR = 4
_FROM_NOTHING = (1e-5, 1.0)
_EDGE = 0.1
"""Share of a logarithmic range that counts as its end."""
_WIDER = 10.0
"""How much further a range goes after its end turned out to be the best place."""
_FAR = 1000.0
"""A bound so many times the default only keeps nonsense out."""
_MARGIN = 1e-3
"""Share of a range by which a bound that is itself excluded is moved inside."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Range:
    """Where the values of one setting are sought."""

    name: str
    centre: Any
    """The default, or what the user set: the first value that is tried."""
    kind: Literal["log", "uniform", "count", "choice"]
    low: float = 0.0
    high: float = 0.0
    can_widen: bool = False
    """Whether the range may grow: it has no bounds of its own in the way."""
    choices: tuple[Any, ...] = ()

    def value(self, drawn: Any) -> Any:
        """A drawn value as a setting: four digits, and 0 where that is meant."""
        if self.kind in ("choice", "count"):
            return drawn
        if self.centre == 0 and self.kind == "log" and drawn <= self.low:
            return 0.0
        return min(max(float(f"{drawn:.4g}"), self.low), self.high)

    def edge(self, value: float) -> Literal["low", "high"] | None:
        """Which end of a range that may grow a value lies at, if it lies at one."""
        if not self.can_widen:
            return None
        place = math.log(value / self.low) / math.log(self.high / self.low)
        if place < _EDGE:
            return "low"
        return "high" if place > 1 - _EDGE else None

    def around(self, tried: Sequence[float], best: float) -> Range:
        """The range after trials: with all that was tried, and beyond the best.

        Args:
            tried: values that were tried, some of them beyond the range perhaps.
            best: the best of them.
        """
        if not self.can_widen:
            return self
        low, high = min(self.low, *tried), max(self.high, *tried)
        grown = dataclasses.replace(self, low=low, high=high)
        end = grown.edge(best)
        if end == "low":
            return dataclasses.replace(grown, low=low / _WIDER)
        return dataclasses.replace(grown, high=high * _WIDER) if end else grown

    @property
    def is_rate(self) -> bool:
        """Whether it is a learning rate, large values of which diverge."""
        return self.can_widen and (self.name == "lr" or self.name.endswith("_lr"))

    def below(self, failed: Sequence[float]) -> Range:
        """Where to seek a learning rate of which all values diverged so far."""
        smallest = min(failed)
        return dataclasses.replace(self, low=smallest / _FACTOR, high=smallest)

    def near(self, best: float, failed: Sequence[float]) -> Range:
        """Where to seek a learning rate whose first value diverged: near the best."""
        high = min([best * _FACTOR, *(value for value in failed if value > best)])
        return dataclasses.replace(self, low=best / _FACTOR, high=high)

    def drawn(self) -> Any:
        """What would have to be drawn for the centre."""
        is_nothing = self.kind == "log" and self.centre == 0
        return self.low if is_nothing else self.centre

    def __str__(self) -> str:
        if self.kind == "choice":
            return f"{self.name} in {', '.join(map(str, self.choices))}"
        word = {"log": ", log", "uniform": "", "count": ", whole"}[self.kind]
        return f"{self.name} {self.low:.4g} to {self.high:.4g}{word}"


def space_of(
    kind: type[Algorithm[Any, Any, Any, Any, Any]],
    own: Mapping[str, Any],
    names: Sequence[str] = (),
) -> tuple[Range, ...]:
    """What to search for a method.

    Args:
        kind: the method.
        own: settings that the user set; they stay unless named, and are the centre
            of the range if they are.
        names: settings to search, as far as the method has them; by default those that
            the module's docstring says.

    Raises:
        ConfigError: a setting that was named cannot be searched.
    """
    hints = get_type_hints(kind, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    common = {f.name for f in dataclasses.fields(Algorithm)} - {"lr"}
    ranges = []
    for name, field in fields.items():
        centre = own.get(name, field.default)
        is_free = name not in common and name not in own and isinstance(centre, float)
        if name in names or (not names and is_free):
            ranges.append(_range(kind.name, name, hints[name], centre))
    return tuple(ranges)


def check_names(kinds: Sequence[type[Any]], names: Sequence[str]) -> None:
    """Refuse a setting that none of the methods has."""
    known = {f.name for kind in kinds for f in dataclasses.fields(kind)}
    for name in names:
        if name not in known:
            raise ConfigError(f"--space: {unknown('setting', name, known)}")


def _range(method: str, name: str, hint: Any, centre: Any) -> Range:
    if centre is None:
        raise ConfigError(
            f"--space: {name} of {method} has no default to search around. Give one: "
            f"--set algorithm.{name}=VALUE."
        )
    kind, bounds = _alternative(hint, centre)
    if get_origin(kind) is Literal or kind is bool:
        choices = get_args(kind) or (False, True)
        return Range(name=name, centre=centre, kind="choice", choices=choices)
    if not isinstance(centre, int | float):
        raise ConfigError(
            f"--space: {name} of {method} is {centre!r}; only numbers and choices can "
            "be searched."
        )
    if kind is int:
        low = max(centre // _COUNT_FACTOR, math.ceil(max(bounds.least, 0)))
        high = max(centre * _COUNT_FACTOR, low + _COUNT_FACTOR)
        high = int(min(high, bounds.most))
        return Range(name=name, centre=centre, kind="count", low=low, high=high)
    below, above = max(bounds.least, bounds.above), min(bounds.most, bounds.below)
    centre = float(centre)
    if centre > 0 and above > _FAR * centre:
        above = math.inf
    if math.isfinite(below) and math.isfinite(above):
        margin = _MARGIN * (above - below)
        low = below + (margin if below == bounds.above else 0.0)
        high = above - (margin if above == bounds.below else 0.0)
        low, high = min(low, centre), max(high, centre)
        return Range(name=name, centre=centre, kind="uniform", low=low, high=high)
    if centre < 0:
        raise ConfigError(f"--space: {name} of {method} is negative, {centre:g}.")
    low, high = (centre / _FACTOR, centre * _FACTOR) if centre else _FROM_NOTHING
    low, high = max(low, below), min(high, above)
    # 0 has a meaning of its own at the low end, and a bound is not to be crossed.
    is_free = centre > 0 and below <= 0 and math.isinf(above)
    return Range(
        name=name, centre=centre, kind="log", low=low, high=high, can_widen=is_free
    )


def _alternative(hint: Any, centre: Any) -> tuple[Any, Interval]:
    """Of several types that a setting may have, the one that its value has."""
    options = alternatives(hint)
    for kind, interval in options:
        is_choice = get_origin(kind) is Literal and centre in get_args(kind)
        if is_choice or (isinstance(kind, type) and isinstance(centre, kind)):
            return kind, interval
    return options[0]
