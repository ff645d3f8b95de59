"""What drove every method: client logs, server logs and arrays."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from fedloom.reports.charts import Moment, small_lines
from fedloom.reports.findings import Findings
from fedloom.reports.gains import drivers as correlations
from fedloom.reports.gains import log_columns
from fedloom.reports.heat_map import block_mean, heat_map
from fedloom.reports.runs import Run
from fedloom.reports.sections.parts import PLACES, Styles
from fedloom.reports.svg import Style
from fedloom.reports.units import plain, signed
from fedloom.results.reader import thin


def drivers(findings: Findings, styles: Styles) -> dict[str, Any] | None:
    """What every method recorded."""
    methods = []
    for method, style in styles.items():
        run = findings.collection.first_run(method=method)
        if run is not None:
            meanings = {
                **(run.manifest.get("records") or {}),
                "train_loss": "Mean loss that the client's gradient steps met.",
                "steps": "Gradient steps of the client.",
                "gradients": "Samples that entered a gradient, each as often as it "
                "did: the client's work.",
            }
            meanings = {name: str(m).replace("`", "") for name, m in meanings.items()}
            cards = list(_cards(findings, run, style, meanings))
            matrices = list(_matrices(run, meanings))
            if cards or matrices:
                methods.append((method, cards, matrices))
    if not methods:
        return None
    return {
        "methods": methods,
        "seed": findings.collection.seeds[0],
        "pick": findings.pick,
    }


def _cards(
    findings: Findings, run: Run, style: Style, meanings: Mapping[str, str]
) -> Iterator[tuple[str, Markup, str]]:
    """Title, drawing and meaning of everything that was recorded over rounds."""
    related = {}
    if findings.gains is not None:
        related = correlations(findings.collection, findings.gains, run.method)
    for name, course in _courses(run).items():
        note, title = meanings.get(name, ""), name.replace("_", " ")
        if name in related:
            rho, clients = related[name]
            note += (
                f" Rank correlation with the gain {signed(rho)} ({clients} clients)."
            )
        drawing = small_lines(f"{run.method}: {title}", course, style, plain)
        yield title, drawing, note


def _courses(run: Run) -> dict[str, list[Moment]]:
    """Columns of the client log and scalars of the server log, over rounds."""
    courses: dict[str, list[Moment]] = defaultdict(list)
    for table in run.client_log:
        round_ = int(table["round"][0].as_py())
        for name, values in log_columns(table):
            known = values[np.isfinite(values)]
            if len(known):
                low, high = np.quantile(known, [0.1, 0.9]).tolist()
                courses[name].append(Moment(round_, float(known.mean()), low, high))
    logged = set(run.client_log[0].column_names) if run.client_log else set()
    for row in thin([row for row in run.rounds if row.server_log], PLACES):
        for name, value in row.server_log.items():
            if math.isfinite(value):
                key = f"{name} (server)" if name in logged else name
                courses[key].append(Moment(row.round, value, value, value))
    return courses


def _matrices(run: Run, meanings: Mapping[str, str]) -> Iterator[tuple[Markup, str]]:
    """Drawing and caption of every matrix that was recorded last."""
    round_, arrays = run.reader.arrays() or (0, {})
    names = _array_names(run, arrays)
    for name, values in arrays.items():
        if values.ndim != 2 or values.dtype.kind not in "fiub" or not values.size:
            continue
        small, rows, columns = block_mean(values.astype(float))
        if len(rows) == len(names) == values.shape[0]:
            rows = names
        if len(columns) == len(names) == values.shape[1]:
            columns = names
        known = small[np.isfinite(small)]
        if not len(known):
            continue
        shown = small.copy()
        if shown.shape[0] == shown.shape[1] and name == "similarity":
            np.fill_diagonal(shown, np.nan)
        low = min(0.0, float(known.min()))
        if np.nanmin(shown) > 0.5 * np.nanmax(shown):
            low = float(np.nanmin(shown))
        described = (
            f"values from {plain(float(known.min()))} to {plain(float(known.max()))}"
        )
        drawing = heat_map(
            shown,
            rows,
            columns,
            f"{run.method}: {name} at round {round_}",
            described,
            row_title="client",
            column_title="of client",
            show=plain,
            low=low,
        )
        yield (
            drawing,
            f"{name} at round {round_}: {described}. {meanings.get(name, '')}",
        )


def _array_names(run: Run, arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    if "clients" not in arrays or run.client_data is None:
        return []
    return [run.client_data.names[int(n)] for n in arrays["clients"]]
