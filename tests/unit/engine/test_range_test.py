"""A learning rate that is found: on training data, the same for all, the same again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom
from fedloom.clients import Federation
from fedloom.config import parse, to_tables
from fedloom.core.errors import ConfigError, NumericalError
from fedloom.core.task import Task
from fedloom.engine.loop import Loop
from fedloom.engine.range_test import RATES, FoundRate, find_rate, with_rate
from fedloom.engine.weave import Weave
from fedloom.runs import run_config

CURVATURE = 50.0
"""Of the loss of `parabola` in every direction: a rate above 2 / 50 blows it up."""


def parabola(count: int = 10, scale: float = 1.0) -> tuple[Task, Federation]:
    """y = theta x with x = +-5, so that the loss (theta x - y)^2 has curvature 50."""
    draw = np.random.default_rng(0)
    x = scale * 5.0 * draw.choice([-1.0, 1.0], size=(count * 12, 1))
    clients = fedloom.federation(
        x,
        2.0 * x[:, 0],
        clients=np.repeat(np.arange(count), 12),
        task="regression",
        standardise_targets=False,
    )
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    return Task(module, "squared-error", dtype=torch.float64), clients


def found(method: Any = None, runner: Any = None, **more: Any) -> FoundRate:
    task, clients = parabola(**more)
    method = method if method is not None else fedloom.Local(clip=None)
    runner = runner if runner is not None else Weave(16)
    return find_rate(method, task, clients, runner, seed=0)


def test_the_rate_is_stable_and_not_timid() -> None:
    test = found()
    assert test.largest <= 2 / CURVATURE
    assert test.rate == 0.01
    too_far = test.losses[RATES.index(0.1)]
    assert too_far is None or too_far > test.before
    assert str(test).startswith("lr = auto: 0.01, from a range test")


def test_it_follows_the_units() -> None:
    assert found(scale=10.0).rate == pytest.approx(found().rate / 100)


def test_both_runners_and_the_same_seed_give_the_same() -> None:
    woven, looped = found(), found(runner=Loop())
    assert woven == found()
    assert (woven.rate, woven.rates) == (looped.rate, looped.rates)
    for here, there in zip(woven.losses, looped.losses, strict=True):
        assert here == (None if there is None else pytest.approx(there, rel=1e-9))


def test_all_methods_with_the_same_ordinary_settings_share_a_test() -> None:
    expected = found()
    for method in (fedloom.Ditto(clip=None, pull=3.0), fedloom.FedAvg(clip=None, lr=9)):
        assert found(method) == expected
    assert found(fedloom.FedAvg(clip=None, momentum=0.9)) != expected


def test_validation_and_test_samples_are_not_looked_at() -> None:
    task, clients = parabola()
    targets = clients.dataset.targets.clone()
    targets[torch.as_tensor(clients.test.indices)] = 1e9
    assert len(clients.test.indices)
    other = replace(clients, dataset=replace(clients.dataset, targets=targets))
    method = fedloom.Local(clip=None)
    assert find_rate(method, task, other, Weave(16), seed=0) == found()


def test_a_loss_that_never_falls_says_so() -> None:
    task, clients = parabola()
    data = clients.dataset
    solved = replace(data, targets=torch.zeros_like(data.targets))
    clients = replace(clients, dataset=solved)
    with pytest.raises(NumericalError, match="falls at none of the rates 1e-05 to 3"):
        find_rate(fedloom.Local(), task, clients, Weave(16), seed=0)


def test_a_method_that_refuses_the_rate_gets_the_next_lower() -> None:
    high = replace(found(), rate=1.0)
    assert with_rate(fedloom.FedAvg(), high).lr == 1.0
    tight = fedloom.PFedMe(pull=15.0)  # pull * personal_lr must be below 2
    assert with_rate(tight, high).personal_lr == 0.1  # type: ignore[attr-defined]
    assert with_rate(tight, high).lr == tight.lr


QUICK: dict[str, Any] = {
    "rounds": 1,
    "partition": {"name": "label-skew", "clients": 4, "classes": 5},
    "model": {"name": "mlr"},
    "engine": {"compile": "off", "device": "cpu"},
}


def test_a_file_may_ask_for_it_and_the_run_keeps_what_was_found(tmp_path: Path) -> None:
    config = parse({**QUICK, "algorithm": {"name": "ditto", "lr": "auto"}})
    assert parse(to_tables(config)) == config
    result = run_config(config, out=tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    rate = manifest["auto_lr"]["rate"]
    assert manifest["config"]["algorithm"]["lr"] == rate
    assert fedloom.load(tmp_path / "run").history.rounds == result.history.rounds
    same = parse({**QUICK, "algorithm": {"name": "ditto", "lr": rate}})
    assert run_config(same).history.rounds[-1].scores == (
        result.history.rounds[-1].scores
    )


def test_adam_keeps_its_rate() -> None:
    config = parse({**QUICK, "algorithm": {"name": "pfedbayes", "lr": "auto"}})
    rows = run_config(config).history.rounds
    plain = run_config(parse({**QUICK, "algorithm": {"name": "pfedbayes"}}))
    assert rows[-1].scores == plain.history.rounds[-1].scores


def test_python_asks_beside_the_method() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(90, 4)), draw.integers(0, 3, 90)
    clients = fedloom.federation(x, y, clients=np.arange(90) % 3)
    result = fedloom.run("fedavg", "mlr", clients, rounds=1, lr="auto")
    assert result.history.rounds[-1].scores
    with pytest.raises(ConfigError, match=r"fedloom.run\(..., lr='auto'\)"):
        fedloom.FedAvg(lr="auto")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"lr must be .auto. or left out, found 0\.1"):
        fedloom.run("fedavg", "mlr", clients, lr=0.1)  # type: ignore[arg-type]
