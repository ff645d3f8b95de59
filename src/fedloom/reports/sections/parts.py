"""What several parts of the page need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedloom.reports.axes import Scale
from fedloom.reports.findings import Findings
from fedloom.reports.held_out import Who
from fedloom.reports.svg import Style, method_styles

PLACES = 50
"""Most places of a curve."""

Styles = Mapping[str, Style]
"""How the methods look, best first."""

Section = Callable[[Findings, Styles], Mapping[str, Any] | None]
"""What a part of the page puts into its template; None leaves the part out."""


def styles_of(findings: Findings) -> Styles:
    """Colours in the order in which methods were asked for, as in the live view."""
    collection = findings.collection
    styles = method_styles(collection.methods, collection.alone)
    return {s.method: styles[s.method] for s in findings.ranking.standings}


def score_scale(findings: Findings) -> Scale:
    """An axis of scores."""
    unit = findings.unit
    title = f"{findings.part} {findings.metric}{unit.heading}"
    notation = "percent" if unit.is_share else "number"
    return Scale(title, unit.tick, unit.bounds, notation)


def client_tip(findings: Findings, who: Who, score: str) -> str:
    """What a pointer is told of a client, in a list whose entries bars keep apart."""
    has_seeds = who.seed is not None and findings.collection.has_seeds
    where = f"seed {who.seed}, " if has_seeds else ""
    name = who.name.replace("|", "/")
    return f"{where}client {name}, {who.samples} samples: {score}"
