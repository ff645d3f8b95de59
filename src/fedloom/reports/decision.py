"""What to do: use a method, train alone, or neither is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedloom.reports.collect import Collection
from fedloom.reports.gains import Gains
from fedloom.reports.ranking import Ranking
from fedloom.results.evidence import Evidence
from fedloom.results.statistics import is_better

Verdict = Literal["use", "alone", "longer", "losing", "open", "constant", "unknown"]
"""use: a federated method, whose gain over training alone with as much work is shown.
alone: no federated method is ahead of training alone. longer: one is, at its own work,
but training alone for as many rounds as validation data prefer does better. losing: one
is, but most clients lose by it. open: one is, which may be chance. constant: always
saying what is usual does better than every method. unknown: nothing trained alone, or
what did diverged."""


@dataclass(frozen=True)
class Decision:
    """The answer."""

    verdict: Verdict
    pick: str | None
    """The method to use, which may be training alone; None without any score, or if a
    constant does better."""
    best: str | None
    """The federated method that the answer speaks of; None if there is none."""


def decide(collection: Collection, ranking: Ranking, gains: Gains | None) -> Decision:
    """What to do, by the evidence.

    A federated method is recommended only if its gain over training alone with as much
    work is shown, if not most clients lose by it, and if nothing that trains alone has
    a better score. Of several such methods it is the one that does best on all
    held-out data. Nothing is recommended if a constant does better there.
    """
    able = [s for s in ranking.standings if s.last.count and s.is_whole]
    able = able or [s for s in ranking.standings if s.last.count]
    if not able:
        return Decision("unknown", None, None)
    federated = [s.method for s in able if s.algorithm != "local"]
    alone = [s.method for s in able if s.algorithm == "local"]
    evidence = ranking.evidence
    if evidence is None:
        return Decision("unknown", able[0].method, None)
    if not federated:
        return Decision("alone", _best(evidence, alone), None)
    best = _best(evidence, federated)
    if gains is None or gains.of(best) is None or collection.alone_failed:
        return Decision("unknown", _best(evidence, [*federated, *alone]), best)
    if all(_is_idle(evidence, m) for m in (*federated, *alone)):
        return Decision("constant", None, best)
    baseline = collection.baseline if collection.baseline in alone else None
    useful = [m for m in federated if not _is_idle(evidence, m)]
    shown = [m for m in useful if (g := gains.of(m)) and g.is_shown]
    helped = [m for m in shown if not _most_lose(gains, m)]
    unbeaten = [m for m in helped if not _is_beaten(evidence, m, alone)]
    if unbeaten:
        pick = _best(evidence, unbeaten)
        return Decision("use", pick, pick)
    if helped:
        return Decision("longer", baseline, _best(evidence, helped))
    if shown:
        return Decision("losing", baseline, _best(evidence, shown))
    if evidence.gains[best].estimate.mean <= 0 or _is_behind(evidence, best, alone):
        return Decision("alone", baseline, best)
    if _is_beaten(evidence, best, alone):
        return Decision("longer", baseline, best)
    return Decision("losing" if _most_lose(gains, best) else "open", baseline, best)


def _best(evidence: Evidence, methods: Sequence[str]) -> str:
    """The method that does best on all held-out data; the first of equals."""
    best = methods[0]
    for method in methods[1:]:
        ours, theirs = evidence.held_out[method], evidence.held_out[best]
        if is_better(ours, theirs, evidence.metric):
            best = method
    return best


def _is_idle(evidence: Evidence, method: str) -> bool:
    """Whether always saying what is usual does better on all held-out data."""
    lead = evidence.over_constant.get(method)
    return lead is not None and lead.estimate.mean < 0


def _most_lose(gains: Gains, method: str) -> bool:
    gain = gains.of(method)
    return gain is not None and 2 * gain.losing > gain.known


def _is_beaten(evidence: Evidence, method: str, alone: Sequence[str]) -> bool:
    """Whether something that trains alone has a better test score."""
    if _is_behind(evidence, method, alone):
        return True
    lead = evidence.over_longer.get(method)
    return lead is not None and lead.estimate.mean < 0


def _is_behind(evidence: Evidence, method: str, alone: Sequence[str]) -> bool:
    """Whether an arm that trains alone has a better test score."""
    scores, metric = evidence.scores, evidence.metric
    return any(is_better(scores[m].mean, scores[method].mean, metric) for m in alone)
