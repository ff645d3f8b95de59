"""A client who was never there: its model, its scores, its gain."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.config import parse
from fedloom.data import Digits
from fedloom.reports.units import unit_of
from fedloom.results.statistics import share_interval
from fedloom.runs import Result, run_config

DIGITS = Digits().load(None, 0)
X, Y = DIGITS.inputs[0][:60], DIGITS.targets[:60]

QUICK: dict[str, Any] = {
    "rounds": 4,
    "partition": {"name": "label-skew", "clients": 4, "classes": 5},
    "model": {"name": "mlp", "hidden": [16]},
    "engine": {"compile": "off", "device": "cpu"},
}


def trained(**algorithm: Any) -> Result:
    settings = {"lr": 0.2, "batch_size": 20, **algorithm}
    return run_config(parse({**QUICK, "algorithm": settings}))


@pytest.fixture(scope="module")
def ditto() -> Result:
    return trained(name="ditto", pull=0.1)


def test_a_newcomer_has_a_module_scores_and_gains(ditto: Result) -> None:
    found = ditto.personalize(X, Y, name="ward 9")
    assert (found.samples, found.tested, found.steps) == (45, 15, 3)
    chosen = found.visit.federation.test[0]
    x = X[chosen].float() / 16.0
    right = (found.module(x).argmax(1) == Y[chosen]).double().mean()
    assert found.score == pytest.approx(float(right))
    shared = ditto.shared_model()
    assert shared is not None
    by_all = (shared(x).argmax(1) == Y[chosen]).double().mean()
    assert found.shared == pytest.approx(float(by_all))
    assert found.gain_over_shared == pytest.approx(float(right - by_all))
    assert found.gain == found.score - found.alone
    assert found.gain > 0.1  # three steps from scratch learn next to nothing
    assert str(found).startswith(
        f"ward 9: accuracy {unit_of('accuracy').score(found.score)} on 15"
    )
    assert found.predict(X[:3]).sum(1).tolist() == pytest.approx([1.0] * 3)


def test_training_alone_takes_as_many_steps_and_begins_at_the_runs_first_model(
    ditto: Result,
) -> None:
    found = ditto.personalize(X, Y, rounds=2)
    clients = found.visit.federation
    for steps, rounds, expected in (
        (found.steps, 1, found.alone),
        (None, 4, found.alone_throughout),
    ):
        method = fedloom.Local(lr=0.2, batch_size=20, steps=steps)
        module = found.visit.task.fresh_module()
        alone = fedloom.run(method, module, clients, rounds=rounds)
        assert alone.scores()[0] == expected


def test_steps_of_adaptation_count_as_work() -> None:
    plain, tuned = trained(name="fedavg"), trained(name="fedavg", tuning=3)
    without, with_it = plain.personalize(X, Y), tuned.personalize(X, Y)
    assert without.steps == 3
    assert with_it.steps == 3 + 3 * 3
    assert without.gain_over_shared == 0.0  # FedAvg's personal model is the shared one
    moved = [
        not torch.equal(a, b)
        for a, b in zip(
            with_it.module.parameters(), without.module.parameters(), strict=True
        )
    ]
    assert all(moved)


def test_the_same_newcomer_gets_the_same_model_twice_and_changes_nobody(
    ditto: Result,
) -> None:
    before = [p.clone() for p in ditto.model(0).parameters()]
    first, second = ditto.personalize(X, Y), ditto.personalize(X, Y)
    for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(a, b)
    after = list(ditto.model(0).parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_predictions_are_averaged_over_the_newcomers_posterior() -> None:
    method = {"name": "pfedvem", "lr": 0.05, "epochs": 1, "passes": 2}
    found = trained(**method).personalize(X, Y)
    task, thetas = found.visit.task, found.visit.models()
    assert len(thetas) > 1
    each = torch.stack([task.predict(t, (X[:5],)).softmax(1) for t in thetas])
    assert torch.allclose(found.predict(X[:5]), each.mean(0), atol=1e-6)
    assert {scores.kind for scores in found.scores} == {
        "shared",
        "personal",
        "averaged",
    }


def test_it_joins_the_team_that_fits_it() -> None:
    """Two teams that disagree on every label; the newcomer is of the second."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(160, 2)).astype("float32")
    owner = np.arange(160) % 4
    y = ((x[:, 0] > 0) ^ (owner >= 2)).astype("int64")
    clients = fedloom.federation(x, y, clients=owner, teams=[0, 0, 1, 1])
    method = fedloom.REGISTRY["pfedmt"](lr=0.1, team_iterations=4, steps=5)
    result = fedloom.run(method, "mlr", clients, rounds=6)
    new = draw.normal(size=(40, 2)).astype("float32")
    found = result.personalize(new, (new[:, 0] <= 0).astype("int64"))
    assert found.team == 1
    told = result.personalize(new, (new[:, 0] <= 0).astype("int64"), team=0)
    assert told.team == 0


def test_a_newcomer_without_test_samples_has_a_model_and_no_score(
    ditto: Result,
) -> None:
    found = ditto.personalize(X, Y, test=0.0)
    assert math.isnan(found.score)
    assert "none to test on" in found.sentence()
    assert found.module(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


def test_regression_gains_when_its_error_is_smaller() -> None:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(90, 2)).astype("float32")
    y = (x @ np.array([1.0, -2.0])).astype("float32")
    clients = fedloom.federation(x, y, clients=np.arange(90) % 3)
    result = fedloom.run(fedloom.Ditto(lr=0.1), "mlr", clients, rounds=8)
    found = result.personalize(x[:20], y[:20])
    assert found.metric == "mse"
    assert found.gain == found.alone - found.score
    assert found.gain > 0


def test_a_newcomers_accuracy_and_gains_say_how_sure_they_are(ditto: Result) -> None:
    newcomer = ditto.personalize(X, Y, name="ward 9")
    percent = unit_of("accuracy")
    low, high = share_interval(newcomer.score, newcomer.tested)
    assert (
        f"(95 % interval {percent.score(low)} to {percent.score(high)})"
        in newcomer.sentence()
    )
    assert "a gain may be off by" in newcomer.sentence()


def test_it_is_written_like_any_other_model(ditto: Result, tmp_path: Path) -> None:
    found = ditto.personalize(X, Y, name="ward 9")
    text = (found.export(tmp_path / "e") / "README.md").read_text()
    assert text.startswith("# The model of client ward 9, who joined later")
    assert found.sentence() in text
    x = torch.rand(4, 1, 8, 8)
    module = fedloom.load_model(tmp_path / "e")
    assert torch.equal(module(x), found.module(x))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X[:, :, :7]}, r"expected samples of shape \(1, 8, 8\)"),
        ({"y": Y + 5}, "whole numbers 0 to 9"),
        ({"y": Y[:50]}, "60 samples and 50 targets"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"team": 1}, "there is no team 1"),
    ],
)
def test_mistakes_are_named(
    ditto: Result, change: dict[str, Any], message: str
) -> None:
    given = {"x": X, "y": Y, **change}
    with pytest.raises(fedloom.FedloomError, match=message):
        ditto.personalize(given.pop("x"), given.pop("y"), **given)
