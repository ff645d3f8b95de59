"""The answer, in a sentence or two."""

from __future__ import annotations

import math

from fedloom.core.remarks import LOWER_RATE
from fedloom.core.wording import counted
from fedloom.reports.findings import Findings
from fedloom.reports.units import SPACE
from fedloom.results.observations import CONSTANT, LONGER, ORDINARY
from fedloom.results.statistics import Estimate, is_better, is_error


def headline(findings: Findings) -> str:
    """The answer, in a sentence or two."""
    answer = _answer(findings)
    if is_of_no_shown_use(findings):
        verdict = findings.decision.verdict
        if verdict not in ("use", "alone", "longer", "unknown"):
            answer = f"Train alone{_how_long(findings)}."
        answer = (
            "No method is shown to be better than always saying what is usual: "
            f"{usual(findings)}. If you need a model, {answer[0].lower()}{answer[1:]}"
        )
    return f"{answer}{_by_ordinary_models(findings)}"


def _answer(findings: Findings) -> str:
    """What to do."""
    collection, decision = findings.collection, findings.decision
    if decision.pick is None and decision.best is None:
        failed = sum(run.state == "failed" for run in collection.runs.values())
        if failed and failed == len(collection.runs):
            every = {1: "the run", 2: "both runs"}.get(failed, f"all {failed} runs")
            return (
                f"No answer: {every} diverged. Try again in another directory. "
                f"{LOWER_RATE}"
            )
        return "No answer yet: there is no run with scores."
    pick, best = decision.pick, decision.best
    if len(collection.methods) == 1 and findings.gains is None:
        if decision.verdict == "alone":
            return f"Training alone{_how_long(findings)}."
        return f"{pick or best}: {_reached(findings, pick or best or '')}."
    match decision.verdict:
        case "use":
            return (
                f"Use {best}: {_reached(findings, best or '')}, and is "
                f"{_ahead(findings, best)}.{_losers(findings)}"
            )
        case "alone":
            return f"Train alone{_how_long(findings)}.{_not_ahead(findings)}"
        case "longer":
            return (
                f"Train alone{_how_long(findings)}. {best} does not reach that, "
                f"although {_is_ahead(findings, best)}."
            )
        case "losing":
            return (
                f"Train alone{_how_long(findings)}. On average "
                f"{_is_ahead(findings, best)}, but most clients lose by it."
            )
        case "constant":
            return (
                f"No method is of use: {usual(findings)}, and on all held-out data "
                f"none does better{_unless_by_chance(findings)}. There may be nothing "
                "to learn here, or training fails: try another learning rate "
                "(fedloom tune), another model or more features."
            )
        case "open":
            return (
                f"Not shown: {_is_ahead(findings, best)}, which these data cannot tell "
                f"from chance.{_losers(findings)} Gather more data, or train alone"
                f"{_how_long(findings)}."
            )
    leads = f"{pick} does best: {_reached(findings, pick or '')}"
    if findings.evidence is None:
        return f"{leads}, but the methods did not meet the same clients."
    why = ", because that diverged" if collection.alone_failed else ""
    return f"{leads}; whether that beats training alone is not known{why}."


def _not_ahead(findings: Findings) -> str:
    """Why the best federated method is not the answer."""
    gain, gains = findings.gain_of(findings.decision.best), findings.gains
    if gain is None or gains is None:
        return ""
    best = f" {gain.method}, the best federated method,"
    if gain.mean.mean > 0:
        return f"{best} does not reach that."
    return f"{best} is not ahead of {gains.reference}."


def usual(findings: Findings) -> str:
    """What a constant reaches."""
    evidence, metric = findings.evidence, findings.metric
    assert evidence is not None
    what = "its mean" if is_error(metric) else "its most frequent class"
    score = findings.unit.score(evidence.yardsticks[CONSTANT].mean)
    return f"if each client always predicted {what}, the {metric} would be {score}"


def is_of_no_shown_use(findings: Findings) -> bool:
    """Whether no method is shown to be better than a constant, though some may be."""
    evidence = findings.evidence
    if evidence is None or findings.decision.verdict == "constant":
        return False
    over_usual = evidence.over_constant.values()
    return bool(over_usual) and not any(lead.is_shown for lead in over_usual)


def is_beaten_by_ordinary(findings: Findings) -> bool:
    """Whether an ordinary model per client does better than every way of training."""
    evidence = findings.evidence
    if evidence is None or ORDINARY not in evidence.yardsticks:
        return False
    rivals = dict(evidence.scores)
    if LONGER in evidence.yardsticks:
        rivals[LONGER] = evidence.yardsticks[LONGER]
    ordinary, metric = evidence.yardsticks[ORDINARY].mean, evidence.metric
    return all(is_better(ordinary, rival.mean, metric) for rival in rivals.values())


def is_shown_beaten(findings: Findings) -> bool:
    """Whether that is more than chance explains."""
    evidence = findings.evidence
    if evidence is None or not is_beaten_by_ordinary(findings):
        return False
    if is_for_longer(findings):
        # The leader was tested against ordinary models, and is not the answer.
        ordinary, longer = (evidence.yardsticks[name] for name in (ORDINARY, LONGER))
        end = longer.low if is_error(findings.metric) else longer.high
        if not is_better(ordinary.mean, end, findings.metric):
            return False
    return evidence.over_yardsticks[ORDINARY].turned().is_shown


def _by_ordinary_models(findings: Findings) -> str:
    """That an ordinary model is better than every method, if that is shown."""
    evidence = findings.evidence
    if evidence is None or not is_shown_beaten(findings):
        return ""
    score = findings.unit.score(evidence.yardsticks[ORDINARY].mean)
    return (
        " But an ordinary model on each client's own data (gradient boosting or a "
        f"linear model) does better than every method, beyond chance: its "
        f"{findings.metric} is {score}. Use that where the kind of model does not "
        "matter."
    )


def _unless_by_chance(findings: Findings) -> str:
    evidence = findings.evidence
    assert evidence is not None
    are_sure = [lead.turned().is_shown for lead in evidence.over_constant.values()]
    return "" if all(are_sure) else ", though that may be chance"


def _reached(findings: Findings, method: str) -> str:
    score = findings.unit.score(answer_score(findings, method).mean)
    where = f"on the average client's own {findings.part} data"
    time = ""
    if method == findings.collection.baseline:
        time = f"for {counted(findings.collection.planned, 'round')} "
    if is_error(findings.metric):
        return f"{time}its {findings.metric} is {score} {where}"
    return f"{time}it reaches {score} {findings.metric} {where}"


def answer_score(findings: Findings, method: str) -> Estimate:
    """The score that the answer gives: corrected for being the best of several."""
    evidence = findings.evidence
    is_chosen = method in (findings.decision.best, evidence and evidence.leader)
    if evidence is None or method not in evidence.scores or not is_chosen:
        return findings.ranking.standing(method).last
    return evidence.score_once_chosen(method)


def _is_ahead(findings: Findings, method: str | None) -> str:
    """`ditto is 2.1 points ahead of training alone with as much work`."""
    return f"{subject(findings, method)} is {_ahead(findings, method)}"


def _ahead(findings: Findings, method: str | None) -> str:
    """By how much a method is better than training alone with as much work."""
    evidence, gains = findings.evidence, findings.gains
    assert evidence is not None
    assert gains is not None
    lead = evidence.gains[method or ""].estimate.mean
    other = f"{gains.reference}{on_more_data(findings)}"
    if not is_error(findings.metric):
        points = f"{findings.unit.number(lead)}{findings.unit.points}"
        return f"{points} ahead of {other}"
    less = f"{100 * (1 - math.exp(-lead)):.0f}{SPACE}% less"
    return f"{less} than that of {other}"


def on_more_data(findings: Findings) -> str:
    """What gains are on, if that is more than scores are on; else empty."""
    is_more = findings.collection.has_folds
    return f" on {findings.part} and validation data together" if is_more else ""


def subject(findings: Findings, method: str | None) -> str:
    """What is better or worse: the method, or its error."""
    return f"{method}'s {findings.metric}" if is_error(findings.metric) else f"{method}"


def _how_long(findings: Findings) -> str:
    """` for as many rounds as validation data prefer (4): the accuracy is then ...`."""
    evidence, pick, metric = findings.evidence, findings.pick, findings.metric
    assert evidence is not None
    if is_for_longer(findings):
        length = findings.longer.removeprefix("training alone")
        score = findings.unit.score(evidence.yardsticks[LONGER].mean)
        return f"{length}: the {metric} is then {score}"
    if pick is None:
        return ""
    return _with_as_much_work(findings, pick) or f": {_reached(findings, pick)}"


def _with_as_much_work(findings: Findings, pick: str) -> str:
    """` with as much work`, where that does better than the arm that trains alone."""
    best, gains, metric = findings.decision.best, findings.gains, findings.metric
    gain = findings.gain_of(best)
    if gain is None or gains is None or not gains.has_equal_work:
        return ""
    towards = -1 if is_error(metric) else 1
    alone = findings.ranking.standing(best or "").last.mean - towards * gain.mean.mean
    if not is_better(alone, findings.ranking.standing(pick).last.mean, metric):
        return ""
    score = findings.unit.score(alone)
    return f" with as much work as {best} took: the {metric} is then about {score}"


def is_for_longer(findings: Findings) -> bool:
    """Whether the answer is to train alone for another number of rounds."""
    evidence, decision = findings.evidence, findings.decision
    is_alone = decision.verdict in ("alone", "longer", "losing", "open")
    if not is_alone or evidence is None:
        return False
    longer, pick = evidence.yardsticks.get(LONGER), decision.pick
    own = evidence.scores[pick].mean if pick is not None else math.nan
    return longer is not None and not is_better(own, longer.mean, findings.metric)


def _losers(findings: Findings) -> str:
    gain = findings.gain_of(findings.decision.best)
    if gain is None or gain.losing <= gain.gaining:
        return ""
    return f" More clients lose by it ({gain.losing}) than gain ({gain.gaining})."
