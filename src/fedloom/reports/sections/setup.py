"""Data, cost and settings."""

from __future__ import annotations

import shlex
from html import escape

import numpy as np

from fedloom.reports import report_tables
from fedloom.reports.charts import heat_map
from fedloom.reports.findings import Findings
from fedloom.reports.runs import Run
from fedloom.reports.sections.parts import SIDE, Look, figure, more
from fedloom.reports.units import plain


def data(findings: Findings, look: Look) -> str:
    """Who held what, in the first seed."""
    run = findings.found.first_run() or next(iter(findings.found.runs.values()), None)
    if run is None or run.shares is None:
        return ""
    shares = run.shares
    order = np.argsort(-shares.sizes, kind="stable")
    places = np.linspace(0, len(order) - 1, min(len(order), SIDE)).round()
    shown = order[np.unique(places.astype(int))]
    caption = "Training samples by class, largest clients first."
    labels = shares.labels[shown].astype(float)
    classes = list(shares.classes)
    if labels.shape[1] == 0:
        caption = "Training samples, largest clients first."
    if labels.shape[1] > SIDE:
        blocks = np.array_split(np.arange(labels.shape[1]), SIDE)
        labels = np.stack([labels[:, block].sum(1) for block in blocks], 1)
        classes = [str(block[0]) for block in blocks]
        caption += " Neighbouring classes are added up."
    if len(shown) < len(order):
        caption += f" {len(shown)} of {len(order)} clients, evenly by rank."
    drawing = heat_map(
        np.sqrt(labels),
        [shares.names[n] for n in shown],
        classes,
        "Training data of every client",
        "; ".join(f"{name}: {value}" for name, value in _data_facts(findings, run)),
        row_title="client",
        column_title="class" if classes else "",
        show=lambda v: f"{v * v:.0f}",
        bars=shares.sizes[shown].astype(float),
    )
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in _data_facts(findings, run)
    )
    return (
        f'<div class="grid two">{figure(drawing, caption)}'
        f'<dl class="facts">{facts}</dl></div>'
    )


def _data_facts(findings: Findings, run: Run) -> list[tuple[str, str]]:
    shares = run.shares
    assert shares is not None
    sizes = shares.sizes
    facts = [
        ("dataset", str(run.manifest["dataset"])),
        ("clients", str(len(sizes))),
        ("training samples", f"{int(sizes.sum()):,}"),
        (
            "smallest, median, largest client",
            f"{sizes.min()}, {plain(float(np.median(sizes)))}, {sizes.max()}",
        ),
    ]
    if shares.labels.shape[1]:
        held = (shares.labels > 0).sum(1)
        facts.append(
            (
                "classes of a client",
                f"{held.min()} to {held.max()} of {shares.labels.shape[1]}",
            )
        )
    if shares.teams.any():
        facts.append(("teams", str(len(set(shares.teams.tolist())))))
    if len(findings.found.seeds) > 1:
        same = findings.found.has_same_clients
        facts.append(
            (
                f"shown is seed {run.seed}",
                "clients hold the same samples in every seed"
                if same
                else "every seed divides the data anew",
            )
        )
    return facts


def cost(findings: Findings, look: Look) -> str:
    """What a run took."""
    if not findings.found.counted:
        return ""
    return report_tables.cost_table(findings).to_html("cost-table")


def setup(findings: Findings, look: Look) -> str:
    """Settings, and the commands that give the same numbers."""
    found = findings.found
    commands = []
    if found.source:
        file = shlex.quote(str(found.paths[0] / "compare.toml"))
        commands.append(f"fedloom compare {file} --out runs/again")
    else:
        for run in list(found.runs.values())[:20]:
            if run.manifest.get("is_own"):
                commands.append(f"# {run.path}: made from Python with its own model")
            else:
                file = shlex.quote(str(run.path / "config.toml"))
                commands.append(f"fedloom run {file} --out runs/again")
    given = " ".join(shlex.quote(str(path)) for path in found.paths)
    commands.append(f"fedloom report {given}  # this page")
    text = escape("\n".join(commands))
    body = (
        "<h3>Run it again</h3>"
        f'<div class="command"><pre tabindex="0"><code>{text}</code></pre>'
        '<button type="button" data-copy>Copy</button></div>'
    )
    if found.source:
        body += more(
            "compare.toml",
            f'<pre tabindex="0"><code>{escape(found.source)}</code></pre>',
        )
    body += report_tables.settings_table(findings).to_html(
        "settings-table", is_sortable=False
    )
    common = report_tables.common_table(findings).to_html(
        "common-table", is_sortable=False
    )
    return body + more("Settings of all runs, versions and machine", common)
