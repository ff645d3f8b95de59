"""Scores against rounds, steps, bytes and seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from fedloom.reports.axes import Scale, Show
from fedloom.reports.charts import NAMED, Curve, line_chart
from fedloom.reports.findings import Findings
from fedloom.reports.runs import Run
from fedloom.reports.sections.parts import PLACES, Styles, score_scale
from fedloom.reports.units import count, seconds, size
from fedloom.results.reader import thin
from fedloom.results.rows import Round
from fedloom.results.statistics import over_seeds

_AXES: tuple[tuple[str, str, Callable[[Round], float], Show, str], ...] = (
    ("rounds", "round", lambda r: float(r.round > 0), lambda v: f"{v:.0f}", "number"),
    (
        "gradient steps",
        "gradient steps of the average client",
        lambda r: float(r.steps),
        count,
        "count",
    ),
    (
        "bytes",
        "bytes of all clients, down and up",
        lambda r: float(
            r.bytes_down + r.bytes_up + r.team_bytes_down + r.team_bytes_up
        ),
        size,
        "size",
    ),
    ("seconds", "time of training", lambda r: r.seconds, seconds, "seconds"),
)
"""What scores are drawn against: name, title, what a round costs, how it is written
here and by the script of the page."""


def learning(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    """Scores against rounds, steps, bytes and seconds."""
    unit, charts = findings.unit, {}
    for name, x_title, cost, show, notation in _AXES:
        curves = list(_curves(findings, styles, name, cost, show))
        if not any(max(curve.x) > 0 for curve in curves):
            continue
        rounds = " rounds" if name == "rounds" else ""
        described = "; ".join(
            f"{c.name} ends at {unit.score(c.y[-1])} after {show(c.x[-1])}{rounds}"
            for c in curves
        )
        title = f"{findings.metric} against {name}"
        x = Scale(x_title, show, notation=notation)
        charts[name] = line_chart(curves, title, described, x, score_scale(findings))
    if not charts:
        return None
    starts = [c.y[0] for c in curves if len(c.y) > 2 and math.isfinite(c.y[0])]
    ends = (min(starts), max(starts)) if starts else ()
    return {
        "charts": charts,
        "starts": " to ".join(dict.fromkeys(unit.score(value) for value in ends)),
        "is_crowded": len(curves) > NAMED,
    }


def _curves(
    findings: Findings,
    styles: Styles,
    name: str,
    cost: Callable[[Round], float],
    show: Show,
) -> Iterator[Curve]:
    for method, style in styles.items():
        runs = findings.collection.of(method)
        evaluated = [set(run.evaluated) for run in runs]
        rounds = thin(sorted(set.intersection(*evaluated)) if runs else [], PLACES)
        if not rounds:
            continue
        share = int(runs[0].manifest["clients"]) if name == "gradient steps" else 1
        spent = [_spent(run, cost) for run in runs]
        x = [float(np.mean([s[number] for s in spent])) / share for number in rounds]
        y = [
            over_seeds([run.number(number, findings.metric) for run in runs])
            for number in rounds
        ]
        tips = []
        for number, place, estimate in zip(rounds, x, y, strict=True):
            near = f"round {number}" + (f", {show(place)}" if name != "rounds" else "")
            tips.append(f"{near}: {findings.unit.score(estimate.mean)}")
        yield Curve(method, style, x, [e.mean for e in y], [e.error for e in y], tips)


def _spent(run: Run, cost: Callable[[Round], float]) -> dict[int, float]:
    """What a run has cost by the end of every round."""
    totals = accumulate(cost(row) for row in run.rounds)
    return {row.round: total for row, total in zip(run.rounds, totals, strict=True)}
