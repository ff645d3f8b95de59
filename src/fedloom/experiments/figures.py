"""Figures of experiments, drawn from what is stored: SVG that stands alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from fedloom.experiments.experiment import Experiment, Figure, Unit
from fedloom.experiments.stored import StoredUnit
from fedloom.reports.axes import Scale
from fedloom.reports.charts import WIDTH, Curve, line_chart
from fedloom.reports.svg import Style, element, text

_HEIGHT, _LINE, _TOP = 300.0, 18.0, 26.0
_LETTER = 6.6
_COLOURS = (
    *("#5166ed", "#e06c32", "#14a36c", "#864895", "#094068"),
    *("#ca5eb4", "#691c3b", "#ae5513", "#15624f", "#664509"),
)
_STYLE = (
    "text{font:12px sans-serif;fill:#55595f}.title,.who{fill:#1b1c1e}"
    ".title{font-weight:600}.grid{stroke:#e4e1da;fill:none}"
    ".axis,.leader{stroke:#55595f;fill:none}.leader{opacity:.4}"
    ".line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}"
    ".band{fill:var(--c);opacity:.14}.mark{fill:var(--c);stroke:#fff}"
    ".mark.open{fill:none;stroke:var(--c);stroke-width:2}.beyond{fill:var(--c)}"
) + "".join(f".c{n}{{--c:{colour}}}" for n, colour in enumerate(_COLOURS))
"""The colours of the report on white paper: a page shows the drawing as a picture."""

_X_TITLES = {
    "round": "round",
    "steps": "local steps of the average client",
    "uploads": "uploads of the average client",
}


def draw(
    experiment: Experiment, units: Mapping[str, StoredUnit], figure: Figure
) -> str | None:
    """A figure as SVG; None if nothing of it is stored.

    Args:
        experiment: whose it is.
        units: what is stored.
        figure: what to draw.
    """
    curves = list(_curves(experiment, units, figure))
    if not curves:
        return None
    x, y = _scales(experiment, figure)
    best_first = sorted(curves, key=lambda curve: -curve.y[-1])
    chart = line_chart(best_first, figure.title, "", x, y)
    return _standing_alone(chart, figure.title, curves)


def _curves(
    experiment: Experiment, units: Mapping[str, StoredUnit], figure: Figure
) -> Iterator[Curve]:
    for n, arm in enumerate(figure.arms or experiment.arms):
        stored = units.get(str(Unit(figure.setting, arm)))
        if stored is None:
            continue
        way = _way(experiment, stored, figure)
        if way is not None and len(way[0]) > 1:
            x, y, error = way
            label = experiment.arms[arm].label
            yield Curve(label, Style(n), x, y, error, [""] * len(x))


Way = tuple[Sequence[float], Sequence[float], Sequence[float]]


def _way(experiment: Experiment, stored: StoredUnit, figure: Figure) -> Way | None:
    """Places of a curve: x, y and half the height of its band."""
    percent = 100.0 if experiment.unit == "percent" else 1.0
    if figure.kind == "lines":
        seeds = [
            own
            for own in stored.curves.get(experiment.numbers[figure.number].of, [])
            if own
        ]
        if not seeds:
            return None
        values = np.array(
            [[math.nan if v is None else v for v in own] for own in seeds]
        )
        scale = percent if "accuracy" in experiment.numbers[figure.number].of else 1.0
        x = stored.rounds if figure.x == "round" else stored.spent[figure.x]
        error = (
            values.std(axis=0, ddof=1) / len(values) ** 0.5
            if len(values) > 1
            else values[0] * math.nan
        )
        return list(x), (scale * values.mean(axis=0)).tolist(), (scale * error).tolist()
    drawn = stored.drawn.get(figure.title)
    if drawn is None:
        return None
    if figure.kind == "sizes":
        errors = [math.nan if e is None else percent * e for e in drawn["errors"]]
        return drawn["sizes"], [percent * v for v in drawn["scores"]], errors
    if figure.kind == "log":
        x, y = drawn["rounds"], drawn["values"]
    else:
        edges = drawn["edges"]
        scale = percent if figure.kind == "histogram" else 1.0
        x = [scale * (a + b) / 2 for a, b in pairwise(edges)]
        total = sum(drawn["counts"])
        y = [100 * count / total for count in drawn["counts"]]
    return x, y, [math.nan] * len(x)


def _scales(experiment: Experiment, figure: Figure) -> tuple[Scale, Scale]:
    def show(value: float) -> str:
        return f"{value:g}"

    if figure.kind == "lines":
        number = experiment.numbers[figure.number].of
        title = f"{figure.number}, %" if "accuracy" in number else figure.number
        return Scale(_X_TITLES[figure.x], show), Scale(title, show)
    if figure.kind == "sizes":
        return Scale("training samples", show), Scale(f"{figure.number}, %", show)
    if figure.kind == "log":
        return Scale("round", show), Scale(figure.log, show)
    title = f"{figure.number}, %" if figure.kind == "histogram" else figure.log
    return Scale(title, show), Scale("share of the clients, %", show)


def _standing_alone(chart: Markup, title: str, curves: Sequence[Curve]) -> str:
    """A chart of the report with its colours, title and legend in one file."""
    inner = re.sub(r' data-(csv|axes|tips|method|along)="[^"]*"', "", chart)
    inner = re.sub(r'<g class="end".*?</g>', "", inner, flags=re.DOTALL)
    size = f'x="0" y="{_TOP:g}" width="{WIDTH:g}" height="{_HEIGHT:g}"'
    inner = inner.replace('<svg class="chart"', f'<svg {size} class="chart"', 1)
    legend, x, y = Markup(), 8.0, _TOP + _HEIGHT + 8
    for curve in curves:
        width = 40 + _LETTER * len(curve.name)
        if x + width > WIDTH and x > 8:
            x, y = 8.0, y + _LINE
        sign = element(
            "path",
            class_="line",
            d=f"M{x:g} {y:g}h24",
            stroke_dasharray=curve.style.dash or None,
        )
        mark = curve.style.mark(x + 12, y)
        name = text(x + 30, y + 4, curve.name, kind="who")
        legend += element("g", sign, mark, name, class_=curve.style.css)
        x += width
    height = y + _LINE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" '
        f'width="{1.4 * WIDTH:g}" height="{1.4 * height:g}" role="img">'
        f"<style>{_STYLE}</style>"
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f"{text(8, 16, title, kind='title')}{inner}{legend}</svg>\n"
    )
