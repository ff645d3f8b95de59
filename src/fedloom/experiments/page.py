"""The page that puts the papers' numbers beside ours, and its figures."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.core.wording import counted
from fedloom.experiments.catalogue import FOLDER, experiment_names, load_experiment
from fedloom.experiments.experiment import Experiment, Table, Unit
from fedloom.experiments.figures import draw
from fedloom.experiments.search import read_search, with_found
from fedloom.experiments.stored import StoredUnit, read_stored
from fedloom.experiments.tables import markdown
from fedloom.experiments.verdicts import (
    FAILS,
    HOLDS,
    NEARLY,
    UNKNOWN,
    in_one,
    judge,
    measure,
    written,
)

PAPERS = {
    "self_fl": "Self-FL",
    "pfedvem": "pFedVEM",
    "fedacs": "FedACS",
    "pfedmt": "pFedMT",
}
"""Folders of experiments, by the system whose paper they are of."""

_OPENING = """\
# The papers, rerun

<!-- Generated from results/ by docs/make_reproduction.py. Do not edit it. -->

Every table and figure of the four papers that public data allow. Each is a file in
`src/fedloom/experiments/`, which states settings and readings; `fedloom reproduce NAME
--scale paper` runs it, and [how to do so](../src/fedloom/experiments/README.md) has the
rest. Numbers are of the last round on test data, in % unless it is said, with the
standard error over seeds in brackets; the paper's stand beside them. A claim *holds* if
our means have its order, or are as near as it says; *within two standard errors* means
that the order is the other way round by less than that. Where a paper can be read in
several ways, each reading has its verdict. Nothing was tuned on test data. Times to
come are estimates.
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
        parts = [_OPENING, "## In one table\n", self._overview(every)]
        for folder, title in PAPERS.items():
            parts.append(f"## {title}\n")
            parts += [
                self._section(experiment)
                for experiment in every
                if experiment.name.startswith(f"{folder}/")
            ]
        parts += ["## Left out\n", _left_out()]
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

    def _overview(self, every: Sequence[Experiment]) -> str:
        rows = []
        for experiment in every:
            units, asked = self.stored(experiment, "paper"), _asked(experiment)
            done = sum(str(unit) in units for unit in asked)
            state = f"{done} of {len(asked)} lines"
            if done == len(asked):
                state = "run"
            elif not done:
                is_small = bool(self.stored(experiment, "small"))
                state = "small only" if is_small else "not run"
            verdicts = [in_one(judge(experiment, units, c)) for c in experiment.claims]
            known = [verdict for verdict in verdicts if verdict != UNKNOWN]
            counts = [
                f"{known.count(verdict)} {words}"
                for verdict, words in _COUNTED.items()
                if verdict in known
            ]
            partly = sum(verdict not in _COUNTED for verdict in known)
            counts += [f"{partly} in some readings only"] if partly else []
            link = f"[{experiment.title}](#{_anchor(experiment)})"
            rows.append((", ".join(experiment.items), link, state, ", ".join(counts)))
        return markdown(("item", "what", "at the paper's scale", "claims"), rows)

    def _section(self, experiment: Experiment) -> str:
        units = self.stored(experiment, "paper")
        asked = [unit for unit in _asked(experiment) if str(unit) in units]
        missing = [unit for unit in _asked(experiment) if str(unit) not in units]
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
        if asked:
            parts += [_claims(experiment, units)] if experiment.claims else []
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
            if len(missing) == len(_asked(experiment))
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


_COUNTED = {HOLDS: "hold", NEARLY: "nearly", FAILS: "do not"}
"""What came of claims, after how many they are."""

_DEVICES = {"cpu": "one quiet core", "gpu": "an H200"}


def _asked(experiment: Experiment) -> list[Unit]:
    """The units that an experiment shows."""
    shown: dict[Unit, None] = {}
    for table in experiment.tables:
        for arm in table.arms or _arms(experiment, table.setting):
            shown[Unit(table.setting, arm)] = None
    for figure in experiment.figures:
        for arm in figure.arms or _arms(experiment, figure.setting):
            shown[Unit(figure.setting, arm)] = None
    known = experiment.units("paper")
    return [unit for unit in known if unit in shown]


def _arms(experiment: Experiment, setting: str) -> Sequence[str]:
    arms: Sequence[str] = experiment.settings[setting].get("arms", experiment.arms)
    return list(arms)


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
        (
            unit.environment["device"],
            str(unit.environment["commit"])[:9],
            unit.environment["torch"],
        )
        for unit in units
    }
    dates = sorted({unit.created[:10] for unit in units})
    minutes = sum(unit.seconds for unit in units) / 60
    where = "; ".join(
        f"{device}, PyTorch {torch}, commit {commit}"
        for device, commit, torch in sorted(made)
    )
    took = f"{minutes:.0f} minutes" if minutes >= 1 else "under a minute"
    many = " or ".join(map(str, seeds))
    noun = "seed" if seeds == [1] else "seeds"
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"{many} {noun}; {where}; {when}; {took}."


def _table(
    experiment: Experiment, units: Mapping[str, StoredUnit], table: Table
) -> str:
    numbers = table.numbers or tuple(experiment.numbers)
    arms = table.arms or _arms(experiment, table.setting)
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
        details = [
            f"{v.reading}: {v.verdict} ({v.details or 'not run'})"
            if v.reading
            else v.details
            for v in verdicts
        ]
        rows.append((claim.text, f"**{in_one(verdicts)}**", "<br>".join(details)))
    return markdown(("the paper says", "verdict", "numbers"), rows)


def _left_out() -> str:
    """Items that are in no file, and why."""
    tables: dict[str, Any] = tomllib.loads(
        (FOLDER / "left_out.toml").read_text(encoding="utf-8")
    )
    rows = [(own["item"], own["what"], own["why"]) for own in tables["items"]]
    return markdown(("item", "what", "why"), rows)


def _measured(
    experiment: Experiment,
    units: Mapping[str, StoredUnit],
    unit: Unit,
    number: str,
) -> str:
    own = measure(experiment, units, unit, number)
    if own is None or math.isnan(own.mean):
        return ""
    if math.isnan(own.error):
        return written(own.mean, experiment)
    return f"{written(own.mean, experiment)} ({written(own.error, experiment)})"


def _printed(value: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    mean, error = value
    return f"{mean:g}" if math.isnan(error) else f"{mean:g} ({error:g})"


def _short(value: Any, times: float = 1.0) -> str:
    if isinstance(value, float):
        return f"{times * value:.3g}"
    return "failed" if value is None else str(value)
