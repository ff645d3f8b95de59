"""Settings as Python objects: read and checked, and written as they were read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
from odd_values import CHOICES, SECTIONS, fill, odd, odd_tables, pick
from worker import Note

from fedloom.comparison import parse_comparison
from fedloom.config import parse, to_tables, to_toml


class Trial:
    """Tables of runs and comparisons, and components made by themselves."""

    def __init__(self, folder: Path) -> None:
        pass

    def attempt(self, draw: np.random.Generator, folder: Path, note: Note) -> None:
        """What is accepted must come back from a file the same."""
        oddness = float(pick(draw, [0.0, 0.05, 0.3]))
        way = draw.random()
        if way < 0.15:
            self._component(draw, oddness, note)
            return
        tables = odd_tables(draw, oddness, is_python=True)
        if way < 0.4:
            tables |= compared(draw, oddness)
            note(f"parse_comparison({shown(tables)})")
            comparison = parse_comparison(tables)
            written = tomllib.loads(to_toml(comparison.to_tables()))
            assert parse_comparison(written).arms.keys() == comparison.arms.keys()
            return
        note(f"parse({shown(tables)})")
        config = parse(tables)
        assert parse(tomllib.loads(to_toml(to_tables(config)))) == config

    def _component(self, draw: np.random.Generator, oddness: float, note: Note) -> None:
        registry = pick(draw, [*CHOICES.values(), SECTIONS])
        kind = pick(draw, list(registry.values()))
        values = fill(draw, kind, oddness, is_python=True)
        names = kind.__dataclass_fields__
        values = {name: values[name] for name in values if name in names}
        note(f"{kind.__name__}(**{shown(values)})")
        if {f.name for f in names.values() if f.default is f.default_factory} <= {
            *values
        }:
            kind(**values)


def compared(draw: np.random.Generator, oddness: float) -> dict[str, Any]:
    """What a comparison says besides."""
    methods = list(CHOICES["algorithm"])
    tables: dict[str, Any] = {
        "methods": [pick(draw, methods) for _ in range(draw.integers(1, 4))],
        "seeds": pick(draw, [1, 2, 3, [0, 1], [5]]),
    }
    if draw.random() < 0.5:
        tables["methods"] = {
            name: fill(draw, CHOICES["algorithm"][name], oddness, is_python=True)
            for name in tables["methods"]
        }
    for key in ("methods", "seeds", "folds", "yardsticks", "own", "algorithm"):
        if draw.random() < oddness:
            tables[key] = odd(draw, is_python=True)
    return tables


def shown(value: Any) -> str:
    """A value in a message; one that cannot be shown is not."""
    try:
        return repr(value)
    except (ValueError, RecursionError) as error:
        return f"<{type(error).__name__}>"
