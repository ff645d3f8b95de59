"""Settings that are accepted, run for one tiny round."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from odd_values import CHOICES, NUMBERS, SECTIONS, fill, pick
from settings import shown
from worker import Note

from fedloom.config import parse
from fedloom.core.settings import accepts
from fedloom.runs import run_config
from fedloom.server.schedule import Schedule

BASE: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "digits"},
    "partition": {"name": "iid", "clients": 4},
    "split": {"per_class": 8},
    "model": {"name": "mlr"},
    "algorithm": {"name": "fedavg"},
    "engine": {"compile": "off", "device": "cpu"},
}
WORK = (
    *("epochs", "steps", "head_epochs", "tuning", "inner_steps", "personal_steps"),
    *("monte_carlo", "passes", "most_steps", "least_steps", "extra_epochs"),
    "team_iterations",
)
"""Settings whose cost is what they say: a large one is a long run, not an error."""
SOURCES = ("digits", "synthetic", "gaussian")
"""Data that every machine has."""


class Trial:
    """One round of whatever the checks let pass."""

    def __init__(self, folder: Path) -> None:
        pass

    def attempt(self, draw: np.random.Generator, folder: Path, note: Note) -> None:
        """Change a section or two, and run."""
        tables = {
            key: dict(value) if isinstance(value, dict) else value
            for key, value in BASE.items()
        }
        for _ in range(int(draw.integers(1, 4))):
            self._change(draw, tables)
        tables["seed"] = pick(draw, [0, 1, 2**32, 2**63 - 1])
        for key in WORK:
            value = tables["algorithm"].get(key)
            if isinstance(value, int) and value > 3:
                tables["algorithm"][key] = 3
        note(f"run_config(parse({shown(tables)}))")
        config = parse(tables)
        out = folder / "run" if draw.random() < 0.2 else None
        run_config(config, out=out)

    def _change(self, draw: np.random.Generator, tables: dict[str, Any]) -> None:
        section = pick(draw, [*CHOICES, *CHOICES, *SECTIONS, "schedule"])
        if section == "schedule":
            tables |= fill(draw, Schedule, 0.0, is_python=False) | {"rounds": 1}
            tables.pop("warm_start", None)
            return
        if section in CHOICES:
            known = SOURCES if section == "data" else list(CHOICES[section])
            name = pick(draw, known)
            kind = CHOICES[section][name]
            table = {"name": name}
        else:
            kind, table = SECTIONS[section], dict(tables.get(section, {}))
        for key, value in fill(draw, kind, 0.0, is_python=False).items():
            if key in kind.__dataclass_fields__ and key != "device":
                table[key] = value
        if section in ("data", "partition") and "clients" in kind.__dataclass_fields__:
            # Of a partition also as many as no data have; those of data are made.
            huge = [10**8] if section == "partition" else []
            table["clients"] = pick(draw, [1, 2, 4, 7, *huge])
        hints = get_type_hints(kind, include_extras=True)
        names = [f.name for f in dataclasses.fields(kind)]
        if names and draw.random() < 0.8:
            name = pick(draw, names)
            allowed = [value for value in NUMBERS if accepts(hints[name], value)]
            if allowed and name != "clients":
                table[name] = pick(draw, allowed)
        if section == "engine":
            table |= {"compile": "off"}
        tables[section] = table
