"""What a report says of a world, beside what is true there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedloom.experiments.worlds.training import ALONE, ARMS, SEEDS, Truth, Truths
from fedloom.experiments.worlds.world import World
from fedloom.reports.collect import collect
from fedloom.reports.findings import work_out
from fedloom.reports.headline import headline, is_for_longer
from fedloom.results.observations import CONSTANT, LONGER
from fedloom.results.statistics import Estimate

INSTEAD = (CONSTANT, LONGER)
"""What may be recommended that is none of the methods."""

UNKNOWN = Estimate(np.nan, np.nan, np.nan, np.nan, 0)


@dataclass(frozen=True)
class Answer:
    """What the report of one comparison says."""

    method: str | None
    """What it says to use: a method, training alone included, or one of `INSTEAD`; None
    if it has no answer."""
    score: float
    """What it says that this reaches, in the metric's own units."""
    scores: Mapping[str, Estimate]
    """Of every method, with its interval."""
    gains: Mapping[str, Estimate]
    """Over training alone with as much work, of every method but that: a difference of
    accuracies, or the logarithm of a ratio of errors; positive is better."""
    headline: str


def read_answer(folder: Path) -> Answer:
    """Have the reports work out what a comparison says."""
    findings = work_out(collect([folder]))
    evidence, use = findings.evidence, findings.pick
    if findings.decision.verdict == "constant":
        use = CONSTANT
    elif is_for_longer(findings):
        use = LONGER
    if evidence is None or use is None:
        return Answer(None, np.nan, {}, {}, headline(findings))
    said = {**evidence.yardsticks, **evidence.scores}[use]
    if use in (findings.decision.best, evidence.leader):
        said = evidence.score_once_chosen(use)
    gains = {method: gain.estimate for method, gain in evidence.gains.items()}
    return Answer(use, said.mean, evidence.scores, gains, headline(findings))


@dataclass(frozen=True, kw_only=True)
class MethodRow:
    """One method in one world, in points, of which more is better.

    Points are percent; of a regression, percent of the variance of its targets.
    """

    world: int
    kind: str
    method: str
    score: float
    """The true score, mean over clients and seeds."""
    gain: float
    """Over training alone with as much work, in truth."""
    work: float
    """Gradient-samples for each of training alone's."""
    said_score: float
    score_low: float
    score_high: float
    said_gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True, kw_only=True)
class WorldRow:
    """One world, in the same points."""

    world: int
    kind: str
    classes: int
    """0 for a regression."""
    clients: int
    features: int
    rows: int
    answer: str
    """What is recommended: a method, or a constant; empty if there is no answer."""
    gain: float
    """True gain of what is recommended over training alone with as much work."""
    score: float
    """True score of what is recommended."""
    said_score: float
    alone: float
    """True score of the better way to train alone that was tried: as the arm that does,
    or for as many rounds as validation data prefer."""
    best: str
    """What has the best true score, training alone and `INSTEAD` included."""
    best_score: float
    best_gain: float
    """The largest true gain of a method over training alone with as much work."""
    best_lead: float
    """The largest lead of a method; see `lead`."""
    worst_lead: float
    """The smallest."""
    headline: str

    @property
    def is_federated(self) -> bool:
        """Whether a federated method is recommended."""
        return self.answer not in ("", ALONE, *INSTEAD)

    @property
    def lead(self) -> float:
        """True points of what is recommended over the best way to train alone.

        That is with as much work, or as `alone` says, which may have stopped in time.
        """
        return min(self.gain, self.score - self.alone)


def judge(
    world: World, answer: Answer, truths: Truths
) -> tuple[WorldRow, list[MethodRow]]:
    """Put what is said of a world beside what is true there."""
    runs = {
        arm: [truths[world.number, arm, seed] for seed in range(SEEDS)]
        for arm in (*ARMS, *INSTEAD)
    }
    points = _Points(world)
    work = {arm: _mean(runs[arm], "work") for arm in ARMS}
    score = {arm: points.of(_mean(runs[arm], "score")) for arm in runs}
    alone = {arm: points.of(_mean(runs[arm], "alone")) for arm in ARMS}
    gain = {arm: score[arm] - alone[arm] if arm != ALONE else 0.0 for arm in ARMS}
    by_itself = max(score[ALONE], score[LONGER])
    lead = {arm: min(gain[arm], score[arm] - by_itself) for arm in ARMS}
    rows = []
    for arm in ARMS:
        said, low, high = points.interval(answer.scores.get(arm, UNKNOWN))
        gap = answer.gains.get(arm, UNKNOWN)
        said_gain, gain_low, gain_high = (
            points.gap(value, alone[arm]) for value in (gap.mean, gap.low, gap.high)
        )
        rows.append(
            MethodRow(
                world=world.number,
                kind=world.kind,
                method=arm,
                score=score[arm],
                gain=gain[arm],
                work=work[arm] / work[ALONE],
                said_score=said,
                score_low=low,
                score_high=high,
                said_gain=said_gain,
                gain_low=gain_low,
                gain_high=gain_high,
            )
        )
    known = [arm for arm in ARMS if np.isfinite(score[arm])] or [ALONE]
    best = max([*known, *INSTEAD], key=lambda arm: score[arm])
    others = [arm for arm in known if arm != ALONE]
    use = answer.method
    return WorldRow(
        world=world.number,
        kind=world.kind,
        classes=0 if world.is_regression else world.outputs,
        clients=world.clients,
        features=world.features,
        rows=int(world.sizes.sum()),
        answer=use or "",
        gain=gain.get(use or "", np.nan),
        score=score[use] if use else np.nan,
        said_score=points.of(answer.score),
        alone=by_itself,
        best=best,
        best_score=score[best],
        best_gain=max((gain[arm] for arm in others), default=np.nan),
        best_lead=max((lead[arm] for arm in others), default=np.nan),
        worst_lead=min((lead[arm] for arm in others), default=np.nan),
        headline=answer.headline,
    ), rows


class _Points:
    """Scores of a world in points, of which more is better."""

    def __init__(self, world: World) -> None:
        self._is_error = world.is_regression
        self._unit = world.variance() if world.is_regression else 1.0

    def of(self, score: float) -> float:
        """Percent right, or of the variance that is explained."""
        share = score / self._unit
        return 100 * (1 - share if self._is_error else share)

    def gap(self, gain: float, alone: float) -> float:
        """A gain as a report has it, over a score of training alone in points.

        The logarithm of a ratio of errors becomes the points that it is worth over the
        error that training alone truly has.
        """
        if self._is_error:
            return float((100 - alone) * (1 - np.exp(-gain)))
        return 100 * gain

    def interval(self, estimate: Estimate) -> tuple[float, float, float]:
        """Mean, lower and upper end."""
        ends = sorted((self.of(estimate.low), self.of(estimate.high)))
        return self.of(estimate.mean), ends[0], ends[1]


def _mean(runs: list[Truth], number: str) -> float:
    return float(np.mean([getattr(run, number).mean() for run in runs]))
