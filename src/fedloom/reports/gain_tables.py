"""Tables of who gains, and of what each client should use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedloom.reports.cells import (
    count_cell,
    estimate_cell,
    gap_cell,
    gap_estimate_cell,
    method_cell,
    p_cell,
)
from fedloom.reports.findings import Findings
from fedloom.reports.gains import MethodGain
from fedloom.reports.tables import Cell, Table, TableBuilder
from fedloom.reports.units import times

ROWS = 300
"""Clients that a table on the page shows; the CSV file has all of them."""


def gains_table(findings: Findings) -> Table:
    """Every method against training alone."""
    unit, gains = findings.unit, findings.gains
    assert gains is not None
    of_methods = [gains.of(s.method) for s in findings.ranking.standings]
    table = TableBuilder(
        (gain, np.sort(gain.gain[np.isfinite(gain.gain)]))
        for gain in of_methods
        if gain is not None and gain.known
    )
    table.words("method", lambda r: method_cell(findings, r[0].method))
    alone = findings.evidence.alone if findings.evidence is not None else {}
    if gains.has_equal_work:
        table.numbers(
            f"alone, as much work ({findings.metric}{unit.heading})",
            lambda r: estimate_cell(unit, alone[r[0].method]),
            note="training alone with as much work as the method took",
        )
    table.numbers("mean gain", lambda r: gap_estimate_cell(unit, r[0].mean))
    table.numbers(
        "p, adjusted",
        lambda r: p_cell(r[0].p),
        note="of no mean gain, one-sided, adjusted for the number of methods",
    )
    table.numbers("gain", lambda r: count_cell(r[0].gaining))
    table.numbers("lose", lambda r: count_cell(r[0].losing))
    table.numbers("stay", lambda r: count_cell(r[0].staying))
    table.numbers("median", lambda r: gap_cell(unit, float(np.median(r[1]))))
    table.numbers(
        "worst tenth",
        lambda r: gap_cell(unit, float(r[1][: _tenth(len(r[1]))].mean())),
        note="mean over the tenth that gains least",
    )
    table.numbers(
        "largest loss",
        lambda r: gap_cell(unit, r[1][0]) if r[1][0] < 0 else Cell("none", r[1][0]),
    )
    baseline = findings.collection.baseline
    if baseline is not None:
        table.numbers(
            f"work, times {baseline}'s",
            lambda r: Cell(times(r[0].work), r[0].work),
            note=f"samples that entered a gradient, for each of {baseline}'s",
        )
    points = f" in{unit.points}" if unit.points else ""
    return table.table(
        f"Gain over {gains.reference}{points} at the last round, client by client and "
        f"sample by sample on the same {findings.gain_part} data; ± is half the 95 % "
        "interval of the mean, or its ends are in brackets. Gain, lose and "
        "stay count clients."
    )


def _tenth(count: int) -> int:
    """A tenth, at least one; a half is rounded up."""
    return max(1, math.floor(0.1 * count + 0.5))


def clients_table(findings: Findings) -> Table:
    """Every client: its gain with every method, and what it should use."""
    unit, who, advice = findings.unit, findings.who, findings.advice
    table = TableBuilder(_shown(findings))
    table.words("client", lambda n: Cell(who[n].name, _as_number(who[n].name)))
    if any(w.seed is not None for w in who) and findings.collection.has_seeds:
        table.numbers("seed", lambda n: count_cell(who[n].seed or 0))
    table.numbers("training samples", lambda n: count_cell(who[n].samples))
    if advice is not None:
        table.words("advised", lambda n: Cell(advice.method[n], is_strong=True))
        table.numbers(
            "ahead of the next",
            lambda n: gap_cell(unit, advice.lead[n], advice.error[n]),
            note="on the deciding data, ± one standard error",
        )
        table.words("how sure", advice.word)

    def add(gain: MethodGain) -> None:
        table.numbers(
            gain.method,
            lambda n: gap_cell(unit, gain.gain[n], gain.error[n]),
        )

    for standing in findings.ranking.standings:
        gain = findings.gain_of(standing.method)
        if gain is not None:
            add(gain)
    return table.table(_clients_caption(findings))


def _clients_caption(findings: Findings) -> str:
    gains, advice, parts = findings.gains, findings.advice, []
    if gains is not None:
        points = f" in{findings.unit.points}" if findings.unit.points else ""
        parts.append(
            f"Gain over {gains.reference}{points} by method, ± one standard error. "
            "With few samples a client's gain is mostly chance, whatever its sign."
        )
    if advice is not None:
        data = "own validation" if advice.is_on_validation else "reported"
        parts.append(
            f"Advised is what does best on the client's {data} data, training alone "
            "included. It is clear if it is ahead of the next by two standard errors, "
            "likely if by one, open if by less."
        )
        if not advice.is_on_validation:
            parts.append(
                "Without validation data the same data advise and are reported, so the "
                "advice looks better than it is."
            )
    if len(findings.who) > ROWS:
        parts.append(
            f"Shown are the {ROWS} of {len(findings.who)} clients that gain least; the "
            "CSV file has all."
        )
    return " ".join(parts)


def _shown(findings: Findings) -> Sequence[int]:
    """The clients of the table on the page: if they are too many, who gain least."""
    clients = range(len(findings.who))
    gain = findings.gain_of(findings.decision.best)
    if len(clients) <= ROWS or gain is None:
        return clients[:ROWS]
    least: list[int] = np.argsort(gain.gain, kind="stable")[:ROWS].tolist()
    return least


def _as_number(name: str) -> float | None:
    try:
        return float(name)
    except ValueError:
        return None
