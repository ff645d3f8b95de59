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
        """A method in a sentence: of the baseline it is said how long it trains."""
        if method != self.collection.baseline:
            return method
        return f"training alone for {counted(self.collection.planned, 'round')}"

    @property
    def longer(self) -> str:
        """Training alone for as long as suits it, in a sentence."""
        yardstick = self.collection.yardsticks.get(LONGER)
        chosen = yardstick.rounds.values() if yardstick is not None else ()
        ends = sorted({min(chosen), max(chosen)}) if chosen else []
        by_seed = ", by seed" if len(ends) > 1 else ""
        rounds = f" ({' to '.join(map(str, ends))}{by_seed})" if ends else ""
        return f"training alone for as many rounds as validation data prefer{rounds}"


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
            return (
                f"No answer: {every} diverged. Try again in another directory with a "
                "lower learning rate, or have it found: --set algorithm.lr=auto."
            )
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
            return f"Train alone{reached}.{_not_ahead(findings)}"
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
                "to learn here, or training fails: try another learning rate "
                "(fedloom tune), another model or more features."
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
    return f"{_subject(findings, method)} is {_ahead(findings, method)}"


def _ahead(findings: Findings, method: str | None) -> str:
    """By how much a method is better than training alone with as much work."""
    evidence, gains = findings.evidence, findings.gains
    assert evidence is not None
    assert gains is not None
    lead = evidence.gains[method or ""].estimate.mean
    if not is_error(findings.metric):
        points = f"{findings.unit.number(lead)}{findings.unit.points}"
        return f"{points} ahead of {gains.reference}"
    less = f"{100 * (1 - math.exp(-lead)):.0f}{SPACE}% less"
    return f"{less} than that of {gains.reference}"


def _subject(findings: Findings, method: str | None) -> str:
    """What is better or worse: the method, or its error."""
    return f"{method}'s {findings.metric}" if is_error(findings.metric) else f"{method}"


def _how_long(findings: Findings) -> str:
    """` for as many rounds as validation data prefer (4): the accuracy is then ...`."""
    evidence, pick, metric = findings.evidence, findings.pick, findings.metric
    assert evidence is not None
    if _is_for_longer(findings):
        length = findings.longer.removeprefix("training alone")
        score = findings.unit.score(evidence.yardsticks[LONGER].mean)
        return f"{length}: the {metric} is then {score}"
    return f": {_reached(findings, pick)}" if pick is not None else ""


def _is_for_longer(findings: Findings) -> bool:
    """Whether the answer is to train alone for another number of rounds."""
    evidence, decision = findings.evidence, findings.decision
    if decision.verdict != "longer" or evidence is None:
        return False
    longer, pick = evidence.yardsticks.get(LONGER), decision.pick
    own = evidence.scores[pick].mean if pick is not None else math.nan
    return longer is not None and not is_better(own, longer.mean, findings.metric)


def _alone_for_longer(findings: Findings) -> str:
    """What training alone reaches if it stops when validation data say."""
    evidence, verdict = findings.evidence, findings.decision.verdict
    if evidence is None or LONGER not in evidence.yardsticks or verdict == "longer":
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
    ahead = f"{_subject(findings, best)} is {ahead}"
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
    lead = evidence.behind.get(baseline) if baseline is not None else None
    return lead is not None and not lead.adjusted < ALPHA


def _capital(text: str) -> str:
    """A sentence that begins with words of ours; names of methods stay as they are."""
    is_name = not text.startswith("training alone")
    return text if is_name else f"{text[0].upper()}{text[1:]}"


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
    texts = [
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
    if decision.verdict != "constant":
        texts.append(_advised(findings))
    return [text for text in texts if text]


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
    if _is_for_longer(findings):
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
    if _is_for_longer(findings):
        return text
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
    gains = findings.gains
    if findings.decision.verdict == "use" and gains and not gains.has_equal_work:
        # The answer has said that its gain over just this arm is shown.
        tested = [m for m in tested if m != findings.collection.baseline]
    alike = [m for m in tested if not evidence.behind[m].adjusted < ALPHA]
    apart = [findings.name(m) for m in tested if m not in alike]
    if not tested:
        return ""
    first = _capital(leader)
    if not alike:
        return (
            f"{first} does best on all held-out data{_why_not(findings)}, and on test "
            f"data it is better than every other method, beyond chance: {words(apart)}."
        )
    text = (
        f"{first} does best on all held-out data{_why_not(findings)}; test data cannot "
        f"tell it apart from {words([findings.name(m) for m in alike])}"
    )
    return text + (f", but they can from {words(apart)}." if apart else ".")


def _why_not(findings: Findings) -> str:
    """Why the leader is not what is recommended, although another method is."""
    evidence, decision, gains = findings.evidence, findings.decision, findings.gains
    if evidence is None or decision.verdict != "use" or gains is None:
        return ""
    gain = findings.gain_of(evidence.leader)
    if gain is None or gain.method == decision.pick:
        return ""
    if not gain.is_shown:
        return f", but its gain over {gains.reference} is not shown"
    return ", but most clients lose by it" if 2 * gain.losing > gain.known else ""


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
        if gain.is_shown and gain.mean.low < 0:
            chance += ", because only a gain is a reason to act"
        interval = (
            f" (95{SPACE}% interval from {unit.gap(gain.mean.low)} to "
            f"{unit.gap(gain.mean.high)}{chance})"
        )
    amount = f"{unit.number(abs(gain.mean.mean))}{unit.points}"
    if is_error(findings.metric):
        amount += f" in {findings.metric}"
    return (
        f"With {method} the average client {verb} {amount} {over} {gains.reference}"
        f"{interval}: {_counts(findings, gain)}."
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

    over_usual = evidence.over_constant.values()
    is_useful = any(lead.is_shown for lead in over_usual)
    if over_usual and not is_useful and findings.decision.verdict != "constant":
        yield (
            "No method is shown to be better than always saying what is usual: "
            f"{_usual(findings)}. There may be nothing to learn here, or training "
            "fails, or there are too few data to tell."
        )
    if score := beats("ordinary"):
        yield (
            "An ordinary model on each client's own data (gradient boosting or a "
            f"linear model) does better than every method: its {metric} is {score}"
            f"{_chance(findings, 'ordinary')}."
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
    is_alone = findings.pick == findings.collection.baseline
    everybody = "trained alone" if is_alone else f"used {findings.pick}"
    if set(advice.method) == {findings.pick}:
        prefer = findings.name(findings.pick)
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
        "If each client used what its own validation data prefer, the average client "
        f"would do {change_by} everybody {everybody}, {verdict}."
    )
