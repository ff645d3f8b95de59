"""What every part of the page is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from fedloom.reports.findings import Findings
from fedloom.reports.svg import Style

Numbers = NDArray[np.float64]

PLACES = 50
"""Most places of a curve."""

SIDE = 48
"""Most rows and columns of a heat map."""


@dataclass(frozen=True)
class Look:
    """How the methods look, best first."""

    styles: Mapping[str, Style]

    @classmethod
    def of(cls, findings: Findings) -> Look:
        """Colours in the order of the ranking; the baseline is grey."""
        styles, place = {}, 0
        for standing in findings.ranking.standings:
            if standing.method == findings.found.baseline:
                styles[standing.method] = Style(0, is_baseline=True)
            else:
                styles[standing.method] = Style(place)
                place += 1
        return cls(styles)


def figure(drawing: str, caption: str, kind: str = "") -> str:
    """A drawing with its caption."""
    css = f' class="{kind}"' if kind else ""
    return f"<figure{css}>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def more(title: str, body: str) -> str:
    """Something to open."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def score_title(findings: Findings) -> str:
    """What an axis of scores is called."""
    suffix = findings.unit.suffix.strip()
    return f"{findings.part} {findings.metric}" + (f", {suffix}" if suffix else "")


def safe(name: str) -> str:
    """A name in a list whose entries are kept apart by bars."""
    return name.replace("|", "/")


def thin(rounds: list[int]) -> list[int]:
    """At most `PLACES` rounds, evenly apart, the first and the last among them."""
    if len(rounds) <= PLACES:
        return rounds
    places = np.unique(np.linspace(0, len(rounds) - 1, PLACES).round().astype(int))
    return [rounds[n] for n in places]
