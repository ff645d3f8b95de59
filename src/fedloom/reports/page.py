"""One HTML page with everything in it: opens from disk, asks nothing of a network."""

from __future__ import annotations

from collections.abc import Iterator

from fedloom.core.wording import counted
from fedloom.reports.charts import legend_sign
from fedloom.reports.findings import Findings
from fedloom.reports.headline import answer_score, headline, is_for_longer
from fedloom.reports.markup import content_policy, render
from fedloom.reports.sections.audit import audit
from fedloom.reports.sections.clients import calibration, clients
from fedloom.reports.sections.gain import who_gains
from fedloom.reports.sections.learning import learning
from fedloom.reports.sections.parts import Section, styles_of
from fedloom.reports.sections.ranking import ranking
from fedloom.reports.sections.recorded import drivers
from fedloom.reports.sections.setup import cost, data, setup
from fedloom.reports.summary import summary
from fedloom.results.observations import CONSTANT, LONGER

ASSETS = ("page.css", "charts.js", "page.js")
"""The style sheet and the scripts that are in the page."""

_SECTIONS: dict[str, tuple[str, str, Section]] = {
    "ranking": (
        "Ranking",
        "Which method is best for the average client, and how sure that is.",
        ranking,
    ),
    "gain": (
        "Who gains",
        "Each client against training alone, on the same samples of the same seeds.",
        who_gains,
    ),
    "learning": (
        "Learning",
        "The same scores against what it took to get there.",
        learning,
    ),
    "clients": ("Clients", "An average does not show who is left behind.", clients),
    "calibration": (
        "Calibration",
        "Whether the models know how often they are right.",
        calibration,
    ),
    "drivers": (
        "What drove it",
        "What each method recorded of its clients and of its aggregation.",
        drivers,
    ),
    "audit": (
        "Audit",
        "What the models of these runs give away to somebody who tries.",
        audit,
    ),
    "data": ("Data", "Who held what.", data),
    "cost": ("Cost", "What a run took.", cost),
    "setup": ("Setup", "Enough to run it again.", setup),
}
"""Title, lead and contents of every part, by its anchor, which names its template."""


def page(findings: Findings) -> str:
    """The whole page."""
    collection, styles = findings.collection, styles_of(findings)
    sections = {}
    for anchor, (title, lead, make) in _SECTIONS.items():
        values = make(findings, styles)
        if values is not None:
            body = render(f"{anchor}.html", **values)
            sections[anchor] = (title, lead, body)
    if len(collection.methods) == 1:
        _, _, body = sections["ranking"]
        sections["ranking"] = ("Score", "What the clients leave with.", body)
    return render(
        "page.html",
        policy=content_policy(*ASSETS),
        collection=collection,
        run=next(iter(collection.runs.values()), None),
        seeds=counted(len(collection.seeds), "seed"),
        headline=headline(findings),
        summary=summary(findings),
        tiles=dict(_tiles(findings)),
        legend={method: legend_sign(style) for method, style in styles.items()},
        sections=sections,
    )


def _tiles(findings: Findings) -> Iterator[tuple[str, str]]:
    """The few numbers that a reader takes along."""
    collection, ranking, unit = findings.collection, findings.ranking, findings.unit
    about = findings.pick or findings.decision.best
    if about is None:
        return
    best = ranking.standing(about)
    title = f"{findings.part} {findings.metric} of"
    if is_for_longer(findings) and findings.evidence is not None:
        score = findings.evidence.yardsticks[LONGER]
        yield f"{title} {findings.longer}", unit.score_estimate(score)
    else:
        score = answer_score(findings, about)
        yield f"{title} {best.method}", unit.score_estimate(score)
    gain = findings.gain_of(best.method)
    if findings.decision.verdict == "constant":
        evidence = findings.evidence
        assert evidence is not None
        usual = unit.score_estimate(evidence.yardsticks[CONSTANT])
        yield f"{findings.part} {findings.metric} of always saying what is usual", usual
    elif gain is not None:
        points = "points gained" if unit.is_share else "gain"
        over = findings.gains.reference if findings.gains is not None else ""
        yield f"{points} over {over}", unit.gap_estimate(gain.mean)
        yield "clients that gain", f"{gain.gaining} of {gain.known}"
    if best.worst.count:
        yield "worst tenth of the clients", unit.score(best.worst.mean)
    done = sum(run.state == "finished" for run in collection.runs.values())
    yield "runs finished", f"{done} of {len(collection.runs) + len(collection.absent)}"
