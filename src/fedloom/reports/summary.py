"""What goes with the answer: what to mind, how sure it is, and who gains."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedloom.core.wording import counted
from fedloom.reports.cautions import cautions
from fedloom.reports.findings import Findings
from fedloom.reports.gains import MethodGain
from fedloom.reports.headline import (
    answer_score,
    is_beaten_by_ordinary,
    is_for_longer,
    is_of_no_shown_use,
    is_shown_beaten,
    on_more_data,
    subject,
)
from fedloom.reports.participation import participation
from fedloom.reports.units import SPACE, is_zero, p_value, words
from fedloom.results.evidence import ALPHA
from fedloom.results.observations import LONGER, ORDINARY, POOLED
from fedloom.results.statistics import is_better, is_error

_WORTH_SAYING = 0.05
"""A score that differs by less of its interval's width is not explained."""

_NOTHING_SHOWN = (
    "There may be nothing to learn here, or training fails, or there are too few data "
    "to tell."
)


def summary(findings: Findings) -> list[str]:
    """What goes with the answer: what to mind, how sure it is, and who gains."""
    decision = findings.decision
    about = decision.best or decision.pick
    texts = participation(findings.collection)
    if about is None:
        return texts
    texts += [
        _alone_for_longer(findings),
        " ".join(
            cautions(findings.collection, findings.gains, findings.evidence, about)
        ),
    ]
    if decision.verdict == "constant":
        # Who leads and who gains does not matter among methods of no use.
        texts.append(_best_of_no_use(findings, about))
    else:
        texts += [_sureness(findings), _alike(findings), _who_gains(findings, about)]
    texts += _yardsticks(findings)
    if is_of_no_shown_use(findings):
        texts.insert(0, _NOTHING_SHOWN)
    if decision.verdict != "constant":
        texts.append(_advised(findings))
    return [text for text in texts if text]


def _alone_for_longer(findings: Findings) -> str:
    """What training alone reaches if it stops when validation data say."""
    evidence, verdict = findings.evidence, findings.decision.verdict
    is_said = verdict == "longer" or is_for_longer(findings)
    if evidence is None or LONGER not in evidence.yardsticks or is_said:
        return ""
    score = findings.unit.score(evidence.yardsticks[LONGER].mean)
    text = f"{_capital(findings.longer)} is at {score}"
    best = findings.decision.best
    lead = evidence.over_longer.get(best) if best is not None else None
    if lead is None or verdict == "constant":
        return f"{text}."
    if lead.estimate.mean < 0:
        return f"{text}, which {best} does not reach."
    if verdict != "use":
        return f"{text}."
    ahead = "less than" if is_error(findings.metric) else "ahead of"
    table = ""
    if not is_better(
        answer_score(findings, best or "").mean,
        evidence.yardsticks[LONGER].mean,
        findings.metric,
    ):
        # Scores are corrected for being the best of several, and this test is not.
        raw = findings.ranking.standing(best or "").last.mean
        table = f", {findings.unit.score(raw)} in the table,"
    ahead = f"{subject(findings, best)}{table} is {ahead}"
    advice = "where a federation costs much, train alone, or gather more data."
    if lead.estimate.mean == 0:
        return f"{text}, and so is {best}: {advice}"
    if not lead.is_shown:
        return f"{text}; {ahead} that, which may be chance: {advice}"
    if _is_like_baseline(findings):
        other = findings.name(findings.collection.baseline or "")
        over = f"Over {other} it is not shown to be ahead: {advice}"
        return f"{text}; {ahead} that, beyond chance. {over}"
    return f"{text}; {ahead} that, beyond chance."


def _is_like_baseline(findings: Findings) -> bool:
    """Whether test data cannot tell the answer from the arm that trains alone."""
    evidence, baseline = findings.evidence, findings.collection.baseline
    if evidence is None or evidence.leader != findings.decision.best:
        return False
    gain = findings.gain_of(findings.decision.best)
    if gain is not None and gain.is_over_baseline:
        return False  # it is shown to be ahead of that arm
    lead = evidence.behind.get(baseline) if baseline is not None else None
    return lead is not None and not lead.adjusted < ALPHA


def _capital(text: str) -> str:
    """A sentence that begins with words of ours; names of methods stay as they are."""
    is_name = not text.startswith("training alone")
    return text if is_name else f"{text[0].upper()}{text[1:]}"


def _best_of_no_use(findings: Findings, method: str) -> str:
    """How far the best method gets where a constant does better."""
    score = findings.ranking.standing(method).last
    interval = ""
    if score.has_interval:
        low, high = findings.unit.score(score.low), findings.unit.score(score.high)
        interval = f" (95{SPACE}% interval from {low} to {high})"
    return (
        f"{method} does best of all methods on held-out data; its {findings.metric} on "
        f"{findings.part} data is {findings.unit.score(score.mean)}{interval}."
    )


def _sureness(findings: Findings) -> str:
    """The interval of the answer's score, and why that is not the table's."""
    unit, evidence = findings.unit, findings.evidence
    method = findings.decision.pick or findings.decision.best
    if evidence is None or method is None:
        return ""
    whose, score = f"{method}'s score", answer_score(findings, method)
    if method == findings.collection.baseline:
        whose = f"the score of {findings.name(method)}"
    if is_for_longer(findings):
        score = evidence.yardsticks[LONGER]
        whose = f"that {findings.metric} of {unit.score(score.mean)}"
    if not score.has_interval:
        return ""
    over = f"{counted(evidence.clients, 'client')}, {counted(evidence.seeds, 'seed')}"
    if findings.samples:
        over += f", {findings.samples}"
    text = (
        f"The 95{SPACE}% interval of {whose} goes from {unit.score(score.low)} to "
        f"{unit.score(score.high)} ({over})."
    )
    if is_for_longer(findings):
        return text
    raw = findings.ranking.standing(method).last.mean
    is_given = findings.decision.verdict in ("use", "alone", "unknown")
    is_other = abs(raw - score.mean) > _WORTH_SAYING * (score.high - score.low)
    if is_given and is_other and unit.score(raw) != unit.score(score.mean):
        text += (
            f" The score is given as {unit.score(score.mean)} and not as the "
            f"{unit.score(raw)} of the table, because the best of several looks better "
            "than it is on the data that chose it."
        )
    return text


def _alike(findings: Findings) -> str:
    """Methods that cannot be told apart from the leader, training alone included."""
    evidence = findings.evidence
    if evidence is None or evidence.leader is None or not evidence.behind:
        return ""
    leader = findings.name(evidence.leader)
    order = [
        s.method for s in findings.ranking.standings if s.method in evidence.behind
    ]
    tested = [m for m in order if math.isfinite(evidence.behind[m].adjusted)]
    alike = {m for m in tested if not evidence.behind[m].adjusted < ALPHA}
    tested = [m for m in tested if not _says_otherwise(findings, m, m in alike)]
    near = [findings.name(m) for m in tested if m in alike]
    apart = [findings.name(m) for m in tested if m not in alike]
    if not tested:
        return ""
    first = _capital(leader)
    if evidence.leader == findings.collection.baseline and is_for_longer(findings):
        first = f"Of the methods compared, {leader}"
    if not near:
        return (
            f"{first} does best on all held-out data{_why_not(findings)}, and on test "
            f"data it is better than {words(apart)}, beyond chance."
        )
    text = (
        f"{first} does best on all held-out data{_why_not(findings)}; test data cannot "
        f"tell it apart from {words(near)}"
    )
    return text + (f", but they can from {words(apart)}." if apart else ".")


def _says_otherwise(findings: Findings, method: str, is_alike: bool) -> bool:
    """Whether to name the arm that trains alone would contradict the answer.

    That has said whether a gain over it is shown, by more data than these.
    """
    gains = findings.gains
    if gains is None or method != findings.collection.baseline:
        return False
    if findings.decision.verdict == "use":
        gain = gains.of(findings.decision.best or "")
        is_over_it = gain is not None and gain.is_over_baseline
        return is_over_it or not gains.has_equal_work
    return not is_alike


def _why_not(findings: Findings) -> str:
    """Why the leader is not what is recommended."""
    evidence, decision, gains = findings.evidence, findings.decision, findings.gains
    if evidence is None or gains is None:
        return ""
    gain = findings.gain_of(evidence.leader)
    if gain is None or gain.method == decision.pick:
        return ""
    if gain.mean.mean <= 0:
        return f", but it is not ahead of {gains.reference}"
    if not gain.is_shown:
        return f", but its gain over {gains.reference} is not shown"
    if 2 * gain.losing > gain.known:
        return ", but most clients lose by it"
    lead = evidence.over_longer.get(gain.method)
    if lead is not None and lead.estimate.mean < 0:
        return f", but does not reach {findings.longer}"
    return ""


def _who_gains(findings: Findings, method: str) -> str:
    gains, unit, collection = findings.gains, findings.unit, findings.collection
    if gains is None:
        if all(s.algorithm == "local" for s in findings.ranking.standings):
            return (
                "There is nothing to compare training alone with: name a federated "
                "method, too (fedloom list shows them)."
            )
        if any(run.is_federation for run in collection.runs.values()):
            return (
                "What each client gains over training alone stands in its own report, "
                "which it keeps to itself."
            )
        if collection.baseline is None and collection.is_paired:
            return (
                "Whether each client gains is not known, because nothing was trained "
                "alone: add local to the comparison, or use fedloom run --gain."
            )
        return ""
    gain = gains.of(method)
    if gain is None:
        return ""
    verb, over = ("loses", "to") if gain.mean.mean < 0 else ("gains", "over")
    interval = ""
    if gain.mean.has_interval:
        chance = ""
        if gain.mean.mean > 0:
            reason = ""
            if gain.is_shown and gain.mean.low < 0:
                reason = ", for only a gain is a reason to act"
            chance = f"; one-sided{reason}: {_p(gain.p)}"
            if len(gains.methods) > 1:
                chance += f", adjusted for {len(gains.methods)} methods"
        interval = (
            f" (95{SPACE}% interval from {unit.gap(gain.mean.low)} to "
            f"{unit.gap(gain.mean.high)}{chance})"
        )
    amount = f"{unit.number(abs(gain.mean.mean))}{unit.points}"
    if is_error(findings.metric):
        amount += f" in {findings.metric}"
    return (
        f"With {method} the average client {verb} {amount} {over} {gains.reference}"
        f"{on_more_data(findings)}{interval}: {_counts(findings, gain)}."
    )


def _counts(findings: Findings, gain: MethodGain) -> str:
    """`12 of 20 clients gain, 6 lose and 2 stay as they are`."""
    seeds = len(findings.collection.seeds)
    if not findings.collection.has_same_clients and seeds > 1:
        return (
            f"in {seeds} seeds, each with clients of its own ({gain.known} in all), "
            f"clients gain {_times(gain.gaining)}, lose {_times(gain.losing)} and stay "
            f"as they are {_times(gain.staying)}"
        )
    gaining = f"{gain.gaining} of {counted(gain.known, 'client')} "
    gaining += "gains" if gain.gaining == 1 or gain.known == 1 else "gain"
    losing = f"{gain.losing or 'none'} {'lose' if gain.losing > 1 else 'loses'}"
    if not gain.staying:
        return f"{gaining}, {losing}"
    stay = "stay as they are" if gain.staying > 1 else "stays as it is"
    return f"{gaining}, {losing} and {gain.staying} {stay}"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _p(value: float) -> str:
    text = p_value(value)
    relation = "" if text.startswith("<") else f"={SPACE}"
    return f"p{SPACE}{relation}{text}"


def _yardsticks(findings: Findings) -> Iterator[str]:
    """What the methods are measured by, where it says something of them."""
    evidence, unit, metric = findings.evidence, findings.unit, findings.metric
    if evidence is None or evidence.leader is None:
        return
    if is_beaten_by_ordinary(findings) and not is_shown_beaten(findings):
        score = unit.score(evidence.yardsticks[ORDINARY].mean)
        yield (
            "An ordinary model on each client's own data (gradient boosting or a "
            f"linear model) does better than every method: its {metric} is {score}, "
            "though that may be chance."
        )
    if POOLED in evidence.yardsticks:
        score = unit.score(evidence.yardsticks[POOLED].mean)
        yield (
            "One model for all, trained with all data in one place, which a federation "
            f"does not have, is at {score} {metric}."
        )


def _advised(findings: Findings) -> str:
    advice, unit = findings.advice, findings.unit
    if advice is None or not advice.is_on_validation or findings.pick is None:
        return ""
    if is_for_longer(findings):
        return ""  # what clients could choose among does not have the answer
    change = advice.against_pick
    if not math.isfinite(change.p):
        return ""
    everybody = f"used {findings.pick}"
    is_alone = findings.pick == findings.collection.baseline
    if is_alone:
        rounds = counted(findings.collection.planned, "round")
        everybody = f"trained alone for {rounds}"
    if set(advice.method) == {findings.pick}:
        prefer = findings.pick
        if is_alone:
            prefer = "training alone to all federated methods"
        return f"Every single client's own validation data prefer {prefer}, too."
    pick = findings.ranking.standing(findings.pick).last.mean
    gap = unit.number(abs(advice.followed - pick))
    is_more = is_better(advice.followed, pick, findings.metric)
    verdict = "which may be chance, so one method for all will do"
    if change.adjusted < ALPHA:
        verdict = (
            "so choosing for each client pays"
            if is_more
            else "so one method for all is the better choice"
        )
    change_by = f"{gap}{unit.points} {'better' if is_more else 'worse'} than if"
    if is_zero(gap):
        change_by, verdict = "as well as if", "so one method for all will do"
    return (
        "If each client used what its own validation data prefer"
        f"{', chosen anew in each seed' if findings.collection.has_seeds else ''}, the "
        f"average client would do {change_by} everybody {everybody}, {verdict}."
    )
