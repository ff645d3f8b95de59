"""What drove every method: its notes, accounts and arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

import numpy as np
from numpy.typing import NDArray

from fedloom.reports.charts import block_mean, heat_map, small_lines
from fedloom.reports.findings import Findings
from fedloom.reports.gains import drivers as correlations
from fedloom.reports.runs import Run
from fedloom.reports.sections.parts import SIDE, Look, figure, thin
from fedloom.reports.svg import Style
from fedloom.reports.units import plain, signed


def drivers(findings: Findings, look: Look) -> str:
    """What every method recorded."""
    parts = []
    for s in findings.ranking.standings:
        run = findings.found.first_run(method=s.method)
        if run is None:
            continue
        body = _recorded(findings, run, look.styles[s.method])
        if body:
            is_open = " open" if s.method == findings.ranking.pick else ""
            parts.append(
                f'<details class="method"{is_open}><summary>{escape(s.method)}'
                f"</summary>{body}</details>"
            )
    if not parts:
        return ""
    seed = findings.found.seeds[0]
    note = (
        f"Of seed {seed}, or the first that finished. Lines are means over the clients "
        "of a round, bands go from the tenth to the ninetieth percentile."
    )
    return f'<p class="note">{note}</p>{"".join(parts)}'


def _recorded(findings: Findings, run: Run, style: Style) -> str:
    meanings = dict(run.manifest.get("records") or {})
    meanings |= {
        "train_loss": "Mean loss that the client's gradient steps met.",
        "steps": "Gradient steps of the client.",
    }
    related = (
        correlations(findings.found, findings.gains, run.method)
        if findings.gains is not None
        else {}
    )
    cards = []
    for name, (rounds, middle, low, high) in _columns(run).items():
        if not any(math.isfinite(v) for v in middle):
            continue
        note = meanings.get(name, "").replace("`", "")
        if name in related:
            rho, many = related[name]
            note += f" Rank correlation with the gain {signed(rho)} ({many} clients)."
        title = name.replace("_", " ")
        drawing = small_lines(
            f"{run.method}: {title}", rounds, middle, low, high, style, plain
        )
        cards.append(
            f'<figure class="card"><h3>{escape(title)}</h3>{drawing}'
            f"<figcaption>{escape(note)}</figcaption></figure>"
        )
    body = f'<div class="grid small">{"".join(cards)}</div>' if cards else ""
    return body + _matrices(run, meanings)


def _columns(
    run: Run,
) -> dict[str, tuple[list[int], list[float], list[float], list[float]]]:
    """Columns of notes and scalars of the account, over rounds."""
    found: dict[str, tuple[list[int], list[float], list[float], list[float]]] = {}

    def add(name: str, number: int, middle: float, low: float, high: float) -> None:
        lists = found.setdefault(name, ([], [], [], []))
        for own, value in zip(lists[1:], (middle, low, high), strict=True):
            own.append(value)
        lists[0].append(number)

    for table in run.client_log:
        number = int(table["round"][0].as_py()) if table.num_rows else 0
        for name in table.column_names:
            values = np.asarray(table[name].to_numpy(zero_copy_only=False))
            if name in ("round", "client") or values.dtype.kind not in "fiub":
                continue
            values = values.astype(float)
            values = values[np.isfinite(values)]
            if len(values):
                low, high = np.quantile(values, [0.1, 0.9])
                add(name, number, float(values.mean()), float(low), float(high))
    scalars = [row for row in run.rounds if row.server_log]
    kept = set(thin([row.round for row in scalars]))
    for row in scalars:
        for name, value in row.server_log.items():
            if row.round in kept and math.isfinite(value):
                key = name if name not in _note_names(run) else f"{name} (server)"
                add(key, row.round, value, value, value)
    return found


def _note_names(run: Run) -> set[str]:
    return set(run.client_log[0].column_names) if run.client_log else set()


def _matrices(run: Run, meanings: Mapping[str, str]) -> str:
    recorded = run.arrays()
    if recorded is None:
        return ""
    number, arrays = recorded
    names = _array_names(run, arrays)
    drawn = []
    for name, values in arrays.items():
        if values.ndim != 2 or values.dtype.kind not in "fiub" or not values.size:
            continue
        small, rows, columns = block_mean(values.astype(float), SIDE)
        if len(rows) == len(names) == values.shape[0]:
            rows = names
        if len(columns) == len(names) == values.shape[1]:
            columns = names
        known = small[np.isfinite(small)]
        if not len(known):
            continue
        off = small.copy()
        if off.shape[0] == off.shape[1] and name == "similarity":
            np.fill_diagonal(off, np.nan)
        low = min(0.0, float(known.min()))
        if np.nanmin(off) > 0.5 * np.nanmax(off):
            low = float(np.nanmin(off))
        described = (
            f"values from {plain(float(known.min()))} to {plain(float(known.max()))}"
        )
        drawing = heat_map(
            off,
            rows,
            columns,
            f"{run.method}: {name} at round {number}",
            described,
            row_title="client",
            column_title="of client",
            show=plain,
            low=low,
        )
        meaning = meanings.get(name, "").replace("`", "")
        caption = f"{name} at round {number}: {described}. {meaning}"
        drawn.append(figure(drawing, caption))
    return f'<div class="grid two">{"".join(drawn)}</div>' if drawn else ""


def _array_names(run: Run, arrays: Mapping[str, NDArray[np.float64]]) -> list[str]:
    if "clients" not in arrays or run.last is None:
        return []
    return [run.last.names[int(n)] for n in arrays["clients"]]
