"""What a method says of a run: when, and where a user meets it."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom
from fedloom.algorithms import REGISTRY, Ditto, FedAvg, Local, SelfFL
from fedloom.clients import federation
from fedloom.comparison import parse_comparison, run_comparison
from fedloom.config import RunConfig, parse, to_toml
from fedloom.core.errors import NumericalError
from fedloom.core.remarks import Remark, divergence, on_participants, on_training_loss
from fedloom.core.task import Task
from fedloom.plan import plan_for
from fedloom.reports import collect, write_report
from fedloom.reports.findings import work_out
from fedloom.reports.headline import headline
from fedloom.results.directory import RunDirectory
from fedloom.results.observations import LONGER
from fedloom.runs import load, resume, run_config

STARVED: dict[str, Any] = {
    "rounds": 5,
    "evaluate_every": 5,
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlr"},
    "engine": {"compile": "off", "device": "cpu"},
}
STARVING = {"name": "self-fl", "lr": 1e-4, "least_steps": 1}
"""A rate so small that a client's variance asks for one step."""


def columns(computed: list[list[int]], ordinary: int = 10) -> dict[str, Any]:
    """A client log of some rounds, with a number per client of each."""
    rows = np.array(computed)
    return {
        "round": np.repeat(np.arange(1, len(rows) + 1), rows.shape[1]),
        "computed": rows.ravel(),
        "ordinary": np.full(rows.size, ordinary),
        "correction": np.full(rows.size, 0.1),
        "wanted": rows.ravel().astype(float),
        "train_loss": np.ones(rows.size),
    }


def topics(method: Any, log: dict[str, Any]) -> set[str]:
    return {remark.topic for remark in method.remarks(log)}


FEW, HELD, ENDS, START = (
    "local steps: few",
    "local steps: below their floor",
    "local steps: at the ends of their range",
    "start at the shared model",
)


@pytest.mark.parametrize(
    ("settings", "computed", "expected"),
    [
        ({"least_steps": 1}, [[0, 0], [5, 4]], set()),  # 10, 10, 5 and 4 of 10
        ({"least_steps": 1}, [[0], [2], [2], [2], [2]], {FEW}),
        ({"least_steps": 1}, [[0], [1], [1], [1], [1]], {FEW}),
        ({}, [[0, 0], [40, 40]], {ENDS}),
        ({}, [[0, 0], [10, 40]], {ENDS}),
        ({}, [[0, 0], [20, 40]], set()),
        ({"most_steps": 4}, [[0]] + [[4]] * 8, {FEW}),
        ({"use_steps": False, "least_steps": 1}, [[1], [1], [1]], set()),
        ({}, [[40]] * 5 + [[20]] * 10, set()),  # the last ten rounds count
        ({}, [[0], [0]], set()),
    ],
)
def test_few_steps_are_warned_of_and_ends_are_noted(
    settings: dict[str, Any], computed: list[list[int]], expected: set[str]
) -> None:
    assert topics(SelfFL(**settings), columns(computed)) == expected
    found = list(SelfFL(**settings).remarks(columns(computed)))
    assert all(remark.is_warning == (remark.topic == FEW) for remark in found)


@pytest.mark.parametrize(
    ("wanted", "fall", "expected"),
    [(9.4, 0.04, {HELD}), (9.6, 0.04, set()), (9.4, 0.02, set()), (0.0, 0.5, {HELD})],
)
def test_a_floor_that_holds_clients_up_while_they_learn_is_warned_of(
    wanted: float, fall: float, expected: set[str]
) -> None:
    """A quarter of the cases ask for `wanted` steps where the floor is 10."""
    log = columns([[20, 20, 20, 10]] * 12)
    log["wanted"][3::4] = wanted
    log["train_loss"][24:] = 1 - fall
    assert topics(SelfFL(), log) == expected
    if expected:  # at their floor, too: still one remark
        at_floor = {**log, "computed": np.full(log["computed"].shape, 10)}
        assert topics(SelfFL(), at_floor) == expected
    log["wanted"][3] = 20.0
    assert not topics(SelfFL(), log)


@pytest.mark.parametrize(
    ("computed", "advice"),
    [([40, 40, 10], "raise most_steps,"), ([10, 10, 40], "set least_steps to")],
)
def test_steps_at_an_end_of_their_range_say_what_to_change(
    computed: list[int], advice: str
) -> None:
    (remark,) = SelfFL().remarks(columns([[0, 0, 0], computed]))
    assert advice in remark.text


def test_a_start_that_was_switched_off_is_noted() -> None:
    log = columns([[0, 0], [20, 30], [20, 30]])
    log["correction"][:4] = 0.0
    (remark,) = SelfFL().remarks(log)
    assert remark.topic == START
    assert "In 1 of 2 rounds" in remark.text
    assert not topics(SelfFL(stale_init="recent"), log)


def test_a_run_keeps_its_remarks(tmp_path: Path) -> None:
    config = parse({**STARVED, "algorithm": STARVING})
    memory = run_config(config)
    written = run_config(config, out=tmp_path / "a")
    (few, *_) = written.remarks
    assert (few.topic, few.is_warning) == (FEW, True)
    assert memory.remarks == written.remarks
    assert load(tmp_path / "a").remarks == written.remarks
    assert resume(tmp_path / "a").remarks == written.remarks
    saved = memory.save(tmp_path / "b")
    assert RunDirectory(saved).read_remarks() == written.remarks
    run_config(parse({**STARVED, "algorithm": {"name": "local"}}), out=tmp_path / "c")
    assert not (tmp_path / "c" / "remarks.json").exists()


@pytest.mark.slow
def test_the_command_line_ends_with_the_remarks(tmp_path: Path) -> None:
    file = tmp_path / "starved.toml"
    file.write_text(to_toml({**STARVED, "algorithm": STARVING}))
    code = "from fedloom.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", str(file), "--out", str(tmp_path / "a")],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert "\nwarning: The step rule gave clients" in done.stdout


def test_a_comparison_says_the_remarks_of_its_methods_once(tmp_path: Path) -> None:
    methods = {"starving": STARVING, "local": {}}
    comparison = parse_comparison({**STARVED, "methods": methods, "seeds": 2})
    run_comparison(comparison, tmp_path / "c", jobs=1)
    findings, (page, *_) = write_report([tmp_path / "c"])
    remarks = [r for r in findings.collection.remarks if "local steps a round" in r]
    (text,) = remarks
    assert text.startswith("starving: The step rule gave clients")
    assert text.endswith("(2 of 2 seeds; numbers of seed 0.)")
    assert "The step rule gave clients" in page.read_text()


def test_models_that_learnt_little_are_warned_of() -> None:
    def text(*losses: float | None) -> str:
        return " ".join(remark.text for remark in on_training_loss(*losses))  # type: ignore[arg-type]

    assert text(2.0, 2.4, 2.3) == ""
    assert "it is 2.2 at the end, and a model that says the same" in text(2.2, 2.4, 2.3)
    assert "would have 2.3" in text(2.2, 2.4, 2.3)
    assert "it is 2.1 at the end, and before the first round it was 2" in text(
        2.1, 2.0, None
    )
    assert text(2.0, 2.1, None) == ""


@pytest.mark.parametrize(("lr", "count"), [(0.1, 0), (1e-9, 1)])
def test_a_run_that_learns_nothing_says_so(lr: float, count: int) -> None:
    result = run_config(parse({**STARVED, "algorithm": {"name": "fedavg", "lr": lr}}))
    assert [r.topic for r in result.remarks] == ["little was learnt"] * count


@pytest.mark.parametrize("is_regression", [True, False])
def test_the_loss_of_a_constant_model_is_that_of_the_best_one(
    is_regression: bool,
) -> None:
    """Client a holds 1 and 1, client b holds 0, 0, 0 and 1: half of all are 1."""
    y = np.array([1, 1, 0, 0, 0, 1])
    clients = federation(
        np.zeros((6, 2), dtype="float32"),
        y.astype("float32") + 0.5 if is_regression else y,
        clients=list("aabbbb"),
        test=0.0,
        task="regression" if is_regression else "classification",
    )
    plan = plan_for(
        RunConfig(), nn.Linear(2, 1 + (not is_regression)), clients, is_own=True
    )
    # Standardised, both numbers are 1 from their mean, so that the squared error is 1.
    expected = 1.0 if is_regression else math.log(2)
    assert plan.simulation.constant_loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("losses", "has_classes", "is_diverged"),
    [
        ((10.1, 1.0), False, True),
        ((9.9, 1.0), False, False),
        ((9.9, 0.01), True, False),  # a rare class, and a model that has just begun
        ((23.1, 2.3), True, True),
        ((5.0, 0.0), False, False),  # all targets are the same
        ((1e9, None), False, False),
    ],
)
def test_a_loss_far_above_that_of_a_constant_is_divergence(
    losses: tuple[float, float | None], has_classes: bool, is_diverged: bool
) -> None:
    why = divergence(*losses, 0.5, has_classes=has_classes)
    assert (why is not None) == is_diverged
    if why is not None:
        assert "lr is 0.5. Lower algorithm.lr" in why


def test_divergence_under_noise_names_the_noise_first() -> None:
    why = divergence(50.0, 1.0, 0.5, has_classes=False, is_noisy=True)
    assert why is not None
    assert why.index("privacy.clip") < why.index("algorithm.lr")


def test_finite_numbers_can_have_diverged_too(tmp_path: Path) -> None:
    """Clipped steps of a thousand lead far away and never overflow."""
    x = np.random.default_rng(0).normal(size=(80, 2)).astype("float32")
    clients = federation(x, x[:, 0] + 0.5, clients=[n % 4 for n in range(80)])
    out = tmp_path / "run"
    with pytest.raises(NumericalError, match=r"training diverged\. lr is 1000\. Lower"):
        fedloom.run(FedAvg(lr=1000.0), "mlr", clients, rounds=2, out=out)
    assert RunDirectory(out).read_failure() is not None
    with pytest.raises(NumericalError, match=r"this run diverged\. At the end"):
        resume(out, "mlr", clients)
    methods = {"wild": FedAvg(lr=1000.0), "tame": FedAvg(lr=0.1)}
    result = fedloom.compare(
        methods, "mlr", clients, rounds=2, seeds=2, out=tmp_path / "c"
    )
    assert "wild: 2 of 2 runs diverged" in result.failures[0]
    runs = collect([tmp_path / "c"]).runs
    states = {key: run.state for key, run in runs.items()}
    assert states == {
        ("wild", 0): "failed",
        ("wild", 1): "failed",
        ("tame", 0): "finished",
        ("tame", 1): "finished",
    }


def test_nothing_is_measured_by_training_alone_that_diverged(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(120, 2)).astype("float32")
    clients = federation(
        x, x[:, 0] + 0.5, clients=[n % 4 for n in range(120)], validation=0.25
    )
    methods = {"local": Local(lr=1000.0), "ditto": Ditto(lr=0.1)}
    fedloom.compare(methods, "mlr", clients, rounds=2, seeds=2, out=tmp_path / "c")
    findings = work_out(collect([tmp_path / "c"]))
    assert findings.gains is None
    assert findings.evidence is not None
    assert LONGER not in findings.evidence.yardsticks
    assert "whether that beats training alone is not known" in headline(findings)


def test_a_loss_of_ones_own_has_no_constant_model() -> None:
    task = Task(nn.Linear(2, 2), lambda outputs, targets: outputs[:, 0])
    assert task.constant_losses(torch.tensor([0, 1])) is None


def test_what_is_said_of_several_methods_is_said_once(tmp_path: Path) -> None:
    methods = {"fedavg": {"lr": 1e-9}, "ditto": {"lr": 1e-9}, "local": {"lr": 0.1}}
    comparison = parse_comparison({**STARVED, "methods": methods, "seeds": 2})
    run_comparison(comparison, tmp_path / "c", jobs=1)
    findings, _ = write_report([tmp_path / "c"])
    (text,) = (r for r in findings.collection.remarks if "learnt little" in r)
    assert text.startswith("fedavg and ditto: The personal models learnt little")
    assert text.endswith("(4 of 4 runs; numbers of fedavg, seed 0.)")


def test_a_damaged_file_of_remarks_says_nothing_in_a_report(tmp_path: Path) -> None:
    config = parse({**STARVED, "algorithm": STARVING})
    run_config(config, out=tmp_path / "a")
    (tmp_path / "a" / "remarks.json").write_text("[{")
    findings, _ = write_report([tmp_path / "a"])
    assert not any("local steps" in text for text in findings.collection.remarks)


def test_a_remark_says_how_bad_it_is() -> None:
    assert str(Remark("work", "Little was done.", True)) == "warning: Little was done."
    assert str(Remark("work", "Much was done.")) == "note: Much was done."


def test_methods_say_nothing_by_default() -> None:
    assert tuple(REGISTRY["fedavg"]().remarks({})) == ()


def test_a_run_in_which_nobody_took_part_says_so() -> None:
    everybody_away = {**STARVED, "rounds": 1, "faults": {"absent": 1.0}}
    remarks = run_config(parse(everybody_away)).remarks
    assert remarks[0].topic == "nobody took part"
    assert "any of 1 round, so" in remarks[0].text
    assert not list(on_participants([0, 3, 0]))
