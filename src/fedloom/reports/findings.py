"""What a collection of runs says, in sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedloom.reports.collect import Collection
from fedloom.reports.gains import Advice, Gains, MethodGain, Who, advise, gains
from fedloom.reports.ranking import ALPHA, Ranking, rank
from fedloom.reports.units import MINUS, SPACE, Unit, counted, p_value, unit_of, words
from fedloom.results.statistics import is_error


@dataclass(frozen=True, eq=False)
class Findings:
    """Runs, and everything that was worked out from them."""

    collection: Collection
    ranking: Ranking
    gains: Gains | None
    advice: Advice | None

    @property
    def unit(self) -> Unit:
        """How scores are written."""
        return unit_of(self.metric)

    @property
    def metric(self) -> str:
        """What scores are."""
        return self.collection.metric

    @property
    def part(self) -> str:
        """The data that scores are on."""
        run = self.collection.first_run()
        return run.part if run is not None else "test"

    def gain_of(self, method: str) -> MethodGain | None:
        """What a method did for the clients; None if that is not known."""
        return self.gains.of(method) if self.gains is not None else None

    @property
    def who(self) -> tuple[Who, ...]:
        """The clients that gains or advice are about."""
        about = self.gains or self.advice
        return about.who if about is not None else ()


def work_out(collection: Collection) -> Findings:
    """Rank the methods, and say who gains and what each client should use."""
    ranking = rank(collection)
    return Findings(collection, ranking, gains(collection), advise(collection, ranking))


def headline(findings: Findings) -> str:
    """The answer, in one sentence."""
    collection, ranking = findings.collection, findings.ranking
    pick = ranking.pick
    if pick is None:
        failed = sum(run.state == "failed" for run in collection.runs.values())
        if failed and failed == len(collection.runs):
            every = f"all {failed} runs" if failed > 1 else "the run"
            return f"No answer: {every} failed."
        return "No answer yet: there is no run with scores."
    what = _reached(findings, pick)
    if len(collection.methods) == 1:
        return f"{pick}: {what}."
    if pick == collection.baseline:
        return f"Train alone: {what}, and no federation does better."
    # Nothing was tested, or some test cannot tell another method apart.
    if ranking.rivals(pick) or not ranking.pairs:
        return f"Use {pick}, for now: {what}."
    return f"Use {pick}: {what}."


def _reached(findings: Findings, method: str) -> str:
    score = findings.unit.score(findings.ranking.standing(method).last.mean)
    where = f"on the average client's own {findings.part} data"
    if is_error(findings.metric):
        return f"its {findings.metric} is {score} {where}"
    return f"it reaches {score} {findings.metric} {where}"


def summary(findings: Findings) -> list[str]:
    """What goes with the answer: how sure it is, and who gains."""
    pick = findings.ranking.pick
    if pick is None:
        return []
    texts = (
        _sureness(findings, pick),
        _choice(findings, pick),
        _who_gains(findings, pick),
        _advised(findings),
    )
    return [text for text in texts if text]


def _sureness(findings: Findings, pick: str) -> str:
    ranking, unit = findings.ranking, findings.unit
    estimate = ranking.standing(pick).last
    text = ""
    if estimate.has_interval:
        noun = "seed" if findings.collection.has_seeds else "client"
        over = counted(estimate.count, noun)
        text = (
            f"The 95 % interval over {over} goes from {unit.score(estimate.low)} to "
            f"{unit.score(estimate.high)}. "
        )
    others = [
        s.method
        for s in ranking.standings
        if s.method not in (pick, findings.collection.baseline) and s.last.count
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


def _choice(findings: Findings, pick: str) -> str:
    ranking = findings.ranking
    if len(ranking.standings) < 2:
        return ""
    first = ranking.standings[0].method
    if not ranking.is_picked_on_validation:
        return (
            f"It was chosen on the {findings.part} data that it is reported on, for "
            "want of validation data; fresh data would show it a little worse."
        )
    if first != pick:
        score = findings.unit.score(ranking.standings[0].last.mean)
        return (
            f"It was chosen on validation data; on {findings.part} data {first} comes "
            f"first with {score}."
        )
    return ""


def _who_gains(findings: Findings, pick: str) -> str:
    gains, unit, collection = findings.gains, findings.unit, findings.collection
    if gains is None:
        if collection.baseline is None and collection.is_paired:
            return (
                "Whether each client gains is not known, because nothing was trained "
                "alone: add local to the comparison, or use fedloom run --gain."
            )
        return ""
    best = gains.of(pick)
    if best is None:
        gainers = [g.method for g in gains.methods if g.mean.mean > 0]
        if not gainers:
            return "On average no method gains over training alone."
        return f"On average {words(gainers)} gain over training alone all the same."
    tested = findings.ranking.pair(pick, gains.baseline)
    sure = ""
    if tested is not None and math.isfinite(tested[1]):
        is_sure = tested[1] < ALPHA
        sure = f" ({_p(tested[1])}{'' if is_sure else ', so not certain'})"
    gap = unit.gap_estimate(best.mean) + unit.points
    verb = "loses" if best.mean.mean < 0 else "gains"
    stay = best.staying
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
    verdict = (
        "so choosing per client does matter"
        if change.p < ALPHA
        else "which is no more than chance, so one method for all will do"
    )
    return (
        "If each client used what its own validation data prefer, the mean would "
        f"change by {gap}{unit.points}, {verdict}."
    )
