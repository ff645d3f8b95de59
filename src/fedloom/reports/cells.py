"""Cells that several tables share."""

from __future__ import annotations

import math

from fedloom.reports.findings import Findings
from fedloom.reports.tables import Cell
from fedloom.reports.units import Unit, p_value
from fedloom.results.evidence import ALPHA
from fedloom.results.statistics import Estimate


def method_cell(findings: Findings, method: str) -> Cell:
    """A method's name, which stands out if it is the one to use."""
    return Cell(method, is_strong=method == findings.pick)


def count_cell(number: int, tone: str = "") -> Cell:
    """A whole number."""
    return Cell(str(number), number, tone=tone)


def estimate_cell(unit: Unit, estimate: Estimate) -> Cell:
    """A mean with half its interval's width."""
    return Cell(unit.estimate(estimate), estimate.mean)


def gap_cell(unit: Unit, gap: float, error: float = math.nan, tone: str = "") -> Cell:
    """A difference, perhaps with its standard error."""
    return Cell(unit.with_error(unit.gap(gap), error), gap, tone=tone)


def gap_estimate_cell(unit: Unit, estimate: Estimate, tone: str = "") -> Cell:
    """A difference with half its interval's width."""
    return Cell(unit.gap_estimate(estimate), estimate.mean, tone=tone)


def p_cell(p: float) -> Cell:
    """A p-value, which stands out where it is called a difference."""
    return Cell(p_value(p), p, is_strong=p < ALPHA)


def tone_of(value: float) -> str:
    """How a difference looks."""
    return "good" if value > 0 else "bad" if value < 0 else ""
