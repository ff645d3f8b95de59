"""Tables of the methods: their order, every pair, and every kind of model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from fedloom.core.wording import counted
from fedloom.reports.cells import (
    estimate_cell,
    gap_estimate_cell,
    method_cell,
    p_cell,
)
from fedloom.reports.findings import Findings
from fedloom.reports.gains import MethodGain
from fedloom.reports.ranking import Standing, estimate_of, kinds_of, other_numbers
from fedloom.reports.tables import Cell, Table, TableBuilder
from fedloom.reports.units import NOTHING, SPACE, Unit, p_value, title_of, unit_of
from fedloom.results.evidence import Evidence, in_units
from fedloom.results.observations import CONSTANT, LONGER, ORDINARY, POOLED
from fedloom.results.statistics import is_error

CALIBRATION = ("ece", "brier", "nll")
"""Numbers that say whether a model's probabilities can be believed."""

_YARDSTICKS = {
    CONSTANT: "always the usual answer",
    LONGER: "training alone, rounds chosen",
    ORDINARY: "ordinary model on own data",
    POOLED: "all data in one place",
}
"""What yardsticks are called, in the order in which they ask for more."""

_PART_TITLES = {"train": "training", "validation": "validation"}


def ranking_table(findings: Findings, *, is_short: bool = False) -> Table:
    """The methods in order.

    Args:
        findings: what was worked out.
        is_short: leave out chosen rounds and tests, for a narrow place.
    """
    ranking, unit = findings.ranking, findings.unit
    evidence = findings.evidence
    title = title_of(findings.metric)
    caption = (
        f"{title[0].upper()}{title[1:]} of the personal models on each client's "
        f"{findings.part} data: mean over clients ± half the 95 % interval, or with "
        f"its ends. {_interval_of(findings)}"
    )
    table = TableBuilder(ranking.standings)
    table.words("method", lambda s: method_cell(findings, s.method))
    table.numbers(
        f"last round ({findings.metric}{unit.heading})",
        lambda s: estimate_cell(unit, s.last),
        note="mean over clients",
    )
    if _has_choice(findings):
        table.numbers(
            "round chosen on validation",
            lambda s: estimate_cell(unit, s.chosen),
            note="the same at the chosen round; ± over seeds alone",
        )
        if not is_short:
            table.words("chosen rounds", _rounds)
    table.numbers(
        f"worst 10{SPACE}%",
        lambda s: estimate_cell(unit, s.worst),
        note="mean over the clients that do worst; interval over seeds alone",
    )
    if evidence is not None and evidence.behind and not is_short:
        leader = evidence.leader
        table.numbers(
            f"behind {leader}",
            lambda s: _behind(findings, s.method),
            note="by how much it is worse, with half the 95 % interval or its ends",
        )
        table.numbers("p", lambda s: _p_behind(evidence, s.method))
        caption += (
            f" {leader} does best on all held-out data, validation data included; the "
            "p-values are of no difference to it, adjusted for the number of others."
        )
    if findings.gains is not None:
        table.numbers(
            "gain over alone", lambda s: _gain(unit, s, findings.gain_of(s.method))
        )
        is_same = evidence is None or evidence.has_same_clients
        table.words(
            f"clients gain / lose{'' if is_same else ', all seeds'}",
            lambda s: _gaining(findings.gain_of(s.method)),
        )
    counts = [s.counts for s in ranking.standings]
    if all(own["finished"] == sum(own.values()) for own in counts) and not is_short:
        done = counted(len(findings.collection.seeds), "seed")
        caption += f" All runs finished ({done} of every method)."
    else:
        table.words("seeds finished", _seeds)
    return table.table(caption)


def yardsticks_table(findings: Findings, *, is_short: bool = False) -> Table | None:
    """What the methods are measured by; None if nothing of that kind was made.

    Args:
        findings: what was worked out.
        is_short: leave out how each was made, for a narrow place.
    """
    scores = findings.evidence.yardsticks if findings.evidence is not None else {}
    if not scores:
        return None
    unit, yardsticks = findings.unit, findings.collection.yardsticks
    table = TableBuilder(name for name in _YARDSTICKS if name in scores)
    table.words("yardstick", lambda name: _YARDSTICKS[name])
    table.numbers(
        f"{findings.metric}{unit.heading}",
        lambda name: estimate_cell(unit, scores[name]),
    )
    if not is_short:
        table.words("how it was made", lambda name: yardsticks[name].about)
    return table.table(
        "Yardsticks: what needs no federation, and what no federation can have. Scores "
        "and intervals are those of the same samples as the methods'."
    )


def _interval_of(findings: Findings) -> str:
    """What intervals are over, in a sentence."""
    evidence = findings.evidence
    if evidence is None:
        return "It is over seeds."
    counts = f"{counted(evidence.clients, 'client')}, {counted(evidence.seeds, 'seed')}"
    if findings.samples:
        unit = "group of samples" if evidence.groups else "sample"
        return (
            f"It is over {findings.samples} and over seeds ({counts}); a {unit} that "
            "returns in several seeds counts once."
        )
    return f"It is over clients and seeds ({counts})."


def _behind(findings: Findings, method: str) -> Cell:
    evidence = findings.evidence
    if evidence is None or evidence.leader is None or method not in evidence.behind:
        return Cell(NOTHING)
    better = evidence.behind[method].estimate
    if is_error(findings.metric):
        better = in_units(better, evidence.scores[method].mean)
    return Cell(findings.unit.gap_estimate(better).lstrip("+"), better.mean)


def _p_behind(evidence: Evidence, method: str) -> Cell:
    if method not in evidence.behind:
        return Cell(NOTHING)
    return p_cell(evidence.behind[method].adjusted)


def _has_choice(findings: Findings) -> bool:
    return any(s.chosen.count for s in findings.ranking.standings)


def _rounds(standing: Standing) -> Cell:
    rounds = sorted(standing.chosen_rounds)
    if len(rounds) > 3:
        return Cell(f"{rounds[0]} to {rounds[-1]}", rounds[0])
    return Cell(", ".join(str(n) for n in rounds) or NOTHING)


def _seeds(standing: Standing) -> Cell:
    ends = standing.counts
    text = f"{ends['finished']} of {sum(ends.values())}"
    other = [f"{n} {end}" for end, n in ends.items() if n and end != "finished"]
    if not other:
        return Cell(text)
    return Cell(f"{text} ({', '.join(other)})", tone="bad")


def _gain(unit: Unit, standing: Standing, gain: MethodGain | None) -> Cell:
    if gain is None:
        return Cell("is alone" if standing.algorithm == "local" else NOTHING)
    return gap_estimate_cell(unit, gain.mean)


def _gaining(gain: MethodGain | None) -> Cell:
    if gain is None:
        return Cell(NOTHING)
    return Cell(f"{gain.gaining} / {gain.losing} of {gain.known}", gain.gaining)


def pairs_table(findings: Findings) -> Table | None:
    """Every pair of methods; None if nothing was tested."""
    evidence, unit = findings.evidence, findings.unit
    if evidence is None or not evidence.pairs:
        return None
    order = [s.method for s in findings.ranking.standings if s.last.count]
    pairs = [
        (first, second, contrast)
        for first, second in combinations(order, 2)
        if (contrast := findings.ranking.better_by(first, second)) is not None
    ]
    table = TableBuilder(pairs)
    table.words("pair", lambda r: f"{r[0]} over {r[1]}")
    table.numbers("better by", lambda r: gap_estimate_cell(unit, r[2].estimate))
    table.numbers("p", lambda r: Cell(p_value(r[2].p), r[2].p))
    table.numbers("p, adjusted", lambda r: p_cell(r[2].adjusted))
    return table.table(
        "Every pair of methods at the last round: by how much the first is better for "
        "the average client, with half the 95 % interval or its ends; p-values are "
        "adjusted for the number of all pairs (Holm)."
    )


def kinds_table(findings: Findings) -> Table:
    """Every kind of model of every method, with whatever was recorded."""
    metric = findings.metric
    titles = {
        metric: metric,
        f"{metric}_weighted": "by samples",
        f"{metric}_worst_decile": f"worst 10{SPACE}%",
        f"{metric}_largest_decile": f"largest 10{SPACE}%",
        f"{metric}_smallest_decile": f"smallest 10{SPACE}%",
        f"{metric}_spread": "spread",
    }
    titles |= {
        name: title_of(name)
        for name in other_numbers(findings.collection)
        if name not in CALIBRATION and not name.endswith(("_weighted", "_clients"))
    }
    caption = (
        f"All models at the last round, on {findings.part} data, with half the 95 % "
        "interval over seeds alone. By samples: all samples count alike. Largest and "
        "smallest 10 %: clients with most and with fewest training samples. Spread: "
        "standard deviation over clients. The training score is of at most 256 "
        "training samples of each client; far "
        "better than the others it says that models learnt their data by heart."
    )
    others = [part for part in ("train", "validation") if part != findings.part]
    return _by_kind(findings, caption, titles, others)


def calibration_table(findings: Findings) -> Table | None:
    """Whether probabilities can be believed; None if none were recorded."""
    recorded = other_numbers(findings.collection)
    titles = {
        name: title_of(name) + unit_of(name).heading
        for name in CALIBRATION
        if name in recorded
    }
    caption = (
        f"Calibration at the last round on {findings.part} data, mean over clients ± "
        "half the 95 % interval over seeds alone; less is better. With few samples per "
        "client the ECE of even a perfect model is well above 0."
    )
    return _by_kind(findings, caption, titles) if titles else None


def _by_kind(
    findings: Findings,
    caption: str,
    titles: Mapping[str, str],
    others: Sequence[str] = (),
) -> Table:
    """Numbers of every kind of model of every method.

    Args:
        findings: what was worked out.
        caption: of the table.
        titles: of the columns, by the names of their numbers.
        others: parts of the data that the metric is also shown on, if it was scored.
    """
    collection = findings.collection
    rows = [
        (s.method, kind)
        for s in findings.ranking.standings
        for kind in kinds_of(collection, s.method)
    ]
    table = TableBuilder(rows)
    table.words("method", lambda row: row[0])
    table.words("model", lambda row: row[1])

    def add(name: str, title: str, part: str = "") -> None:
        estimates = {
            (method, kind): estimate_of(collection, method, name, kind, part)
            for method, kind in rows
        }
        unit = unit_of(name, (estimate.mean for estimate in estimates.values()))
        table.numbers(title, lambda row: estimate_cell(unit, estimates[row]))

    for name, title in titles.items():
        add(name, title)
    for part in others:
        if collection.has_part(part):
            add(findings.metric, f"{_PART_TITLES[part]} {findings.metric}", part)
    return table.table(caption)
