from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from fedloom.algorithms import Ditto, FedAvg
from fedloom.core.errors import ConfigError, FedloomError, unknown
from fedloom.core.settings import (
    Count,
    Interval,
    NonNegative,
    Positive,
    Rate,
    Share,
    Whole,
    build,
    check,
    settings_of,
)


@dataclass(frozen=True, kw_only=True)
class Oven:
    """A settings class with one field of every kind."""

    heat: Positive
    """Degrees.

    Above the kitchen's.
    """
    minutes: Count = 30
    """How long."""
    shelf: Whole = 0
    door: bool = False
    """Open?"""
    name: str = "oven"
    mode: Literal["bake", "grill"] = "bake"
    fan: Share = 0.5
    rate: Rate = 1.0
    draught: NonNegative | None = None
    timer: Count | None = None
    racks: tuple[int, ...] = field(default_factory=lambda: (1, 2))

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class Kiln(Oven):
    """Says one thing anew."""

    minutes: Count = 300
    """Longer."""


def refusal(**values: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Oven(**{"heat": 200.0} | values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heat", 0.0),
        ("heat", -1.0),
        ("heat", math.nan),
        ("heat", math.inf),
        ("heat", "hot"),
        ("heat", True),
        ("heat", None),
        ("minutes", 0),
        ("minutes", -3),
        ("minutes", 1.5),
        ("minutes", 30.0),
        ("minutes", True),
        ("minutes", "30"),
        ("shelf", -1),
        ("door", 1),
        ("door", "yes"),
        ("name", 3),
        ("mode", "fry"),
        ("mode", True),
        ("fan", 1.1),
        ("fan", -0.1),
        ("rate", 0.0),
        ("rate", 1.0001),
        ("draught", -1.0),
        ("timer", 0),
        ("timer", 2.0),
        ("racks", [1, 2.5]),
        ("racks", 3),
    ],
)
def test_a_value_that_breaks_its_annotation_is_refused(name: str, value: Any) -> None:
    message = refusal(**{name: value})
    assert message.startswith(f"Oven: {name} must be ")
    assert f"found {value!r}." in message


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("minutes", "30", "Write 30."),
        ("fan", ".5", "Write 0.5."),
        ("fan", "50%", "Write 0.5."),
        ("fan", "0,5", "Write 0.5."),
        ("fan", "half", ""),
        ("name", 3, 'Text is written in quotes: "3".'),
        ("racks", "3", 'Write a list: ["3"].'),
    ],
)
def test_what_was_probably_meant_is_advised(name: str, value: Any, advice: str) -> None:
    assert refusal(**{name: value}).endswith(f"found {value!r}. {advice}".strip())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heat", 1e-9),
        ("minutes", 1),
        ("shelf", 0),
        ("fan", 0.0),
        ("fan", 1.0),
        ("rate", 1.0),
        ("draught", None),
        ("draught", 0.0),
        ("timer", 1),
        ("mode", "grill"),
        ("racks", ()),
    ],
)
def test_a_value_at_the_edge_of_its_range_is_accepted(name: str, value: Any) -> None:
    assert getattr(Oven(**{"heat": 1.0} | {name: value}), name) == value


def test_a_whole_number_given_for_a_number_becomes_one() -> None:
    oven = Oven(heat=200, draught=1, minutes=3)
    assert (type(oven.heat), type(oven.draught)) == (float, float)
    assert type(oven.minutes) is int


def test_a_refusal_spells_the_range() -> None:
    assert "number above 0," in refusal(heat=-1.0)
    assert "whole number at least 1," in refusal(minutes=0)
    assert "one of bake, grill," in refusal(mode="fry")
    assert "number at least 0 and at most 1," in refusal(fan=2.0)
    assert "number at least 0 or none," in refusal(draught=-1.0)
    assert "list of whole number," in refusal(racks=3)


@pytest.mark.parametrize("lr", [0.0, -0.1, math.nan, math.inf, True, "0.1"])
def test_every_method_refuses_such_a_learning_rate(lr: Any) -> None:
    with pytest.raises(ConfigError, match="FedAvg: lr must be a number above 0"):
        FedAvg(lr=lr)


@pytest.mark.parametrize("epochs", [0, -1, 1.5, True])
def test_every_method_refuses_so_many_epochs(epochs: Any) -> None:
    with pytest.raises(ConfigError, match="Ditto: epochs must be a whole number"):
        Ditto(epochs=epochs)


def test_settings_are_built_from_a_plain_table() -> None:
    oven = build(Oven, {"heat": 90, "racks": [3]}, "run.toml [oven]")
    assert oven == Oven(heat=90.0, racks=(3,))


def test_an_unknown_key_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError) as caught:
        build(FedAvg, {"epoch": 2}, "run.toml [algorithm]")
    message = str(caught.value)
    assert message.startswith("run.toml [algorithm]: unknown key 'epoch'. ")
    assert "Did you mean 'epochs'?" in message
    assert "Known: batch_size, clip, epochs, lr, " in message


def test_a_key_like_no_other_gets_no_suggestion() -> None:
    message = unknown("key", "zzzz", ["lr", "epochs"])
    assert message == "unknown key 'zzzz'. Known: epochs, lr."


def test_a_missing_setting_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^here: heat must be given\.$"):
        build(Oven, {}, "here")


def test_a_bad_value_in_a_table_says_where() -> None:
    with pytest.raises(
        ConfigError, match=r"^here: Oven: minutes must be a whole number"
    ):
        build(Oven, {"heat": 1.0, "minutes": 1.5}, "here")


def test_the_documentation_is_the_string_under_the_field() -> None:
    found = {s.name: s for s in settings_of(Oven)}
    assert found["heat"].doc == "Degrees.\n\nAbove the kitchen's."
    assert found["minutes"].doc == "How long."
    assert found["shelf"].doc == ""
    assert found["heat"].required
    assert not found["minutes"].required
    assert found["minutes"].default == 30
    assert found["racks"].default == (1, 2)
    assert found["mode"].kind == "one of bake, grill"


def test_a_child_may_document_a_field_anew() -> None:
    found = {s.name: s for s in settings_of(Kiln)}
    assert (found["minutes"].doc, found["minutes"].default) == ("Longer.", 300)
    assert found["door"].doc == "Open?"


def test_an_interval_excludes_what_it_is_above_and_below() -> None:
    assert 0.0 not in Interval(above=0.0)
    assert 1.0 not in Interval(below=1.0)
    assert 0.0 in Interval(least=0.0, most=0.0)
    assert str(Interval(above=0.0, most=2.0)) == "above 0 and at most 2"


def test_every_error_has_an_exit_code_of_its_own() -> None:
    kinds = FedloomError.__subclasses__()
    codes = {kind.__name__: kind.exit_code for kind in kinds}
    assert codes == {
        "ConfigError": 2,
        "DataError": 3,
        "ContractError": 4,
        "NumericalError": 5,
        "MessageError": 6,
    }
