"""Gain over training alone, predictions with probabilities, and warm starts."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import fedloom
from fedloom.config import parse
from fedloom.results.reader import RunReader
from fedloom.runs import run_config

SMALL = {
    "rounds": 4,
    "partition": {"name": "label-skew", "clients": 6, "classes": 4},
    "model": {"name": "mlp", "hidden": [8]},
}


def test_local_gains_nothing_over_itself(tmp_path):
    tables = {**SMALL, "algorithm": {"name": "local"}}
    gain = run_config(parse(tables), out=tmp_path / "r").gain()
    assert np.array_equal(gain.gain, np.zeros(6))
    written = pq.read_table(tmp_path / "r" / "gain.parquet")
    assert written["alone"].to_pylist() == gain.alone.tolist()


def test_gain_is_the_difference_to_a_run_of_local():
    """Ditto trains two models a round, so that Local has twice its rounds."""
    result = run_config(parse({**SMALL, "algorithm": {"name": "ditto", "lr": 0.1}}))
    local = run_config(parse({**SMALL, "rounds": 8, "algorithm": {"name": "local"}}))
    gain = result.gain()
    assert np.allclose(gain.gain, result.scores() - local.scores())
    assert "with as much work" in gain.sentence()
    assert "clients gain" in gain.sentence()


def test_who_is_not_scored_does_not_train_alone(tmp_path):
    """And whoever is scored has the gain that it has where everybody is."""
    tables = {**SMALL, "algorithm": {"name": "ditto"}, "evaluate_every": 4}
    everybody = run_config(parse(tables)).gain().gain
    told = Told()
    sampled = run_config(parse({**tables, "evaluate_clients": 2}), out=tmp_path / "run")
    gain = sampled.gain(progress=told).gain
    is_scored = np.isfinite(gain)
    assert is_scored.sum() == 2
    assert np.array_equal(gain[is_scored], everybody[is_scored])
    assert max(row.participants for row in told.rows) == 2
    run = RunReader(tmp_path / "run")
    assert (
        run.alone_outcomes["test"].rows.tolist() == run.outcomes["test"].rows.tolist()
    )


class Told:
    """Progress that keeps the rows."""

    def __init__(self):
        self.rows = []

    def start(self, *_):
        pass

    def round(self, row):
        self.rows.append(row)


def test_plain_sgd_is_compared_at_its_own_rate():
    result = run_config(parse({**SMALL, "algorithm": {"name": "fedavg", "lr": 0.1}}))
    local = run_config(parse({**SMALL, "algorithm": {"name": "local", "lr": 0.1}}))
    assert np.allclose(result.gain().alone, local.scores())


def test_training_alone_does_as_much_work_as_all_exchanges_of_a_round(tmp_path):
    method = {"name": "pfedmt", "team_iterations": 3, "steps": 2}
    result = run_config(parse({**SMALL, "algorithm": method}), out=tmp_path / "run")
    result.gain()
    run = RunReader(tmp_path / "run")
    per_round = np.minimum(6 * 10, 6 * result.federation.sizes)
    assert (np.abs(run.work - run.alone_work) <= per_round / 2).all()
    assert (
        run.alone_outcomes["test"].rows.tolist() == run.outcomes["test"].rows.tolist()
    )


def test_a_gain_in_another_number_is_at_the_same_rounds():
    result = run_config(parse({**SMALL, "algorithm": {"name": "ditto"}}))
    local = run_config(parse({**SMALL, "rounds": 8, "algorithm": {"name": "local"}}))
    assert np.allclose(result.gain("loss").alone, local.scores(number="loss"))


def test_predictions_are_probabilities_of_the_clients_own_model():
    result = run_config(parse({**SMALL, "algorithm": {"name": "ditto"}}))
    x = result.federation.dataset.inputs[0][:7]
    found = result.predict(2, x)
    scaled = x.float() / result.federation.dataset.scale
    expected = result.model(2)(scaled).softmax(1)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(found.sum(1), torch.ones(7))


def test_a_posterior_is_averaged_and_is_less_sure_than_its_mean():
    method = {"name": "pfedvem", "scale": 1.0}
    result = run_config(parse({**SMALL, "algorithm": method}))
    x = result.federation.dataset.inputs[0][:50]
    averaged = result.predict(1, x)
    mean = result.model(1)(x.float() / result.federation.dataset.scale).softmax(1)
    assert torch.allclose(averaged.sum(1), torch.ones(50), atol=1e-5)
    assert averaged.amax(1).mean() < mean.amax(1).mean()
    assert {row["kind"] for row in result.table()} == {"shared", "personal", "averaged"}


def test_regression_predicts_numbers():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).astype("float32")
    clients = fedloom.federation(x, x[:, 0], clients=np.arange(40) % 2)
    result = fedloom.run("local", lambda: nn.Linear(2, 1), clients, rounds=2)
    assert torch.allclose(
        result.predict(0, x[:3]), result.model(0)(torch.tensor(x[:3])), atol=1e-6
    )


def test_a_warm_start_begins_at_the_other_runs_shared_model(tmp_path):
    first = run_config(parse(SMALL), out=tmp_path / "fedavg")
    warm = {**SMALL, "warm_start": str(tmp_path / "fedavg")}
    warm |= {"algorithm": {"name": "self-fl"}, "evaluate_start": True}
    second = run_config(parse(warm))
    expected = first.history.rounds[-1].scores["shared"]["test"]
    assert second.history.rounds[0].scores["shared"]["test"] == expected


def test_a_warm_start_that_does_not_fit_is_refused(tmp_path):
    run_config(parse(SMALL), out=tmp_path / "fedavg")
    other = {**SMALL, "model": {"name": "mlr"}, "warm_start": str(tmp_path / "fedavg")}
    with pytest.raises(fedloom.ConfigError, match="does not fit"):
        run_config(parse(other))
    run_config(parse({**SMALL, "algorithm": {"name": "local"}}), out=tmp_path / "loc")
    with pytest.raises(fedloom.ConfigError, match="no shared model"):
        run_config(parse({**SMALL, "warm_start": str(tmp_path / "loc")}))
