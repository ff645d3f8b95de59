"""The page that puts the papers' numbers beside ours, and its figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.core.wording import counted
from fedloom.experiments.catalogue import experiment_names, load_experiment
from fedloom.experiments.experiment import Experiment, Table, Unit
from fedloom.experiments.figures import draw
from fedloom.experiments.search import read_search, with_found
from fedloom.experiments.stored import StoredUnit, read_stored
from fedloom.experiments.summary import (
    PAPERS,
    Standing,
    arms_in,
    asked_units,
    left_out_table,
    overview,
    papers_table,
)
from fedloom.experiments.tables import markdown
from fedloom.experiments.verdicts import Verdict, in_one, judge, measure, written

_OPENING = """\
# The papers, rerun

<!-- Generated from results/ by docs/make_reproduction.py. Do not edit it. -->

Every table and figure of the four papers that public data allow, with a verdict on each
thing that the papers say of them.
"""

_SCALES = """\
An item is *done* if all lines that this page has of it were run at the paper's scale,
with its rounds, clients and seeds or with those that its section states; *partly* if
some were. *Small scale only* is shortened to minutes on two cores: it shows that every
step works and decides nothing. What is *left* was not run, or is in no file ([why, and
what it would take](#left-out)). So verdicts are of the paper's scale alone, and a claim
of which any line is missing is *not yet run*, unless what is there refutes it already.

A claim *holds* if our means over seeds have its order, or are as near as it says;
*within two standard errors* means that it is missed by less than that. Where a paper
can be read in several ways, each reading has its verdict, and *hold in some readings*
counts those that hold in one and not, or not yet, in another. Beside each verdict stand
the numbers that it was computed from, with the standard error over seeds. Nothing was
tuned on test data. Where data or settings are not the paper's, the section says so;
then an order can be compared and a number cannot.

Each item is a file in `src/fedloom/experiments/`, which states settings and readings;
`fedloom reproduce NAME --scale paper` runs it, and [how to do
so](../src/fedloom/experiments/README.md) has the rest. Numbers are of the last round on
test data, in % unless it is said, with the standard error over seeds in brackets; the
paper's stand beside them. Times to come are estimates.
"""


class Page:
    """The page as Markdown, and its figures by the names of their files.

    Args:
        results: the folder of all stored results.
    """

    def __init__(self, results: Path) -> None:
        self._results = results
        self.figures: dict[str, str] = {}
        """SVG by file name."""
        every = sorted(
            (
                with_found(load_experiment(name), results, "paper")
                for name in experiment_names()
            ),
            key=_place,
        )
        standings = [self._standing(experiment) for experiment in every]
        anchors = {experiment.name: _anchor(experiment) for experiment in every}
        parts = [_OPENING, papers_table(standings), _SCALES]
        parts += ["## Item by item\n", overview(standings, anchors)]
        for folder, title in PAPERS.items():
            parts.append(f"## {title}\n")
            parts += [
                self._section(experiment)
                for experiment in every
                if experiment.name.startswith(f"{folder}/")
            ]
        parts += ["## Left out\n", left_out_table()]
        self.text = "\n".join(parts)

    def stored(self, experiment: Experiment, scale: str) -> dict[str, StoredUnit]:
        """Results that were made with the settings of the file as it is now."""
        own = with_found(experiment, self._results, scale)
        units = read_stored(self._results, own.source, scale)
        digests = {str(unit): own.digest(unit, scale) for unit in own.units(scale)}
        return {
            name: unit
            for name, unit in units.items()
            if digests.get(name) == unit.digest
        }

    def _standing(self, experiment: Experiment) -> Standing:
        is_proven = bool(self.stored(experiment, "small"))
        return Standing(experiment, self.stored(experiment, "paper"), is_proven)

    def _section(self, experiment: Experiment) -> str:
        units = self.stored(experiment, "paper")
        asked = [unit for unit in asked_units(experiment) if str(unit) in units]
        missing = [unit for unit in asked_units(experiment) if str(unit) not in units]
        title = f'### <a id="{_anchor(experiment)}"></a>{experiment.title}\n'
        parts = [title]
        if experiment.about.strip() and not (experiment.of and not _own(experiment)):
            parts.append(" ".join(experiment.about.split()) + "\n")
        parts.append(f"    fedloom reproduce {experiment.name} --scale paper\n")
        if asked:
            parts.append(_provenance([units[str(unit)] for unit in asked]) + "\n")
        if missing:
            parts.append(self._missing(experiment, missing) + "\n")
        parts += self._tables(experiment, units)
        parts += [_claims(experiment, units)] if experiment.claims else []
        if asked:
            parts += self._figures(experiment, units)
            failed = [
                f"{experiment.arms[unit.arm].label}: {counted(len(own), 'seed')}"
                for unit in asked
                if (own := units[str(unit)].failures)
            ]
            if failed:
                parts.append(f"Diverged: {'; '.join(failed)}.\n")
            if experiment.remarks.strip():
                parts.append(" ".join(experiment.remarks.split()) + "\n")
        parts += self._searched(experiment)
        return "\n".join(parts)

    def _missing(self, experiment: Experiment, missing: Sequence[Unit]) -> str:
        """What is not run, and what it would cost."""
        names = ", ".join(map(str, missing))
        what = (
            "Nothing of it is run"
            if len(missing) == len(asked_units(experiment))
            else (f"Not run: {names}")
        )
        costs = [
            f"about {counted(round(minutes), 'minute')} on {_DEVICES[device]}"
            for device, minutes in experiment.estimated_minutes.items()
        ]
        cost = f"; all of it takes {' or '.join(costs)}" if costs else ""
        small = self.stored(experiment, "small")
        proof = ""
        if small:
            newest = max(unit.created for unit in small.values())[:10]
            proof = f" The small scale ran on {newest}."
        return f"{what} at the paper's scale{cost}.{proof}"

    def _tables(
        self, experiment: Experiment, units: Mapping[str, StoredUnit]
    ) -> Iterator[str]:
        is_printed = any(table.paper for table in experiment.tables)
        if len(experiment.tables) > 1 and not is_printed:
            yield _matrix(experiment, units)
            return
        for table in experiment.tables:
            text = _table(experiment, units, table)
            if text:
                yield f"**{table.title[0].upper()}{table.title[1:]}**\n\n{text}"

    def _figures(
        self, experiment: Experiment, units: Mapping[str, StoredUnit]
    ) -> Iterator[str]:
        for n, figure in enumerate(experiment.figures, 1):
            svg = draw(experiment, units, figure)
            if svg is not None:
                name = f"{experiment.name.replace('/', '-')}-{n}.svg"
                self.figures[name] = svg
                yield f"![{figure.title}](images/reproduction/{name})\n"

    def _searched(self, experiment: Experiment) -> Iterator[str]:
        """What a search on validation data found."""
        found = read_search(self._results, experiment.source, "paper")
        if not found or experiment.of:
            return
        yield (
            f"Searched on validation data in {found['setting']}: "
            f"{counted(found['trials'], 'trial')} of "
            f"{counted(found['rounds'], 'round')} for each method.\n"
        )
        rows = []
        for arm, own in found["found"].items():
            best = ", ".join(f"{k} {_short(v)}" for k, v in own["settings"].items())
            scores = [_short(own[key], 100) for key in ("before", "score")]
            label = experiment.arms[arm].label
            rows.append((label, "; ".join(own["space"]), best, *scores))
        head = ("method", "searched first", "best", "validation, at first", "best")
        yield markdown(head, rows)


_DEVICES = {"cpu": "one quiet core", "gpu": "an H200"}


def _own(experiment: Experiment) -> bool:
    """Whether what it says of itself is not what its source says."""
    return experiment.about != load_experiment(experiment.source).about


def _place(experiment: Experiment) -> tuple[int, int, str]:
    """Where an experiment stands on the page: papers, then their items in order."""
    paper = experiment.name.partition("/")[0]
    number = min(int(item[1:]) for item in experiment.items)
    return [*PAPERS].index(paper), number, experiment.name


def _anchor(experiment: Experiment) -> str:
    return experiment.name.replace("/", "-").replace("_", "-")


def _provenance(units: Sequence[StoredUnit]) -> str:
    """With what results were made."""
    seeds = sorted({len(unit.seeds) for unit in units})
    made = {
        (unit.environment["device"], _sources(unit), unit.environment["torch"])
        for unit in units
    }
    dates = sorted({unit.created[:10] for unit in units})
    minutes = sum(unit.seconds for unit in units) / 60
    where = "; ".join(
        f"{device}, PyTorch {torch}, {sources}"
        for device, sources, torch in sorted(made)
    )
    took = f"{minutes:.0f} minutes" if minutes >= 1 else "under a minute"
    many = " or ".join(map(str, seeds))
    noun = "seed" if seeds == [1] else "seeds"
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"{many} {noun}; {where}; {when}; {took}."


def _sources(unit: StoredUnit) -> str:
    """The commit, or the digest of the sources where they lay in no checkout."""
    commit = unit.environment["commit"]
    if commit:
        return f"commit {str(commit)[:9]}"
    return f"sources {unit.environment.get('sources', 'not recorded')}"


def _table(
    experiment: Experiment, units: Mapping[str, StoredUnit], table: Table
) -> str:
    numbers = table.numbers or tuple(experiment.numbers)
    arms = table.arms or arms_in(experiment, table.setting)
    columns: list[tuple[str, list[str]]] = []
    for number in numbers:
        paper = [_printed(table.printed(arm, number)) for arm in arms]
        own = [
            _measured(experiment, units, Unit(table.setting, arm), number)
            for arm in arms
        ]
        if any(paper):
            columns.append((f"{number}, paper", paper))
        if any(own):
            columns.append((number, own))
    if not columns:
        return ""
    labels = [experiment.arms[arm].label for arm in arms]
    rows = [
        (label, *cells)
        for label, *cells in zip(labels, *(c for _, c in columns), strict=True)
        if any(cells)
    ]
    return markdown(("", *(head for head, _ in columns)), rows)


def _matrix(experiment: Experiment, units: Mapping[str, StoredUnit]) -> str:
    """Several tables without the paper's numbers as one, a column for each."""
    numbers = tuple(experiment.numbers)
    rows = []
    for arm, own in experiment.arms.items():
        cells = [
            " / ".join(
                _measured(experiment, units, Unit(table.setting, arm), number)
                for number in table.numbers or numbers
            )
            for table in experiment.tables
        ]
        if any(cell.strip(" /") for cell in cells):
            rows.append((own.label, *cells))
    head = (" / ".join(numbers), *(table.title for table in experiment.tables))
    return markdown(head, rows) if rows else ""


def _claims(experiment: Experiment, units: Mapping[str, StoredUnit]) -> str:
    rows = []
    for claim in experiment.claims:
        verdicts = judge(experiment, units, claim)
        text = f"*Our question:* {claim.text}" if claim.is_ours else claim.text
        rows.append((text, f"**{in_one(verdicts)}**", "<br>".join(_details(verdicts))))
    return markdown(("the paper says", "verdict", "numbers"), rows)


def _details(verdicts: Sequence[Verdict]) -> list[str]:
    """The numbers that a claim was judged by, reading by reading."""
    if not any(v.details for v in verdicts):
        return []
    return [
        f"{v.reading}: {v.verdict}{f' ({v.details})' if v.details else ''}"
        if v.reading
        else v.details
        for v in verdicts
    ]


def _measured(
    experiment: Experiment,
    units: Mapping[str, StoredUnit],
    unit: Unit,
    number: str,
) -> str:
    own = measure(experiment, units, unit, number)
    if own is None:
        return ""
    if math.isnan(own.mean):
        return "diverged" if own.missing else ""
    mean = written(own.mean, experiment, number)
    if math.isnan(own.error):
        return mean
    return f"{mean} ({written(own.error, experiment, number)})"


def _printed(value: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    mean, error = value
    return f"{mean:g}" if math.isnan(error) else f"{mean:g} ({error:g})"


def _short(value: Any, times: float = 1.0) -> str:
    if isinstance(value, float):
        return f"{times * value:.3g}"
    return "failed" if value is None else str(value)
