"""The methods in order."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from fedloom.reports import report_tables
from fedloom.reports.charts import Bar, forest
from fedloom.reports.findings import Findings
from fedloom.reports.sections.parts import Look, figure, more, score_title
from fedloom.results.statistics import Estimate


def ranking(findings: Findings, look: Look) -> str:
    """The methods in order."""
    standings = [s for s in findings.ranking.standings if s.last.count]
    body = ""
    if standings:
        average = [
            Bar(
                s.method,
                look.styles[s.method],
                s.last,
                s.chosen if s.chosen.count else None,
                (
                    f"last round: {_told(findings, s.last)}",
                    f"chosen round: {_told(findings, s.chosen)}",
                ),
            )
            for s in standings
        ]
        tail = [
            Bar(
                s.method,
                look.styles[s.method],
                s.worst,
                None,
                (_told(findings, s.worst), ""),
            )
            for s in standings
            if s.worst.count
        ]
        has_choice = any(bar.second is not None for bar in average)
        body = _forest(
            findings,
            average,
            f"{findings.metric} of the average client",
            "The average client, with the 95 % interval: solid at the last round"
            + (
                ", hollow at the round chosen on validation data."
                if has_choice
                else "."
            ),
        )
        if tail:
            body += _forest(
                findings,
                tail,
                f"{findings.metric} of the worst tenth of the clients",
                "The tenth of the clients that does worst, at the last round.",
            )
        body = f'<div class="grid two">{body}</div>'
    body += report_tables.ranking_table(findings).to_html("ranking-table")
    failures = report_tables.failures_table(findings)
    if failures is not None:
        body += failures.to_html("failures-table")
    if len(findings.found.seeds) > 1 and findings.ranking.pairs:
        pairs = report_tables.pairs_table(findings).to_html("pairs-table")
        body += more("Every pair of methods", f"<p>{escape(_PAIRING)}</p>{pairs}")
    kinds = report_tables.kinds_table(findings).to_html("kinds-table")
    return body + more("Shared, team and personal models, and other scores", kinds)


def _told(findings: Findings, estimate: Estimate) -> str:
    return findings.unit.estimate(estimate) + findings.unit.suffix


def _forest(findings: Findings, bars: Sequence[Bar], title: str, caption: str) -> str:
    described = "; ".join(f"{b.name} {_told(findings, b.first)}" for b in bars)
    drawing = forest(
        bars,
        title,
        described,
        x_title=score_title(findings),
        show=findings.unit.tick,
    )
    return figure(drawing, caption)


_PAIRING = (
    "What is compared is the mean over clients, and what is repeated is the seed, "
    "which draws the split, the first model, the cohorts and the batches, the same for "
    "every method; so methods are paired by seed. Clients of one seed are not counted "
    "as repetitions: they trained together from one start and in the same cohorts, and "
    "the luck of one is the luck of many. The t-test takes the differences to be "
    "roughly normal, which few seeds can neither show nor refute. Holm's correction "
    "holds the chance of any false alarm among the pairs with training alone, and "
    "among all other pairs, at 5 %."
)
