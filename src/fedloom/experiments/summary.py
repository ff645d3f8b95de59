"""How much of each paper has been run, and how many of its claims hold."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedloom.core.errors import ConfigError, unknown
from fedloom.core.wording import counted
from fedloom.experiments.catalogue import FOLDER
from fedloom.experiments.experiment import Experiment, Unit
from fedloom.experiments.stored import StoredUnit
from fedloom.experiments.tables import markdown
from fedloom.experiments.verdicts import (
    FAILS,
    HOLDS,
    NEARLY,
    PARTLY,
    UNKNOWN,
    judge,
    outcome,
)

PAPERS = {
    "self_fl": "Self-FL",
    "pfedvem": "pFedVEM",
    "fedacs": "FedACS",
    "pfedmt": "pFedMT",
}
"""Folders of experiments, by the system whose paper they are of."""

_STATES = DONE, BEGUN, SMALL, LEFT = "done", "partly", "small scale only", "left"
"""How much of an item was run."""

_CLAIMS = {
    HOLDS: "hold",
    NEARLY: "within two standard errors",
    PARTLY: "hold in some readings",
    FAILS: "do not hold",
    UNKNOWN: "not yet run",
}
"""Headings over what came of claims."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Items, or parts of them, that no file covers."""

    paper: str
    items: tuple[str, ...]
    what: str
    why: str
    cost: str
    """What it would take, about."""
    is_part: bool = False
    """Whether a file covers the rest of the item."""


class Standing(NamedTuple):
    """An experiment, and what is stored of it."""

    experiment: Experiment
    units: Mapping[str, StoredUnit]
    """At the paper's scale."""
    is_proven: bool
    """Whether anything ran at the small scale."""

    @property
    def state(self) -> str:
        """How much of what the page shows was run at the paper's scale."""
        asked = asked_units(self.experiment)
        done = sum(str(unit) in self.units for unit in asked)
        if done == len(asked):
            return DONE
        if done:
            return BEGUN
        return SMALL if self.is_proven else LEFT

    def outcomes(self) -> list[str]:
        """What came of every claim of the paper."""
        return [
            outcome(judge(self.experiment, self.units, claim))
            for claim in self.experiment.claims
            if not claim.is_ours
        ]


def left_out() -> list[LeftOut]:
    """Items that are in no file, or not in full.

    Raises:
        ConfigError: the file has an entry that is wrong.
    """
    file = FOLDER / "left_out.toml"
    tables: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    entries = []
    for own in tables["left_out"]:
        if own["paper"] not in PAPERS:
            raise ConfigError(f"{file.name}: {unknown('paper', own['paper'], PAPERS)}")
        entries.append(LeftOut(**{**own, "items": tuple(own["items"])}))
    return entries


def left_out_table() -> str:
    """The same as a table."""
    rows = [(", ".join(own.items), own.what, own.why, own.cost) for own in left_out()]
    return markdown(("item", "what", "why", "estimated cost"), rows)


def papers_table(every: Sequence[Standing]) -> str:
    """For each paper, what was run and what came of its claims."""
    rows = []
    missing = left_out()
    for folder, title in PAPERS.items():
        own = [s for s in every if s.experiment.name.startswith(f"{folder}/")]
        items = _items(own)
        items |= {
            item: LEFT
            for entry in missing
            if entry.paper == folder and not entry.is_part
            for item in entry.items
        }
        rows.append((f"[{title}](#{title.lower()})", *_counts(items, own)))
    total = [sum(int(row[n]) for row in rows) for n in range(1, len(rows[0]))]
    rows.append(("all", *map(str, total)))
    head = ("paper", "items", *_STATES, "claims", *_CLAIMS.values())
    return markdown(head, rows)


def overview(every: Sequence[Standing], anchors: Mapping[str, str]) -> str:
    """One line for every experiment.

    Args:
        every: all of them.
        anchors: by the experiment's name, where its section is.
    """
    rows = []
    for standing in every:
        experiment, units, _ = standing
        state = standing.state
        if state == BEGUN:
            asked = asked_units(experiment)
            done = sum(str(unit) in units for unit in asked)
            state = f"{BEGUN}: {done} of {counted(len(asked), 'line')}"
        outcomes = Counter(standing.outcomes())
        counts = [
            f"{outcomes[kind]} {_SHORT[kind]}" for kind in _SHORT if outcomes[kind]
        ]
        link = f"[{experiment.title}](#{anchors[experiment.name]})"
        rows.append((", ".join(experiment.items), link, state, ", ".join(counts)))
    return markdown(("item", "what", "at the paper's scale", "claims"), rows)


_SHORT = {
    HOLDS: "hold",
    NEARLY: "nearly",
    PARTLY: "in some readings",
    FAILS: "do not",
    UNKNOWN: "not yet run",
}
"""What came of claims, after how many they are."""


def asked_units(experiment: Experiment) -> list[Unit]:
    """The units that an experiment shows, or that its claims are of."""
    shown: dict[Unit, None] = {}
    for table in experiment.tables:
        for arm in table.arms or arms_in(experiment, table.setting):
            shown[Unit(table.setting, arm)] = None
    for figure in experiment.figures:
        for arm in figure.arms or arms_in(experiment, figure.setting):
            shown[Unit(figure.setting, arm)] = None
    for claim in experiment.claims:
        for _, read in claim.under():
            for text in read.operands():
                for operand in experiment.operand(text, read):
                    shown[operand.unit] = None
    known = experiment.units("paper")
    return [unit for unit in known if unit in shown]


def arms_in(experiment: Experiment, setting: str) -> Sequence[str]:
    """The arms that are trained in a setting."""
    arms: Sequence[str] = experiment.settings[setting].get("arms", experiment.arms)
    return list(arms)


def _items(standings: Sequence[Standing]) -> dict[str, str]:
    """How much was run of every item, which may have several experiments."""
    states: dict[str, set[str]] = {}
    for own in standings:
        for item in own.experiment.items:
            states.setdefault(item, set()).add(own.state)
    items = {}
    for item, found in states.items():
        if found & {DONE, BEGUN}:
            items[item] = DONE if found == {DONE} else BEGUN
        else:
            items[item] = SMALL if SMALL in found else LEFT
    return items


def _counts(items: Mapping[str, str], standings: Sequence[Standing]) -> list[str]:
    states = Counter(items.values())
    outcomes = Counter(one for own in standings for one in own.outcomes())
    counts = [len(items), *(states[kind] for kind in _STATES)]
    counts += [outcomes.total(), *(outcomes[kind] for kind in _CLAIMS)]
    return [str(count) for count in counts]
