"""Training alone with as much work, yardsticks and equal work in a comparison."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedloom
from fedloom.algorithms import REGISTRY, Ditto, FedAvg, Local, PFedMe
from fedloom.clients.ragged import Ragged
from fedloom.comparison import (
    load_comparison,
    local_work,
    parse_comparison,
    run_comparison,
    run_directory,
    with_equal_work,
)
from fedloom.comparison.alone import (
    alone_directory,
    alone_runs,
    base_settings,
    tried_rounds,
)
from fedloom.comparison.seeds import load_clients
from fedloom.comparison.yardsticks import constant, of_pooled, ordinary, write_pooled
from fedloom.comparison.yardsticks import pooled_federation as pooled
from fedloom.config import parse
from fedloom.core.errors import ConfigError, DataError
from fedloom.export import alone
from fedloom.export.alone import alone_for, rounds_for, work_per_round
from fedloom.reports.collect import collect
from fedloom.reports.csv_tables import clients_csv
from fedloom.reports.findings import work_out
from fedloom.reports.report_tables import kinds_table
from fedloom.results.outcomes import Outcomes, RunOutcomes, read_outcomes
from fedloom.results.reader import RunReader, find_runs, read_yardsticks
from fedloom.runs import resume, run_config

QUICK: dict[str, Any] = {
    "methods": {"local": {}, "fedavg": {}, "ditto": {}, "fast": {"name": "fedavg"}},
    "algorithm": {"epochs": 2},
    "seeds": 2,
    "rounds": 2,
    "checkpoint_every": 1,
    "yardsticks": True,
    "split": {"validation": 0.2},
    "partition": {"name": "label-skew", "clients": 6, "classes": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "engine": {"compile": "off", "device": "cpu", "dtype": "float64"},
}
QUICK["methods"]["fast"]["lr"] = 0.2


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "out"
    return run_comparison(parse_comparison(QUICK), out, jobs=1)


def reader(out: Path, arm: str, seed: int = 0) -> RunReader:
    return RunReader(run_directory(out, arm, seed))


def test_outcomes_are_what_the_scores_are_the_means_of(done: Path) -> None:
    for arm in QUICK["methods"]:
        run = reader(done, arm, 1)
        scores, outcomes = run.scores(2), run.outcomes
        assert scores is not None
        assert outcomes is not None
        for part in ("validation", "test"):
            o = outcomes[part]
            means = np.bincount(o.clients, o.values) / np.bincount(o.clients)
            assert set(np.unique(o.values)) <= {0.0, 1.0}
            expected = scores.get("personal", part, "accuracy")
            np.testing.assert_allclose(means, expected)


def test_outcomes_of_a_regression_are_squared_errors(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 2)).astype("float32")
    clients = fedloom.federation(x, x[:, 0] * 3, clients=np.arange(60) % 3)
    out = tmp_path / "run"
    result = fedloom.run("local", lambda: nn.Linear(2, 1), clients, rounds=1, out=out)
    outcomes = RunReader(out).outcomes
    assert outcomes is not None
    test = outcomes["test"]
    for client in range(3):
        rows = test.rows[test.of_client(client)]
        errors = result.predict(client, x[rows])[:, 0].numpy() - x[rows, 0] * 3
        found = test.values[test.of_client(client)]
        np.testing.assert_allclose(found, errors**2, rtol=1e-4)


def test_work_counts_every_gradient_and_adaptation_before_use(tmp_path: Path) -> None:
    method = {"name": "fedavg", "tuning": 3}
    common = {k: QUICK[k] for k in ("rounds", "partition", "model", "split", "engine")}
    sampled = {**common, "sampling": {"rate": 0.5}, "algorithm": method}
    sampled["rounds"] = 1
    result = run_config(parse(sampled), out=tmp_path / "run")
    run = RunReader(tmp_path / "run")
    trained = np.zeros(6, dtype=np.int64)
    for table in run.client_log(10):
        np.add.at(trained, table["client"].to_numpy(), table["gradients"].to_numpy())
    assert run.work is not None
    assert run.work.tolist() == (trained + 3 * result.federation.sizes).tolist()
    assert len(set(trained > 0)) == 2


def test_alone_with_as_much_work_is_the_arm_local_where_work_is_equal(
    done: Path,
) -> None:
    for seed in (0, 1):
        fedavg, local = reader(done, "fedavg", seed), reader(done, "local", seed)
        assert fedavg.alone_outcomes is not None
        assert local.outcomes is not None
        assert local.alone_outcomes is None
        assert fedavg.work is not None
        assert fedavg.alone_work is not None
        assert fedavg.work.tolist() == fedavg.alone_work.tolist()
        for part in ("validation", "test"):
            mine, theirs = fedavg.alone_outcomes[part], local.outcomes[part]
            assert np.array_equal(mine.rows, theirs.rows)
            assert np.array_equal(mine.values, theirs.values)


def test_twice_the_work_is_met_by_twice_the_rounds(done: Path) -> None:
    """Ditto trains two models, so each client does twice as much as with Local."""
    ditto = reader(done, "ditto")
    assert ditto.alone_outcomes is not None
    comparison = load_comparison(done)
    config = comparison.config("local", 0)
    longer = run_config(
        parse(
            {**QUICK_RUN, "seed": 0, "rounds": 4, "algorithm": {"epochs": 2, **LOCAL}}
        )
    )
    assert longer.federation.hash == reader(done, "ditto").manifest()["split"]
    assert config.algorithm == Local(epochs=2)
    o = ditto.alone_outcomes["test"]
    means = np.bincount(o.clients, o.values) / np.bincount(o.clients)
    np.testing.assert_allclose(means, longer.scores())


LOCAL = {"name": "local"}
QUICK_RUN = {k: QUICK[k] for k in ("partition", "model", "split", "engine")}


def test_plain_sgd_keeps_its_rate_and_others_have_that_of_local(done: Path) -> None:
    comparison = load_comparison(done)
    clients = [federation for _, federation in load_clients(comparison, None)]
    runs = {run.title: run for run in alone_runs(comparison, clients)}
    assert runs["local"].arms == ("fedavg", "ditto")
    assert runs["fast"].local == Local(epochs=2, lr=0.2)
    assert alone_directory(done, "fast", 1).is_dir()
    assert alone_for(PFedMe(lr=0.02), Local(lr=0.01)).lr == 0.01
    assert alone_for(FedAvg(lr=0.7), Local(lr=0.01)).lr == 0.7
    assert set(alone._PLAIN) <= set(REGISTRY)
    plain = {n for n, kind in REGISTRY.items() if alone_for(kind(lr=0.011)).lr == 0.011}
    assert plain == set(alone._PLAIN)


@pytest.mark.parametrize(
    ("change", "tried"),
    [
        ({}, (5, 10, 20, 40, 80)),
        ({"sampling": {"rate": 0.1}}, (1, 2, 4, 8)),
        ({"sampling": {"rate": 0.1, "protocol": "train-all"}}, (5, 10, 20, 40, 80)),
        ({"sampling": {"rate": 0.1}, "methods": ["local"]}, (1, 2, 4, 8, 20)),
    ],
)
def test_training_alone_is_tried_around_what_methods_do(
    change: dict[str, Any], tried: tuple[int, ...]
) -> None:
    """Small cohorts train little, and so does what they are compared with."""
    tables = {"methods": ["fedavg"], "rounds": 20, **change}
    assert tried_rounds(parse_comparison(tables)) == tried


@pytest.mark.slow
def test_how_long_is_tried_in_every_comparison_that_can_choose(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(36, 2)).astype("float32")
    many = fedloom.federation(x, x[:, 0] > 0, clients=np.arange(36) % 3, test=0.25)
    fedloom.compare(["fedavg"], "mlr", many, rounds=2, out=tmp_path / "a")
    longer = read_yardsticks(tmp_path / "a")["alone-longer"]
    assert set(longer.rounds) == set(longer.outcomes) == set(range(5))
    assert set(longer.rounds.values()) <= {1, 2, 4, 8}
    few = {"seeds": 1, "rounds": 2, "out": tmp_path / "b"}
    fedloom.compare(["fedavg"], "mlr", many, **few)
    assert set(read_yardsticks(tmp_path / "b")) == {"constant"}
    assert parse_comparison({"seeds": 1}).config("local", 0).split.validation > 0
    keeps = parse_comparison({"seeds": 1, "split": {"validation": 0}})
    assert keeps.config("local", 0).split.validation == 0


def test_clients_that_nobody_can_test_are_refused(tmp_path: Path) -> None:
    x = np.zeros((6, 2), dtype="float32")
    single = fedloom.federation(x, np.arange(6) % 2, clients=np.arange(6))
    with pytest.raises(DataError, match="no client has a sample to test its model on"):
        fedloom.compare(["fedavg"], "mlr", single, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_without_an_arm_of_local_what_was_given_to_all_is_taken() -> None:
    methods = {"a": Ditto(lr=0.3, epochs=4), "b": PFedMe(lr=0.3, epochs=4, pull=2.0)}
    assert base_settings(methods) == Local(lr=0.3, epochs=4)
    assert base_settings({"a": Ditto(lr=0.3), "b": PFedMe(lr=0.02)}).lr == Local().lr
    assert base_settings({"a": REGISTRY["pfedvem"]()}) == Local()
    assert base_settings({"x": Local(lr=0.2), "local": Local()}) == Local()


def test_rounds_are_the_nearest_and_at_least_one() -> None:
    sizes = np.array([10, 25, 7])
    assert work_per_round(Local(epochs=3), sizes).tolist() == [30, 75, 21]
    assert work_per_round(Local(steps=4, batch_size=10), sizes)[0] == 40
    assert work_per_round(Local(steps=4, batch_size=10), sizes)[2] == 28
    work = np.array([134, 0, 32])
    assert rounds_for(Local(epochs=3), sizes, work).tolist() == [4, 1, 2]


def test_every_client_works_as_much_whatever_the_cohorts(tmp_path: Path) -> None:
    tables = {**QUICK, "methods": ["ditto", "pfedme"], "sampling": {"rate": 0.34}}
    tables |= {"yardsticks": False, "rounds": 3, "seeds": 1}
    out = run_comparison(parse_comparison(tables), tmp_path / "out", jobs=1)
    for arm in ("ditto", "pfedme"):
        run = reader(out, arm)
        assert run.work is not None
        assert run.alone_work is not None
        data = run.client_data()
        assert data is not None
        gap = np.abs(run.work - run.alone_work)
        assert (gap[run.work > 0] <= data.sizes[run.work > 0]).all()


@pytest.mark.slow
def test_what_was_stopped_while_training_alone_comes_to_the_same_bits(
    done: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(done, out)
    for seed in (0, 1):
        behind = alone_directory(out, "local", seed)
        (behind / "checkpoint-before.safetensors").replace(
            behind / "checkpoint.safetensors"
        )
        for arm in ("fedavg", "ditto"):
            RunReader(run_directory(out, arm, seed)).files.alone_outcomes.unlink()
    shutil.rmtree(out / "yardsticks")
    run_comparison(load_comparison(out), out, jobs=1)
    written = sorted(p.relative_to(done) for p in done.rglob("*.npz"))
    assert sorted(p.relative_to(out) for p in out.rglob("*.npz")) == written
    for path in written:
        assert (out / path).read_bytes() == (done / path).read_bytes(), path


def test_runs_of_training_alone_are_not_methods(done: Path) -> None:
    assert len(list(find_runs(done))) == 4 * 2
    with pytest.raises(ConfigError, match="part of a comparison"):
        resume(alone_directory(done, "local", 0))


def test_fresh_removes_training_alone_and_yardsticks(
    done: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(done, out)
    other = {**QUICK, "methods": ["local"], "yardsticks": False, "rounds": 1}
    other["split"] = {"test": 0.2}  # no validation data, so nothing is tried alone
    run_comparison(parse_comparison(other), out, jobs=1, fresh=True)
    assert not list(out.glob("alone/*/*/manifest.json"))
    assert list(read_yardsticks(out)) == ["constant"]


def test_yardsticks_are_outcomes_of_the_same_samples(done: Path) -> None:
    yardsticks = read_yardsticks(done)
    assert set(yardsticks) == {"constant", "ordinary", "pooled", "alone-longer"}
    for name, yardstick in yardsticks.items():
        assert yardstick.about.endswith("."), name
        for seed in (0, 1):
            outcomes = reader(done, "ditto", seed).outcomes
            assert outcomes is not None
            for part, own in outcomes.items():
                theirs = yardstick.outcomes[seed][part]
                assert np.array_equal(theirs.rows, own.rows), name
                assert np.array_equal(theirs.clients, own.clients), name
    means = {n: y.outcomes[0]["test"].values.mean() for n, y in yardsticks.items()}
    assert means["ordinary"] > means["constant"]


def test_training_alone_for_longer_is_chosen_on_validation_data(done: Path) -> None:
    longer = read_yardsticks(done)["alone-longer"]
    directory = RunReader(alone_directory(done, "local", 1)).files
    tried = {round_: directory.read_outcomes(round_) for round_ in (1, 2, 4, 8)}
    scores = {}
    for round_, outcomes in tried.items():
        assert outcomes is not None
        o = outcomes.parts["validation"]
        scores[round_] = (
            np.bincount(o.clients, o.values) / np.bincount(o.clients)
        ).mean()
    best = max(scores, key=lambda round_: scores[round_])
    chosen = tried[best]
    assert chosen is not None
    expected = chosen.parts["test"].values
    assert np.array_equal(longer.outcomes[1]["test"].values, expected)
    assert f"{best} in seed 1" in longer.about


def test_all_data_in_one_place_are_passed_over_as_validation_data_prefer(
    done: Path, tmp_path: Path
) -> None:
    about = read_yardsticks(done)["pooled"].about
    assert "of the seed prefer out of 2, 4: " in about  # two epochs in each round
    assert re.search(r": [24] in seed 0, [24] in seed 1\.$", about)
    clients, file = small([0, 1] * 12), tmp_path / "pooled.npz"
    rows = np.arange(24)

    def said(wrong: int) -> RunOutcomes:
        """Outcomes of a model that is wrong on the first so many samples."""
        parts = {}
        for part in ("validation", "test"):
            own = np.sort(getattr(clients, part).indices)
            values = (rows >= wrong).astype(float)[own]
            parts[part] = Outcomes(own, np.zeros(len(own), np.int32), values)
        return RunOutcomes(parts)

    tried = {2: said(8), 4: said(0), 8: said(16)}
    for metric, chosen, right in (("accuracy", 4, 1.0), ("mse", 8, 1 / 3)):
        write_pooled(file, clients, tried, metric)
        outcomes = read_outcomes(file)
        assert outcomes is not None
        assert outcomes.work is not None
        assert outcomes.work.tolist() == [4 * chosen] * 3
        assert outcomes.parts["test"].values.mean() == pytest.approx(right)
    blind = {n: RunOutcomes({"test": own.parts["test"]}) for n, own in tried.items()}
    write_pooled(file, clients, blind, "accuracy")
    outcomes = read_outcomes(file)
    assert outcomes is not None
    assert outcomes.work is not None
    assert outcomes.work.tolist() == [4 * 8] * 3


def small(targets: Any, *, validation: int = 2) -> fedloom.Federation:
    """Three clients with eight samples each: four to train, the rest held out."""
    x = np.linspace(0, 1, 24, dtype="float32")[:, None] * np.ones((1, 3), "float32")
    clients = fedloom.federation(x, np.asarray(targets), clients=np.arange(24) // 8)
    lists = [np.arange(8 * n, 8 * n + 8) for n in range(3)]
    return fedloom.Federation(
        dataset=clients.dataset,
        train=Ragged.of([rows[:4] for rows in lists]),
        validation=Ragged.of([rows[4 : 4 + validation] for rows in lists]),
        test=Ragged.of([rows[6:] for rows in lists]),
        names=clients.names,
        teams=clients.teams,
    )


def test_the_constant_model_says_the_majority_or_the_mean() -> None:
    classes = small([0, 1, 1, 2] * 6)
    assert constant(classes, 0)(np.arange(3)).tolist() == [1, 1, 1]
    numbers = small(np.arange(24, dtype="float32"))
    assert constant(numbers, 1)(np.array([20])).tolist() == [9.5]


def test_an_ordinary_model_copes_with_missing_classes() -> None:
    labels = np.tile([0, 1, 0, 1, 0, 1, 0, 2], 3)
    labels[:8] = 2  # The first client has one class only.
    clients = small(labels)
    one_class, two_classes = ordinary(clients, 0), ordinary(clients, 1)
    assert one_class is not None
    assert two_classes is not None
    assert one_class(np.arange(3)).tolist() == [2, 2, 2]
    assert set(two_classes(np.arange(8, 16)).tolist()) <= {0, 1}
    for data in (small(labels, validation=0), small(np.arange(24, dtype="float32"))):
        model = ordinary(data, 2)
        assert model is not None
        assert model(np.arange(4)).shape == (4,)
        assert len(model(np.arange(0))) == 0


def test_all_data_in_one_place_are_the_same_samples() -> None:
    clients = small([0, 1, 1, 2] * 6)
    one = pooled(clients)
    assert one.count == 1
    assert sorted(one.train.indices) == sorted(clients.train.indices)
    rows = one.test[0]
    said = Outcomes(rows, np.zeros(len(rows), np.int32), rows.astype(float))
    back = of_pooled(clients, RunOutcomes({"test": said})).parts["test"]
    assert back.values.tolist() == clients.test.indices.tolist()
    assert back.clients.tolist() == [0, 0, 1, 1, 2, 2]


def test_methods_are_given_the_same_local_work() -> None:
    tables = with_equal_work({"methods": ["ditto", "pfedme"]})
    assert parse_comparison(tables).config("ditto", 0).algorithm.epochs == 5
    for change in ({"algorithm": {"steps": 7}}, {"methods": {"ditto": {"epochs": 3}}}):
        tables = {"methods": ["ditto"], **change}
        assert with_equal_work(tables) == tables


def test_local_work_is_said_in_one_line(done: Path) -> None:
    comparison = parse_comparison(
        with_equal_work({"methods": ["ditto", "fedavg", "pfedme"]})
    )
    line = local_work(comparison)
    assert line.startswith(
        "Local work of each method in a round: 5 epochs; pfedme: 20 steps."
    )
    first = (done / "compare.toml").read_text().splitlines()[0]
    assert first == f"# {local_work(load_comparison(done))}"


def test_yardsticks_must_be_true_or_false() -> None:
    with pytest.raises(ConfigError, match="yardsticks must be true or false"):
        parse_comparison({**QUICK, "yardsticks": "yes"})


def test_a_gain_from_python_and_from_a_comparison_agree(done: Path) -> None:
    tables = {**QUICK_RUN, "rounds": 2, "algorithm": {"name": "ditto", "epochs": 2}}
    gain = run_config(parse(tables)).gain()
    outcomes = reader(done, "ditto").alone_outcomes
    assert outcomes is not None
    o = outcomes["test"]
    means = np.bincount(o.clients, o.values) / np.bincount(o.clients)
    np.testing.assert_allclose(gain.alone, means)


def test_training_scores_are_of_some_samples_where_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedloom.fleet.local.TRAIN_SCORED", 20)
    tables = {**QUICK_RUN, "rounds": 1, "algorithm": {"name": "local"}}
    few, again = (run_config(parse(tables)) for _ in range(2))
    (scores,) = (s for s in few.history.last_scores if s.part == "train")
    assert scores.samples.tolist() == np.minimum(few.federation.sizes, 20).tolist()
    np.testing.assert_array_equal(few.scores(part="train"), again.scores(part="train"))
    monkeypatch.setattr("fedloom.fleet.local.TRAIN_SCORED", 10**6)
    everything = run_config(parse(tables))
    model = everything.model(0)
    rows = torch.as_tensor(everything.federation.train[0])
    data = everything.federation.dataset
    outputs = model((data.inputs[0][rows].double() - data.shift) / data.scale)
    right = (outputs.argmax(1) == data.targets[rows]).double().mean()
    assert everything.scores(part="train")[0] == pytest.approx(float(right))
    written = json.dumps(everything.history.rounds[-1].as_json())
    assert '"train"' in written


def test_reports_show_training_scores_beside_the_others(done: Path) -> None:
    findings = work_out(collect([done]))
    titles = [column.title for column in kinds_table(findings).columns]
    assert "training accuracy" in titles
    assert "validation accuracy" in titles
    first, *lines = clients_csv(findings).splitlines()
    place = first.split(",").index("train")
    assert all(0 <= float(line.split(",")[place]) <= 1 for line in lines)
