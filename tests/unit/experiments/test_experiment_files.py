"""The papers' experiments as files: they load, and every arm can be planned."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.clients import BlockTeams, Federation, Iid, Split, divide
from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.experiments.catalogue import experiment_names, family, load_experiment
from fedloom.experiments.experiment import Experiment, Unit, parse_experiment
from fedloom.experiments.self_fl import gaussian
from fedloom.experiments.self_fl.audio import ARMS
from fedloom.experiments.summary import left_out
from fedloom.plan import make_plan

ITEMS = {
    *(f"S{n}" for n in range(1, 22)),
    *("V1", "V2", "V3", "V5", "V6", "V7", "V11"),
    *(f"A{n}" for n in range(1, 7)),
    *("T1", "T2", "T3"),
}
"""Tables and figures of the four papers that public data allow, and a stand-in's."""

CHECKLIST = {
    f"{letter}{n}"
    for letter, most in {"S": 21, "V": 12, "A": 6, "T": 3}.items()
    for n in range(1, most + 1)
}
"""All tables and figures of the four papers, by paper and place."""

LETTERS = {"self_fl": "S", "pfedvem": "V", "fedacs": "A", "pfedmt": "T"}

SHAPES = {
    "mnist": ((1, 28, 28), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "emnist-letters-aj": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 20),
    "synthetic": ((60,), 10),
    "sent140": ((25,), 2),
}
"""Of one sample, by the name of its source, and how many classes there are."""

SMALL: dict[str, Any] = {
    "title": "A trial",
    "numbers": {"PM": "personal/test/accuracy"},
    "run": {"rounds": 1},
    "arms": {"local": {"algorithm": {"name": "local"}}},
}


@cache
def made_up(source: str) -> Federation:
    """Four clients with twelve samples of the right shape."""
    shape, classes = SHAPES[source]
    draw = np.random.default_rng(0)
    inputs = torch.from_numpy(draw.normal(size=(48, *shape)).astype(np.float32))
    vectors = None
    if source == "sent140":
        inputs = torch.from_numpy(draw.integers(0, 9, size=(48, *shape)))
        vectors = torch.from_numpy(draw.normal(size=(9, 4)).astype(np.float32))
    targets = torch.arange(48) % classes
    data = Dataset(
        name=source,
        inputs=(inputs,),
        targets=targets,
        classes=classes,
        vectors=vectors,
    )
    return divide(data, Iid(clients=4), Split(test=0.25), BlockTeams(teams=2), seed=0)


def plan_arms(experiment: Experiment) -> None:
    """Make a plan of every arm, in the first setting that has it."""
    planned = set()
    for unit in experiment.units("paper"):
        if unit.arm not in planned:
            planned.add(unit.arm)
            config = experiment.config(unit, "paper")
            source = experiment.config_tables(unit, "paper")["data"]["name"]
            engine = replace(config.engine, compile="off")
            make_plan(replace(config, engine=engine), made_up(source))


@pytest.mark.parametrize("name", experiment_names())
def test_every_arm_of_an_experiment_can_be_planned(name: str) -> None:
    experiment = load_experiment(name)
    assert experiment.title
    assert experiment.tables or experiment.figures
    assert experiment.of or experiment.units("small")
    for scale in ("small", "paper"):
        for unit in () if experiment.program else experiment.units(scale):
            assert experiment.config(unit, scale).algorithm.clip is None, unit
    if not experiment.of and not experiment.program:
        plan_arms(experiment)


def test_every_item_of_the_papers_is_in_a_file() -> None:
    items = {
        item for name in experiment_names() for item in load_experiment(name).items
    }
    assert items == ITEMS


def test_what_no_file_covers_is_listed_with_reason_and_cost() -> None:
    entries = left_out()
    whole = {item for own in entries if not own.is_part for item in own.items}
    parts = {item for own in entries if own.is_part for item in own.items}
    assert whole | ITEMS == CHECKLIST
    assert not whole & ITEMS
    assert parts <= ITEMS
    for own in entries:
        assert all((own.what, own.why, own.cost)), own.items
        assert {item[0] for item in own.items} == {LETTERS[own.paper]}


def test_programs_know_the_arms_and_settings_of_their_files() -> None:
    for name in experiment_names():
        experiment = load_experiment(name)
        for arm in experiment.arms.values() if experiment.program else ():
            method = arm.sections["method"]
            assert method in (ARMS if experiment.needs else gaussian.METHODS), name
        for setting in experiment.settings.values():
            if "rate" in setting:
                assert setting["rate"] in gaussian.RATES
                assert setting["case"] in {case.name for case in gaussian.CASES}


def test_what_is_shown_elsewhere_is_trained_once() -> None:
    source = load_experiment("self_fl/fig1b_letters")
    shown = load_experiment("self_fl/table1_letters")
    unit = source.units("paper")[0]
    assert shown.source == source.name
    assert shown.digest(unit, "paper") == source.digest(unit, "paper")
    assert shown in family(source.name)


def test_a_later_section_wins_and_another_name_replaces() -> None:
    experiment = parse_experiment(
        "a/trial",
        {
            **SMALL,
            "run": {"rounds": 9, "algorithm": {"lr": 0.5, "epochs": 2}},
            "settings": {"many": {"partition": {"name": "iid", "clients": 30}}},
            "arms": {
                "plain": {"algorithm": {"name": "local"}},
                "other": {
                    "partition": {"name": "label-skew"},
                    "algorithm": {"lr": 0.1},
                },
            },
            "small": {"rounds": 1, "partition": {"clients": 3}, "seeds": 2},
        },
    )
    plain, other = experiment.units("paper")
    assert experiment.config_tables(plain, "paper") == {
        "rounds": 9,
        "algorithm": {"lr": 0.5, "epochs": 2, "name": "local"},
        "partition": {"name": "iid", "clients": 30},
    }
    assert experiment.config_tables(other, "small") == {
        "rounds": 1,
        "algorithm": {"lr": 0.1, "epochs": 2},
        "partition": {"name": "label-skew", "clients": 3},
    }
    assert experiment.seeds_at("small") == (0, 1)
    assert experiment.digest(plain, "small") != experiment.digest(plain, "paper")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arm": {}}, "unknown key 'arm'. Did you mean 'arms'?"),
        ({"arms": {}}, "expected [numbers] and [arms]"),
        ({"claims": [{"text": "x"}]}, "expected one of best, worst, order"),
        ({"tables": [{"title": "x", "paper": {"ditto": {"PM": 1}}}]}, "arm 'ditto'"),
        ({"figures": [{"title": "x", "setting": "J"}]}, "setting 'J'"),
        ({"small": {"arms": ["ditto"]}}, "arm 'ditto'"),
    ],
)
def test_what_a_file_gets_wrong_is_named(change: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_experiment("a/trial", {**SMALL, **change})
    assert message in str(refusal.value)


def test_an_unknown_experiment_is_named() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'pfedvem/table2'"):
        load_experiment("pfedvem/tabel2")
    assert str(Unit("all", "local")) == "local"
