"""How scores are spread over clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from fedloom.core.metrics import METRICS
from fedloom.reports.axes import Scale, fair_axis
from fedloom.reports.charts import PANEL, Numbers, scatter
from fedloom.reports.findings import Findings
from fedloom.reports.held_out import Who
from fedloom.reports.ranking import estimate_of, other_numbers
from fedloom.reports.report_tables import CALIBRATION, calibration_table
from fedloom.reports.row_charts import Bar, Swarm, forest, swarm_chart
from fedloom.reports.runs import KIND
from fedloom.reports.sections.parts import Styles, client_tip, score_scale
from fedloom.reports.units import count, title_of, unit_of


def clients(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    """How scores are spread over clients, and how they go with local size."""
    unit, collection = findings.unit, findings.collection
    data = {method: _client_scores(findings, method) for method in styles}
    data = {method: rows for method, rows in data.items() if rows[0].size}
    if not data:
        return None
    worst = f"{findings.metric}_worst_decile"
    swarms = [
        Swarm(
            method,
            styles[method],
            score,
            who,
            tips,
            float(np.nanmean(score)) if np.isfinite(score).any() else math.nan,
            estimate_of(collection, method, worst).mean,
        )
        for method, (score, _, who, tips) in data.items()
    ]
    described = "; ".join(
        f"{s.name}: mean {unit.score(s.mean)}, worst tenth {unit.score(s.low)}"
        for s in swarms
    )
    scale = score_scale(findings)
    title = f"{findings.metric} of every client"
    return {
        "swarms": swarm_chart(swarms, title, described, scale),
        "has_seeds": collection.has_seeds,
        "panels": _panels(findings, styles, data),
        "score_title": scale.title,
        "baseline": collection.baseline if collection.baseline in data else None,
    }


def _panels(
    findings: Findings,
    styles: Styles,
    data: Mapping[str, tuple[Numbers, Numbers, list[Who], list[str]]],
) -> dict[str, Markup]:
    """Scores against training samples, a drawing for every method."""
    sizes = np.concatenate([size for _, size, *_ in data.values()])
    scores = np.concatenate([score for score, *_ in data.values()])
    if not (sizes > 0).any() or not np.isfinite(scores).any():
        return {}
    baseline = findings.collection.baseline
    alone = data.get(baseline) if baseline is not None else None
    scale = score_scale(findings)
    y = fair_axis([score.tolist() for score, *_ in data.values()], *PANEL, scale)
    return {
        method: scatter(
            method,
            styles[method],
            size,
            score,
            who,
            tips,
            f"{method}: {findings.metric} against training samples",
            reference=(alone[1], alone[0]) if alone and method != baseline else None,
            x_range=(float(sizes[sizes > 0].min()), float(sizes.max())),
            y=y,
            x_scale=Scale("training samples", count, notation="count"),
            y_scale=scale,
        )
        for method, (score, size, who, tips) in data.items()
    }


def _client_scores(
    findings: Findings, method: str
) -> tuple[Numbers, Numbers, list[Who], list[str]]:
    """Scores, training samples, clients and words of a method, seed after seed."""
    scores, sizes = [np.array([])], [np.array([])]
    clients: list[Who] = []
    tips: list[str] = []
    for run in findings.collection.of(method):
        if run.last is None:
            continue
        score = run.last.get(KIND, run.part, findings.metric)
        data = run.client_data
        size = np.zeros(len(score), dtype=np.int64)
        if data is not None:
            size = data.sizes[run.last.clients]
        scores.append(score)
        sizes.append(size.astype(float))
        for n, name in enumerate(run.last.names):
            who = Who(name, run.seed, int(size[n]))
            clients.append(who)
            tips.append(client_tip(findings, who, findings.unit.score(float(score[n]))))
    return np.concatenate(scores), np.concatenate(sizes), clients, tips


def calibration(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    """Whether probabilities can be believed."""
    table = calibration_table(findings)
    if table is None:
        return None
    recorded, charts = other_numbers(findings.collection), []
    for name in [n for n in CALIBRATION if n in recorded][:2]:
        estimates = {m: estimate_of(findings.collection, m, name) for m in styles}
        unit = unit_of(name, (estimate.mean for estimate in estimates.values()))
        bars = [
            Bar(method, styles[method], estimate, unit.score_estimate(estimate))
            for method, estimate in estimates.items()
            if estimate.count
        ]
        described = "; ".join(f"{b.name} {unit.score(b.first.mean)}" for b in bars)
        title = title_of(name) + unit.heading
        notation = "percent" if unit.is_share else "number"
        scale = Scale(title, unit.tick, unit.bounds, notation)
        drawing = forest(bars, title, described, scale)
        charts.append((drawing, METRICS[name].description))
    return {"charts": charts, "table": table}
