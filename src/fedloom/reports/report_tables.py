"""The tables of a report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedloom.reports.findings import Findings
from fedloom.reports.gains import Advice, Gains, Who
from fedloom.reports.ranking import (
    ALPHA,
    Standing,
    estimate_of,
    kinds_of,
    other_numbers,
)
from fedloom.reports.tables import Cell, Column, Table
from fedloom.reports.units import (
    NOTHING,
    SPACE,
    TIMES,
    count,
    p_value,
    plain,
    seconds,
    size,
    unit_of,
)

CALIBRATION = ("ece", "brier", "nll")
"""Numbers that say whether a model's probabilities can be believed."""

ROWS = 300
"""Clients that a table on the page shows; the CSV file has all of them."""

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
    found, ranking, unit = findings.found, findings.ranking, findings.unit
    over = "seeds" if len(found.seeds) > 1 else "clients of the one seed"
    has_choice = any(s.chosen.count for s in ranking.standings)
    has_tests = bool(ranking.pairs) and len(found.seeds) > 1 and not is_short
    suffix = unit.suffix.strip()
    score = findings.metric + (f",{SPACE}{suffix}" if suffix else "")
    columns = [
        Column("method", False),
        Column(f"last round ({score})", note="mean over clients, then over seeds"),
    ]
    if has_choice:
        columns.append(
            Column("round chosen on validation", note="the same, at the chosen round")
        )
        if not is_short:
            columns.append(Column("chosen rounds", False))
    columns.append(
        Column(f"worst 10{SPACE}%", note="mean over the clients that do worst")
    )
    first = ranking.pick
    if has_tests:
        columns += [Column(f"difference to {first}"), Column("p", note=_HOLM)]
    if findings.gains is not None:
        columns += [Column("gain over alone"), Column("clients gain / lose", False)]
    columns.append(Column("seeds finished", False))
    rows = []
    for standing in ranking.standings:
        row = [_method(standing, first), _estimate(findings, standing.last)]
        if has_choice:
            row.append(_estimate(findings, standing.chosen))
            if not is_short:
                row.append(Cell(_rounds(standing)))
        row.append(_estimate(findings, standing.worst))
        if has_tests:
            row += _against(findings, standing.method)
        if findings.gains is not None:
            row += _gain_cells(findings, standing.method)
        row.append(_seeds(standing))
        rows.append(tuple(row))
    caption = (
        f"{findings.metric.capitalize()} of the personal models on each client's "
        f"{findings.part} data: mean over clients ± half the 95 % interval over {over}."
    )
    if has_tests:
        caption += f" {_HOLM[0].upper()}{_HOLM[1:]}"
    return Table(caption, tuple(columns), tuple(rows))


def _method(standing: Standing, pick: str | None) -> Cell:
    return Cell(standing.method, is_strong=standing.method == pick)


def _estimate(findings: Findings, estimate: Any) -> Cell:
    value = estimate.mean if estimate.count else None
    return Cell(findings.unit.estimate(estimate), value)


def _rounds(standing: Standing) -> str:
    return ", ".join(str(n) for n in standing.chosen_rounds) or NOTHING


def _seeds(standing: Standing) -> Cell:
    ends = standing.counts
    total = sum(ends.values())
    text = f"{ends['finished']} of {total}"
    other = [f"{n} {end}" for end, n in ends.items() if n and end != "finished"]
    tone = "bad" if other else ""
    return Cell(text + (f" ({', '.join(other)})" if other else ""), tone=tone)


def _against(findings: Findings, method: str) -> list[Cell]:
    ranking, pick = findings.ranking, findings.ranking.pick
    tested = ranking.pair(method, pick) if pick is not None else None
    if tested is None or tested[0].difference.count == 0:
        return [Cell(NOTHING), Cell(NOTHING)]
    test, p = tested
    gap = findings.unit.gap_estimate(test.difference)
    return [
        Cell(gap, test.difference.mean),
        Cell(p_value(p), p, is_strong=p < ALPHA),
    ]


def _gain_cells(findings: Findings, method: str) -> list[Cell]:
    told = findings.gains
    assert told is not None
    gain = told.of(method)
    if gain is None:
        return [Cell("(is alone)"), Cell(NOTHING)]
    tone = "good" if gain.mean.mean > 0 else "bad" if gain.mean.mean < 0 else ""
    return [
        Cell(findings.unit.gap_estimate(gain.mean), gain.mean.mean, tone=tone),
        Cell(f"{gain.gaining} / {gain.losing} of {gain.known}", gain.gaining),
    ]


def pairs_table(findings: Findings) -> Table:
    """Every pair of methods."""
    unit, has_choice = (
        findings.unit,
        any(s.chosen.count for s in findings.ranking.standings),
    )
    columns = [
        Column("pair", False),
        Column("last round"),
        Column("p"),
        Column("p, adjusted"),
    ]
    if has_choice:
        columns += [Column("chosen round"), Column("p, adjusted (chosen)")]
    rows = []
    for pair in findings.ranking.pairs:
        if pair.last.difference.count == 0:
            continue
        gap = pair.last.difference
        row = [
            Cell(f"{pair.first} less {pair.second}"),
            Cell(unit.gap_estimate(gap), gap.mean),
            Cell(p_value(pair.last.p), pair.last.p),
            Cell(p_value(pair.p_last), pair.p_last, is_strong=pair.p_last < ALPHA),
        ]
        if has_choice:
            other = pair.chosen.difference
            row += [
                Cell(unit.gap_estimate(other), other.mean),
                Cell(p_value(pair.p_chosen), pair.p_chosen),
            ]
        rows.append(tuple(row))
    caption = (
        "Differences of mean-over-clients scores, one per seed, with half the 95 % "
        "interval and a two-sided paired t-test."
    )
    return Table(caption, tuple(columns), tuple(rows))


def kinds_table(findings: Findings) -> Table:
    """Every kind of model of every method, with whatever was recorded."""
    found, metric = findings.found, findings.metric
    others = [
        name
        for name in other_numbers(found)
        if name not in CALIBRATION and not name.endswith("_weighted")
    ]
    columns = [Column("method", False), Column("model", False), Column(metric)]
    suffixes = {
        "weighted": "by samples",
        "worst_decile": f"worst 10{SPACE}%",
        "largest_decile": f"largest 10{SPACE}%",
        "spread": "spread",
    }
    columns += [Column(title) for title in suffixes.values()]
    columns += [Column(name.replace("_", " ")) for name in others]
    rows = []
    for standing in findings.ranking.standings:
        for kind in kinds_of(found, standing.method):
            row = [Cell(standing.method), Cell(kind)]
            names = [metric, *(f"{metric}_{suffix}" for suffix in suffixes)]
            for name in [*names, *others]:
                estimate = estimate_of(found, standing.method, name, kind)
                unit = findings.unit if name in names else unit_of(name)
                row.append(Cell(unit.estimate(estimate), estimate.mean))
            rows.append(tuple(row))
    caption = (
        f"All models at the last round, on {findings.part} data, with half the 95 % "
        "interval over seeds. By samples: all samples count alike. Largest 10 %: "
        "clients with most training samples. Spread: standard deviation over clients."
    )
    return Table(caption, tuple(columns), tuple(rows))


def calibration_table(findings: Findings) -> Table | None:
    """Whether probabilities can be believed; None if none were recorded."""
    recorded = [n for n in CALIBRATION if n in other_numbers(findings.found)]
    if not recorded:
        return None
    titles = {"ece": f"ECE,{SPACE}%", "brier": "Brier score", "nll": "log loss (NLL)"}
    columns = [Column("method", False), Column("model", False)]
    columns += [Column(titles[name]) for name in recorded]
    rows = []
    for standing in findings.ranking.standings:
        for kind in kinds_of(findings.found, standing.method):
            row = [Cell(standing.method), Cell(kind)]
            for name in recorded:
                estimate = estimate_of(findings.found, standing.method, name, kind)
                row.append(Cell(unit_of(name).estimate(estimate), estimate.mean))
            rows.append(tuple(row))
    caption = (
        f"Calibration at the last round on {findings.part} data, mean over clients ± "
        "half the 95 % interval over seeds; less is better. With few samples per "
        "client the ECE of even a perfect model is well above 0."
    )
    return Table(caption, tuple(columns), tuple(rows))


def gains_table(findings: Findings, told: Gains) -> Table:
    """Every method against training alone."""
    unit = findings.unit
    columns = (
        Column("method", False),
        Column("mean gain"),
        Column("p, adjusted"),
        Column("gain"),
        Column("lose"),
        Column("stay"),
        Column("median"),
        Column("worst tenth", note="mean over the tenth that gains least"),
        Column("largest loss"),
        Column(
            "steps per step alone", note="gradient steps for each of the baseline's"
        ),
    )
    rows = []
    for standing in findings.ranking.standings:
        gain = told.of(standing.method)
        if gain is None or gain.known == 0:
            continue
        values = np.sort(gain.gain[np.isfinite(gain.gain)])
        tenth = float(values[: max(1, math.floor(0.1 * len(values) + 0.5))].mean())
        tested = findings.ranking.pair(standing.method, told.baseline)
        p = tested[1] if tested is not None else math.nan
        stay = gain.known - gain.gaining - gain.losing
        rows.append(
            (
                Cell(
                    standing.method, is_strong=standing.method == findings.ranking.pick
                ),
                Cell(unit.gap_estimate(gain.mean), gain.mean.mean),
                Cell(p_value(p), p, is_strong=p < ALPHA),
                Cell(str(gain.gaining), gain.gaining, tone="good"),
                Cell(str(gain.losing), gain.losing, tone="bad" if gain.losing else ""),
                Cell(str(stay), stay),
                Cell(unit.gap(float(np.median(values))), float(np.median(values))),
                Cell(unit.gap(tenth), tenth),
                Cell(
                    unit.gap(float(values[0])) if values[0] < 0 else "none", values[0]
                ),
                Cell(f"{plain(gain.work)} {TIMES}", gain.work),
            )
        )
    points = f" in {unit.points}" if unit.points else ""
    caption = (
        f"Gain over {told.baseline}{points} at the last round, client by client on the "
        f"same {findings.part} data of the same seed; ± is half the 95 % interval of "
        f"the mean over {'seeds' if len(findings.found.seeds) > 1 else 'clients'}."
    )
    return Table(caption, columns, tuple(rows))


def clients_table(
    findings: Findings, told: Gains | None, advice: Advice | None
) -> Table:
    """Every client: its gain with every method, and what it should use."""
    unit = findings.unit
    who = told.who if told is not None else advice.who if advice is not None else ()
    has_seeds = any(w.seed is not None for w in who) and len(findings.found.seeds) > 1
    columns = [Column("client", False)]
    if has_seeds:
        columns.append(Column("seed"))
    columns.append(Column("training samples"))
    if advice is not None:
        columns += [
            Column("advised", False),
            Column(
                "ahead of the next", note="on the deciding data, ± one standard error"
            ),
            Column("how sure", False),
        ]
    gains = [
        gain
        for s in findings.ranking.standings
        if told is not None and (gain := told.of(s.method)) is not None
    ]
    columns += [Column(f"{gain.method}") for gain in gains]
    rows = []
    for n in _shown(who, told, findings.ranking.pick):
        row = [Cell(who[n].name, _as_number(who[n].name))]
        if has_seeds:
            row.append(Cell(str(who[n].seed), who[n].seed))
        row.append(Cell(f"{who[n].samples}", who[n].samples))
        if advice is not None:
            error = advice.error[n]
            half = f" ± {unit.number(error)}" if math.isfinite(error) else ""
            row += [
                Cell(advice.method[n], is_strong=True),
                Cell(unit.gap(advice.lead[n]) + half, advice.lead[n]),
                Cell(advice.word(n)),
            ]
        for gain in gains:
            value = gain.gain[n]
            tone = "good" if value > 0 else "bad" if value < 0 else ""
            error = gain.error[n]
            half = f" ± {unit.number(error)}" if math.isfinite(error) else ""
            row.append(Cell(unit.gap(value) + half, value, tone=tone))
        rows.append(tuple(row))
    return Table(
        _clients_caption(findings, told, advice, who), tuple(columns), tuple(rows)
    )


def _clients_caption(
    findings: Findings, told: Gains | None, advice: Advice | None, who: tuple[Who, ...]
) -> str:
    parts = []
    if told is not None:
        points = f" in {findings.unit.points}" if findings.unit.points else ""
        parts.append(
            f"Gain over {told.baseline}{points} by method, ± one standard error: from "
            + (
                "the seeds, in which clients are the same."
                if told.has_same_clients and len(findings.found.seeds) > 1
                else "the number of test samples, which is on the safe side."
            )
        )
    if advice is not None:
        data = "own validation" if advice.is_on_validation else "reported"
        parts.append(
            f"Advised is what does best on the client's {data} data, training alone "
            "included; clear is ahead by two standard errors, likely by one."
        )
        if not advice.is_on_validation:
            parts.append("Without validation data the advice flatters itself.")
    if len(who) > ROWS:
        parts.append(
            f"{ROWS} of {len(who)} clients, who gain least; the CSV file has all."
        )
    return " ".join(parts)


def _shown(who: tuple[Who, ...], told: Gains | None, pick: str | None) -> list[int]:
    if len(who) <= ROWS:
        return list(range(len(who)))
    gain = told.of(pick or "") if told is not None else None
    if gain is None:
        return list(range(ROWS))
    return [int(n) for n in np.argsort(gain.gain, kind="stable")[:ROWS]]


def _as_number(name: str) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None


def cost_table(findings: Findings) -> Table:
    """What every method took."""
    columns = (
        Column("method", False),
        Column("steps per client"),
        Column("bytes down"),
        Column("bytes up"),
        Column("between teams and server"),
        Column("training time"),
        Column("per round"),
        Column("device", False),
    )
    rows = []
    for standing in findings.ranking.standings:
        runs = [run for run in findings.found.of(standing.method) if run is not None]
        if not runs:
            continue
        clients = int(runs[0].manifest["clients"])
        steps = np.mean([sum(r.steps for r in run.rounds) for run in runs]) / clients
        down = np.mean([sum(r.bytes_down for r in run.rounds) for run in runs])
        up = np.mean([sum(r.bytes_up for r in run.rounds) for run in runs])
        link = np.mean(
            [
                sum(r.team_bytes_down + r.team_bytes_up for r in run.rounds)
                for run in runs
            ]
        )
        time = np.mean([sum(r.seconds for r in run.rounds) for run in runs])
        rounds = max(runs[0].rounds[-1].round, 1)
        rows.append(
            (
                Cell(standing.method),
                Cell(count(float(steps)), float(steps)),
                Cell(size(float(down)), float(down)),
                Cell(size(float(up)), float(up)),
                Cell(size(float(link)), float(link)),
                Cell(seconds(float(time)), float(time)),
                Cell(seconds(float(time) / rounds), float(time) / rounds),
                Cell(str(runs[0].manifest["device"])),
            )
        )
    caption = (
        "Cost of one run, mean over seeds: gradient steps of the average client, bytes "
        "of all clients together, training time without evaluation. Seeds that trained "
        "in the same passes share their time."
    )
    return Table(caption, columns, tuple(rows))


def failures_table(findings: Findings) -> Table | None:
    """Runs that did not finish; None if all did."""
    rows = []
    for (method, seed), run in findings.found.runs.items():
        if run.state == "finished":
            continue
        last = run.rounds[-1].round if run.rounds else 0
        why = run.failure or "stopped or still going on"
        rows.append(
            (
                Cell(method),
                Cell(str(seed), seed),
                Cell(run.state),
                Cell(f"{last} of {run.planned}", last),
                Cell(why),
            )
        )
    for method, seed in findings.found.absent:
        rows.append(
            (
                Cell(method),
                Cell(str(seed), seed),
                Cell("never begun"),
                Cell("0"),
                Cell(""),
            )
        )
    if not rows:
        return None
    columns = (
        Column("method", False),
        Column("seed"),
        Column("state", False),
        Column("rounds", False),
        Column("why", False),
    )
    caption = (
        "Runs that did not finish. The ranking counts them; its means are over the "
        "finished seeds, and a method with such a run is placed after all others."
    )
    return Table(caption, columns, tuple(rows))


def settings_table(findings: Findings) -> Table:
    """Every method's own settings."""
    rows = []
    for method in findings.found.methods:
        run = findings.found.first_run(method=method) or next(
            (r for (m, _), r in findings.found.runs.items() if m == method), None
        )
        if run is None:
            continue
        section = dict(run.config.get("algorithm", {}))
        name = str(section.pop("name", run.manifest["algorithm"]))
        text = ", ".join(f"{key} = {_value(value)}" for key, value in section.items())
        rows.append((Cell(method), Cell(name), Cell(text)))
    columns = (
        Column("name", False),
        Column("method", False),
        Column("settings", False),
    )
    return Table("Settings of every method.", columns, tuple(rows))


def common_table(findings: Findings) -> Table:
    """Settings that all runs share, and those that differ besides the method's own."""
    flats = [_flat(run.config) for run in findings.found.runs.values()]
    rows = []
    for key in dict.fromkeys(key for flat in flats for key in flat):
        values = list(dict.fromkeys(flat.get(key, "(not set)") for flat in flats))
        rows.append((Cell(key), Cell(", ".join(values[:8]))))
    run = next(iter(findings.found.runs.values()), None)
    if run is not None:
        kept = ("dataset", "clients", "parameters", "dtype", "device", "platform")
        versions = ("fedloom", "commit", "python", "torch", "numpy", "created")
        for key in (*kept, *versions):
            if run.manifest.get(key) is not None:
                rows.append((Cell(f"({key})"), Cell(str(run.manifest[key]))))
    columns = (Column("setting", False), Column("value", False))
    caption = (
        "What the runs have in common; in brackets what was noted of the first run."
    )
    return Table(caption, columns, tuple(rows))


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    flat = {k: _value(v) for k, v in config.items() if not isinstance(v, dict)}
    for section, table in config.items():
        if isinstance(table, dict) and section != "algorithm":
            flat |= {f"{section}.{k}": _value(v) for k, v in table.items()}
    return flat


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
