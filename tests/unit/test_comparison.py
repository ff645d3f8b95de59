"""A comparison: the same clients for every method, seeds woven together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom
from fedloom.comparison import (
    MAIN,
    MAIN_JOB,
    Comparison,
    failures,
    load_comparison,
    parse_comparison,
    run_comparison,
    run_directory,
)
from fedloom.comparison import seeds as seeds_module
from fedloom.core.errors import ConfigError, DataError, NumericalError
from fedloom.data import Digits
from fedloom.data.dataset import Dataset
from fedloom.runs import load, run_config

QUICK: dict[str, Any] = {
    "methods": ["fedavg", "ditto"],
    "seeds": 2,
    "rounds": 3,
    "checkpoint_every": 1,
    "model": {"name": "mlp", "hidden": [8]},
    "engine": {"compile": "off", "device": "cpu", "dtype": "float64"},
}


def theta(path: Path, client: int) -> torch.Tensor:
    parameters = load(path).model(client).parameters()
    return torch.cat([p.detach().reshape(-1) for p in parameters])


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("comparison") / "out"
    return run_comparison(parse_comparison(QUICK), out, jobs=1)


@pytest.mark.slow
def test_every_run_is_a_run_directory_that_agrees_with_a_run_alone(done: Path) -> None:
    comparison = load_comparison(done)
    for arm in comparison.arms:
        for seed in comparison.seeds:
            alone = run_config(comparison.config(arm, seed))
            rows = load(run_directory(done, arm, seed)).history.rounds
            assert len(rows) == 4
            for found, expected in zip(rows, alone.history.rounds, strict=True):
                assert found.bytes_up == expected.bytes_up
                assert found.steps == expected.steps
                assert bool(found.scores) == bool(expected.scores) == (found.round > 0)
                if found.scores:
                    assert found.scores["personal"]["test"]["loss"] == pytest.approx(
                        expected.scores["personal"]["test"]["loss"], rel=1e-8
                    )


def test_all_methods_meet_the_same_clients_and_seeds_do_not(done: Path) -> None:
    splits = {
        (arm, seed): json.loads(
            (run_directory(done, arm, seed) / "manifest.json").read_text()
        )["split"]
        for arm in ("fedavg", "ditto")
        for seed in (0, 1)
    }
    assert splits["fedavg", 0] == splits["ditto", 0]
    assert splits["fedavg", 1] == splits["ditto", 1]
    assert splits["fedavg", 0] != splits["fedavg", 1]


@pytest.mark.slow
def test_processes_come_to_the_same_bits(done: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    out = run_comparison(
        parse_comparison(QUICK), tmp_path / "out", jobs=2, tell=lines.append
    )
    assert lines[0].startswith("digits: classification into 10 classes")
    assert sorted(line.partition(":")[0] for line in lines[3:]) == [
        "ditto",
        "fedavg",
        "training alone for as long as each method works (settings of local)",
    ]
    for arm in ("fedavg", "ditto"):
        path = run_directory(out, arm, 1)
        assert torch.equal(theta(path, 3), theta(run_directory(done, arm, 1), 3))


def test_a_comparison_that_was_stopped_comes_to_the_same_bits(
    done: Path, tmp_path: Path
) -> None:
    """One seed is a checkpoint behind the other, and one method never began."""
    out = tmp_path / "out"
    shutil.copytree(done, out)
    shutil.rmtree(out / "ditto")
    behind = run_directory(out, "fedavg", 1)
    (behind / "checkpoint-before.safetensors").replace(
        behind / "checkpoint.safetensors"
    )
    run_comparison(load_comparison(out), out, jobs=1)
    for arm in ("fedavg", "ditto"):
        for seed in (0, 1):
            mine, theirs = (run_directory(d, arm, seed) for d in (out, done))
            assert torch.equal(theta(mine, 3), theta(theirs, 3))
            rounds = [row.round for row in load(mine).history.rounds]
            assert rounds == [0, 1, 2, 3]


def test_what_is_finished_is_not_run_again(done: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in done.rglob("*.safetensors")}
    lines: list[str] = []
    run_comparison(load_comparison(done), done, jobs=1, tell=lines.append)
    assert lines == []
    assert before == {p: p.stat().st_mtime_ns for p in done.rglob("*.safetensors")}


def test_another_comparison_is_not_overwritten(done: Path) -> None:
    other = parse_comparison({**QUICK, "rounds": 9})
    with pytest.raises(ConfigError, match="holds another comparison"):
        run_comparison(other, done, jobs=1)


def test_fresh_replaces_what_was_there(tmp_path: Path) -> None:
    first = parse_comparison({**QUICK, "methods": ["fedavg"], "rounds": 2})
    second = parse_comparison({**QUICK, "methods": ["local"], "rounds": 1})
    for comparison in (first, second):
        out = run_comparison(comparison, tmp_path / "out", jobs=1, fresh=True)
    assert not (run_directory(out, "fedavg", 0) / "manifest.json").exists()
    assert len(load(run_directory(out, "local", 1)).history.rounds) == 2


@pytest.mark.parametrize("is_fresh", [True, False])
def test_bad_data_leave_everything_as_it_was(
    tmp_path: Path, done: Path, is_fresh: bool
) -> None:
    out = tmp_path / "out"
    if is_fresh:
        shutil.copytree(done, out)
    before = sorted(tmp_path.rglob("*"))
    data = {"name": "file", "path": str(tmp_path / "absent.csv")}
    comparison = parse_comparison({**QUICK, "data": data})
    with pytest.raises(DataError, match=r"absent\.csv") as caught:
        run_comparison(comparison, out, jobs=1, fresh=is_fresh)
    assert not hasattr(caught.value, "__notes__")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_that_does_not_fit_leaves_everything_as_it_was(tmp_path: Path) -> None:
    data = {"name": "synthetic"}
    comparison = parse_comparison({**QUICK, "data": data, "model": {"name": "cnn2"}})
    with pytest.raises(ConfigError, match="expected an image"):
        run_comparison(comparison, tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_a_seed_that_diverges_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    """A rate of 1e150 overflows at once, for every seed."""
    method = {"lr": 1e150, "clip": "none"}
    tables = {**QUICK, "methods": {"fedavg": method}, "rounds": 2}
    lines: list[str] = []
    out = run_comparison(
        parse_comparison(tables), tmp_path / "out", jobs=1, tell=lines.append
    )
    assert "fedavg: 2 of 2 seeds diverged" in lines
    failure = json.loads((run_directory(out, "fedavg", 0) / "failure.json").read_text())
    assert "round 1" in failure["why"] or "round 2" in failure["why"]
    for open_again in (fedloom.resume, fedloom.load):
        with pytest.raises(
            NumericalError, match=r"this run diverged. round \d, client"
        ):
            open_again(run_directory(out, "fedavg", 0))
    sentence, advice = failures(load_comparison(out), out)
    assert sentence.startswith("fedavg: 2 of 2 runs diverged. The first: round")
    assert "Lower algorithm.lr" in advice
    assert "Lower algorithm.lr" not in sentence
    assert not any(line.startswith("training alone") for line in lines)
    assert not list(out.glob("alone/*/*"))  # there is nothing to measure


def test_a_rate_is_found_once_for_all_seeds(tmp_path: Path) -> None:
    tables = {**QUICK, "methods": ["fedavg", "local"], "algorithm": {"lr": "auto"}}
    comparison = parse_comparison({**tables, "rounds": 1})
    lines: list[str] = []
    out = run_comparison(comparison, tmp_path / "out", jobs=1, tell=lines.append)
    runs = [run_directory(out, a, s) for a in comparison.arms for s in (0, 1)]
    manifests = [json.loads((run / "manifest.json").read_text()) for run in runs]
    (rate,) = {m["config"]["algorithm"]["lr"] for m in manifests}
    assert all(m["auto_lr"]["rate"] == rate for m in manifests)
    of_methods = lines[3 : 3 + len(comparison.arms)]
    ending = f", mean of 2 seeds; lr = auto: {rate:g}"
    assert all(line.endswith(ending) for line in of_methods)
    run_comparison(load_comparison(out), out, jobs=1)  # there is nothing left to do


@pytest.mark.slow
def test_training_alone_has_one_rate_beside_a_method_that_has_none(
    tmp_path: Path,
) -> None:
    methods = ["pfedbayes", "fedavg"]
    tables = {**QUICK, "methods": methods, "algorithm": {"lr": "auto"}, "rounds": 1}
    out = run_comparison(parse_comparison(tables), tmp_path / "out", jobs=1)
    manifests = [
        json.loads(path.read_text()) for path in out.glob("alone/*/*/manifest.json")
    ]
    assert len(manifests) >= 2
    rates = {m["config"]["algorithm"]["lr"] for m in manifests}
    assert len(rates) == 1
    assert all(m["auto_lr"]["rate"] in rates for m in manifests)


def test_sections_give_settings_and_names() -> None:
    tables = {
        "methods": {"strong": {"name": "ditto", "pull": 3.0}, "fedavg": {}},
        "algorithm": {"lr": 0.1},
        "seeds": [4, 7],
    }
    comparison = parse_comparison(tables)
    assert comparison.config("strong", 4).algorithm.lr == 0.1
    assert comparison.config("strong", 7).algorithm.name == "ditto"
    assert comparison.config("fedavg", 7).schedule.seed == 7


@pytest.mark.slow
def test_a_file_says_the_same_as_the_comparison_it_was_written_from(
    tmp_path: Path,
) -> None:
    tables = {**QUICK, "methods": {"a, b": {"name": "ditto", "pull": 3.0}}}
    first = parse_comparison(tables)
    run_comparison(first, tmp_path / "out", jobs=1)
    again: Comparison = load_comparison(tmp_path / "out")
    assert again.config("a, b", 1) == first.config("a, b", 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["dito"]}, r"\[methods.dito\].*ditto"),
        ({"methods": []}, "methods must be"),
        ({"seeds": 0}, "seeds must be"),
        ({"seeds": [1, 1]}, "seeds must be"),
        ({"seed": 3}, "has seeds, not a seed"),
        ({"methods": {"../up": {"name": "ditto"}}}, "name of a folder"),
        ({"methods": {"ditto": {"pul": 1.0}}}, r"\[methods.ditto\].*pull"),
        ({"round": 3}, "rounds"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_comparison({**QUICK, **change})


def test_a_directory_without_a_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no comparison"):
        load_comparison(tmp_path)
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match="not empty"):
        run_comparison(parse_comparison(QUICK), tmp_path, jobs=1)


@pytest.mark.slow
@pytest.mark.parametrize("method", MAIN)
def test_the_main_job_agrees_with_a_run_of_each_method_alone(
    method: str, tmp_path: Path
) -> None:
    engine = {"compile": "off", "device": "cpu"}
    methods = {method: MAIN[method]}
    tables = {**MAIN_JOB, "methods": methods, "rounds": 2, "engine": engine}
    tables["yardsticks"] = False
    comparison = parse_comparison({**tables, "seeds": 2})
    out = run_comparison(comparison, tmp_path / "out", jobs=1)
    for seed in comparison.seeds:
        alone = run_config(comparison.config(method, seed))
        found = load(run_directory(out, method, seed))
        for client in range(20):
            one, two = (
                torch.cat(
                    [p.detach().reshape(-1) for p in r.model(client).parameters()]
                )
                for r in (found, alone)
            )
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_data_are_loaded_once_for_all_seeds_and_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []

    def counted(self: Digits, *place: Any) -> Dataset:
        loads.append(place)
        return load_digits(self, *place)

    load_digits = Digits.load
    monkeypatch.setattr(Digits, "load", counted)
    tables = {**QUICK, "seeds": 3, "rounds": 1}
    run_comparison(parse_comparison(tables), tmp_path / "out", jobs=1)
    assert len(loads) == 1


def own_clients() -> fedloom.Federation:
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(90, 4)).astype("float32"), draw.integers(0, 3, size=90)
    return fedloom.federation(x, y, clients=np.arange(90) % 3)


def own_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def test_a_comparison_from_python_with_an_own_model(tmp_path: Path) -> None:
    methods = {
        "near": fedloom.Ditto(pull=5.0),
        "far": fedloom.Ditto(),
        "solo": "local",
    }
    told: list[str] = []

    def compare(**changes: Any) -> Path:
        settings = {"out": tmp_path / "own", "seeds": 2, "rounds": 2} | changes
        result = fedloom.compare(
            methods, own_model, own_clients(), tell=told.append, **settings
        )
        assert result.path is not None
        return result.path

    out = compare()
    assert [line.partition(":")[0] for line in told[1:]] == [
        "3 methods, 2 seeds each",
        "near",
        "far",
        "solo",
        "training alone for as long as each method works (settings of solo)",
    ]
    assert compare() == out
    assert len(told) == 6  # all was there already
    alone = fedloom.run(methods["near"], own_model, own_clients(), rounds=2, seed=1)
    run = load(run_directory(out, "near", 1), own_model, own_clients())
    for name, value in alone.model(0).state_dict().items():
        torch.testing.assert_close(run.model(0).state_dict()[name], value)
    page = fedloom.report(out)
    assert page.is_file()
    assert "near" in page.read_text()
    with pytest.raises(ConfigError, match="holds another comparison"):
        compare(rounds=3)
    other = own_clients()
    x, y = other.dataset.inputs[0].numpy() + 1, other.dataset.targets.numpy()
    shifted = fedloom.federation(x, y, clients=np.arange(90) % 3)
    for model, clients in ((own_model, shifted), (lambda: nn.Linear(4, 3), other)):
        with pytest.raises(ConfigError, match="of other methods, settings, model"):
            fedloom.compare(methods, model, clients, out=out, seeds=2, rounds=2)
    with pytest.raises(ConfigError, match=r"made from Python.*fedloom\.compare"):
        run_comparison(load_comparison(out), out)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["fedavg", fedloom.FedAvg(lr=0.1)], "has a method twice"),
        (["fedavgg"], "Did you mean 'fedavg'"),
        ({"a/b": "fedavg"}, "becomes the name of a folder"),
        ([], "methods is empty"),
        ([3], "an instance such as"),
    ],
    ids=["twice", "unknown", "folder", "none", "number"],
)
def test_mistakes_of_a_comparison_from_python_are_named(
    methods: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        fedloom.compare(methods, own_model, own_clients(), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def regression_table(path: Path) -> Path:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 3)) * [1, 50, 0.1] + [5, 0, -3]
    y = 2000 + 300 * x[:, 0] + 4 * x[:, 1] + draw.normal(size=120)
    rows = [
        f"{a},{b},{c},{target},{n % 4}"
        for n, ((a, b, c), target) in enumerate(zip(x, y, strict=True))
    ]
    path.write_text("\n".join(["a,b,c,y,site", *rows]))
    return path


@pytest.mark.slow
def test_seeds_of_a_table_are_woven_to_what_each_comes_to_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    make = seeds_module.SimulationBundle

    def bundle(simulations: list[Any], runner: Any) -> Any:
        sizes.append(len(simulations))
        return make(simulations, runner)

    monkeypatch.setattr(seeds_module, "SimulationBundle", bundle)
    path = regression_table(tmp_path / "sites.csv")
    data = {"name": "file", "path": str(path), "client": "site"}
    tables = QUICK | {"data": data, "seeds": 3, "methods": ["ditto"]}
    lines: list[str] = []
    comparison = parse_comparison(tables)
    out = run_comparison(comparison, tmp_path / "out", jobs=1, tell=lines.append)
    assert sizes == [3, 3]  # and training alone with as much work
    assert lines[0] == (
        f"{path}: regression of 'y', scores in its own units, standardised for "
        "training; 3 features (a, b, c); 4 clients from column 'site'; every row is "
        "tested once, in 3 folds; validated on 25\N{NO-BREAK SPACE}% of the rest"
    )
    for seed in range(3):
        alone = run_config(comparison.config("ditto", seed))
        woven = load(run_directory(out, "ditto", seed))
        np.testing.assert_allclose(woven.scores(), alone.scores(), rtol=1e-9)
        for client in range(4):
            x = np.ones((1, 3))
            expected = alone.predict(client, x)
            torch.testing.assert_close(woven.predict(client, x), expected)


@pytest.mark.parametrize(
    ("changes", "message", "arm"),
    [
        ({"robust": {"rule": "median"}}, "robust: median .* fedacs", "fedacs"),
        ({"attack": {"kind": "sign-flip"}}, "none with fedacs", "fedacs"),
        ({"privacy": {"delta": 1e-4}}, "fedacs: expected a method .* sums", "fedacs"),
        (
            {
                "methods": {"near": {"name": "fedavg"}, "long": {"name": "fedavg"}},
                "privacy": {"unit": "sample", "delta": 1e-4, "budget": 1.0},
            },
            "3 rounds would come to epsilon",
            "near",
        ),
        (
            {"methods": ["local", "fedavg"], "sampling": {"rate": 0.1}}
            | {"robust": {"rule": "krum", "attackers": 2}},
            "krum needs",
            "fedavg",
        ),
        (
            {"methods": ["local", "fedavg"], "secure": {"fewest": 20}},
            "a total must be over at least 20",
            "fedavg",
        ),
    ],
)
def test_a_comparison_is_refused_before_anything_of_it_is_trained_or_written(
    changes: dict[str, Any], message: str, arm: str, tmp_path: Path
) -> None:
    """Not after the methods before the one that cannot be had."""
    tables = {**QUICK, "methods": ["fedavg", "fedacs"], **changes}
    with pytest.raises(ConfigError, match=message) as refused:
        run_comparison(parse_comparison(tables), tmp_path / "out", jobs=1)
    (note,) = refused.value.__notes__  # and not how to go on, which nobody could
    assert note.startswith(f"This is about the method {arm}, with seed 0. Nothing of")
    assert not (tmp_path / "out").exists()


def test_a_comparison_from_python_is_refused_as_early(tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, generator=draw), torch.arange(60) % 2
    clients = fedloom.federation(x, y, clients=[*range(4)] * 15)
    hidden = [
        fedloom.private(fedloom.FedAvg(), delta=1e-4),
        fedloom.private(fedloom.Ditto(), delta=0.5),
    ]
    with pytest.raises(ConfigError, match=r"delta = 0\.5 with 4 clients"):
        fedloom.compare(hidden, "mlr", clients, seeds=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_refused_comparison_replaces_none(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tables = {**QUICK, "methods": ["fedavg"], "seeds": 1, "rounds": 1}
    run_comparison(parse_comparison(tables), out, jobs=1)
    kept = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    other = {**tables, "methods": ["fedacs"], "robust": {"rule": "median"}}
    with pytest.raises(ConfigError, match="with fedacs"):
        run_comparison(parse_comparison(other), out, fresh=True, jobs=1)
    assert kept == {path: path.read_bytes() for path in kept}
    # Another model in the old one's place is no reason to refuse a new one.
    other = {**tables, "model": {"name": "mlr"}}
    run_comparison(parse_comparison(other), out, fresh=True, jobs=1)


def test_a_secret_in_the_directory_of_a_comparison_is_refused(tmp_path: Path) -> None:
    """Whoever is given the directory would get it, though it is in no run's own."""
    out = tmp_path / "out"
    privacy = {"delta": 1e-4, "secret": str(out / "secret")}
    tables = {**QUICK, "privacy": privacy}
    with pytest.raises(ConfigError, match="must lie outside of the run's directory"):
        run_comparison(parse_comparison(tables), out, jobs=1)
    assert not out.exists()


@pytest.mark.parametrize(
    "changes",
    [
        # Four times as many rounds are tried alone.
        {"privacy": {"unit": "sample", "delta": 1e-4, "noise": 9.0, "budget": 1.0}},
        {"attack": {"kind": "label-flip"}, "robust": {"rule": "median"}},
    ],
)
def test_what_methods_are_measured_by_is_not_refused_after_them(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    tables = {**QUICK, "methods": ["fedavg"], "seeds": 1, "yardsticks": True}
    tables |= {"split": {"validation": 0.25}, **changes}
    out = run_comparison(parse_comparison(tables), tmp_path / "out", jobs=1)
    assert (out / "yardsticks" / "yardsticks.json").is_file()


def test_settings_that_cannot_be_had_are_not_said_to_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison that was begun by another version, say."""
    out = tmp_path / "out"
    tables = {**QUICK, "methods": ["fedavg"], "seeds": 1, "rounds": 1}

    def refused(*_: Any) -> None:
        raise ends.pop(0)

    ends: list[Exception] = [ConfigError("None can."), DataError("The disk is full.")]
    monkeypatch.setattr("fedloom.comparison.train._train_arm", refused)
    with pytest.raises(ConfigError) as useless:
        run_comparison(parse_comparison(tables), out, jobs=1)
    assert not hasattr(useless.value, "__notes__")
    with pytest.raises(DataError) as useful:
        run_comparison(parse_comparison(tables), out, jobs=1)
    assert useful.value.__notes__ == [
        f"What was finished is kept. To go on: fedloom resume {out}"
    ]
