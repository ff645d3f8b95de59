from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from patchwork import COUNT, TESTS, Patchwork, loom_of, small_federation
from torch import nn

from fedloom.algorithms import FedAvg, Local
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.evaluate import evaluate
from fedloom.engine.loop import Loop
from fedloom.engine.rounds import Loom
from fedloom.engine.weave import Weave
from fedloom.federation.federation import Federation


def by_hand(loom: Loom, thetas: torch.Tensor) -> tuple[list[float], list[float]]:
    """Mean loss and accuracy of each client's test samples under its own theta."""
    data, module = loom.federation.dataset, loom.task.fresh_module()
    losses, scores = [], []
    for rows, theta in zip(loom.federation.test, thetas, strict=True):
        x, y = data.inputs[0][rows], data.targets[rows]
        out = torch.func.functional_call(module, loom.task.unflatten(theta), (x,))
        losses.append(float(F.cross_entropy(out, y)) if len(rows) else np.nan)
        right = (out.argmax(1) == y).double()
        scores.append(float(right.mean()) if len(rows) else np.nan)
    return losses, scores


@pytest.mark.parametrize("runner", [Loop(), Weave(4)], ids=["loop", "weave"])
@pytest.mark.parametrize("block", [1, 4, 64])
def test_personal_models_are_scored_on_their_own_clients(
    runner: Loop | Weave, block: int
) -> None:
    loom = loom_of(Local(lr=0.5), runner)
    loom.advance()
    (scores,) = evaluate(loom, "test", block=block)
    losses, accuracies = by_hand(loom, loom.personal(torch.arange(COUNT)))
    assert (scores.kind, scores.part) == ("personal", "test")
    assert scores.samples.tolist() == list(TESTS)
    np.testing.assert_allclose(scores.loss, losses, rtol=1e-10)
    np.testing.assert_allclose(scores.score, accuracies, rtol=1e-10)


def test_the_shared_model_is_scored_on_every_client() -> None:
    loom = loom_of(FedAvg(lr=0.5), Weave(4))
    loom.advance()
    shared, personal = evaluate(loom, "test")
    losses, accuracies = by_hand(loom, loom.state.server.shared.expand(COUNT, -1))
    assert (shared.kind, personal.kind) == ("shared", "personal")
    for scores in (shared, personal):
        np.testing.assert_allclose(scores.loss, losses, rtol=1e-10)
        np.testing.assert_allclose(scores.score, accuracies, rtol=1e-10)


def test_a_client_without_test_samples_has_no_score() -> None:
    loom = loom_of(FedAvg(), Weave(4))
    for scores in evaluate(loom, "test"):
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
    loom = loom_of(FedAvg(lr=0.5, tuning=2), Weave(4))
    loom.advance()
    shared, personal = evaluate(loom, "test")
    losses, _ = by_hand(loom, loom.personal(torch.arange(COUNT)))
    np.testing.assert_allclose(personal.loss, losses, rtol=1e-10)
    assert not np.allclose(personal.loss, shared.loss, equal_nan=True)


def test_evaluation_does_not_depend_on_blocks() -> None:
    loom = loom_of(Patchwork(), Weave(4), rate=0.5)
    loom.advance()
    one = evaluate(loom, "test", block=2)
    two = evaluate(loom, "test", block=COUNT)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a.loss, b.loss, rtol=1e-10)


def test_evaluation_changes_nothing() -> None:
    looked, not_looked = (loom_of(Patchwork(), Weave(4), rate=0.5) for _ in range(2))
    for _ in range(4):
        evaluate(looked, "test")
        looked.advance()
        not_looked.advance()
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
    loom = loom_of(FedAvg(), Weave(4), federation=federation, task=task)
    for scores in evaluate(loom, "test"):
        for n, rows in enumerate(source.test):
            if len(rows):
                expected = float(inputs[rows].sum(1).square().mean())
                assert scores.loss[n] == pytest.approx(expected, rel=1e-10)
                assert scores.score[n] == pytest.approx(expected, rel=1e-10)
