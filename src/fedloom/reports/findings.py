"""What a collection of runs says, in sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedloom.reports.collect import Collection
from fedloom.reports.gains import Advice, Gains, advise, gains
from fedloom.reports.ranking import ALPHA, Ranking, rank
from fedloom.reports.units import MINUS, SPACE, Unit, p_value, unit_of, words
from fedloom.results.scores import ERRORS


@dataclass(frozen=True, eq=False)
class Findings:
    """Runs, and everything that was worked out from them."""

    found: Collection
    ranking: Ranking
    gains: Gains | None
    advice: Advice | None

    @property
    def unit(self) -> Unit:
        """How scores are written."""
        return unit_of(self.found.metric)

    @property
    def metric(self) -> str:
        """What scores are."""
        return self.found.metric

    @property
    def part(self) -> str:
        """The data that scores are on."""
        run = self.found.first_run()
        return run.part if run is not None else "test"


def work_out(found: Collection) -> Findings:
    """Rank the methods, and say who gains and what each client should use."""
    ranking = rank(found)
    return Findings(found, ranking, gains(found), advise(found, ranking))


def headline(findings: Findings) -> str:
    """The answer, in one sentence."""
    found, ranking, pick = findings.found, findings.ranking, findings.ranking.pick
    if pick is None:
        failed = sum(run.state == "failed" for run in found.runs.values())
        if failed and failed == len(found.runs):
            every = f"all {failed} runs" if failed > 1 else "the run"
            return f"No answer: {every} failed."
        return "No answer yet: there is no run with scores."
    what = _reached(findings, pick)
    if len(found.methods) == 1:
        return f"{pick}: {what}."
    if pick == found.baseline:
        return f"Train alone: {what}, and no federation does better."
    # Nothing was tested, or some test cannot tell another method apart.
    if ranking.rivals(pick) or not ranking.pairs:
        return f"Use {pick}, for now: {what}."
    return f"Use {pick}: {what}."


def _reached(findings: Findings, method: str) -> str:
    score = findings.unit.score(findings.ranking.standing(method).last.mean)
    where = f"on the average client's own {findings.part} data"
    if findings.metric in ERRORS:
        return f"its {findings.metric} is {score} {where}"
    return f"it reaches {score} {findings.metric} {where}"


def summary(findings: Findings) -> list[str]:
    """What goes with the answer: how sure it is, and who gains."""
    pick = findings.ranking.pick
    if pick is None:
        return []
    found = [_sureness(findings, pick), *_choice(findings, pick)]
    return [
        text
        for text in (*found, _who_gains(findings, pick), _advised(findings))
        if text
    ]


def _sureness(findings: Findings, pick: str) -> str:
    found, ranking, unit = findings.found, findings.ranking, findings.unit
    estimate = ranking.standing(pick).last
    text = ""
    if estimate.has_interval:
        over = f"{estimate.count} {'seeds' if len(found.seeds) > 1 else 'clients'}"
        text = (
            f"The 95 % interval over {over} goes from {unit.score(estimate.low)} to "
            f"{unit.score(estimate.high)}. "
        )
    others = [
        s.method
        for s in ranking.standings
        if s.method not in (pick, found.baseline) and s.last.count
    ]
    tested = [
        m for m in others if math.isfinite((ranking.pair(pick, m) or (0, math.nan))[1])
    ]
    if not tested:
        return text.strip()
    rivals = [m for m in others if m in ranking.rivals(pick)]
    beaten = [m for m in others if m not in rivals]
    if not rivals:
        return text + f"It differs from every other method, {words(beaten)}, too."
    text += f"These seeds cannot tell it apart from {words(rivals)}"
    return text + (f"; it does differ from {words(beaten)}." if beaten else ".")


def _choice(findings: Findings, pick: str) -> list[str]:
    ranking = findings.ranking
    if len(findings.found.methods) < 2:
        return []
    first = ranking.standings[0].method
    if not ranking.is_picked_on_validation:
        return [
            f"It was chosen on the {findings.part} data that it is reported on, for "
            "want of validation data; fresh data would show it a little worse."
        ]
    if first != pick:
        score = findings.unit.score(ranking.standings[0].last.mean)
        return [
            f"It was chosen on validation data; on {findings.part} data {first} comes "
            f"first with {score}."
        ]
    return []


def _who_gains(findings: Findings, pick: str) -> str:
    told, unit, found = findings.gains, findings.unit, findings.found
    if told is None:
        if found.baseline is None and found.is_paired:
            return (
                "Whether each client gains is not known, because nothing was trained "
                "alone: add local to the comparison, or use fedloom run --gain."
            )
        return ""
    best = told.of(pick)
    if best is None:
        gainers = [g.method for g in told.methods if g.mean.mean > 0]
        if not gainers:
            return "On average no method gains over training alone."
        return f"On average {words(gainers)} gain over training alone all the same."
    tested = findings.ranking.pair(pick, told.baseline)
    sure = ""
    if tested is not None and math.isfinite(tested[1]):
        is_sure = tested[1] < ALPHA
        sure = f" ({_p(tested[1])}{'' if is_sure else ', so not certain'})"
    gap = unit.gap_estimate(best.mean) + (f" {unit.points}" if unit.points else "")
    verb = "loses" if best.mean.mean < 0 else "gains"
    stay = best.known - best.gaining - best.losing
    return (
        f"Over training alone the average client {verb} "
        f"{gap.lstrip('+' + MINUS)}{sure}: "
        f"{best.gaining} of {best.known} clients gain, "
        f"{best.losing or 'none'} {'lose' if best.losing > 1 else 'loses'}"
        + (f" and {stay} {'stay' if stay > 1 else 'stays'}." if stay else ".")
    )


def _p(value: float) -> str:
    text = p_value(value)
    relation = "" if text.startswith("<") else f"={SPACE}"
    return f"p{SPACE}{relation}{text}"


def _advised(findings: Findings) -> str:
    advice, unit = findings.advice, findings.unit
    if advice is None or not advice.is_on_validation:
        return ""
    change = advice.against_pick
    if change.difference.count < 2:
        return ""
    if set(advice.method) == {findings.ranking.pick}:
        return "The validation data of every single client prefer it, too."
    gap = unit.gap(change.difference.mean)
    points = f" {unit.points}" if unit.points else ""
    verdict = (
        "so choosing per client does matter"
        if change.p < ALPHA
        else "which is no more than chance, so one method for all will do"
    )
    return (
        "If each client used what its own validation data prefer, the mean would "
        f"change by {gap}{points}, {verdict}."
    )
