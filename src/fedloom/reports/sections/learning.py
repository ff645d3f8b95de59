"""Scores against rounds, steps, bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedloom.reports.charts import Curve, line_chart
from fedloom.reports.findings import Findings
from fedloom.reports.runs import Run
from fedloom.reports.sections.parts import Look, score_title, thin
from fedloom.reports.units import count, seconds, size
from fedloom.results.rows import Round
from fedloom.results.statistics import over_seeds


def learning(findings: Findings, look: Look) -> str:
    """Scores against rounds, steps, bytes and seconds."""
    axes: tuple[tuple[str, str, Callable[[Round], float], Callable[[float], str]], ...]
    axes = (
        ("rounds", "round", lambda r: 0.0, lambda v: f"{v:.0f}"),
        (
            "gradient steps",
            "gradient steps of the average client",
            lambda r: float(r.steps),
            count,
        ),
        (
            "bytes",
            "bytes of all clients, down and up",
            lambda r: float(
                r.bytes_down + r.bytes_up + r.team_bytes_down + r.team_bytes_up
            ),
            size,
        ),
        ("seconds", "seconds of training", lambda r: r.seconds, seconds),
    )
    unit, drawn = findings.unit, []
    for name, x_title, cost, show in axes:
        curves = []
        for standing in findings.ranking.standings:
            curve = _curve(findings, look, standing.method, name, cost, show)
            if curve is not None:
                curves.append(curve)
        if not curves or not any(max(curve.x) > 0 for curve in curves):
            continue
        described = "; ".join(
            f"{c.name} ends at {unit.score(c.y[-1])} after {show(c.x[-1])}"
            + (" rounds" if name == "rounds" else "")
            for c in curves
        )
        drawing = line_chart(
            curves,
            f"{findings.metric} against {name}",
            described,
            x_title=x_title,
            y_title=score_title(findings),
            show_x=show,
            show_y=unit.tick,
            bounds=(0.0, 1.0) if findings.metric == "accuracy" else (0.0, None),
        )
        drawn.append(f"<figure><h3>Against {name}</h3>{drawing}</figure>")
    if not drawn:
        return ""
    note = (
        "Lines are means over seeds, bands one standard error. A method that sends "
        "nothing is a flat line at its last score."
    )
    return f'<p class="note">{note}</p><div class="grid two">{"".join(drawn)}</div>'


def _curve(
    findings: Findings,
    look: Look,
    method: str,
    name: str,
    cost: Callable[[Round], float],
    show: Callable[[float], str],
) -> Curve | None:
    runs = [run for run in findings.found.of(method) if run is not None]
    if not runs:
        return None
    common = set.intersection(*({row.round for row in run.evaluated} for run in runs))
    rounds = thin(sorted(common))
    if not rounds:
        return None
    x, y, error, tips = [], [], [], []
    spent = {run.seed: _spent(run, cost) for run in runs}
    for number in rounds:
        estimate = over_seeds([run.number(number, findings.metric) for run in runs])
        place = float(number)
        if name != "rounds":
            place = float(np.mean([spent[run.seed][number] for run in runs]))
        if name == "gradient steps":
            place /= int(runs[0].manifest["clients"])
        x.append(place)
        y.append(estimate.mean)
        error.append(estimate.error)
        near = f"round {number}" + (f", {show(place)}" if name != "rounds" else "")
        tips.append(f"{near}: {findings.unit.score(estimate.mean)}")
    return Curve(method, look.styles[method], x, y, error, tips)


def _spent(run: Run, cost: Callable[[Round], float]) -> dict[int, float]:
    total, found = 0.0, {}
    for row in run.rounds:
        total += cost(row)
        found[row.round] = total
    return found
