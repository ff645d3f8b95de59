"""The methods in order, with what can and cannot be said of their differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedloom.reports.collect import Collection
from fedloom.reports.runs import KIND
from fedloom.reports.units import metric_of, unit_of
from fedloom.results.evidence import Contrast, Evidence, in_units
from fedloom.results.statistics import Estimate, is_error, over_seeds, within_range


@dataclass(frozen=True)
class Standing:
    """One method's place."""

    method: str
    algorithm: str
    last: Estimate
    """Score at the last round; its interval is over samples and seeds."""
    chosen: Estimate
    """The same at the round chosen on validation data; its interval is over seeds
    alone. Empty without validation data."""
    chosen_rounds: tuple[int, ...]
    """Which round that was, seed by seed."""
    validation: Estimate
    """Score on validation data at the last round."""
    worst: Estimate
    """Score of the tenth of the clients that do worst, at the last round."""
    counts: Mapping[str, int]
    """Seeds by how they ended."""

    @property
    def is_whole(self) -> bool:
        """Whether every seed finished."""
        return all(n == 0 for end, n in self.counts.items() if end != "finished")


@dataclass(frozen=True)
class Ranking:
    """All methods, best first; those with a seed that did not finish come last."""

    standings: tuple[Standing, ...]
    evidence: Evidence | None
    """None if methods did not meet the same clients, or nothing was scored."""

    def better_by(self, first: str, second: str) -> Contrast | None:
        """How much better the first is, in the units of the score; None if unknown."""
        if self.evidence is None:
            return None
        pairs = self.evidence.pairs
        if (first, second) in pairs:
            contrast = pairs[first, second]
        elif (second, first) in pairs:
            contrast = pairs[second, first].turned()
        else:
            return None
        if not is_error(self.evidence.metric):
            return contrast
        reference = self.evidence.scores[second].mean
        return replace(contrast, estimate=in_units(contrast.estimate, reference))

    def standing(self, method: str) -> Standing:
        """One method's place."""
        return next(s for s in self.standings if s.method == method)


def rank(collection: Collection, evidence: Evidence | None) -> Ranking:
    """Order the methods of a collection.

    Args:
        collection: all runs.
        evidence: what their held-out data say.
    """
    standings = [_standing(collection, evidence, m) for m in collection.methods]
    sign = 1 if is_error(collection.metric) else -1
    standings.sort(
        key=lambda s: (
            s.last.count == 0,
            not s.is_whole,
            sign * s.last.mean if s.last.count else 0.0,
        )
    )
    return Ranking(tuple(standings), evidence)


def other_numbers(collection: Collection) -> list[str]:
    """Numbers besides the metric's own that some run recorded, such as auc or mae."""
    names: dict[str, None] = {}
    for run in collection.counted.values():
        row = run.evaluated.get(run.last_round or 0)
        for parts in row.scores.values() if row is not None else ():
            names |= dict.fromkeys(parts.get(run.part, {}))
    return [name for name in names if name.partition("_")[0] != collection.metric]


def estimate_of(
    collection: Collection, method: str, number: str, kind: str = KIND, part: str = ""
) -> Estimate:
    """A number at the last round, over seeds."""
    return _over_seeds(
        [
            run.number(run.last_round, number, kind=kind, part=part)
            for run in collection.of(method)
        ],
        number,
    )


def _over_seeds(values: Sequence[float], number: str) -> Estimate:
    """A mean over seeds; its interval stays where the number can be."""
    metric = metric_of(number)
    return within_range(over_seeds(values), metric, is_share=unit_of(metric).is_share)


def kinds_of(collection: Collection, method: str) -> list[str]:
    """Kinds of model that a method's runs scored."""
    kinds = [kind for run in collection.of(method) for kind in run.kinds]
    return list(dict.fromkeys(kinds))


def _standing(
    collection: Collection, evidence: Evidence | None, method: str
) -> Standing:
    metric, runs = collection.metric, collection.of(method)
    every = [run for (m, _), run in collection.runs.items() if m == method]
    scores = evidence.scores if evidence is not None else {}
    return Standing(
        method=method,
        algorithm=every[0].algorithm if every else method,
        last=scores.get(method) or estimate_of(collection, method, metric),
        chosen=_over_seeds(
            [run.number(run.chosen_round, metric) for run in runs], metric
        ),
        chosen_rounds=tuple(
            run.chosen_round for run in runs if run.chosen_round is not None
        ),
        validation=estimate_of(collection, method, metric, part="validation"),
        worst=estimate_of(collection, method, f"{metric}_worst_decile"),
        counts=collection.state_counts(method),
    )
