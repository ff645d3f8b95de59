"""A search: on validation data alone, the same after a stop, failures told."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.comparison import parse_comparison, with_tuned
from fedloom.config import read_toml
from fedloom.core.errors import ConfigError, DataError
from fedloom.core.streams import generator
from fedloom.plan import make_clients
from fedloom.runs import run_config
from fedloom.server.simulation import Simulation
from fedloom.tuning import tune
from fedloom.tuning.result import TunedMethod
from fedloom.tuning.trials import TrialResult, Trials, make_clients_to_tune_on

QUICK: dict[str, Any] = {
    "methods": ["fedavg", "ditto"],
    "seeds": 1,
    "rounds": 2,
    "algorithm": {"batch_size": 100},
    "partition": {"name": "label-skew", "clients": 4, "classes": 5},
    "split": {"validation": 0.2},
    "model": {"name": "mlr"},
    "engine": {"compile": "off", "device": "cpu", "dtype": "float64"},
}


def trials_of(lines: list[str]) -> list[str]:
    return [line for line in lines if "/" in line.partition("  ")[0]]


def test_every_method_gets_the_same_trials_and_the_first_is_its_defaults(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    out = tmp_path / "tuned.toml"
    found = tune(parse_comparison(QUICK), out=out, trials=4, tell=lines.append)
    assert [one.trials for one in found] == [4, 4]
    assert [line.partition("  ")[0] for line in trials_of(lines)] == [
        *(f"fedavg {n}/4" for n in (1, 2, 3, 4)),
        *(f"ditto {n}/4" for n in (1, 2, 3, 4)),
    ]
    assert trials_of(lines)[4].endswith("lr=0.05  pull=1.0")
    for one in found:
        assert one.before is not None
        assert one.score >= one.before
    assert set(found[1].settings) == {"lr", "pull"}


def test_the_score_is_that_of_a_run_on_its_validation_data(tmp_path: Path) -> None:
    comparison = parse_comparison({**QUICK, "methods": ["ditto"], "seeds": 2})
    (found,) = tune(comparison, out=tmp_path / "t.toml", trials=2, space=["lr"])
    arms = {"ditto": {**comparison.arms["ditto"], **found.settings}}
    tuned = replace(comparison, arms=arms)
    scores = [
        run_config(tuned.config("ditto", seed)).scores("personal", "validation").mean()
        for seed in (0, 1)
    ]
    assert found.score == pytest.approx(sum(scores) / 2, rel=1e-12)


def test_test_data_are_never_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test data are not scored, and other test labels change nothing."""
    parts: list[str] = []
    real = Simulation.evaluate

    def watched(simulation: Simulation, part: str) -> Any:
        parts.append(part)
        assert not simulation.federation.test.sizes.any()
        return real(simulation, part)

    monkeypatch.setattr(Simulation, "evaluate", watched)
    comparison = parse_comparison({**QUICK, "methods": ["ditto"]})
    (before,) = tune(comparison, out=tmp_path / "a.toml", trials=3)
    assert set(parts) == {"train", "validation"}

    def spoilt(config: Any, data_dir: Any) -> Any:
        config, federation = make_clients(config, data_dir)
        targets = federation.dataset.targets.clone()
        tested = torch.as_tensor(federation.test.indices)
        targets[tested] = (targets[tested] + 1) % 10
        dataset = replace(federation.dataset, targets=targets)
        return config, replace(federation, dataset=dataset)

    monkeypatch.setattr("fedloom.tuning.trials.make_clients", spoilt)
    (after,) = tune(comparison, out=tmp_path / "b.toml", trials=3)
    assert after == before


def test_the_same_seed_tries_the_same_and_another_does_not(tmp_path: Path) -> None:
    comparison = parse_comparison({**QUICK, "methods": ["ditto"]})
    told: list[list[str]] = []
    for n, seed in enumerate((0, 0, 1)):
        lines: list[str] = []
        tune(
            comparison,
            out=tmp_path / f"{n}.toml",
            trials=3,
            seed=seed,
            tell=lines.append,
        )
        told.append(trials_of(lines))
    assert told[0] == told[1]
    assert told[0][1:] != told[2][1:]


def test_a_search_that_was_stopped_goes_on_to_the_same_end(tmp_path: Path) -> None:
    """Stopped inside a trial, and once between two, after the sampler's warm-up."""
    comparison = parse_comparison({**QUICK, "methods": ["ditto"], "rounds": 1})
    whole: list[str] = []
    tune(comparison, out=tmp_path / "whole.toml", trials=13, tell=whole.append)
    real, calls = Trials.run, 0

    def cut(self: Trials, configs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise KeyboardInterrupt
        return real(self, configs)

    lines: list[str] = []
    out = tmp_path / "cut.toml"
    tune(comparison, out=out, trials=5, tell=lines.append)
    with pytest.MonkeyPatch.context() as patch:
        calls = 5
        patch.setattr(Trials, "run", cut)
        with pytest.raises(KeyboardInterrupt):
            tune(comparison, out=out, trials=13, tell=lines.append)
    tune(comparison, out=out, trials=13, tell=lines.append)

    def tried(told: list[str]) -> list[str]:
        return [line.partition("  ")[2] for line in trials_of(told)]

    assert tried(lines) == tried(whole)
    assert read_toml(out) == read_toml(tmp_path / "whole.toml")


def test_a_finished_search_runs_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison = parse_comparison({**QUICK, "methods": ["fedavg"]})
    first = tune(comparison, out=tmp_path / "t.toml", trials=2)
    monkeypatch.setattr(Trials, "run", None)
    assert tune(comparison, out=tmp_path / "t.toml", trials=2) == first


def test_trials_that_diverge_count_and_are_told(tmp_path: Path) -> None:
    """A hidden layer multiplies numbers of 1e150, the rate, and overflows at once."""
    model = {"name": "mlp", "hidden": [8]}
    tables = {**QUICK, "methods": {"fedavg": {"lr": 1e150}}, "model": model}
    tables["algorithm"] = {"batch_size": 100, "clip": "none"}
    lines: list[str] = []
    with pytest.raises(DataError, match="every one of 2 trials failed; the last: roun"):
        tune(
            parse_comparison(tables),
            out=tmp_path / "t.toml",
            trials=2,
            space=["lr"],
            tell=lines.append,
        )
    failed = trials_of(lines)
    assert len(failed) == 2
    assert all("failed: round" in line for line in failed)


def test_a_failure_among_successes_is_counted_and_never_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Trials.run, 0

    def sometimes(self: Trials, configs: Any) -> Any:
        nonlocal calls
        calls += 1
        outcome = real(self, configs)
        return outcome._replace(score=None, why="boom.") if calls == 2 else outcome

    monkeypatch.setattr(Trials, "run", sometimes)
    comparison = parse_comparison({**QUICK, "methods": ["fedavg"]})
    (found,) = tune(comparison, out=tmp_path / "t.toml", trials=3)
    assert (found.trials, found.failed) == (3, 1)
    assert "3 trials, 1 failed" in (tmp_path / "t.toml").read_text()


def test_combinations_that_a_method_refuses_cost_no_trial(tmp_path: Path) -> None:
    """pFedMT wants lr * pull below 1, which most of its space is not."""
    methods = {"pfedmt": {"team_iterations": 1, "steps": 1}}
    comparison = parse_comparison({**QUICK, "methods": methods, "rounds": 1})
    lines: list[str] = []
    (found,) = tune(comparison, out=tmp_path / "t.toml", trials=4, tell=lines.append)
    assert (found.trials, len(trials_of(lines))) == (4, 4)
    assert found.settings["lr"] * found.settings["pull"] < 1


def test_validation_data_are_set_aside_or_asked_for(tmp_path: Path) -> None:
    tables = {**QUICK, "methods": ["fedavg"], "rounds": 1}
    del tables["split"]
    lines: list[str] = []
    out = tmp_path / "t.toml"
    tune(parse_comparison(tables), out=out, trials=1, tell=lines.append)
    assert lines[0].startswith("digits: classification into 10 classes; ")
    assert lines[1].startswith("Local work of each method")
    assert "20\N{NO-BREAK SPACE}% of each client's samples" in lines[2]
    assert read_toml(out)["split"]["validation"] == 0.2
    none = parse_comparison({**tables, "split": {"validation": 0.0}})
    with pytest.raises(ConfigError, match=r"split\.validation is 0"):
        tune(none, out=tmp_path / "n.toml", trials=1)


def test_scores_are_written_as_reports_write_them() -> None:
    def tuned(metric: str, score: float, before: float | None) -> str:
        return str(
            TunedMethod(
                method="fedavg",
                settings={"lr": 0.1},
                score=score,
                before=before,
                metric=metric,
                trials=1,
                failed=0,
                algorithm=fedloom.FedAvg(lr=0.1),
            )
        )

    assert tuned("accuracy", 0.4230769, 0.25) == (
        "fedavg: accuracy 42.3\N{NO-BREAK SPACE}% on validation data "
        "(25.0\N{NO-BREAK SPACE}% at first), 1 trial, 0 failed; lr = 0.1"
    )
    assert "mse 1,235 on validation data (failed at first)" in tuned(
        "mse", 1234.5678, None
    )
    assert TrialResult(0.4230769).written("accuracy") == "42.3\N{NO-BREAK SPACE}%"
    assert TrialResult(None, "It blew up.").written("mse") == "failed: It blew up."


def test_clients_to_tune_on_keep_training_and_validation_as_they_are() -> None:
    comparison = parse_comparison(QUICK)
    _, whole = make_clients(comparison.config("ditto", 0))
    _, found = make_clients_to_tune_on(comparison, 0, None)
    for part in ("train", "validation"):
        mine, theirs = getattr(found, part), getattr(whole, part)
        assert np.array_equal(mine.indices, theirs.indices)
    assert whole.test.sizes.any()
    assert not found.test.sizes.any()


def test_a_regression_is_tuned_to_a_small_error(tmp_path: Path) -> None:
    draw = generator(0, "data")
    x = draw.normal(size=(80, 2))
    np.savez(
        tmp_path / "d.npz", x=x, y=x @ np.array([1.0, -2.0]), who=np.arange(80) % 2
    )
    tables = {
        **QUICK,
        "methods": ["fedavg"],
        "rounds": 3,
        "data": {"name": "file", "path": str(tmp_path / "d.npz"), "client": "who"},
        "partition": {"name": "natural"},
    }
    (found,) = tune(parse_comparison(tables), out=tmp_path / "t.toml", trials=6)
    assert found.metric == "mse"
    assert found.before is not None
    assert found.score <= found.before
    assert math.isfinite(found.score)


def test_the_file_is_a_comparison_with_the_tuned_settings(tmp_path: Path) -> None:
    comparison = parse_comparison(QUICK)
    out = tmp_path / "tuned.toml"
    found = tune(comparison, out=out, trials=2)
    again = parse_comparison(read_toml(out), str(out))
    assert len(again.seeds) == 5  # those of a comparison, not of the search
    for one in found:
        settings = {**comparison.arms[one.method], **one.settings}
        assert dict(again.arms[one.method]) == settings
    assert again.common == comparison.common
    used = with_tuned({"methods": ["ditto"], "rounds": 9}, out)
    assert used["methods"] == {"ditto": dict(again.arms["ditto"])}
    assert used["rounds"] == 9
    own = with_tuned({"methods": {"ditto": {"pull": 7.0}}}, out)
    assert own["methods"]["ditto"]["pull"] == 7.0
    assert set(with_tuned({}, out)["methods"]) == {"fedavg", "ditto"}
    with pytest.raises(ConfigError, match="unknown tuned method 'local'"):
        with_tuned({"methods": ["ditto", "local"]}, out)
    (tmp_path / "other.toml").write_text("rounds = 3\n")
    with pytest.raises(ConfigError, match=r"has no \[methods.NAME\]"):
        with_tuned({}, tmp_path / "other.toml")


def test_another_search_or_another_file_is_not_overwritten(tmp_path: Path) -> None:
    comparison = parse_comparison({**QUICK, "methods": ["fedavg"], "rounds": 1})
    out = tmp_path / "t.toml"
    tune(comparison, out=out, trials=1)
    other = parse_comparison({**QUICK, "methods": ["fedavg"], "rounds": 2})
    before = out.read_bytes()
    with pytest.raises(ConfigError, match="with other settings"):
        tune(other, out=out, trials=1)
    assert out.read_bytes() == before
    tune(other, out=out, trials=1, fresh=True)
    assert out.read_bytes() != before
    (tmp_path / "mine.toml").write_text("precious = true\n")
    with pytest.raises(ConfigError, match="no search to go on with"):
        tune(comparison, out=tmp_path / "mine.toml", trials=1)
    with pytest.raises(ConfigError, match=r"must be a \.toml file"):
        tune(comparison, out=tmp_path / "t.json", trials=1)
    with pytest.raises(ConfigError, match=r"at least 1 and at most \d+, found 0"):
        tune(comparison, out=tmp_path / "z.toml", trials=0)


def test_a_missing_library_says_which_command_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedloom\[tune\]'"):
        tune(parse_comparison(QUICK), out=tmp_path / "t.toml", trials=1)


def test_from_python_a_search_needs_neither_a_file_nor_a_comparison(
    tmp_path: Path,
) -> None:
    """The same trials as with both, and nothing is written."""
    others = {key: QUICK[key] for key in ("rounds", "algorithm", "split", "engine")}
    tuned = tune(
        ["fedavg", "ditto"],
        data="digits",
        partition=QUICK["partition"],
        model="mlr",
        settings=others,
        trials=2,
    )
    by_file = tune(parse_comparison(QUICK), out=tmp_path / "t.toml", trials=2)
    assert tuned == by_file
    assert str(tuned[1]).startswith("ditto: accuracy ")
    (own,) = tune(
        {"ditto": {"lr": 0.3}}, model="mlr", settings=others, seeds=[4], trials=1
    )
    assert set(own.settings) == {"pull"}
    with pytest.raises(ConfigError, match=r"unknown method 'dito'\. Did you mean"):
        tune(["dito"])
    with pytest.raises(ConfigError, match=r"tune \[methods.ditto\].*'digit'"):
        tune(["ditto"], data="digit")


def rewarded(monkeypatch: pytest.MonkeyPatch, score: Any) -> list[float]:
    """Trials that train nothing: what they score follows from the rate alone."""
    rates: list[float] = []

    def run(self: Trials, configs: Any) -> TrialResult:
        rates.append(configs[0].algorithm.lr)
        value = score(rates[-1])
        return TrialResult(value, "" if value is not None else "round 0: loss is inf.")

    monkeypatch.setattr(Trials, "run", run)
    return rates


def test_a_search_goes_toward_smaller_rates_while_all_diverge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing above 1e-6 works, and the range begins at 0.05 / 30."""
    rates = rewarded(monkeypatch, lambda lr: 0.5 if lr < 1e-6 else None)
    (found,) = tune("fedavg", settings={**SETTINGS}, trials=12, space=["lr"])
    assert found.settings["lr"] < 1e-6
    working = next(n for n, rate in enumerate(rates) if rate < 1e-6)
    assert rates[:working] == sorted(rates[:working], reverse=True)
    assert max(rates[working:]) < 3e-5  # it stays where something worked


@pytest.mark.parametrize("sign", [1, -1], ids=["upward", "downward"])
def test_a_range_grows_where_the_best_lies_at_its_end(
    sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = rewarded(monkeypatch, lambda lr: sign * math.log(lr))
    (found,) = tune("fedavg", settings={**SETTINGS}, trials=25, space=["lr"])
    if sign > 0:
        assert max(rates) > 0.05 * 30
    else:
        assert min(rates) < 0.05 / 30
    assert found.settings["lr"] == (max if sign > 0 else min)(rates)


def test_a_method_that_fails_does_not_cost_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Trials, configs: Any) -> TrialResult:
        is_ditto = configs[0].algorithm.name == "ditto"
        return TrialResult(None, "boom.") if is_ditto else TrialResult(0.5)

    monkeypatch.setattr(Trials, "run", run)
    lines: list[str] = []
    found = tune(
        ["ditto", "fedavg"],
        settings=SETTINGS,
        trials=2,
        out=tmp_path / "t.toml",
        tell=lines.append,
    )
    assert [method.method for method in found] == ["fedavg"]
    assert any("ditto: every one of 2 trials failed" in line for line in lines)
    assert list(read_toml(tmp_path / "t.toml")["methods"]) == ["fedavg"]
    with pytest.raises(DataError, match="every one of 1 trials failed"):
        tune("ditto", settings=SETTINGS, trials=1)


SETTINGS = {k: v for k, v in QUICK.items() if k not in ("methods", "seeds")}


def own_clients(validation: float = 0.2) -> fedloom.Federation:
    draw = np.random.default_rng(2)
    x, y = draw.normal(size=(120, 4)), draw.integers(0, 3, 120)
    who = np.arange(120) % 4
    return fedloom.federation(x, y, clients=who, validation=validation)


def test_own_models_and_clients_are_tuned_as_they_are_compared() -> None:
    clients = own_clients()
    methods = {"near": fedloom.Ditto(pull=5.0, lr=0.1), "fedavg": "fedavg"}
    settings = {"rounds": 1, "engine": SETTINGS["engine"]}
    near, fedavg = tune(
        methods, lambda: torch.nn.Linear(4, 3), clients, settings=settings, trials=2
    )
    assert (near.method, fedavg.method) == ("near", "fedavg")
    assert near.settings == {}  # all of its numbers were set
    assert set(fedavg.settings) == {"lr"}
    result = fedloom.run(
        fedloom.FedAvg(lr=fedavg.settings["lr"]),
        lambda: torch.nn.Linear(4, 3),
        clients,
        rounds=1,
        engine=fedloom.EngineSettings(**SETTINGS["engine"]),
    )
    scores = result.scores("personal", "validation")
    assert fedavg.score == pytest.approx(float(scores.mean()), rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"methods": "dito"}, "Did you mean 'ditto'"),
        ({"methods": []}, "methods is empty"),
        ({"methods": ["ditto", "ditto"]}, "has a method twice"),
        ({"methods": [3]}, "a method is its name"),
        ({"data": "digits"}, "there must be no data"),
        ({"model": None}, "model must be a module"),
        ({"settings": {"split": {"validation": 0.1}}}, r"no \[split\]"),
        ({"seeds": 0}, "seeds must be how many"),
        ({"clients": None}, "A module of your own comes with clients"),
    ],
)
def test_what_cannot_be_tuned_with_own_parts_says_so(
    arguments: dict[str, Any], words: str
) -> None:
    usual = {
        "methods": "ditto",
        "model": torch.nn.Linear(4, 3),
        "clients": own_clients(),
    }
    with pytest.raises(ConfigError, match=words):
        tune(**{**usual, **arguments}, trials=1)
    with pytest.raises(DataError, match=r"no client has a validation.*validation=0.2"):
        tune("ditto", "mlr", own_clients(0.0), trials=1)
