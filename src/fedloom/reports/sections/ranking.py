"""The methods in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from fedloom.reports import report_tables, run_tables
from fedloom.reports.findings import Findings
from fedloom.reports.row_charts import Bar, forest
from fedloom.reports.sections.parts import Styles, score_scale


def ranking(findings: Findings, styles: Styles) -> dict[str, Any]:
    """The methods in order."""
    standings = [s for s in findings.ranking.standings if s.last.count]
    show = findings.unit.score_estimate
    average = [
        Bar(
            s.method,
            styles[s.method],
            s.last,
            f"last round: {show(s.last)}",
            s.chosen if s.chosen.count else None,
            f"chosen round: {show(s.chosen)}",
        )
        for s in standings
    ]
    worst = [
        Bar(s.method, styles[s.method], s.worst, show(s.worst))
        for s in standings
        if s.worst.count
    ]
    return {
        "average": _forest(findings, average, "average client"),
        "has_choice": any(bar.second is not None for bar in average),
        "worst": _forest(findings, worst, "worst tenth of the clients"),
        "table": report_tables.ranking_table(findings),
        "yardsticks": report_tables.yardsticks_table(findings),
        "failures": run_tables.failures_table(findings),
        "pairs": report_tables.pairs_table(findings),
        "kinds": report_tables.kinds_table(findings),
    }


def _forest(findings: Findings, bars: Sequence[Bar], whose: str) -> Markup | None:
    if not bars:
        return None
    show = findings.unit.score_estimate
    described = "; ".join(f"{bar.name} {show(bar.first)}" for bar in bars)
    title = f"{findings.metric} of the {whose}"
    return forest(bars, title, described, score_scale(findings))
