"""Who gains, and what each client should use."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from markupsafe import Markup

from fedloom.core.wording import counted
from fedloom.reports import gain_tables
from fedloom.reports.axes import Scale
from fedloom.reports.cells import is_sure
from fedloom.reports.findings import Findings
from fedloom.reports.gains import Gains
from fedloom.reports.row_charts import Swarm, swarm_chart
from fedloom.reports.sections.parts import Styles, client_tip


def who_gains(findings: Findings, styles: Styles) -> dict[str, Any]:
    """Every client against training alone, and what it should use."""
    gains, advice = findings.gains, findings.advice
    values: dict[str, Any] = {
        "findings": findings,
        "collection": findings.collection,
        "unit": findings.unit,
        "gains": gains,
        "dots": _dots(findings),
        "advice": advice,
        "advised": _advised(findings),
    }
    if gains is not None:
        values["chart"] = _chart(findings, gains, styles)
        values["table"] = gain_tables.gains_table(findings)
    if gains is not None or advice is not None:
        values["clients"] = gain_tables.clients_table(findings)
    return values


def _dots(findings: Findings) -> str:
    """What the dots are, never more clients than there are."""
    collection, clients = findings.collection, len(findings.who)
    seeds = counted(len(collection.seeds), "seed")
    if not collection.has_seeds:
        return f"Every dot is one of {clients} clients"
    if collection.has_same_clients:
        return f"Every dot is one of {clients} clients, over {seeds}"
    each = clients // len(collection.seeds)
    return f"Every dot is a client of one of {seeds}, about {each} clients in each"


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
        swarms.append(
            Swarm(
                method,
                style,
                gain.gain,
                gains.who,
                tips,
                mean,
                is_sure=is_sure(gain.gain, gain.error),
            )
        )
    described = "; ".join(
        f"{s.name}: {int((s.values > 0).sum())} gain, {int((s.values < 0).sum())} "
        f"lose, mean {unit.gap(s.mean)}"
        for s in swarms
    )
    points = f",{unit.points}" if unit.points else ""
    title = f"gain in {findings.metric} over {gains.reference}{points}"
    return swarm_chart(
        swarms,
        "Gain of every client over training alone",
        described,
        Scale(title, unit.gap_tick, notation="points" if unit.is_share else "gap"),
        zero=0.0,
    )


def _advised(findings: Findings) -> list[tuple[str, str]]:
    """Every method that suits some client best, and how surely it does."""
    advice = findings.advice
    if advice is None:
        return []
    clients = Counter(advice.method)
    sure = Counter(m for n, m in enumerate(advice.method) if advice.word(n) == "clear")
    return [
        (s.method, _how_many(clients[s.method], sure[s.method]))
        for s in findings.ranking.standings
        if clients[s.method]
    ]


def _how_many(clients: int, sure: int) -> str:
    """`31 clients, for none of them beyond chance`."""
    text = f"for {counted(clients, 'client')}"
    if clients == 1:
        return text + (", beyond chance" if sure else ", which may be chance")
    if sure == clients:
        return f"{text}, for all of them beyond chance"
    return f"{text}, for {sure or 'none'} of them beyond chance"
