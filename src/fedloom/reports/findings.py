"""What a collection of runs comes to."""

from __future__ import annotations

from dataclasses import dataclass

from fedloom.core.wording import counted
from fedloom.reports.collect import Collection
from fedloom.reports.decision import Decision, decide
from fedloom.reports.gains import Advice, Gains, MethodGain, advise, gains
from fedloom.reports.held_out import Who, observe, seats_of
from fedloom.reports.ranking import Ranking, rank
from fedloom.reports.units import Unit, unit_of
from fedloom.results.evidence import Evidence, weigh
from fedloom.results.observations import LONGER


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
        return "test and validation" if self.collection.has_folds else self.part

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
