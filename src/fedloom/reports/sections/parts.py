"""What several parts of the page need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedloom.reports.charts import Scale
from fedloom.reports.findings import Findings
from fedloom.reports.held_out import Who
from fedloom.reports.svg import Style

PLACES = 50
"""Most places of a curve."""

Styles = Mapping[str, Style]
"""How the methods look, best first."""

Section = Callable[[Findings, Styles], Mapping[str, Any] | None]
"""What a part of the page puts into its template; None leaves the part out."""


def styles_of(findings: Findings) -> Styles:
    """Colours in the order of the ranking; the baseline is grey."""
    baseline = findings.collection.baseline
    methods = [s.method for s in findings.ranking.standings]
    ranked = [method for method in methods if method != baseline]
    styles = {method: Style(place) for place, method in enumerate(ranked)}
    return {m: styles.get(m, Style(0, is_baseline=True)) for m in methods}


def score_scale(findings: Findings) -> Scale:
    """An axis of scores."""
    unit = findings.unit
    title = f"{findings.part} {findings.metric}{unit.heading}"
    return Scale(title, unit.tick, unit.bounds)


def client_tip(findings: Findings, who: Who, score: str) -> str:
    """What a pointer is told of a client, in a list whose entries bars keep apart."""
    has_seeds = who.seed is not None and findings.collection.has_seeds
    where = f"seed {who.seed}, " if has_seeds else ""
    name = who.name.replace("|", "/")
    return f"{where}client {name}, {who.samples} samples: {score}"
