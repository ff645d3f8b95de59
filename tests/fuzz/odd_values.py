"""Values that nobody expects, and settings that hold some of them."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from fedloom.algorithms import REGISTRY
from fedloom.clients import PARTITIONS, TEAMS, TRANSFORMS, Sampling, Split
from fedloom.core.settings import alternatives
from fedloom.data import SOURCES
from fedloom.engine.choice import EngineSettings
from fedloom.fleet.faults import Faults
from fedloom.models import MODELS
from fedloom.robust import Attack, Robust
from fedloom.server.schedule import Schedule

T = TypeVar("T")

CHOICES: dict[str, dict[str, type[Any]]] = {
    "algorithm": REGISTRY,
    "data": SOURCES,
    "partition": PARTITIONS,
    "transform": TRANSFORMS,
    "teams": TEAMS,
    "model": MODELS,
}
SECTIONS: dict[str, type[Any]] = {
    "split": Split,
    "sampling": Sampling,
    "faults": Faults,
    "robust": Robust,
    "attack": Attack,
    "engine": EngineSettings,
}

NUMBERS: list[Any] = [
    *(0, 1, -1, 2, 3, 7, 10**6, 10**9, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63),
    *(-(2**63), 2**64, 10**30, 10**400, -(10**400), 10**5000, True, False),
    *(0.0, -0.0, 0.5, 1.0, 1.5, -1.5, 1e-8, 1e-300, 5e-324, 1e8, 1e38, 3.5e38, 1e300),
    *(math.inf, -math.inf, math.nan, 1 - 1e-16, 1 + 1e-9, 1e18),
]
TEXTS: list[str] = [
    *("", " ", "none", "auto", "nan", "inf", "1", "-1", "true", "0x10", "1_000"),
    *("a" * 10_000, "\0", "a\0b", "\x1b[31mred", "\x7f", "\r\n", "\t", "\u2028"),
    *("..", ".", "/", "//", "a/b", "../x", "~", "C:\\x", "[red]x[/]", "[/]", "[", "]"),
    *("{x}", "{", "%s", "%", "'", '"', '"""', "\\", "\\u0000", "$(x)", "`x`", "<b>"),
    *(
        "ÄÖß",
        "名前",
        "\U0001d518",
        "\u202etxt",
        "e\u0301",
        "\ud800",
        "x\udcff",
        "\ufeff",
        "=",
    ),
    *("cpu", "cuda", "cuda:99", "meta", "fedavg", "digits", "mlp", "iid", "x", "y"),
]
STRUCTURES: list[Any] = [
    *([], [1], [0], [-1], ["a"], [[]], [[[]]], [1, "a"], [1.5, 2], [10**400], [""]),
    *({}, {"a": 1}, {"": {}}, {"a": {"b": {"c": []}}}, [{}], [1] * 1000, ["x"] * 1000),
    *([True], [0.5, 0.5], [1, 1], [3, 3], [1e300], [math.nan], [10**9], [10**9] * 3),
    *(datetime.date(2020, 1, 1), datetime.time(1, 2), datetime.datetime(1, 1, 1)),
]
OBJECTS: list[Any] = [
    *(None, b"x", object(), (), (1,), ((1,),), {1}, frozenset(), 1j, int, len),
    *(np.float32(0.5), np.float64("nan"), np.int64(3), np.bool_(True), np.array([1])),
    *(np.array(3), np.array([]), Ellipsis, range(3), NotImplemented),
]
"""What a caller in Python can give, and a file cannot."""


def pick(draw: np.random.Generator, options: Sequence[T]) -> T:
    """One of them."""
    return options[int(draw.integers(len(options)))]


def odd(draw: np.random.Generator, *, is_python: bool = False) -> Any:
    """A value that fits nowhere in particular."""
    pools: list[Sequence[Any]] = [NUMBERS, NUMBERS, TEXTS, STRUCTURES]
    if is_python:
        pools.append(OBJECTS)
    if draw.random() < 0.02:
        return nested(draw, int(draw.integers(2, 3000)))
    return pick(draw, pick(draw, pools))


def nested(draw: np.random.Generator, depth: int) -> Any:
    """A list or a table in a list or a table, and so on."""
    value: Any = []
    is_list = draw.random() < 0.5
    for _ in range(depth):
        value = [value] if is_list else {"a": value}
    return value


def usual(draw: np.random.Generator, hint: Any) -> Any:
    """A value that an annotation allows, and small if it costs work."""
    kind, interval = pick(draw, alternatives(hint))
    origin = get_origin(kind)
    if origin is Literal:
        return pick(draw, get_args(kind))
    if origin in (list, tuple):
        return [usual(draw, get_args(kind)[0]) for _ in range(draw.integers(0, 4))]
    low, high = max(interval.least, interval.above), min(interval.most, interval.below)
    if kind is bool:
        return bool(draw.integers(2))
    if kind is int:
        low = int(low) if math.isfinite(low) else -3
        return int(min(high, low + draw.integers(0, 6)))
    if kind is float:
        if draw.random() < 0.2:
            return float(
                pick(draw, [x for x in (low, high) if math.isfinite(x)] or [1])
            )
        if math.isfinite(high):
            return float(draw.uniform(max(low, -1e9), high))
        return float(max(low, 0.0) + 10.0 ** draw.uniform(-6, 4))
    return "none" if kind is type(None) else pick(draw, TEXTS)


def fill(
    draw: np.random.Generator, kind: type[Any], oddness: float, *, is_python: bool
) -> dict[str, Any]:
    """Some settings of a component, a few of them odd."""
    hints = get_type_hints(kind, include_extras=True)
    table: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        is_required = (
            field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        )
        if draw.random() < (0.95 if is_required else 0.3):
            is_odd = draw.random() < oddness
            table[field.name] = (
                odd(draw, is_python=is_python)
                if is_odd
                else usual(draw, hints[field.name])
            )
    if oddness and draw.random() < 0.03 + oddness / 20:
        table[str(pick(draw, TEXTS))] = odd(draw, is_python=is_python)
    return table


def odd_tables(
    draw: np.random.Generator, oddness: float = 0.25, *, is_python: bool = False
) -> dict[Any, Any]:
    """The tables of a run's file, some values of which are odd."""
    tables: dict[Any, Any] = fill(draw, Schedule, oddness, is_python=is_python)
    for section, registry in CHOICES.items():
        if draw.random() < 0.4:
            name = pick(draw, list(registry))
            table = fill(draw, registry[name], oddness, is_python=is_python)
            table["name"] = name
            if draw.random() < 0.03:
                table["name"] = odd(draw, is_python=is_python)
            tables[section] = table
    for section, kind in SECTIONS.items():
        if draw.random() < 0.25:
            tables[section] = fill(draw, kind, oddness, is_python=is_python)
    if draw.random() < 0.05:
        key = pick(draw, [*CHOICES, *SECTIONS, *TEXTS])
        tables[key] = odd(draw, is_python=is_python)
    if is_python and draw.random() < 0.02:
        tables[pick(draw, [1, None, (), b"x", 1.5])] = odd(draw, is_python=True)
    return tables
