"""One HTML page with everything in it: opens from disk, asks nothing of a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files

from fedloom.reports.charts import legend_sign
from fedloom.reports.findings import Findings, headline, summary
from fedloom.reports.sections.clients import calibration, clients
from fedloom.reports.sections.gain import who_gains
from fedloom.reports.sections.learning import learning
from fedloom.reports.sections.parts import Look
from fedloom.reports.sections.ranking import ranking
from fedloom.reports.sections.recorded import drivers
from fedloom.reports.sections.setup import cost, data, setup

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
"""What the page may load: nothing but what is in it."""


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    anchor: str
    title: str
    body: str
    lead: str = ""


def page(findings: Findings) -> str:
    """The whole page."""
    look = Look.of(findings)
    parts = [
        Section(anchor, title, body, lead)
        for anchor, title, lead, make in _CONTENTS
        if (body := make(findings, look))
    ]
    if len(findings.found.methods) == 1:
        parts[0] = replace(parts[0], title="Score", lead="What the clients leave with.")
    links = "".join(
        f'<li><a href="#{part.anchor}">{escape(part.title)}</a></li>' for part in parts
    )
    body = "".join(_section(part) for part in parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(findings.found.title)} · Fedloom</title>\n"
        '<link rel="icon" href="data:,">\n'
        f"<style>{asset('page.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the content</a>\n'
        '<header class="top"><nav aria-label="Parts of the report">'
        f"<ul>{links}</ul></nav>"
        '<button type="button" id="theme" aria-label="Colours: as the system">'
        "Colours: auto</button></header>\n"
        f'<main id="main">\n{_opening(findings, look)}\n{body}</main>\n'
        f"{_footer(findings)}"
        '<div id="tip" role="status" aria-live="off" hidden></div>\n'
        f"<script>{asset('page.js')}</script>\n</body>\n</html>\n"
    )


def asset(name: str) -> str:
    """A file of the page."""
    return (files("fedloom.reports") / "assets" / name).read_text("utf-8").strip()


_CONTENTS: tuple[tuple[str, str, str, Callable[[Findings, Look], str]], ...] = (
    (
        "ranking",
        "Ranking",
        "Which method is best for the average client, and how sure that is.",
        ranking,
    ),
    (
        "gain",
        "Who gains",
        "Each client against training alone: the same clients, the same seed, the same "
        "test data.",
        who_gains,
    ),
    (
        "learning",
        "Learning",
        "The same scores against what it took to get there.",
        learning,
    ),
    (
        "clients",
        "Clients",
        "An average hides who is left behind.",
        clients,
    ),
    (
        "calibration",
        "Calibration",
        "Whether the models know how often they are right.",
        calibration,
    ),
    (
        "drivers",
        "What drove it",
        "What each method recorded of its clients and of its aggregation.",
        drivers,
    ),
    ("data", "Data", "Who held what.", data),
    ("cost", "Cost", "What a run took.", cost),
    ("setup", "Setup", "Enough to run it again.", setup),
)


def _section(part: Section) -> str:
    lead = f'<p class="lead">{escape(part.lead)}</p>' if part.lead else ""
    return (
        f'<section id="{part.anchor}" aria-labelledby="{part.anchor}-title">'
        f'<h2 id="{part.anchor}-title">{escape(part.title)}</h2>{lead}{part.body}'
        "</section>\n"
    )


def _opening(findings: Findings, look: Look) -> str:
    found = findings.found
    run = next(iter(found.runs.values()), None)
    facts = []
    if run is not None:
        clients = run.manifest["clients"]
        seeds = len(found.seeds)
        facts = [
            f"{clients} clients",
            f"{seeds} {'seed' if seeds == 1 else 'seeds'}",
            f"{run.planned} rounds",
            f"{run.manifest['parameters']:,} parameters",
        ]
    told = "".join(f"<p>{escape(text)}</p>" for text in summary(findings))
    remarks = "".join(f"<li>{escape(text)}</li>" for text in found.remarks)
    if remarks:
        remarks = (
            '<aside class="remarks" aria-label="Before you believe it"><h2>Before you '
            f"believe it</h2><ul>{remarks}</ul></aside>"
        )
    return (
        f'<div class="opening"><p class="kicker">{escape(found.title)}'
        f"<span>{escape(' · '.join(facts))}</span></p>"
        f"<h1>{escape(headline(findings))}</h1>"
        f'<div class="summary">{told}</div>{remarks}</div>{_tiles(findings)}'
        f"{_legend(look)}"
    )


def _tiles(findings: Findings) -> str:
    """The few numbers that a reader takes along."""
    found, ranking, unit = findings.found, findings.ranking, findings.unit
    if ranking.pick is None:
        return ""
    best = ranking.standing(ranking.pick)
    score = unit.estimate(best.last) + unit.suffix
    tiles = [(f"{findings.part} {findings.metric} of {best.method}", score)]
    gain = findings.gains.of(best.method) if findings.gains is not None else None
    if gain is not None:
        points = f"{unit.points} gained" if unit.points else "gain"
        tiles.append((f"{points} over training alone", unit.gap_estimate(gain.mean)))
        tiles.append(("clients that gain", f"{gain.gaining} of {gain.known}"))
    if best.worst.count:
        tiles.append(("worst tenth of the clients", unit.score(best.worst.mean)))
    done = sum(run.state == "finished" for run in found.runs.values())
    tiles.append(("runs finished", f"{done} of {len(found.runs) + len(found.absent)}"))
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _legend(look: Look) -> str:
    if len(look.styles) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-toggle="{escape(method)}">'
        f"{legend_sign(style)}{escape(method)}</button>"
        for method, style in look.styles.items()
    )
    return (
        '<div class="legend" role="group" aria-label="Methods shown in the charts">'
        f"{buttons}</div>"
    )


def _footer(findings: Findings) -> str:
    run = next(iter(findings.found.runs.values()), None)
    version = f" {run.manifest.get('fedloom', '')}" if run is not None else ""
    return (
        f"<footer><p>Written by Fedloom{escape(version)} from the files of "
        f"{len(findings.found.runs)} runs. Scores are those of the last round or of "
        "the round chosen on validation data, never of the best test round.</p>"
        "</footer>\n"
    )
