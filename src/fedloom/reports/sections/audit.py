"""What attacks on the runs came to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fedloom.reports.audit_tables import (
    AUC,
    audit_tables,
    decibels,
    sample_table,
    seen,
)
from fedloom.reports.axes import Scale
from fedloom.reports.findings import Findings
from fedloom.reports.held_out import Who
from fedloom.reports.png import png_uri
from fedloom.reports.row_charts import Swarm, swarm_chart
from fedloom.reports.runs import Run
from fedloom.reports.sections.parts import Styles
from fedloom.results.audit import Audit, Inversions

_GUESSING = 0.5
"""The AUC of somebody who knows nothing."""


class Picture(NamedTuple):
    """A sample, true or reconstructed."""

    uri: str
    about: str


class Strip(NamedTuple):
    """Pictures of the same samples."""

    title: str
    pictures: list[Picture]


def audit(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    """Attacks on every run that was audited; None if none was."""
    runs = {
        run_name(findings, run): (run, run.audit)
        for run in findings.collection.runs.values()
        if run.audit is not None
    }
    if not runs:
        return None
    audits = {name: found for name, (_, found) in runs.items() if found is not None}
    inversions = [
        (name, found.inversions)
        for name, found in audits.items()
        if found.inversions is not None
    ]
    return {
        "tables": list(audit_tables(audits)),
        "chart": _chart(runs, styles),
        "strips": {name: _strips(own) for name, own in inversions if own.is_picture},
        "rows": [table for _, own in inversions if (table := sample_table(own))],
        "remarks": list(_remarks(audits)),
    }


def run_name(findings: Findings, run: Run) -> str:
    """What a table calls a run: its method, and its seed if there are several."""
    if not findings.collection.has_seeds:
        return run.method
    return f"{run.method}, seed {run.seed}"


def _remarks(audits: Mapping[str, Audit]) -> dict[str, None]:
    several = len(audits) > 1
    return {
        f"{name}: {remark}" if several else remark: None
        for name, found in audits.items()
        for remark in found.remarks
    }


def _chart(
    runs: Mapping[str, tuple[Run, Audit | None]], styles: Styles
) -> Markup | None:
    """How exposed each client is, for every kind of model of every run."""
    swarms = []
    for name, (run, found) in runs.items():
        for own in found.membership if found is not None else ():
            values = np.array(own.clients)
            if not np.isfinite(values).any() or run.method not in styles:
                continue
            clients = _clients(run, len(values))
            tips = [
                f"client {c.name}: {AUC.score(c_auc)}"
                for c, c_auc in zip(clients, own.clients, strict=True)
            ]
            label = f"{name}, {own.kind}"
            mean = float(np.nanmean(values))
            swarms.append(Swarm(label, styles[run.method], values, clients, tips, mean))
    if not swarms:
        return None
    described = "; ".join(f"{s.name}: mean {AUC.score(s.mean)}" for s in swarms)
    return swarm_chart(
        swarms,
        "How well training samples of each client are found",
        described,
        Scale("AUC of membership inference", AUC.tick, (0.0, 1.0)),
        zero=_GUESSING,
    )


def _clients(run: Run, count: int) -> list[Who]:
    held = run.client_data
    if held is None or len(held.names) != count:
        return [Who(str(n), None, 0) for n in range(count)]
    pairs = zip(held.names, held.sizes.tolist(), strict=True)
    return [Who(name, None, size) for name, size in pairs]


def _strips(inversions: Inversions) -> list[Strip]:
    """The true samples, and below them what each attack made of them."""
    shape = inversions.shape
    true = [
        Picture(png_uri(np.reshape(x, shape)), "a sample") for x in inversions.truth
    ]
    strips = [Strip("true", true)]
    for case in inversions.cases:
        about = f"reconstructed from {seen(case)}"
        pictures = [Picture(png_uri(np.reshape(x, shape)), about) for x in case.guesses]
        level = decibels(case.psnr).text
        unit = "" if math.isclose(case.psnr, 100.0) else " dB"
        strips.append(Strip(f"{seen(case)}: {level}{unit}", pictures))
    return [strip for strip in strips if strip.pictures]
