"""Who gains, and what each client should use."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from fedloom.reports import report_tables
from fedloom.reports.charts import Swarm, swarm_chart
from fedloom.reports.findings import Findings
from fedloom.reports.sections.parts import Look, figure, more, safe
from fedloom.reports.units import plain, words


def who_gains(findings: Findings, look: Look) -> str:
    """Every client against training alone, and what it should use."""
    told, advice, unit = findings.gains, findings.advice, findings.unit
    body = ""
    if told is None:
        body = f'<p class="note">{escape(_how_to_gain(findings))}</p>'
    else:
        swarms = []
        for s in findings.ranking.standings:
            gain = told.of(s.method)
            if gain is None or gain.known == 0:
                continue
            several = len(findings.found.seeds) > 1
            tips = [
                (f"seed {w.seed}, " if w.seed is not None and several else "")
                + f"client {safe(w.name)}, {w.samples} samples: {unit.gap(float(g))}"
                for w, g in zip(told.who, gain.gain, strict=True)
            ]
            style = look.styles[s.method]
            mean = float(np.nanmean(gain.gain))
            swarms.append(Swarm(s.method, style, gain.gain, tips, mean, math.nan))
        described = "; ".join(
            f"{s.name}: {int((s.values > 0).sum())} gain, {int((s.values < 0).sum())} "
            f"lose, mean {unit.gap(s.mean)}"
            for s in swarms
        )
        points = f", {unit.points}" if unit.points else ""
        drawing = swarm_chart(
            swarms,
            "Gain of every client over training alone",
            described,
            x_title=f"gain in {findings.metric} over {told.baseline}{points}",
            show=unit.gap_tick,
            zero=0.0,
        )
        caption = (
            "Every dot is a client"
            + (
                ", its gain averaged over seeds."
                if told.has_same_clients and len(findings.found.seeds) > 1
                else " of one seed."
                if len(findings.found.seeds) > 1
                else "."
            )
            + " Right of zero it does better than alone. Upright line: mean."
        )
        chart = figure(drawing, caption)
        beside = _work_note(findings) + (_advice(findings) if advice else "")
        body += f'<div class="grid two">{chart}<div class="beside">{beside}</div></div>'
        body += report_tables.gains_table(findings, told).to_html("gains-table")
    if advice is not None and told is None:
        body += _advice(findings)
    if told is not None or advice is not None:
        table = report_tables.clients_table(findings, told, advice)
        who = told.who if told is not None else advice.who if advice is not None else ()
        body += more(f"All {len(who)} clients", table.to_html("clients-table"))
    return body


def _how_to_gain(findings: Findings) -> str:
    if not findings.found.is_paired:
        return (
            "The methods did not meet the same clients, so gains cannot be computed. "
            "Compare methods with fedloom compare, which deals the same clients to all."
        )
    if len(findings.found.methods) > 1 or len(findings.found.seeds) > 1:
        return (
            "Nothing was trained alone here, so nobody can say who gains. Add the "
            "method local to the comparison: fedloom compare local ..."
        )
    return (
        "Nothing was trained alone here. fedloom run ... --gain trains every client "
        "alone, too; fedloom compare local ... does so for several methods and seeds."
    )


def _work_note(findings: Findings) -> str:
    told = findings.gains
    assert told is not None
    heavy = [g for g in told.methods if math.isfinite(g.work) and g.work > 1.5]
    if not heavy:
        return ""
    named = words([f"{plain(g.work)} times in {g.method}" for g in heavy], 9)
    return (
        f'<p class="note">Local work differs: {escape(named)} the gradient steps of '
        f"{escape(told.baseline)}. Some of that gain may be the work rather than the "
        "federation; a baseline with as many epochs tells the two apart.</p>"
    )


def _advice(findings: Findings) -> str:
    advice, unit = findings.advice, findings.unit
    assert advice is not None
    tally: dict[str, list[int]] = {}
    for n, method in enumerate(advice.method):
        tally.setdefault(method, []).append(n)
    items = []
    for s in findings.ranking.standings:
        rows = tally.get(s.method)
        if not rows:
            continue
        sure = sum(advice.word(n) in ("clear", "likely") for n in rows)
        items.append(
            f"<li><b>{escape(s.method)}</b> to {len(rows)} "
            f"{'client' if len(rows) == 1 else 'clients'}, clearly or likely for {sure}"
            "</li>"
        )
    deciding = (
        "each client's own validation data"
        if advice.is_on_validation
        else "the reported data themselves, for want of validation data, so it "
        "flatters itself"
    )
    followed = ""
    if advice.followed.count:
        gap = advice.against_pick
        points = f" {unit.points}" if unit.points else ""
        followed = (
            f" Following it, the average client would be at "
            f"{unit.score(advice.followed.mean)} on {findings.part} data, "
            f"{unit.gap_estimate(gap.difference)}{points} against everybody using "
            f"{findings.ranking.pick}."
        )
    return (
        "<h3>What each client should use</h3>"
        f"<p>Decided on {escape(deciding)}, training alone included."
        f"{escape(followed)}</p>"
        f'<ul class="advice">{"".join(items)}</ul>'
    )
