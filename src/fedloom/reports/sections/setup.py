"""Data, cost and settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedloom.reports import run_tables
from fedloom.reports.findings import Findings
from fedloom.reports.heat_map import SIDE, heat_map
from fedloom.reports.runs import Run
from fedloom.reports.sections.parts import Styles
from fedloom.reports.units import plain
from fedloom.results.directory import COMPARISON
from fedloom.results.reader import ClientData, thin


def data(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    """Who held what, in the first seed."""
    runs = findings.collection.runs.values()
    run = findings.collection.first_run() or next(iter(runs), None)
    if run is None or run.client_data is None:
        return None
    held = run.client_data
    order = np.argsort(-held.sizes, kind="stable").tolist()
    shown = thin(order, SIDE)
    labels = held.labels[shown].astype(float)
    classes = list(held.classes)
    caption = "Training samples by class, largest clients first."
    if labels.shape[1] == 0:
        caption = "Training samples, largest clients first."
    if labels.shape[1] > SIDE:
        blocks = np.array_split(np.arange(labels.shape[1]), SIDE)
        labels = np.stack([labels[:, block].sum(1) for block in blocks], 1)
        classes = [str(block[0]) for block in blocks]
        caption += " Neighbouring classes are added up."
    if len(shown) < len(order):
        caption += f" {len(shown)} of {len(order)} clients, evenly by rank."
    facts = dict(_facts(findings, run, held))
    drawing = heat_map(
        np.sqrt(labels),
        [held.names[n] for n in shown],
        classes,
        "Training data of every client",
        "; ".join(f"{name}: {value}" for name, value in facts.items()),
        row_title="client",
        column_title="class" if classes else "",
        show=lambda v: f"{v * v:.0f}",
        bars=held.sizes[shown].astype(float),
        raw=labels,
    )
    return {"drawing": drawing, "caption": caption, "facts": facts}


def _facts(findings: Findings, run: Run, held: ClientData) -> Iterator[tuple[str, str]]:
    sizes, classes = held.sizes, held.labels.shape[1]
    yield "dataset", str(run.manifest["dataset"])
    yield "clients", str(len(sizes))
    yield "training samples", f"{int(sizes.sum()):,}"
    middle = plain(float(np.median(sizes)))
    yield "smallest, median, largest client", f"{sizes.min()}, {middle}, {sizes.max()}"
    if classes:
        own = (held.labels > 0).sum(1)
        span = " to ".join(str(n) for n in dict.fromkeys((own.min(), own.max())))
        yield "classes of a client", f"{span} of {classes}"
    if held.teams.any():
        yield "teams", str(len(set(held.teams.tolist())))
    if findings.collection.has_seeds:
        yield (
            f"shown is seed {run.seed}",
            "clients hold the same samples in every seed"
            if findings.collection.has_same_clients
            else "every seed divides the data anew",
        )


def cost(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    """What a run took."""
    if not findings.collection.counted:
        return None
    return {"table": run_tables.cost_table(findings)}


def setup(findings: Findings, styles: Styles) -> dict[str, Any]:
    """Settings, and the commands that give the same numbers."""
    return {
        "commands": list(_commands(findings)),
        "source": findings.collection.source,
        "settings": run_tables.settings_table(findings),
        "common": run_tables.common_table(findings),
    }


def _commands(findings: Findings) -> Iterator[str]:
    collection = findings.collection
    if collection.source:
        file = shlex.quote(str(collection.paths[0] / COMPARISON))
        yield f"fedloom compare {file} --out runs/again"
    else:
        for run in list(collection.runs.values())[:20]:
            if run.manifest.get("is_own"):
                yield f"# {run.path}: made from Python with its own model"
            else:
                file = shlex.quote(str(run.reader.files.config))
                yield f"fedloom run {file} --out runs/again"
    paths = " ".join(shlex.quote(str(path)) for path in collection.paths)
    yield f"fedloom report {paths}  # this page"
