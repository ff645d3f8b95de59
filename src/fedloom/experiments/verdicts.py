"""What came of a number, and whether what a paper says of it holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.experiments.experiment import Claim, Experiment, Unit
from fedloom.experiments.stored import StoredUnit

HOLDS, NEARLY, FAILS, UNKNOWN = (
    "holds",
    "within two standard errors",
    "does not hold",
    "not run",
)
_ORDER = (FAILS, UNKNOWN, NEARLY, HOLDS)
"""The worst of several comparisons decides."""


Comparison = tuple[str, tuple[str, ...]]
"""A verdict, and the numbers that it is of."""


class Measured(NamedTuple):
    """A number over seeds."""

    mean: float
    error: float
    """Standard error of the mean; nan for a single seed."""
    seeds: int
    by_seed: NDArray[np.float64]
    """Empty where only the mean is known."""


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
    curves = stored.curves.get(asked.of)
    if curves is None:
        return None
    end = len(stored.rounds)
    if asked.round:
        if asked.round not in stored.rounds:
            return None
        end = stored.rounds.index(asked.round) + 1
    last = [own[max(0, end - asked.last) : end] for own in curves if own]
    known = [
        float(np.mean([v for v in own if v is not None]))
        for own in last
        if any(v is not None for v in own)
    ]
    if not known:
        return None
    values = np.array(known)
    return Measured(float(values.mean()), _error(values), len(values), values)


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
        compared = list(_comparisons(experiment, units, read))
        worst = min((verdict for verdict, _ in compared), key=_ORDER.index)
        operands = dict.fromkeys(text for _, texts in compared for text in texts)
        details = "; ".join(operands)
        verdicts.append(Verdict(reading, worst, details))
    return verdicts


def in_one(verdicts: list[Verdict]) -> str:
    """A claim's verdict over its readings, in a few words."""
    by_verdict = {
        kind: [v.reading for v in verdicts if v.verdict == kind] for kind in _ORDER
    }
    good = by_verdict[HOLDS] + by_verdict[NEARLY]
    if len(verdicts) == 1:
        return verdicts[0].verdict
    if not good:
        return UNKNOWN if by_verdict[UNKNOWN] else FAILS
    if len(good) == len(verdicts):
        return HOLDS if not by_verdict[NEARLY] else NEARLY
    return "holds only under: " + ", ".join(good)


def _comparisons(
    experiment: Experiment, units: Mapping[str, StoredUnit], claim: Claim
) -> Iterator[Comparison]:
    """Every comparison that a claim makes."""

    def of(text: str) -> Measured | None:
        return measure(experiment, units, *experiment.operand(text, claim))

    def better(a: str, b: str) -> Comparison:
        one, other = of(a), of(b)
        if one is None or other is None:
            return UNKNOWN, ()
        number = experiment.numbers[experiment.operand(a, claim)[1]]
        gap = one.mean - other.mean
        gap = -gap if number.is_lower_better else gap
        verdict = HOLDS if gap >= 0 else FAILS
        if gap < 0 and -gap <= 2 * _gap_error(one, other):
            verdict = NEARLY
        return verdict, (_text(a, one, experiment), _text(b, other, experiment))

    def alike(a: str, b: str) -> Comparison:
        one, other = of(a), of(b)
        if one is None or other is None:
            return UNKNOWN, ()
        gap = _scaled(abs(one.mean - other.mean), experiment)
        verdict = HOLDS if gap <= claim.within else FAILS
        return verdict, (_text(a, one, experiment), _text(b, other, experiment))

    for operand in claim.among:
        yield better(claim.best, operand)
    for first, second in pairwise(claim.order):
        yield better(first, second)
    for text in claim.close:
        yield _close(experiment, units, claim, text)
    for a, b in combinations(claim.alike, 2):
        yield alike(a, b)


def _close(
    experiment: Experiment, units: Mapping[str, StoredUnit], claim: Claim, text: str
) -> Comparison:
    """Whether a number is near the paper's."""
    unit, number = experiment.operand(text, claim)
    printed = next(
        (
            found
            for table in experiment.tables
            if table.setting == unit.setting
            and (found := table.printed(unit.arm, number)) is not None
        ),
        None,
    )
    own = measure(experiment, units, unit, number)
    if own is None or printed is None:
        return UNKNOWN, ()
    gap = abs(_scaled(own.mean, experiment) - printed[0])
    both = [_scaled(own.error, experiment), printed[1]]
    error = math.hypot(*(e for e in both if not math.isnan(e)))
    verdict = HOLDS if gap <= claim.within else FAILS
    if verdict == FAILS and gap <= 2 * error:
        verdict = NEARLY
    return verdict, (_text(text, own, experiment), f"paper {printed[0]:g}")


def _error(values: NDArray[np.float64]) -> float:
    if len(values) < 2:
        return math.nan
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def _gap_error(one: Measured, other: Measured) -> float:
    """Standard error of a difference; paired where both have the same seeds."""
    if len(one.by_seed) == len(other.by_seed) > 1:
        return _error(one.by_seed - other.by_seed)
    errors = [e for e in (one.error, other.error) if not math.isnan(e)]
    return math.hypot(*errors)


def _scaled(value: float, experiment: Experiment) -> float:
    return 100 * value if experiment.unit == "percent" else value


def _text(operand: str, own: Measured, experiment: Experiment) -> str:
    return f"{operand} {written(own.mean, experiment)}"


def written(value: float, experiment: Experiment) -> str:
    """A number as tables have it."""
    if experiment.unit == "percent":
        return f"{100 * value:.1f}"
    return f"{value:.4f}" if abs(value) < 0.1 else f"{value:.3f}"
