"""Settings: frozen dataclasses whose fields are typed, ranged and documented once.

A component's config class lives next to its code. Its annotations are the only
statement of type and range; this module checks them, builds an instance from a
plain mapping (a TOML table) and lists them for `fedloom describe`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import types
from collections.abc import Collection, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from fedloom.core.describe import field_docs
from fedloom.core.errors import ConfigError, is_unicode, shown, unknown

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Interval:
    """The numbers a setting may take; `above` and `below` exclude their bound."""

    above: float = -math.inf
    least: float = -math.inf
    below: float = math.inf
    most: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.above < value < self.below and self.least <= value <= self.most

    def __str__(self) -> str:
        bounds = [
            (self.above, "above"),
            (self.least, "at least"),
            (self.below, "below"),
            (self.most, "at most"),
        ]
        return " and ".join(f"{word} {b:g}" for b, word in bounds if math.isfinite(b))


LARGEST = 2**31 - 1
"""Largest whole number of a setting that has no bound of its own, so that sizes, which
are products of such numbers, stay numbers."""

Positive = Annotated[float, Interval(above=0.0)]
NonNegative = Annotated[float, Interval(least=0.0)]
Share = Annotated[float, Interval(least=0.0, most=1.0)]
Rate = Annotated[float, Interval(above=0.0, most=1.0)]
Count = Annotated[int, Interval(least=1)]
Whole = Annotated[int, Interval(least=0)]
SmallCount = Annotated[int, Interval(least=1, most=1000)]
Seed = Annotated[int, Interval(least=0, most=2**63 - 1)]
Weighting = Literal["size", "equal"]
"""How clients count in a mean: by their training samples, or equally."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """One field of a settings class, as shown to a user."""

    name: str
    kind: str
    default: Any
    required: bool
    doc: str


def alternatives(hint: Any) -> list[tuple[Any, Interval]]:
    """The types that a setting may have, each with the numbers that it may take."""
    if get_origin(hint) in (Union, types.UnionType):
        return [pair for option in get_args(hint) for pair in alternatives(option)]
    if get_origin(hint) is not Annotated:
        return [(hint, Interval())]
    base, *notes = get_args(hint)
    intervals = [note for note in notes if isinstance(note, Interval)]
    return [(base, intervals[0] if intervals else Interval())]


def accepts(hint: Any, value: Any) -> bool:
    """Whether `value` is what `hint` says, with no coercion."""
    return any(
        _fits(kind, value) and (kind not in (int, float) or value in interval)
        for kind, interval in alternatives(hint)
        if kind is not int or math.isfinite(interval.most) or not _is_huge(value)
    )


def _is_huge(value: Any) -> bool:
    return isinstance(value, int) and abs(value) > LARGEST


def _fits(kind: Any, value: Any) -> bool:
    origin = get_origin(kind)
    if origin is Literal:
        return any(type(value) is type(o) and value == o for o in get_args(kind))
    if origin in (list, tuple):
        inner = get_args(kind)[0]
        return isinstance(value, list | tuple) and all(accepts(inner, v) for v in value)
    if kind is Any:
        return True
    if isinstance(value, bool) and kind in (int, float):
        return False
    if kind is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    if kind is int:
        return isinstance(value, int)
    if kind is str:
        # Such a text is no name of a file or a column, and no file can hold it.
        return isinstance(value, str) and "\0" not in value and is_unicode(value)
    return isinstance(value, origin or kind)


def spell(hint: Any) -> str:
    """The type of a setting in words: 'number above 0', 'one of size, equal'."""
    return " or ".join(
        f"{_word(kind)} {interval}".strip() for kind, interval in alternatives(hint)
    )


def _with_articles(hint: Any) -> str:
    """The same in a sentence: 'a number above 0 or one of median'."""
    articles = {float: "a ", int: "a "}
    return " or ".join(
        ("a " if get_origin(kind) in (list, tuple, dict) else articles.get(kind, ""))
        + f"{_word(kind)} {interval}".strip()
        for kind, interval in alternatives(hint)
    )


def _word(kind: Any) -> str:
    origin = get_origin(kind)
    if origin is Literal:
        return "one of " + ", ".join(str(option) for option in get_args(kind))
    if origin in (list, tuple):
        return f"list of {spell(get_args(kind)[0])}"
    words = {
        float: "number",
        int: "whole number",
        bool: "true or false",
        str: "text",
        type(None): "none",
        dict: "section",
    }
    return words.get(origin or kind, getattr(kind, "__name__", str(kind)))


def check(settings: Any, where: str = "") -> None:
    """Refuse a settings object one of whose fields breaks its annotation."""
    label = where or type(settings).__name__
    hints = get_type_hints(type(settings), include_extras=True)
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        hint = hints[field.name]
        if not accepts(hint, value):
            raise ConfigError(
                f"{label}: {field.name} must be {_with_articles(hint)}, found "
                f"{shown(value)}.{_advice(hint, value)}"
            )
        kinds = [kind for kind, _ in alternatives(hint)]
        is_float = float in kinds and int not in kinds
        if isinstance(value, int | float) and type(value) is not bool and is_float:
            # A zero loses its sign, which some libraries take for a negative number.
            object.__setattr__(settings, field.name, float(value) + 0.0)


def _advice(hint: Any, value: Any) -> str:
    """How to write what was probably meant, as the rest of a message."""
    kinds = {get_origin(kind) or kind: bounds for kind, bounds in alternatives(hint)}
    if _is_huge(value):
        has_bound = any(math.isfinite(bounds.most) for bounds in kinds.values())
        return "" if has_bound else f" Whole numbers go up to {LARGEST}."
    if isinstance(value, str) and kinds.keys() & {list, tuple}:
        return f" Write a list: [{json.dumps(value, ensure_ascii=False)}]."
    if isinstance(value, str) and kinds.keys() & {int, float}:
        number = re.fullmatch(r"([-+]?\d*[.,]?\d+)(%?)", value.strip())
        if number is not None:
            meant = float(number[1].replace(",", ".")) / (100 if number[2] else 1)
            return f" Write {meant:g}."
    if isinstance(value, int | float) and str in kinds:
        return f' Text is written in quotes: "{value}".'
    return ""


def refuse_idle(
    settings: Any, names: Collection[str], why: str, *, label: str, advice: str
) -> None:
    """Refuse settings that do nothing where others are as they are.

    One that has its default cannot be told from one that was not given, and is fine.

    Args:
        settings: all settings of a component.
        names: those that do nothing.
        why: where, as the end of a sentence: "without a rule".
        label: what the message calls the component.
        advice: what to do in place of leaving the setting out, as the end of a
            sentence: "set rule".

    Raises:
        ConfigError: One has another value than its default.
    """
    for field in dataclasses.fields(settings):
        value, default = getattr(settings, field.name), field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.name in names and value != default:
            raise ConfigError(
                f"{label}: {field.name} = {shown(value)} does nothing {why}. Leave "
                f"{field.name} out, or {advice}."
            )


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make `cls` from a mapping; what is wrong with a key or value says where."""
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: {unknown('key', key, known)}")
    missing = [
        name
        for name, f in known.items()
        if name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where}: {', '.join(missing)} must be given.")
    hints = get_type_hints(cls, include_extras=True)
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    for key, value in plain.items():
        # TOML has no null: "none" unsets what has a default.
        if isinstance(value, str) and value == "none" and accepts(hints[key], None):
            plain[key] = None
    try:
        return cls(**plain)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def settings_of(cls: type) -> list[Setting]:
    """Every setting of a class with its type in words, default and documentation."""
    hints = get_type_hints(cls, include_extras=True)
    docs = field_docs(cls)
    settings = []
    for field in dataclasses.fields(cls):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        is_required = default is dataclasses.MISSING
        settings.append(
            Setting(
                name=field.name,
                kind=spell(hints[field.name]),
                default=None if is_required else default,
                required=is_required,
                doc=docs.get(field.name, ""),
            )
        )
    return settings
