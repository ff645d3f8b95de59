"""Who gains, and what each client should use."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from markupsafe import Markup

from fedloom.reports import gain_tables
from fedloom.reports.charts import Scale
from fedloom.reports.findings import Findings
from fedloom.reports.gains import Gains
from fedloom.reports.row_charts import Swarm, swarm_chart
from fedloom.reports.sections.parts import Styles, client_tip
from fedloom.reports.units import counted, plain, words


def who_gains(findings: Findings, styles: Styles) -> dict[str, Any]:
    """Every client against training alone, and what it should use."""
    gains, advice = findings.gains, findings.advice
    values: dict[str, Any] = {
        "findings": findings,
        "collection": findings.collection,
        "unit": findings.unit,
        "gains": gains,
        "advice": advice,
        "advised": _advised(findings),
    }
    if gains is not None:
        values["chart"] = _chart(findings, gains, styles)
        values["heavy"] = _heavy_work(gains)
        values["table"] = gain_tables.gains_table(findings)
    if gains is not None or advice is not None:
        values["clients"] = gain_tables.clients_table(findings)
    return values


def _chart(findings: Findings, gains: Gains, styles: Styles) -> Markup:
    unit, swarms = findings.unit, []
    for method, style in styles.items():
        gain = gains.of(method)
        if gain is None or gain.known == 0:
            continue
        tips = [
            client_tip(findings, who, unit.gap(float(value)))
            for who, value in zip(gains.who, gain.gain, strict=True)
        ]
        mean = float(np.nanmean(gain.gain))
        swarms.append(Swarm(method, style, gain.gain, tips, mean))
    described = "; ".join(
        f"{s.name}: {int((s.values > 0).sum())} gain, {int((s.values < 0).sum())} "
        f"lose, mean {unit.gap(s.mean)}"
        for s in swarms
    )
    points = f",{unit.points}" if unit.points else ""
    title = f"gain in {findings.metric} over {gains.baseline}{points}"
    return swarm_chart(
        swarms,
        "Gain of every client over training alone",
        described,
        Scale(title, unit.gap_tick),
        zero=0.0,
    )


def _heavy_work(gains: Gains) -> str:
    """Methods that took many more steps than the baseline."""
    heavy = [g for g in gains.methods if math.isfinite(g.work) and g.work > 1.5]
    return words([f"{plain(g.work)} times in {g.method}" for g in heavy], 9)


def _advised(findings: Findings) -> list[tuple[str, str, int]]:
    """Every method that is advised: to how many clients, and to how many surely."""
    advice = findings.advice
    if advice is None:
        return []
    clients = Counter(advice.method)
    sure = Counter(
        method
        for n, method in enumerate(advice.method)
        if advice.word(n) in ("clear", "likely")
    )
    return [
        (s.method, counted(clients[s.method], "client"), sure[s.method])
        for s in findings.ranking.standings
        if clients[s.method]
    ]
