"""What came of a number, and whether what a paper says of it holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.experiments.experiment import (
    ONLY,
    Claim,
    Experiment,
    Number,
    Operand,
    Unit,
)
from fedloom.experiments.stored import StoredUnit

HOLDS, NEARLY, FAILS, UNKNOWN = (
    "holds",
    "within two standard errors",
    "does not hold",
    "not yet run",
)
PARTLY = "holds in some readings only"
"""What comes of a claim whose readings differ."""

_ORDER = (FAILS, UNKNOWN, NEARLY, HOLDS)
"""The worst of several comparisons decides."""

Comparison = tuple[str, tuple[str, ...]]
"""A verdict, and the numbers that it is of."""


class Measured(NamedTuple):
    """A number over seeds."""

    mean: float
    """Nan if every seed diverged."""
    error: float
    """Standard error of the mean; nan for a single seed."""
    seeds: int
    """How many seeds it is of."""
    by_seed: NDArray[np.float64]
    """Empty where only the mean is known."""
    missing: int = 0
    """How many seeds more diverged."""


class Verdict(NamedTuple):
    """What came of a claim in one reading."""

    reading: str
    verdict: str
    details: str
    """The numbers that were compared."""


def measure(
    experiment: Experiment, units: Mapping[str, StoredUnit], unit: Unit, number: str
) -> Measured | None:
    """A number of an arm in a setting, over seeds; None if there is none.

    Args:
        experiment: whose it is.
        units: what is stored.
        unit: the arm and the setting.
        number: its short name.
    """
    stored, asked = units.get(str(unit)), experiment.numbers[number]
    if stored is None:
        return None
    if asked.of in stored.values:
        mean, error = (math.nan if v is None else v for v in stored.values[asked.of])
        return Measured(mean, error, len(stored.seeds), np.zeros(0))
    if asked.of in stored.drawn:
        return _of_figure(stored.drawn[asked.of], asked)
    curves = stored.curves.get(asked.of)
    if curves is None:
        return None
    end = len(stored.rounds)
    if asked.round:
        if asked.round not in stored.rounds:
            return None
        end = stored.rounds.index(asked.round) + 1
    last = [own[max(0, end - asked.last) : end] for own in curves]
    known = [[v for v in own if v is not None] for own in last]
    scored = [own for own in known if own]
    summed = np.std if asked.summary == "swing" else np.mean
    values = np.array([float(summed(own)) for own in scored])
    missing = len(curves) - len(values)
    if not len(values):
        return Measured(math.nan, math.nan, 0, values, missing)
    if asked.summary == "spread":
        return _spread(values, missing)
    return Measured(float(values.mean()), _error(values), len(values), values, missing)


def judge(
    experiment: Experiment, units: Mapping[str, StoredUnit], claim: Claim
) -> list[Verdict]:
    """A claim in all its readings.

    Args:
        experiment: whose it is.
        units: what is stored.
        claim: one of the experiment's.
    """
    verdicts = []
    for reading, read in claim.under():
        compared = list(_Judge(experiment, units, read).comparisons())
        worst = min((verdict for verdict, _ in compared), key=_ORDER.index)
        operands = dict.fromkeys(text for _, texts in compared for text in texts)
        details = "; ".join(operands)
        verdicts.append(Verdict(reading, worst, details))
    return verdicts


def outcome(verdicts: Sequence[Verdict]) -> str:
    """What came of a claim over all its readings, as one of five words."""
    kinds = {own.verdict for own in verdicts}
    if len(kinds) == 1:
        return verdicts[0].verdict
    if kinds <= {HOLDS, NEARLY}:
        return NEARLY
    if kinds & {HOLDS, NEARLY}:
        return PARTLY
    return UNKNOWN


def in_one(verdicts: Sequence[Verdict]) -> str:
    """The same; where readings differ, those in which the claim holds."""
    one = outcome(verdicts)
    if one != PARTLY:
        return one
    good = [own.reading for own in verdicts if own.verdict in (HOLDS, NEARLY)]
    is_open = any(own.verdict == UNKNOWN for own in verdicts)
    rest = "; not all others are run" if is_open else ""
    return f"holds only in: {' / '.join(good)}{rest}"


class _Judge:
    """Makes the comparisons of one claim in one reading."""

    def __init__(
        self, experiment: Experiment, units: Mapping[str, StoredUnit], claim: Claim
    ) -> None:
        self._experiment, self._units, self._claim = experiment, units, claim

    def comparisons(self) -> Iterator[Comparison]:
        """Every comparison that the claim makes."""
        claim = self._claim
        for other in claim.among:
            pair = (claim.best, other) if claim.best else (other, claim.worst)
            yield self._better(*pair)
        for first, second in pairwise(claim.order):
            yield self._better(first, second)
        for text in claim.close:
            yield self._close(text)
        for a, b in combinations(claim.alike, 2):
            yield self._alike(a, b)

    def _better(self, a: str, b: str) -> Comparison:
        one, other = self._measure(a), self._measure(b)
        if one is None or other is None:
            return UNKNOWN, self._known((a, one), (b, other))
        gap = self._scaled(a, one.mean - other.mean)
        operand, *rest = self._operands(a)
        # A difference says already by how much one is better.
        is_lower_better = self._experiment.numbers[operand.number].is_lower_better
        gap = -gap if is_lower_better and not rest else gap
        # What diverged is behind what did not.
        is_behind = math.isnan(one.mean)
        missed = math.inf if is_behind else -gap if math.isfinite(gap) else -math.inf
        error = self._scaled(a, _gap_error(one, other))
        return self._verdict(missed, error), self._known((a, one), (b, other))

    def _alike(self, a: str, b: str) -> Comparison:
        one, other = self._measure(a), self._measure(b)
        if one is None or other is None:
            return UNKNOWN, self._known((a, one), (b, other))
        gap = self._scaled(a, abs(one.mean - other.mean))
        error = self._scaled(a, _gap_error(one, other))
        return self._verdict(gap, error), self._known((a, one), (b, other))

    def _close(self, text: str) -> Comparison:
        """Whether a number is near the paper's."""
        (operand,) = self._operands(text)
        printed = self._experiment.printed(operand)
        own = self._measure(text)
        if own is None or printed is None:
            return UNKNOWN, ()
        gap = abs(self._scaled(text, own.mean) - printed[0])
        both = [self._scaled(text, own.error), printed[1]]
        error = math.hypot(*(e for e in both if not math.isnan(e)))
        spread = "" if math.isnan(printed[1]) else f" ± {printed[1]:g}"
        texts = self._text(text, own), f"paper {printed[0]:g}{spread}"
        return self._verdict(gap, error), texts

    def _verdict(self, missed: float, error: float) -> str:
        """Whether a claim is missed by no more than it allows, or not by much."""
        missed -= self._claim.within
        if missed <= 0:
            return HOLDS
        return NEARLY if missed <= 2 * error else FAILS

    def _operands(self, text: str) -> tuple[Operand, ...]:
        return self._experiment.operand(text, self._claim)

    def _measure(self, text: str) -> Measured | None:
        every = [
            measure(self._experiment, self._units, *operand)
            for operand in self._operands(text)
        ]
        if any(own is None for own in every):
            return None
        one, *rest = (own for own in every if own is not None)
        return _difference(one, rest[0], self._sign(text)) if rest else one

    def _sign(self, text: str) -> float:
        """Which way a difference says that the first is better."""
        number = self._operands(text)[0].number
        return -1.0 if self._experiment.numbers[number].is_lower_better else 1.0

    def _scaled(self, text: str, value: float) -> float:
        """A value of an operand as the paper writes it."""
        number = self._operands(text)[0].number
        return 100 * value if self._experiment.is_percent(number) else value

    def _known(self, *pairs: tuple[str, Measured | None]) -> tuple[str, ...]:
        return tuple(self._text(a, own) for a, own in pairs if own is not None)

    def _text(self, text: str, own: Measured) -> str:
        operands = self._operands(text)
        names = [self._name(operand, text) for operand in operands]
        value = _written(own, self._experiment, operands[0].number)
        return f"{' over '.join(names)} {value}"

    def _name(self, operand: Operand, text: str) -> str:
        """How a line of the tables is called, as far as the claim does not say it."""
        setting, arm = operand.unit
        label = self._experiment.arms[arm].label
        number = f" ({operand.number})" if "#" in text else ""
        has_own = setting not in (ONLY, self._claim.setting)
        return f"{setting}: {label}{number}" if has_own else f"{label}{number}"


def _of_figure(drawn: Mapping[str, list[float | None]], asked: Number) -> Measured:
    """The mean of what a figure shows of one client, from one round to another."""
    values = [
        value
        for at, value in zip(drawn["rounds"], drawn["values"], strict=True)
        if value is not None
        and at is not None
        and at > asked.after
        and (not asked.round or at <= asked.round)
    ]
    mean = float(np.mean(values)) if values else math.nan
    return Measured(mean, math.nan, 1, np.array([mean]))


def _spread(values: NDArray[np.float64], missing: int) -> Measured:
    """The standard deviation over seeds, and about how far off it may be."""
    n = len(values)
    if n < 2:
        return Measured(math.nan, math.nan, n, np.zeros(0), missing)
    spread = float(values.std(ddof=1))
    return Measured(spread, spread / math.sqrt(2 * (n - 1)), n, np.zeros(0), missing)


def _difference(one: Measured, other: Measured, sign: float) -> Measured:
    """By how much one is better than the other, seed by seed where both have them."""
    mean = sign * (one.mean - other.mean)
    by_seed = np.zeros(0)
    if _is_paired(one, other):
        by_seed = sign * (one.by_seed - other.by_seed)
    seeds = min(one.seeds, other.seeds)
    missing = max(one.missing, other.missing)
    return Measured(mean, _gap_error(one, other), seeds, by_seed, missing)


def _is_paired(one: Measured, other: Measured) -> bool:
    is_whole = not one.missing and not other.missing
    return is_whole and len(one.by_seed) == len(other.by_seed) > 0


def _error(values: NDArray[np.float64]) -> float:
    if len(values) < 2:
        return math.nan
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def _gap_error(one: Measured, other: Measured) -> float:
    """Standard error of a difference; paired where both have the same seeds."""
    if _is_paired(one, other) and len(one.by_seed) > 1:
        return _error(one.by_seed - other.by_seed)
    errors = [e for e in (one.error, other.error) if not math.isnan(e)]
    return math.hypot(*errors)


def _written(own: Measured, experiment: Experiment, number: str) -> str:
    """A number with its standard error, and whether it lacks seeds."""
    if math.isnan(own.mean):
        return "diverged" if own.missing else "unknown"
    text = written(own.mean, experiment, number)
    if not math.isnan(own.error):
        text += f" ± {written(own.error, experiment, number)}"
    if own.missing:
        text += f" ({own.seeds} of {own.seeds + own.missing} seeds)"
    return text


def written(value: float, experiment: Experiment, number: str) -> str:
    """A number as tables have it."""
    if experiment.is_percent(number):
        percent = 100 * value
        return f"{percent:.2f}" if 0.005 <= abs(percent) < 0.095 else f"{percent:.1f}"
    return f"{value:.4f}" if abs(value) < 0.1 else f"{value:.3f}"
