"""What a split looks like: a summary, a drawing for the terminal, and one in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from fedloom.clients.federation import Federation
from fedloom.core.streams import generator
from fedloom.core.wording import percent

SHADES = " ░▒▓█"
"""How much of a client's data is of a class: nothing, then up to each of `LEVELS`."""
LEVELS = (0.1, 0.3, 0.6, 1.0)
_MOST_COLUMNS = 50
_BAR = 24
_BINS = 10


class Heat(NamedTuple):
    """Clients and classes as they are drawn, perhaps not all of the former."""

    clients: NDArray[np.int64]
    """(rows,) which clients are shown."""
    names: tuple[str, ...]
    """(rows,) what they are called."""
    sizes: NDArray[np.int64]
    """(rows,) their training samples."""
    shares: NDArray[np.float64]
    """(rows, columns) share of a client's training samples; no columns without
    classes."""
    labels: tuple[str, ...]
    """(columns,) the class, or the first one of several neighbours."""


def heat(federation: Federation, most_rows: int) -> Heat:
    """All clients, or so many drawn at random; neighbouring classes joined.

    Every n-th client would hide a pattern that repeats, such as consecutive classes.
    """
    count = federation.count
    rows = np.arange(count)
    if count > most_rows:
        draw = generator(0, "picture")
        rows = np.sort(draw.choice(count, most_rows, replace=False))
    counts = federation.label_counts()[rows]
    classes = counts.shape[1]
    starts = np.arange(classes)
    if classes > _MOST_COLUMNS:
        starts = np.unique(np.linspace(0, classes, _MOST_COLUMNS + 1)[:-1].astype(int))
    joined = counts if not classes else np.add.reduceat(counts, starts, axis=1)
    sizes, names = federation.sizes[rows], [federation.names[row] for row in rows]
    labels = tuple(str(start) for start in starts)
    return Heat(rows, tuple(names), sizes, joined / sizes[:, None], labels)


def histogram(sizes: NDArray[np.int64]) -> list[tuple[int, int, int]]:
    """(least, most, clients) of a few bins of sizes, of equal ratio if they vary much.

    Every size lies in one bin; bins without any whole number are left out.
    """
    low, high = int(sizes.min()), int(sizes.max())
    space = np.geomspace if high > 20 * low else np.linspace
    edges = space(low, high + 1, _BINS + 1)
    starts = np.unique(np.round(edges).astype(np.int64))
    return [
        (int(start), int(stop) - 1, int(((sizes >= start) & (sizes < stop)).sum()))
        for start, stop in pairwise(starts)
    ]


def summarise(federation: Federation) -> list[tuple[str, str]]:
    """What there is to know of a split, as pairs of a name and a value."""
    data, sizes = federation.dataset, federation.sizes
    names = ("train", "validation", "test")
    totals = ", ".join(
        f"{len(part.indices):,} {name}"
        for name, part in zip(names, federation.parts, strict=True)
    )
    if federation.shares_test:
        tested = len(np.unique(federation.test.indices))
        totals += f" ({tested:,} different, shared)"
    quantiles = np.quantile(sizes, [0.0, 0.25, 0.5, 0.75, 1.0])
    rows = [
        ("data", f"{data.name}, {len(data):,} samples"),
        ("classes", "none (regression)" if data.classes is None else str(data.classes)),
        ("clients", f"{federation.count:,}"),
        ("samples", totals),
        (
            "training samples of a client",
            "least {:,.0f}, quartiles {:,.0f} / {:,.0f} / {:,.0f}, most {:,.0f}, "
            "mean {:,.1f}, sd {:,.1f}".format(*quantiles, sizes.mean(), sizes.std()),
        ),
    ]
    if data.classes is not None:
        held = (federation.label_counts() > 0).sum(axis=1)
        spread = f"least {held.min()}, median {np.median(held):g}, most {held.max()}"
        rows.append(("classes of a client", spread))
    untested = int((federation.test.sizes == 0).sum())
    if untested:
        rows.append(("without test samples", f"{untested:,} clients, left unscored"))
    teams = len(np.unique(federation.teams))
    if teams > 1:
        rows.append(("teams", str(teams)))
    if federation.transform:
        rows.append(("transform", federation.transform))
    return [*rows, ("hash", federation.hash)]


def draw(federation: Federation, rows: int = 40) -> list[Text]:
    """The split in lines of text: a client's labels in shades, its size as a bar.

    Args:
        federation: What is drawn.
        rows: Clients that are shown at most.
    """
    shown, sizes = heat(federation, rows), federation.sizes
    cell = 2 if len(shown.labels) <= 20 else 1
    margin = min(max(len(name) for name in [*shown.names, "client"]), 16)
    # Two digits fill a cell of two, so that only every other class can be numbered.
    every = 1 if len(shown.labels) <= 10 else 2
    head = "".join(
        f"{label if n % every == 0 else '':>2}" if cell == 2 else label[-1]
        for n, label in enumerate(shown.labels)
    )
    digits, largest = len(f"{sizes.max():,}"), int(shown.sizes.max())
    lines = [Text(f"{'client':>{margin}} {head}  {'samples'}", style="bold")]
    for name, size, shares in zip(shown.names, shown.sizes, shown.shares, strict=True):
        line = Text(f"{name[:margin]:>{margin}} ")
        for share in shares:
            level = _level(share)
            line.append(SHADES[level] * cell if level else "·".rjust(cell), "cyan")
        line.append(f"  {size:>{digits},} ")
        line.append(_bar(size, largest), "green")
        lines.append(line)
    if len(shown.names) < federation.count:
        lines.append(Text(_how_many(shown, federation), "dim"))
    if shown.labels:
        shades = ", ".join(
            f"{shade} up to {percent(level)}"
            for shade, level in zip(SHADES[1:], LEVELS, strict=True)
        )
        lines.append(Text(f"share of a client's training samples: {shades}", "dim"))
    bins = histogram(sizes)
    lines += [Text(""), Text("training samples: clients", style="bold")]
    for least, most, clients in bins:
        line = Text(f"{least:>{digits},} to {most:>{digits},} ")
        line.append(_bar(clients, max(n for *_, n in bins)), "green")
        line.append(f" {clients:,}")
        lines.append(line)
    return lines


def to_svg(federation: Federation, rows: int = 200) -> str:
    """The same drawing as an SVG of its own, light on dark where that is preferred.

    Args:
        federation: What is drawn.
        rows: Clients that are shown at most.
    """
    shown = heat(federation, rows)
    count, columns = len(shown.clients), len(shown.labels)
    high = min(max(480 // count, 3), 16)
    wide = min(max(360 // max(columns, 1), 6), 24)
    left, top, largest = 90, 64, int(shown.sizes.max())
    bars = left + columns * wide + (12 if columns else 0)
    bottom = top + count * high
    total = f"{federation.count:,} clients, {federation.sizes.sum():,} training samples"
    body = [
        _text(left, 24, f"{federation.dataset.name}: {total}", "title"),
        _text(left, 44, "class" if columns else "", "note"),
        _text(bars, 44, f"training samples, up to {largest:,}", "note"),
    ]
    if count < federation.count:
        bottom += 18
        body.append(_text(left, bottom, _how_many(shown, federation), "note"))
    for column in range(0, columns, max(1, -(-14 // wide))):
        x = left + column * wide + wide / 2
        body.append(_text(x, top - 4, shown.labels[column], "tick"))
    for row in range(0, count, max(1, -(-14 // high))):
        y = top + row * high + high / 2 + 4
        body.append(_text(left - 6, y, shown.names[row][:12], "name"))
    body += _cells(shown.shares, left, top, wide, high)
    gap = 1 if high > 4 else 0
    boxes = [
        (bars, top + row * high, max(1, round(160 * size / largest)), high - gap)
        for row, size in enumerate(shown.sizes)
    ]
    body.append(_boxes(boxes, 'class="bar"'))
    body.append(_text(left, bottom + 36, "clients by training samples", "note"))
    bins = histogram(federation.sizes)
    most = max(clients for *_, clients in bins)
    for place, (least, last, clients) in enumerate(bins):
        y = bottom + 46 + 18 * place
        length = round(200 * clients / most)
        body.append(_text(left + 60, y + 12, f"{least:,} to {last:,}", "name"))
        body.append(_boxes([(left + 70, y, length, 14)], 'class="bar"'))
        body.append(_text(left + 76 + length, y + 12, f"{clients:,}", "note"))
    width = max(bars + 180, left + 340)
    height = bottom + 46 + 18 * len(bins) + 12
    description = "; ".join(f"{what}: {value}" for what, value in summarise(federation))
    return _PAPER.format(
        width=width,
        height=height,
        title=f"How {escape(federation.dataset.name)} is divided among "
        f"{federation.count} clients",
        description=escape(description),
        style=_STYLE,
        body="\n".join(body),
    )


_PAPER = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" \
width="{width}" height="{height}" role="img" aria-labelledby="title desc">
<title id="title">{title}</title>
<desc id="desc">{description}</desc>
<style>{style}</style>
<rect class="paper" width="{width}" height="{height}"/>
{body}
</svg>
"""
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1c1c1c}"
    ".title{font-weight:600;font-size:14px}"
    ".name{text-anchor:end}.tick{text-anchor:middle}"
    ".paper{fill:#fff}.cell{fill:#0b57a4}.bar{fill:#3f7d4e}"
    "@media(prefers-color-scheme:dark){text{fill:#e8e8e8}.paper{fill:#16181b}"
    ".cell{fill:#6cb4ff}.bar{fill:#7fcf92}}"
)


def _how_many(shown: Heat, federation: Federation) -> str:
    return f"{len(shown.clients)} of {federation.count:,} clients, drawn at random"


def _level(share: float) -> int:
    """Which shade a share is drawn in."""
    if share <= 0:
        return 0
    return 1 + int(np.searchsorted(LEVELS, min(share, 1.0)))


def _bar(value: int, most: int) -> str:
    """A bar for a number; what is not 0 can be seen."""
    length = round(_BAR * value / max(most, 1))
    return "█" * max(length, 1) if value else ""


def _cells(
    shares: NDArray[np.float64], left: int, top: int, wide: int, high: int
) -> list[str]:
    """One path for all cells of a shade: ten thousand cells stay a light file."""
    steps = 10
    levels = np.ceil(shares * steps - 1e-9).astype(np.int64)
    paths = []
    for level in range(1, steps + 1):
        boxes = [
            (left + int(column) * wide, top + int(row) * high, wide - 1, high)
            for row, column in np.argwhere(levels == level)
        ]
        if boxes:
            opacity = f'class="cell" fill-opacity="{0.1 + 0.09 * level:.2f}"'
            paths.append(_boxes(boxes, opacity))
    return paths


def _boxes(boxes: Sequence[tuple[int, int, int, int]], attributes: str) -> str:
    drawn = "".join(f"M{x} {y}h{w}v{h}h-{w}z" for x, y, w, h in boxes)
    return f'<path {attributes} d="{drawn}"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    if not text:
        return ""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
