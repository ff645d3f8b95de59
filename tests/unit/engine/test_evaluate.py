from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from patchwork import COUNT, TESTS, Patchwork, loom_of, small_federation
from sklearn.metrics import f1_score, mean_absolute_error, r2_score, roc_auc_score
from torch import nn

from fedloom.algorithms import FedAvg, Local, PFedMT
from fedloom.clients.federation import Federation
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.evaluate import evaluate
from fedloom.engine.loop import Loop
from fedloom.engine.rounds import Simulation
from fedloom.engine.weave import Weave


def by_hand(
    simulation: Simulation, thetas: torch.Tensor
) -> tuple[list[float], list[float]]:
    """Mean loss and accuracy of each client's test samples under its own theta."""
    data, module = simulation.federation.dataset, simulation.task.fresh_module()
    losses, scores = [], []
    for rows, theta in zip(simulation.federation.test, thetas, strict=True):
        x, y = data.inputs[0][rows], data.targets[rows]
        out = torch.func.functional_call(module, simulation.task.unflatten(theta), (x,))
        losses.append(float(F.cross_entropy(out, y)) if len(rows) else np.nan)
        right = (out.argmax(1) == y).double()
        scores.append(float(right.mean()) if len(rows) else np.nan)
    return losses, scores


@pytest.mark.parametrize("runner", [Loop(), Weave(4)], ids=["loop", "weave"])
@pytest.mark.parametrize("block", [1, 4, 64])
def test_personal_models_are_scored_on_their_own_clients(
    runner: Loop | Weave, block: int
) -> None:
    simulation = loom_of(Local(lr=0.5), runner)
    simulation.run_exchange()
    (scores,) = evaluate(simulation, "test", block=block)
    losses, accuracies = by_hand(simulation, simulation.personal(torch.arange(COUNT)))
    assert (scores.kind, scores.part) == ("personal", "test")
    assert scores.samples.tolist() == list(TESTS)
    np.testing.assert_allclose(scores.loss, losses, rtol=1e-10)
    np.testing.assert_allclose(scores.score, accuracies, rtol=1e-10)


def test_the_shared_model_is_scored_on_every_client() -> None:
    simulation = loom_of(FedAvg(lr=0.5), Weave(4))
    simulation.run_exchange()
    shared, personal = evaluate(simulation, "test")
    losses, accuracies = by_hand(
        simulation, simulation.state.server.shared.expand(COUNT, -1)
    )
    assert (shared.kind, personal.kind) == ("shared", "personal")
    for scores in (shared, personal):
        np.testing.assert_allclose(scores.loss, losses, rtol=1e-10)
        np.testing.assert_allclose(scores.score, accuracies, rtol=1e-10)


def test_a_client_without_test_samples_has_no_score() -> None:
    simulation = loom_of(FedAvg(), Weave(4))
    for scores in evaluate(simulation, "test"):
        missing = np.isnan(scores.loss)
        assert missing.nonzero()[0].tolist() == [TESTS.index(0)]
        assert np.array_equal(missing, np.isnan(scores.score))


@pytest.mark.parametrize("method", [FedAvg(), Local()], ids=["fedavg", "local"])
def test_a_part_without_any_sample_has_no_scores(method: FedAvg | Local) -> None:
    for scores in evaluate(loom_of(method, Weave(4)), "validation"):
        assert scores.samples.tolist() == [0] * COUNT
        assert np.isnan(scores.loss).all()
        assert np.isnan(scores.score).all()


def test_a_model_that_adapts_is_scored_after_adapting() -> None:
    simulation = loom_of(FedAvg(lr=0.5, tuning=2), Weave(4))
    simulation.run_exchange()
    shared, personal = evaluate(simulation, "test")
    losses, _ = by_hand(simulation, simulation.personal(torch.arange(COUNT)))
    np.testing.assert_allclose(personal.loss, losses, rtol=1e-10)
    assert not np.allclose(personal.loss, shared.loss, equal_nan=True)


def test_evaluation_does_not_depend_on_blocks() -> None:
    simulation = loom_of(Patchwork(), Weave(4), rate=0.5)
    simulation.run_exchange()
    one = evaluate(simulation, "test", block=2)
    two = evaluate(simulation, "test", block=COUNT)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a.loss, b.loss, rtol=1e-10)


def test_evaluation_changes_nothing() -> None:
    looked, not_looked = (loom_of(Patchwork(), Weave(4), rate=0.5) for _ in range(2))
    for _ in range(4):
        evaluate(looked, "test")
        looked.run_exchange()
        not_looked.run_exchange()
    one, two = looked.state.table.dump(), not_looked.state.table.dump()
    assert all(torch.equal(one[name], two[name]) for name in two)
    assert torch.equal(looked.state.server.shared, not_looked.state.server.shared)


def test_a_regression_is_scored_by_its_squared_error() -> None:
    source = small_federation()
    inputs = source.dataset.inputs[0]
    federation = Federation(
        dataset=Dataset("numbers", (inputs,), inputs.sum(1)),
        train=source.train,
        validation=source.validation,
        test=source.test,
        names=source.names,
        teams=source.teams,
    )
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    task = Task(model, "squared-error", dtype=torch.float64)
    simulation = loom_of(FedAvg(), Weave(4), federation=federation, task=task)
    for scores in evaluate(simulation, "test"):
        for n, rows in enumerate(source.test):
            if len(rows):
                expected = float(inputs[rows].sum(1).square().mean())
                assert scores.loss[n] == pytest.approx(expected, rel=1e-10)
                assert scores.score[n] == pytest.approx(expected, rel=1e-10)


def probabilities(simulation: Simulation, thetas: torch.Tensor) -> list[np.ndarray]:
    """Each client's probability of class 1 for its test samples, by its own theta."""
    data, module = simulation.federation.dataset, simulation.task.fresh_module()
    found = []
    for rows, theta in zip(simulation.federation.test, thetas, strict=True):
        params = simulation.task.unflatten(theta)
        out = torch.func.functional_call(module, params, (data.inputs[0][rows],))
        found.append(out.softmax(1)[:, 1].detach().numpy())
    return found


@pytest.mark.parametrize("runner", [Loop(), Weave(4)], ids=["loop", "weave"])
@pytest.mark.parametrize("block", [1, 4])
def test_two_classes_have_auc_and_f1_by_client_and_pooled(
    runner: Loop | Weave, block: int
) -> None:
    simulation = loom_of(FedAvg(lr=0.5, tuning=3), runner)
    simulation.run_exchange()
    shared, personal = evaluate(simulation, "test", block=block)
    own = simulation.personal(torch.arange(COUNT))
    one = simulation.state.server.shared.expand(COUNT, -1)
    targets = [
        simulation.federation.dataset.targets[r].numpy()
        for r in simulation.federation.test
    ]
    for scores, thetas in ((shared, one), (personal, own)):
        said = probabilities(simulation, thetas)
        for n, (p, y) in enumerate(zip(said, targets, strict=True)):
            if len(set(y)) == 2:
                expected = roc_auc_score(y, p)
                assert scores.more["auc"][n] == pytest.approx(expected, abs=1e-12)
                expected = f1_score(y, p > 0.5)
                assert scores.more["f1"][n] == pytest.approx(expected, abs=1e-12)
            else:
                assert np.isnan(scores.more["auc"][n])
        y, p = np.concatenate(targets), np.concatenate(said)
        assert scores.pooled["auc"] == pytest.approx(roc_auc_score(y, p), abs=1e-12)
        assert scores.pooled["f1"] == pytest.approx(f1_score(y, p > 0.5), abs=1e-12)
    # Some clients have no test sample or one class only, and some have both.
    assert 0 < np.isnan(personal.more["auc"]).sum() < COUNT
    assert not np.allclose(shared.more["auc"], personal.more["auc"], equal_nan=True)


def test_a_team_model_ranks_the_samples_of_its_own_clients() -> None:
    simulation = loom_of(PFedMT(lr=0.1), Weave(4))
    simulation.run_exchange()
    found = {scores.kind: scores for scores in evaluate(simulation, "test")}
    teams = simulation.algorithm.team_models(simulation.state.server, simulation.task)
    assert teams is not None
    said = probabilities(
        simulation, teams[torch.as_tensor(simulation.federation.teams)]
    )
    largest = int(np.argmax(TESTS))
    y = simulation.federation.dataset.targets[
        simulation.federation.test[largest]
    ].numpy()
    expected = roc_auc_score(y, said[largest])
    assert found["team"].more["auc"][largest] == pytest.approx(expected, abs=1e-12)


def test_a_part_without_any_sample_has_no_auc() -> None:
    for scores in evaluate(loom_of(FedAvg(), Weave(4)), "validation"):
        assert np.isnan(scores.more["auc"]).all()
        assert np.isnan(scores.pooled["auc"])


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_regression_has_its_numbers_by_client_and_pooled(outputs: int) -> None:
    source = small_federation()
    inputs = source.dataset.inputs[0]
    targets = inputs.sum(1) + 5 if outputs == 1 else inputs[:, :2] * 3 + 5
    federation = Federation(
        dataset=Dataset("numbers", (inputs,), targets),
        train=source.train,
        validation=source.validation,
        test=source.test,
        names=source.names,
        teams=source.teams,
    )
    model = nn.Linear(3, outputs)
    task = Task(model, "squared-error", dtype=torch.float64)
    simulation = loom_of(FedAvg(lr=0.05), Weave(4), federation=federation, task=task)
    simulation.run_exchange()
    theta = simulation.state.server.shared
    said = task.predict(theta, (inputs,)).reshape(targets.shape).detach().numpy()
    truth = targets.numpy()
    for scores in evaluate(simulation, "test"):
        for n, rows in enumerate(source.test):
            y, p = truth[rows], said[rows]
            if len(rows) == 0:
                assert all(np.isnan(values[n]) for values in scores.more.values())
                continue
            rmse = np.sqrt(np.square(y - p).mean())
            assert scores.more["rmse"][n] == pytest.approx(rmse, rel=1e-10)
            mae = mean_absolute_error(y, p)
            assert scores.more["mae"][n] == pytest.approx(mae, rel=1e-10)
            explained = scores.more["explained_variance"][n]
            if len(rows) == 1:
                assert np.isnan(explained)
            else:
                r2 = r2_score(y, p, multioutput="variance_weighted")
                assert explained == pytest.approx(r2, rel=1e-9)
        every = np.concatenate(list(source.test))
        y, p = truth[every], said[every]
        r2 = r2_score(y, p, multioutput="variance_weighted")
        assert scores.pooled["explained_variance"] == pytest.approx(r2, rel=1e-10)
        pooled = np.sqrt(np.square(y - p).mean())
        assert scores.pooled["rmse"] == pytest.approx(pooled, rel=1e-10)
        pooled = mean_absolute_error(y, p)
        assert scores.pooled["mae"] == pytest.approx(pooled, rel=1e-10)


def test_a_regression_without_samples_in_a_part_has_no_numbers() -> None:
    source = small_federation()
    inputs = source.dataset.inputs[0]
    federation = Federation(
        dataset=Dataset("numbers", (inputs,), inputs[:, :1]),
        train=source.train,
        validation=source.validation,
        test=source.test,
        names=source.names,
        teams=source.teams,
    )
    task = Task(nn.Linear(3, 1), "squared-error", dtype=torch.float64)
    simulation = loom_of(FedAvg(), Weave(4), federation=federation, task=task)
    for scores in evaluate(simulation, "validation"):
        for values in scores.more.values():
            assert np.isnan(values).all()


def test_several_classes_have_no_auc() -> None:
    source = small_federation()
    inputs = source.dataset.inputs[0]
    labels = torch.arange(len(inputs)) % 3
    federation = Federation(
        dataset=Dataset("three", (inputs,), labels, classes=3),
        train=source.train,
        validation=source.validation,
        test=source.test,
        names=source.names,
        teams=source.teams,
    )
    task = Task(nn.Linear(3, 3), dtype=torch.float64)
    simulation = loom_of(FedAvg(), Weave(4), federation=federation, task=task)
    assert all(not scores.more for scores in evaluate(simulation, "test"))
