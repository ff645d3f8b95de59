"""Tables of the methods: their order, every pair, and every kind of model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedloom.reports.cells import (
    difference_to,
    estimate_cell,
    gap_estimate_cell,
    method_cell,
    p_against,
    p_cell,
    tone_of,
)
from fedloom.reports.findings import Findings
from fedloom.reports.gains import MethodGain
from fedloom.reports.ranking import Standing, estimate_of, kinds_of, other_numbers
from fedloom.reports.tables import Cell, Table, TableBuilder
from fedloom.reports.units import NOTHING, SPACE, Unit, p_value, title_of, unit_of

CALIBRATION = ("ece", "brier", "nll")
"""Numbers that say whether a model's probabilities can be believed."""

_PART_TITLES = {"train": "training", "validation": "validation"}

_HOLM = (
    "p-values are of paired t-tests over seeds, adjusted by Holm for all pairs with "
    "training alone and for all other pairs."
)


def ranking_table(findings: Findings, *, is_short: bool = False) -> Table:
    """The methods in order.

    Args:
        findings: what was worked out.
        is_short: leave out chosen rounds and tests, for a narrow place.
    """
    ranking, unit = findings.ranking, findings.unit
    has_seeds, pick = findings.collection.has_seeds, ranking.pick
    over = "seeds" if has_seeds else "clients of the one seed"
    caption = (
        f"{findings.metric.capitalize()} of the personal models on each client's "
        f"{findings.part} data: mean over clients ± half the 95 % interval over {over}."
    )
    table = TableBuilder(ranking.standings)
    table.words("method", lambda s: method_cell(findings, s.method))
    table.numbers(
        f"last round ({findings.metric}{unit.heading})",
        lambda s: estimate_cell(unit, s.last),
        note="mean over clients, then over seeds",
    )
    if _has_choice(findings):
        table.numbers(
            "round chosen on validation",
            lambda s: estimate_cell(unit, s.chosen),
            note="the same, at the chosen round",
        )
        if not is_short:
            table.words("chosen rounds", _rounds)
    table.numbers(
        f"worst 10{SPACE}%",
        lambda s: estimate_cell(unit, s.worst),
        note="mean over the clients that do worst",
    )
    if ranking.pairs and has_seeds and not is_short:
        table.numbers(
            f"difference to {pick}", lambda s: difference_to(findings, s.method, pick)
        )
        table.numbers("p", lambda s: p_against(findings, s.method, pick), note=_HOLM)
        caption += f" {_HOLM[0].upper()}{_HOLM[1:]}"
    if findings.gains is not None:
        table.numbers(
            "gain over alone", lambda s: _gain(unit, findings.gain_of(s.method))
        )
        table.words(
            "clients gain / lose", lambda s: _gaining(findings.gain_of(s.method))
        )
    table.words("seeds finished", _seeds)
    return table.table(caption)


def _has_choice(findings: Findings) -> bool:
    return any(s.chosen.count for s in findings.ranking.standings)


def _rounds(standing: Standing) -> Cell:
    return Cell(", ".join(str(n) for n in standing.chosen_rounds) or NOTHING)


def _seeds(standing: Standing) -> Cell:
    ends = standing.counts
    text = f"{ends['finished']} of {sum(ends.values())}"
    other = [f"{n} {end}" for end, n in ends.items() if n and end != "finished"]
    if not other:
        return Cell(text)
    return Cell(f"{text} ({', '.join(other)})", tone="bad")


def _gain(unit: Unit, gain: MethodGain | None) -> Cell:
    if gain is None:
        return Cell("(is alone)")
    return gap_estimate_cell(unit, gain.mean, tone_of(gain.mean.mean))


def _gaining(gain: MethodGain | None) -> Cell:
    if gain is None:
        return Cell(NOTHING)
    return Cell(f"{gain.gaining} / {gain.losing} of {gain.known}", gain.gaining)


def pairs_table(findings: Findings) -> Table:
    """Every pair of methods."""
    unit = findings.unit
    table = TableBuilder(p for p in findings.ranking.pairs if p.last.difference.count)
    table.words("pair", lambda p: f"{p.first} less {p.second}")
    table.numbers("last round", lambda p: gap_estimate_cell(unit, p.last.difference))
    table.numbers("p", lambda p: Cell(p_value(p.last.p), p.last.p))
    table.numbers("p, adjusted", lambda p: p_cell(p.p_last))
    if _has_choice(findings):
        table.numbers(
            "chosen round", lambda p: gap_estimate_cell(unit, p.chosen.difference)
        )
        table.numbers(
            "p, adjusted (chosen)", lambda p: Cell(p_value(p.p_chosen), p.p_chosen)
        )
    return table.table(
        "Differences of mean-over-clients scores, one per seed, with half the 95 % "
        "interval and a two-sided paired t-test."
    )


def kinds_table(findings: Findings) -> Table:
    """Every kind of model of every method, with whatever was recorded."""
    metric = findings.metric
    titles = {
        metric: metric,
        f"{metric}_weighted": "by samples",
        f"{metric}_worst_decile": f"worst 10{SPACE}%",
        f"{metric}_largest_decile": f"largest 10{SPACE}%",
        f"{metric}_spread": "spread",
    }
    titles |= {
        name: title_of(name)
        for name in other_numbers(findings.collection)
        if name not in CALIBRATION and not name.endswith("_weighted")
    }
    caption = (
        f"All models at the last round, on {findings.part} data, with half the 95 % "
        "interval over seeds. By samples: all samples count alike. Largest 10 %: "
        "clients with most training samples. Spread: standard deviation over clients. "
        "The training score is of at most 256 training samples of each client; far "
        "above the others it says that models learnt their data by heart."
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
        "half the 95 % interval over seeds; less is better. With few samples per "
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
    table = TableBuilder(
        (s.method, kind)
        for s in findings.ranking.standings
        for kind in kinds_of(collection, s.method)
    )
    table.words("method", lambda row: row[0])
    table.words("model", lambda row: row[1])

    def add(name: str, title: str, part: str = "") -> None:
        unit = unit_of(name)
        table.numbers(
            title,
            lambda row: estimate_cell(
                unit, estimate_of(collection, row[0], name, row[1], part)
            ),
        )

    for name, title in titles.items():
        add(name, title)
    for part in others:
        if collection.has_part(part):
            add(findings.metric, f"{_PART_TITLES[part]} {findings.metric}", part)
    return table.table(caption)
