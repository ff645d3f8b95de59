"""What a result says beyond accuracy, and which clients it leaves out."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import roc_auc_score

import fedloom

RNG = np.random.default_rng(2)
X = RNG.normal(size=(160, 3)).astype("float32")
Y = (X[:, 0] + RNG.normal(size=160) > 0).astype("int64")
WARD = np.repeat(["east", "north", "south", "west"], 40)


@pytest.fixture(scope="module")
def binary() -> fedloom.Result:
    """Two classes, but every patient of the north is of class 1."""
    y = np.where(WARD == "north", 1, Y)
    clients = fedloom.federation(X, y, clients=WARD)
    return fedloom.run(fedloom.Ditto(lr=0.1), "mlr", clients, rounds=3)


def test_a_client_with_one_class_has_a_score_but_no_auc(binary):
    auc = binary.scores(number="auc")
    assert np.isnan(auc).tolist() == [False, True, False, False]
    assert np.isfinite(binary.scores()).all()
    summary = binary.history.rounds[-1].scores["personal"]["test"]
    assert summary["auc_clients"] == 3
    assert summary["auc"] == pytest.approx(np.nanmean(auc), abs=1e-12)
    assert summary["accuracy"] == pytest.approx(binary.scores().mean(), abs=1e-12)


def test_the_auc_is_that_of_the_models_given_back(binary):
    clients = binary.federation
    for row in (0, 2, 3):
        chosen = clients.test[row]
        said = binary.predict(row, clients.dataset.inputs[0][chosen])[:, 1]
        expected = roc_auc_score(clients.dataset.targets[chosen], said.detach())
        assert binary.scores(number="auc")[row] == pytest.approx(expected, abs=1e-12)


def test_the_closing_table_shows_auc_for_two_classes(binary):
    heading = binary.table().cells()[0]
    assert heading[-3:] == ["ECE", "AUC", "F1"]
    assert all(0 <= row["auc"] <= 1 for row in binary.table())


def test_gain_can_be_asked_for_in_auc(binary, tmp_path):
    binary.save(tmp_path / "run")
    gain = binary.gain("auc")
    assert gain.metric == "auc"
    assert np.isnan(gain.gain).tolist() == [False, True, False, False]
    np.testing.assert_array_equal(gain.together, binary.scores(number="auc"))
    assert "gain in auc" in gain.sentence()


def test_an_interval_and_scores_by_size_come_from_the_same_scores(binary):
    interval = binary.interval(number="auc")
    assert interval.count == 3
    assert interval.low <= interval.mean <= interval.high
    by_size = binary.by_size(bins=2)
    assert by_size.clients.sum() == 4
    with pytest.raises(fedloom.ConfigError, match="unknown number 'rmse'"):
        binary.scores(number="rmse")


def test_the_files_of_a_run_have_every_number_of_every_client(binary, tmp_path):
    path = binary.save(tmp_path / "run")
    table = (
        pa.ipc.open_stream((path / "clients.arrows").read_bytes())
        .read_all()
        .to_pydict()
    )
    last = [
        n
        for n in range(len(table["round"]))
        if (table["round"][n], table["kind"][n]) == (3, "personal")
        and table["part"][n] == "test"
    ]
    np.testing.assert_array_equal(
        [table["auc"][n] for n in last], binary.scores(number="auc")
    )
    np.testing.assert_array_equal(
        [table["f1"][n] for n in last], binary.scores(number="f1")
    )
    lines = (path / "rounds.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert "auc_pooled" in rows[-1]["scores"]["shared"]["test"]
    again = fedloom.load(path, "mlr", binary.federation)
    assert list(again.table()) == list(binary.table())


def test_a_client_without_test_samples_trains_and_is_left_out():
    sizes = [40, 1, 40]
    ward = np.repeat(["east", "north", "south"], sizes)
    clients = fedloom.federation(X[:81], Y[:81], clients=ward)
    assert clients.test.sizes.tolist() == [10, 0, 10]
    result = fedloom.run("fedavg", "mlr", clients, rounds=2)
    assert result.history.rounds[1].participants == 3
    for number in ("accuracy", "loss", "nll", "auc", "f1"):
        found = result.scores(number=number)
        assert np.isnan(found).tolist() == [False, True, False]
    summary = result.history.rounds[-1].scores["personal"]["test"]
    known = result.scores()[[0, 2]]
    assert summary["accuracy"] == pytest.approx(known.mean(), abs=1e-12)
    assert np.isnan(result.gain().gain).tolist() == [False, True, False]


def test_a_regression_shows_rmse_mae_and_explained_variance():
    y = (X @ np.array([1.0, -2.0, 0.5]) + 3).astype("float32")
    clients = fedloom.federation(X, y, clients=WARD)
    result = fedloom.run(fedloom.FedAvg(lr=0.1), "mlr", clients, rounds=20)
    assert result.table().cells()[0][-3:] == ["RMSE", "MAE", "explained variance"]
    mse, rmse = result.scores(), result.scores(number="rmse")
    np.testing.assert_allclose(rmse, np.sqrt(mse), rtol=1e-12)
    assert result.scores(number="explained_variance").min() > 0.9
    assert str(result.table()).startswith("mse after round 20")


def test_a_regression_learns_standardised_targets_and_reports_its_own_units():
    y = (X @ np.array([1.0, -2.0, 0.5]) + RNG.normal(size=160)) * 1000 + 50_000
    engine = fedloom.EngineSettings(dtype="float64")
    method = fedloom.Ditto(lr=0.1)

    def trained(targets, **settings):
        clients = fedloom.federation(X, targets, clients=WARD, **settings)
        return fedloom.run(method, "mlr", clients, rounds=3, engine=engine)

    raw = trained(y)
    clients = raw.federation
    mean, deviation = (float(t) for t in clients.target_moments())
    rows = y[clients.train.indices]
    assert (mean, deviation) == pytest.approx((rows.mean(), rows.std()))
    by_hand = trained((y - mean) / deviation, standardise_targets=False)
    np.testing.assert_allclose(raw.scores(), by_hand.scores() * deviation**2, rtol=1e-9)
    np.testing.assert_allclose(raw.scores(number="loss"), by_hand.scores(), rtol=1e-9)
    said = by_hand.predict(1, X[:5]) * deviation + mean
    torch.testing.assert_close(raw.predict(1, X[:5]), said)
    torch.testing.assert_close(raw.model(1)(*raw.prepare(X[:5])), said)
    newcomer = raw.personalize(X[:40], y[:40])
    assert newcomer.predict(X[:5]).mean() == pytest.approx(50_000, rel=0.1)


def test_a_loss_of_ones_own_meets_targets_as_they_are():
    seen = []

    def absolute(outputs, targets):
        seen.append(targets)
        return (outputs.reshape(targets.shape) - targets).abs()

    y = (X[:, 0] * 10 + 100).astype("float32")
    clients = fedloom.federation(X, y, clients=WARD)
    engine = fedloom.EngineSettings(runner="loop")
    fedloom.run("local", "mlr", clients, rounds=1, loss=absolute, engine=engine)
    assert all(targets.mean() > 50 for targets in seen)


RAW = X * [1, 100, 0.01] + [0, 500, -3]


def test_features_are_standardised_by_training_samples_alone():
    clients = fedloom.federation(RAW, Y, clients=WARD, standardise=True)
    mean, deviation = clients.moments()
    rows = RAW[clients.train.indices]
    np.testing.assert_allclose(mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(deviation, rows.std(0), rtol=1e-12)
    other = RAW.copy()
    other[clients.test.indices] = 1e6
    again = fedloom.federation(other, Y, clients=WARD, standardise=True)
    assert torch.equal(again.moments()[0], mean)


def test_a_standardised_run_is_that_of_features_standardised_by_hand():
    raw = fedloom.federation(RAW, Y, clients=WARD, standardise=True)
    mean, deviation = (t.numpy() for t in raw.moments())
    ready = fedloom.federation((RAW - mean) / deviation, Y, clients=WARD)
    engine = fedloom.EngineSettings(dtype="float64")
    method = fedloom.Ditto(lr=0.1)
    one, two = (
        fedloom.run(method, "mlr", clients, rounds=3, engine=engine)
        for clients in (raw, ready)
    )
    for client in range(4):
        ours, theirs = one.model(client).head.weight, two.model(client).head.weight
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_predict_takes_raw_rows_and_prepare_gives_what_the_model_takes():
    clients = fedloom.federation(RAW, Y, clients=WARD, standardise=True)
    result = fedloom.run("fedavg", "mlr", clients, rounds=2)
    said = result.predict("west", RAW[:5])
    (ready,) = result.prepare(RAW[:5])
    expected = result.model("west")(ready).softmax(1)
    torch.testing.assert_close(said, expected, rtol=0, atol=1e-6)
    assert ready.abs().max() < 5


def test_a_feature_that_never_varies_stays_finite():
    x = np.hstack([X, np.full((160, 1), 0.1, dtype="float32")])
    clients = fedloom.federation(x, Y, clients=WARD, standardise=True)
    assert clients.moments()[1][3] == 1
    result = fedloom.run("fedavg", "mlr", clients, rounds=1)
    assert (result.prepare(x)[0][:, 3].abs() < 1e-6).all()


def test_only_one_floating_input_can_be_standardised():
    with pytest.raises(fedloom.DataError, match=r"one floating.*uint8"):
        fedloom.federation(X.astype("uint8"), Y, clients=WARD, standardise=True)
    with pytest.raises(fedloom.DataError, match="one floating input can be stand"):
        fedloom.federation((X, X), Y, clients=WARD, standardise=True)
