"""Cells that several tables share."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedloom.reports.findings import Findings
from fedloom.reports.tables import Cell
from fedloom.reports.units import Unit, p_value
from fedloom.results.evidence import ALPHA
from fedloom.results.observations import Numbers
from fedloom.results.statistics import Estimate

SURE = 1.96
"""Standard errors to either side that make an interval of 95 %."""


def method_cell(findings: Findings, method: str) -> Cell:
    """A method's name, which stands out if it is the one to use."""
    return Cell(method, is_strong=method == findings.pick)


def count_cell(number: int) -> Cell:
    """A whole number."""
    return Cell(str(number), number)


def estimate_cell(unit: Unit, estimate: Estimate) -> Cell:
    """A mean with half its interval's width."""
    return Cell(unit.estimate(estimate), estimate.mean)


def gap_cell(unit: Unit, gap: float, error: float = math.nan) -> Cell:
    """A difference, perhaps with its standard error, by which it has its colour."""
    reach, tone = SURE * error, ""
    if math.isfinite(gap) and math.isfinite(error):
        tone = tone_of(gap - reach, gap + reach)
    return Cell(unit.gap_with_error(gap, error), gap, tone=tone)


def gap_estimate_cell(unit: Unit, estimate: Estimate) -> Cell:
    """A difference with half its interval's width, by which it has its colour."""
    tone = tone_of(estimate.low, estimate.high)
    return Cell(unit.gap_estimate(estimate), estimate.mean, tone=tone)


def p_cell(p: float) -> Cell:
    """A p-value, which stands out where it is called a difference."""
    return Cell(p_value(p), p, is_strong=p < ALPHA)


def tone_of(low: float, high: float) -> str:
    """How a difference looks: grey unless its interval excludes 0."""
    if low > 0:
        return "good"
    return "bad" if high < 0 else "unsure"


def is_sure(gaps: Numbers, errors: Numbers) -> NDArray[np.bool_]:
    """Where the interval of a difference excludes 0; nowhere if it is not known."""
    return np.asarray(np.abs(gaps) > SURE * errors)
