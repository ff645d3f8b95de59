"""What a collection of runs says, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedloom.reports.cautions import cautions
from fedloom.reports.collect import Collection
from fedloom.reports.decision import Decision, decide
from fedloom.reports.gains import Advice, Gains, MethodGain, advise, gains
from fedloom.reports.held_out import Who, observe, seats_of
from fedloom.reports.ranking import Ranking, rank
from fedloom.reports.units import SPACE, Unit, counted, is_zero, p_value, unit_of, words
from fedloom.results.evidence import ALPHA, Evidence, weigh
from fedloom.results.observations import CONSTANT, LONGER
from fedloom.results.statistics import Estimate, is_better, is_error


@dataclass(frozen=True, eq=False)
class Findings:
    """Runs, and everything that was worked out from them."""

    collection: Collection
    ranking: Ranking
    gains: Gains | None
    decision: Decision
    advice: Advice | None

    @property
    def unit(self) -> Unit:
        """How scores are written."""
        scores = [standing.last.mean for standing in self.ranking.standings]
        return unit_of(self.metric, scores)

    @property
    def metric(self) -> str:
        """What scores are."""
        return self.collection.metric

    @property
    def part(self) -> str:
        """The data that scores are on."""
        run = self.collection.first_run()
        return run.part if run is not None else "test"

    @property
    def gain_part(self) -> str:
        """The data that gains are on, in a word."""
        return "held-out" if self.collection.has_folds else self.part

    @property
    def samples(self) -> str:
        """How many samples scores are on, in words; empty if that is not known."""
        if self.evidence is None or not self.evidence.samples:
            return ""
        samples = counted(self.evidence.samples, f"{self.part} sample")
        groups = self.evidence.groups
        return f"{samples} in {counted(groups, 'group')}" if groups else samples

    @property
    def evidence(self) -> Evidence | None:
        """What held-out data say; None if nothing can be compared."""
        return self.ranking.evidence

    @property
    def pick(self) -> str | None:
        """The method to use, which may be training alone; None without an answer."""
        return self.decision.pick

    def gain_of(self, method: str | None) -> MethodGain | None:
        """What a method did for the clients; None if that is not known."""
        if self.gains is None or method is None:
            return None
        return self.gains.of(method)

    @property
    def who(self) -> tuple[Who, ...]:
        """The clients that gains or advice are about."""
        about = self.gains or self.advice
        return about.who if about is not None else ()

    def name(self, method: str) -> str:
        """A method in a sentence: the baseline is training alone."""
        return "training alone" if method == self.collection.baseline else method


def work_out(collection: Collection) -> Findings:
    """Rank the methods, and say what to do, who gains and what suits each client."""
    seats = seats_of(collection)
    seen = observe(collection, seats)
    evidence = weigh(seen, collection.metric) if seen is not None else None
    ranking = rank(collection, evidence)
    gained = gains(collection, seats, seen, ranking)
    decision = decide(collection, ranking, gained)
    advice = advise(collection, seats, seen, ranking, decision.pick)
    return Findings(collection, ranking, gained, decision, advice)


def headline(findings: Findings) -> str:
    """The answer, in a sentence or two."""
    collection, decision = findings.collection, findings.decision
    if decision.pick is None and decision.best is None:
        failed = sum(run.state == "failed" for run in collection.runs.values())
        if failed and failed == len(collection.runs):
            every = f"all {failed} runs" if failed > 1 else "the run"
            return f"No answer: {every} failed."
        return "No answer yet: there is no run with scores."
    pick, best = decision.pick, decision.best
    if len(collection.methods) == 1:
        return f"{pick or best}: {_reached(findings, pick or best or '')}."
    match decision.verdict:
        case "use":
            return (
                f"Use {best}: {_reached(findings, best or '')}, "
                f"{_ahead(findings, best)}.{_losers(findings)}"
            )
        case "alone":
            reached = f": {_reached(findings, pick)}" if pick is not None else ""
            return f"Train alone{reached}.{_for_longer(findings)}{_not_ahead(findings)}"
        case "longer":
            return (
                f"Train alone{_how_long(findings)}. {best} does not reach that, "
                f"although {_is_ahead(findings, best)}."
            )
        case "losing":
            return (
                f"Train alone: on average {_is_ahead(findings, best)}, but most "
                "clients lose by it."
            )
        case "constant":
            return (
                f"No method is of use: {_usual(findings)}, and on all held-out data "
                f"none does better{_unless_by_chance(findings)}. There may be nothing "
                "to learn here, or training fails."
            )
        case "open":
            return (
                f"Not shown: {_is_ahead(findings, best)}, which these data cannot tell "
                "from chance. Train alone, or gather more data."
                f"{_losers(findings)}"
            )
    leads = f"{pick} does best: {_reached(findings, pick or '')}"
    if findings.evidence is None:
        return f"{leads}, but the methods did not meet the same clients."
    return f"{leads}; whether that beats training alone is not known."


def _not_ahead(findings: Findings) -> str:
    """Why the best federated method is not the answer."""
    gain, gains = findings.gain_of(findings.decision.best), findings.gains
    if gain is None or gains is None:
        return ""
    best = f" {gain.method}, the best federated method,"
    if gain.mean.mean > 0:
        return f"{best} does not reach that."
    return f"{best} is not ahead of {gains.reference}."


def _usual(findings: Findings) -> str:
    """What a constant reaches."""
    evidence, metric = findings.evidence, findings.metric
    assert evidence is not None
    what = "its mean" if is_error(metric) else "its most frequent class"
    score = findings.unit.score(evidence.yardsticks[CONSTANT].mean)
    return f"if each client always predicted {what}, the {metric} would be {score}"


def _unless_by_chance(findings: Findings) -> str:
    evidence = findings.evidence
    assert evidence is not None
    are_sure = [lead.turned().is_shown for lead in evidence.over_constant.values()]
    return "" if all(are_sure) else ", though that may be chance"


def _reached(findings: Findings, method: str) -> str:
    score = findings.unit.score(answer_score(findings, method).mean)
    where = f"on the average client's own {findings.part} data"
    if is_error(findings.metric):
        return f"its {findings.metric} is {score} {where}"
    return f"it reaches {score} {findings.metric} {where}"


def answer_score(findings: Findings, method: str) -> Estimate:
    """The score that the answer gives: corrected for being the best of several."""
    evidence = findings.evidence
    is_chosen = method in (findings.decision.best, evidence and evidence.leader)
    if evidence is None or method not in evidence.scores or not is_chosen:
        return findings.ranking.standing(method).last
    return evidence.score_once_chosen(method)


def _is_ahead(findings: Findings, method: str | None) -> str:
    """`ditto is 2.1 points ahead of training alone`, `ditto has 12 % less mse than`."""
    if not is_error(findings.metric):
        return f"{method} is {_ahead(findings, method)}"
    return f"{method}'s {findings.metric} is {_ahead(findings, method)}"


def _ahead(findings: Findings, method: str | None) -> str:
    """By how much a method is better than training alone."""
    gain, gains, evidence = findings.gain_of(method), findings.gains, findings.evidence
    assert gain is not None
    assert gains is not None
    assert evidence is not None
    if not is_error(findings.metric):
        points = f"{findings.unit.number(gain.mean.mean)}{findings.unit.points}"
        return f"{points} ahead of {gains.reference}"
    less = 1 - math.exp(-evidence.gains[gain.method].estimate.mean)
    return f"{100 * less:.0f}{SPACE}% less than that of {gains.reference}"


def _how_long(findings: Findings) -> str:
    """`, for as many rounds as validation data prefer: the accuracy is then 77.3 %`."""
    evidence, pick, metric = findings.evidence, findings.pick, findings.metric
    assert evidence is not None
    longer = evidence.yardsticks.get(LONGER)
    own = evidence.scores[pick].mean if pick is not None else math.nan
    if longer is not None and not is_better(own, longer.mean, metric):
        score = findings.unit.score(longer.mean)
        return (
            f", for as many rounds as validation data prefer: the {metric} is then "
            f"{score}"
        )
    return f": {_reached(findings, pick)}" if pick is not None else ""


def _for_longer(findings: Findings) -> str:
    """What training alone reaches with another number of rounds, if that is more."""
    evidence, pick = findings.evidence, findings.pick
    if evidence is None or LONGER not in evidence.yardsticks or pick is None:
        return ""
    longer = evidence.yardsticks[LONGER].mean
    if not is_better(longer, evidence.scores[pick].mean, findings.metric):
        return ""
    score = findings.unit.score(longer)
    return f" With as many rounds as validation data prefer it is at {score}."


def _losers(findings: Findings) -> str:
    gain = findings.gain_of(findings.decision.best)
    if gain is None or gain.losing <= gain.gaining:
        return ""
    return f" More clients lose by it ({gain.losing}) than gain ({gain.gaining})."


def summary(findings: Findings) -> list[str]:
    """What goes with the answer: what to mind, how sure it is, and who gains."""
    decision = findings.decision
    about = decision.best or decision.pick
    if about is None:
        return []
    texts = (
        " ".join(cautions(findings.collection, findings.gains, about)),
        _sureness(findings, decision.pick or about),
        _alike(findings),
        _who_gains(findings, about),
        *_yardsticks(findings),
        _advised(findings),
    )
    return [text for text in texts if text]


def _sureness(findings: Findings, method: str) -> str:
    unit, evidence = findings.unit, findings.evidence
    score = answer_score(findings, method)
    if evidence is None or not score.has_interval:
        return ""
    over = f"{counted(evidence.clients, 'client')}, {counted(evidence.seeds, 'seed')}"
    if findings.samples:
        over += f", {findings.samples}"
    text = (
        f"The 95{SPACE}% interval of {method}'s score goes from "
        f"{unit.score(score.low)} to {unit.score(score.high)} ({over})."
    )
    raw = findings.ranking.standing(method).last.mean
    if unit.score(raw) != unit.score(score.mean):
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
    alike = [m for m in tested if not evidence.behind[m].adjusted < ALPHA]
    apart = [findings.name(m) for m in tested if m not in alike]
    if not tested:
        return ""
    first = f"{leader[0].upper()}{leader[1:]}" if leader == "training alone" else leader
    if not alike:
        return (
            f"{first} does best on all held-out data, and on test data it is better "
            f"than every other method, beyond chance: {words(apart)}."
        )
    text = (
        f"{first} does best on all held-out data; test data cannot tell it apart from "
        f"{words([findings.name(m) for m in alike])}"
    )
    return text + (f", but they can from {words(apart)}." if apart else ".")


def _who_gains(findings: Findings, method: str) -> str:
    gains, unit, collection = findings.gains, findings.unit, findings.collection
    if gains is None:
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
        chance = f", one-sided {_p(gain.p)}" if gain.mean.mean > 0 else ""
        interval = (
            f" (95{SPACE}% interval from {unit.gap(gain.mean.low)} to "
            f"{unit.gap(gain.mean.high)}{chance})"
        )
    return (
        f"With {method} the average client {verb} {unit.number(abs(gain.mean.mean))}"
        f"{unit.points} {over} {gains.reference}{interval}: {_counts(findings, gain)}."
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
    gaining += "gains" if gain.gaining == 1 else "gain"
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
    best = evidence.scores[evidence.leader].mean
    shown = unit.score(best)

    def beats(name: str) -> str:
        """A yardstick's score if it is better than every method's; else empty."""
        if name not in evidence.yardsticks:
            return ""
        score = evidence.yardsticks[name].mean
        is_ahead = is_better(score, best, metric)
        return unit.score(score) if is_ahead and unit.score(score) != shown else ""

    if beats(CONSTANT) and findings.decision.verdict != "constant":
        yield (
            f"Every model is worse than always saying what is usual: {_usual(findings)}"
            ". There may be nothing to learn here, or training fails."
        )
    if score := beats("ordinary"):
        yield (
            "An ordinary model on each client's own data (gradient boosting or a "
            f"linear model) does better than every method: its {metric} is {score}"
            f"{_chance(findings, 'ordinary')}."
        )
    if (score := beats(LONGER)) and findings.decision.verdict != "alone":
        yield (
            f"Training alone for as many rounds as validation data prefer does better "
            f"than every method: its {metric} is {score}{_chance(findings, LONGER)}."
        )
    if "pooled" in evidence.yardsticks:
        score = unit.score(evidence.yardsticks["pooled"].mean)
        yield (
            "One model for all, trained with all data in one place, which a federation "
            f"does not have, is at {score} {metric}."
        )


def _chance(findings: Findings, yardstick: str) -> str:
    evidence = findings.evidence
    assert evidence is not None
    is_sure = evidence.over_yardsticks[yardstick].adjusted < ALPHA
    return "" if is_sure else ", though that may be chance"


def _advised(findings: Findings) -> str:
    advice, unit = findings.advice, findings.unit
    if advice is None or not advice.is_on_validation or findings.pick is None:
        return ""
    change = advice.against_pick
    if not math.isfinite(change.p):
        return ""
    if set(advice.method) == {findings.pick}:
        return f"Every single client's own validation data prefer {findings.pick}, too."
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
    change_by = f"{gap}{unit.points} {'better' if is_more else 'worse'} than"
    if is_zero(gap):
        change_by, verdict = "as well as", "so one method for all will do"
    return (
        "If each client used what its own validation data prefer, the average client "
        f"would do {change_by} with {findings.pick} for all, {verdict}."
    )
