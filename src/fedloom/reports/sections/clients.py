"""How scores are spread over clients."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from fedloom.reports import report_tables
from fedloom.reports.charts import Bar, Swarm, forest, scatter, swarm_chart
from fedloom.reports.findings import Findings
from fedloom.reports.ranking import estimate_of, other_numbers
from fedloom.reports.runs import KIND
from fedloom.reports.sections.parts import Look, Numbers, figure, safe, score_title
from fedloom.reports.units import count, unit_of


def clients(findings: Findings, look: Look) -> str:
    """How scores are spread over clients, and how they go with local size."""
    unit, found, swarms, panels = findings.unit, findings.found, [], []
    data = {
        s.method: _client_scores(findings, s.method) for s in findings.ranking.standings
    }
    data = {method: rows for method, rows in data.items() if rows[0].size}
    if not data:
        return ""
    worst = f"{findings.metric}_worst_decile"
    for method, (score, _, tips) in data.items():
        swarms.append(
            Swarm(
                method,
                look.styles[method],
                score,
                tips,
                float(np.nanmean(score)) if np.isfinite(score).any() else math.nan,
                estimate_of(found, method, worst).mean,
            )
        )
    described = "; ".join(
        f"{s.name}: mean {unit.score(s.mean)}, worst tenth {unit.score(s.low)}"
        for s in swarms
    )
    drawing = swarm_chart(
        swarms,
        f"{findings.metric} of every client",
        described,
        x_title=score_title(findings),
        show=unit.tick,
        bounds=(0.0, 1.0) if findings.metric == "accuracy" else (0.0, None),
    )
    seeds = " of every seed" if len(found.seeds) > 1 else ""
    caption = (
        f"Every client{seeds} at the last round. Upright line: mean. Triangle: mean of "
        "the tenth that does worst."
    )
    body = figure(drawing, caption)
    sizes = np.concatenate([size_ for _, size_, _ in data.values()])
    scores = np.concatenate([score for score, _, _ in data.values()])
    if not (sizes > 0).any() or not np.isfinite(scores).any():
        return f'<div class="grid two">{body}</div>'
    x_range = (float(sizes[sizes > 0].min()), float(sizes.max()))
    y_range = (float(np.nanmin(scores)), float(np.nanmax(scores)))
    alone = data.get(found.baseline or "")
    for method, (score, size_, tips) in data.items():
        panels.append(
            scatter(
                method,
                look.styles[method],
                size_,
                score,
                tips,
                f"{method}: {findings.metric} against training samples",
                reference=(
                    (alone[1], alone[0])
                    if alone is not None and method != found.baseline
                    else None
                ),
                x_range=x_range,
                y_range=y_range,
                show_x=count,
                show_y=unit.tick,
            )
        )
    caption = (
        f"{score_title(findings)} against a client's training samples. The line joins "
        "the means of the small, middle and large third of the clients"
        + (
            f"; the dashed grey one is {found.baseline}'s."
            if alone is not None
            else "."
        )
    )
    cells = "".join(
        f'<div data-panel="{escape(m)}">{p}</div>'
        for m, p in zip(data, panels, strict=True)
    )
    return (
        f'<div class="grid two">{body}<figure><div class="grid small">{cells}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure></div>"
    )


def _client_scores(
    findings: Findings, method: str
) -> tuple[Numbers, Numbers, list[str]]:
    """Scores, training samples and words of a method's clients, seed after seed."""
    scores, sizes, tips = [], [], []
    several = len(findings.found.seeds) > 1
    for run in findings.found.of(method):
        if run is None or run.last is None:
            continue
        own = run.last.get(KIND, run.part, findings.metric)
        many = run.shares.sizes if run.shares is not None else np.zeros(len(own))
        scores.append(own)
        sizes.append(many.astype(float))
        for n, name in enumerate(run.last.names):
            where = f"seed {run.seed}, " if several else ""
            tips.append(
                f"{where}client {safe(name)}, {many[n]:.0f} samples: "
                f"{findings.unit.score(float(own[n]))}"
            )
    if not scores:
        return np.array([]), np.array([]), []
    return np.concatenate(scores), np.concatenate(sizes), tips


def calibration(findings: Findings, look: Look) -> str:
    """Whether probabilities can be believed."""
    table = report_tables.calibration_table(findings)
    if table is None:
        return ""
    captions = {
        "ece": (
            "expected calibration error, %",
            "How far confidence is from accuracy.",
        ),
        "brier": (
            "Brier score",
            "Squared distance of the probabilities from the truth.",
        ),
        "nll": ("log loss", "How surprised the models are by the truth."),
    }
    drawn = []
    for name in [n for n in captions if n in other_numbers(findings.found)][:2]:
        unit, bars = unit_of(name), []
        for s in findings.ranking.standings:
            estimate = estimate_of(findings.found, s.method, name)
            if estimate.count:
                tip = unit.estimate(estimate) + unit.suffix
                style = look.styles[s.method]
                bars.append(Bar(s.method, style, estimate, None, (tip, "")))
        title, caption = captions[name]
        described = "; ".join(f"{b.name} {unit.score(b.first.mean)}" for b in bars)
        drawing = forest(bars, title, described, x_title=title, show=unit.tick)
        drawn.append(figure(drawing, f"{caption} Personal models; left is better."))
    return (
        f'<div class="grid two">{"".join(drawn)}</div>'
        f"{table.to_html('calibration-table')}"
    )
