"""What is searched, from the types of a method's settings."""

from __future__ import annotations

from typing import Any

import pytest

from fedloom.algorithms import REGISTRY
from fedloom.core.errors import ConfigError
from fedloom.tuning import Range, space_of
from fedloom.tuning.space import check_names


def one(method: str, name: str, **given: Any) -> Range:
    (found,) = space_of(REGISTRY[method], given, [name])
    return found


def test_by_default_the_rate_and_the_methods_own_numbers_are_searched() -> None:
    names = [found.name for found in space_of(REGISTRY["ditto"], {})]
    assert names == ["lr", "pull"]
    names = [found.name for found in space_of(REGISTRY["pfedvem"], {})]
    assert "momentum" not in names  # common to all methods, whatever its default
    assert "passes" not in names
    assert "confidence" not in names


def test_numbers_without_an_upper_bound_are_sought_around_their_default() -> None:
    found = one("ditto", "pull")
    assert (found.kind, found.low, found.high) == ("log", 1 / 30, 30)
    assert found.drawn() == found.centre == 1.0


def test_numbers_between_bounds_are_sought_everywhere() -> None:
    share = one("fedacs", "quantile")
    assert (share.kind, share.low, share.high) == ("uniform", 0.0, 1.0)
    below_one = one("pfedvem", "server_momentum")
    assert (below_one.low, below_one.high) == (0.0, 0.999)
    above_zero = one("self-fl", "smoothing")  # a number, or the word "activity"
    assert (above_zero.low, above_zero.high) == (0.001, 1.0)


def test_a_bound_far_above_the_default_is_none_for_a_search() -> None:
    scale = one("pfedvem", "scale")  # at most 1e9, which only keeps nonsense out
    assert (scale.kind, scale.can_widen) == ("log", True)
    assert (scale.low, scale.high) == (pytest.approx(0.1 / 30), pytest.approx(3.0))


def test_the_low_end_stands_for_a_default_of_nothing() -> None:
    found = one("ditto", "weight_decay")
    assert (found.kind, found.low, found.high) == ("log", 1e-5, 1.0)
    assert found.value(found.drawn()) == 0.0
    assert found.value(0.0123456) == 0.01235


def test_counts_and_choices_are_searched_when_they_are_named() -> None:
    assert one("fedacs", "epochs").kind == "count"
    assert (one("fedacs", "epochs").low, one("fedacs", "epochs").high) == (1, 20)
    assert one("ditto", "weights").choices == ("size", "equal")
    assert one("self-fl", "use_init").choices == (False, True)
    assert one("self-fl", "warm_rounds").low == 0


def test_values_stay_in_range_when_they_are_rounded() -> None:
    found = Range(name="lr", centre=0.1, kind="log", low=0.1 / 30, high=3.0)
    assert found.value(0.1 / 30) == 0.1 / 30
    assert found.value(2.99999) == 3.0


def test_what_the_user_set_stays_unless_it_is_named() -> None:
    names = [found.name for found in space_of(REGISTRY["ditto"], {"lr": 0.3})]
    assert names == ["pull"]
    assert one("ditto", "lr", lr=0.3).high == pytest.approx(9.0)
    assert one("ditto", "personal_lr", personal_lr=0.1).centre == 0.1


@pytest.mark.parametrize("method", REGISTRY)
def test_every_method_has_a_space_whose_centre_is_its_default(method: str) -> None:
    kind = REGISTRY[method]
    space = space_of(kind, {})
    assert "lr" in {found.name for found in space}
    for found in space:
        assert found.low <= found.drawn() <= found.high
        assert found.value(found.drawn()) == pytest.approx(found.centre, rel=1e-3)
    kind(**{found.name: found.value(found.drawn()) for found in space})


def test_what_cannot_be_searched_says_so() -> None:
    with pytest.raises(ConfigError, match=r"steps of ditto has no default.*--set al"):
        one("ditto", "steps")
    with pytest.raises(ConfigError, match="Did you mean 'pull'"):
        check_names([REGISTRY["ditto"], REGISTRY["fedavg"]], ["lr", "pul"])
    check_names([REGISTRY["ditto"], REGISTRY["fedavg"]], ["lr", "pull"])
    assert [r.name for r in space_of(REGISTRY["fedavg"], {}, ["lr", "pull"])] == ["lr"]
