from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from patchwork import COUNT, TESTS, Patchwork, simulation_of, small_federation
from sklearn.metrics import f1_score, mean_absolute_error, r2_score, roc_auc_score
from torch import Tensor, nn

from fedloom.algorithms import REGISTRY, FedAvg, Local, PFedMT
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.measures import Outcome
from fedloom.core.metrics import (
    CONFIDENCE_BINS,
    MARGIN_BINS,
    METRICS,
    Metric,
    Statistic,
    statistics,
)
from fedloom.core.records import take
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.evaluate import (
    _Calls,
    _groups,
    _neighbours,
    sums_of_own,
    sums_of_shared,
    values_of_own,
)
from fedloom.engine.job import Outputs, Samples
from fedloom.engine.loop import Loop
from fedloom.engine.native_library import native_library
from fedloom.engine.weave import Weave
from fedloom.results.row_files import RowFiles, read_batches
from fedloom.results.scores import Scores
from fedloom.server.simulation import Simulation

RUNNERS = {"loop": Loop(), "vmap": Weave(4, native=False), "native": Weave(4)}


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


def own_scores(simulation: Simulation, block: int) -> Scores:
    """The personal models on test data, so many at once."""
    task, fleet = simulation.task, simulation.fleet
    samples = fleet.samples.part(simulation.federation.test)
    sums = sums_of_own(task, fleet.runner, samples, simulation.personal, block=block)
    return Scores.from_sums("personal", "test", task.metric, sums)


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
@pytest.mark.parametrize("block", [1, 4, 64])
def test_personal_models_are_scored_on_their_own_clients(
    runner: Loop | Weave, block: int
) -> None:
    simulation = simulation_of(Local(lr=0.5), runner)
    simulation.run_exchange()
    scores = own_scores(simulation, block)
    losses, accuracies = by_hand(simulation, simulation.personal(torch.arange(COUNT)))
    assert (scores.kind, scores.part) == ("personal", "test")
    assert scores.samples.tolist() == list(TESTS)
    np.testing.assert_allclose(scores.of("loss"), losses, rtol=1e-10)
    np.testing.assert_allclose(scores.of(), accuracies, rtol=1e-10)


def test_the_shared_model_is_scored_on_every_client() -> None:
    simulation = simulation_of(FedAvg(lr=0.5), Weave(4))
    simulation.run_exchange()
    shared, personal = simulation.evaluate("test").scores
    losses, accuracies = by_hand(
        simulation, simulation.state.server.shared.expand(COUNT, -1)
    )
    assert (shared.kind, personal.kind) == ("shared", "personal")
    for scores in (shared, personal):
        np.testing.assert_allclose(scores.of("loss"), losses, rtol=1e-10)
        np.testing.assert_allclose(scores.of(), accuracies, rtol=1e-10)


def test_a_client_without_test_samples_has_no_score() -> None:
    simulation = simulation_of(FedAvg(), Weave(4))
    for scores in simulation.evaluate("test").scores:
        missing = np.isnan(scores.of("loss"))
        assert missing.nonzero()[0].tolist() == [TESTS.index(0)]
        assert np.array_equal(missing, np.isnan(scores.of()))


@pytest.mark.parametrize("method", [FedAvg(), Local()], ids=["fedavg", "local"])
def test_a_part_without_any_sample_has_no_scores(method: FedAvg | Local) -> None:
    for scores in simulation_of(method, Weave(4)).evaluate("validation").scores:
        assert scores.samples.tolist() == [0] * COUNT
        assert np.isnan(scores.of("loss")).all()
        assert np.isnan(scores.of()).all()


def test_a_model_that_adapts_is_scored_after_adapting() -> None:
    simulation = simulation_of(FedAvg(lr=0.5, tuning=2), Weave(4))
    simulation.run_exchange()
    shared, personal = simulation.evaluate("test").scores
    losses, _ = by_hand(simulation, simulation.personal(torch.arange(COUNT)))
    np.testing.assert_allclose(personal.of("loss"), losses, rtol=1e-10)
    assert not np.allclose(personal.of("loss"), shared.of("loss"), equal_nan=True)


def test_evaluation_does_not_depend_on_blocks() -> None:
    simulation = simulation_of(Patchwork(), Weave(4), rate=0.5)
    simulation.run_exchange()
    small, large = own_scores(simulation, 2), own_scores(simulation, COUNT)
    np.testing.assert_allclose(small.of("loss"), large.of("loss"), rtol=1e-10)


def test_evaluation_changes_nothing() -> None:
    looked, not_looked = (
        simulation_of(Patchwork(), Weave(4), rate=0.5) for _ in range(2)
    )
    for _ in range(4):
        looked.evaluate("test")
        looked.run_exchange()
        not_looked.run_exchange()
    kept, expected = looked.fleet.save(), not_looked.fleet.save()
    assert all(torch.equal(kept[name], expected[name]) for name in expected)
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
    simulation = simulation_of(FedAvg(), Weave(4), federation=federation, task=task)
    for scores in simulation.evaluate("test").scores:
        for n, rows in enumerate(source.test):
            if len(rows):
                expected = float(inputs[rows].sum(1).square().mean())
                assert scores.of("loss")[n] == pytest.approx(expected, rel=1e-10)
                assert scores.of()[n] == pytest.approx(expected, rel=1e-10)


def probabilities(simulation: Simulation, thetas: torch.Tensor) -> list[np.ndarray]:
    """Each client's probability of class 1 for its test samples, by its own theta."""
    data, module = simulation.federation.dataset, simulation.task.fresh_module()
    found = []
    for rows, theta in zip(simulation.federation.test, thetas, strict=True):
        params = simulation.task.unflatten(theta)
        out = torch.func.functional_call(module, params, (data.inputs[0][rows],))
        found.append(out.softmax(1)[:, 1].detach().numpy())
    return found


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
@pytest.mark.parametrize("block", [1, 4])
def test_two_classes_have_auc_and_f1_by_client_and_pooled(
    runner: Loop | Weave, block: int
) -> None:
    simulation = simulation_of(FedAvg(lr=0.5, tuning=3), runner)
    simulation.run_exchange()
    shared, _ = simulation.evaluate("test").scores
    personal = own_scores(simulation, block)
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
                assert scores.of("auc")[n] == pytest.approx(expected, abs=1e-12)
                expected = f1_score(y, p > 0.5)
                assert scores.of("f1")[n] == pytest.approx(expected, abs=1e-12)
            else:
                assert np.isnan(scores.of("auc")[n])
        y, p = np.concatenate(targets), np.concatenate(said)
        # Exact but for margins that fall into one bin of the histograms.
        assert scores.pooled["auc"] == pytest.approx(roc_auc_score(y, p), abs=0.002)
        assert scores.pooled["f1"] == pytest.approx(f1_score(y, p > 0.5), abs=1e-12)
    # Some clients have no test sample or one class only, and some have both.
    assert 0 < np.isnan(personal.of("auc")).sum() < COUNT
    assert not np.allclose(shared.of("auc"), personal.of("auc"), equal_nan=True)


def test_a_team_model_ranks_the_samples_of_its_own_clients() -> None:
    simulation = simulation_of(PFedMT(lr=0.1), Weave(4))
    simulation.run_exchange()
    found = {scores.kind: scores for scores in simulation.evaluate("test").scores}
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
    assert found["team"].of("auc")[largest] == pytest.approx(expected, abs=1e-12)


def test_a_part_without_any_sample_has_no_auc() -> None:
    for scores in simulation_of(FedAvg(), Weave(4)).evaluate("validation").scores:
        assert np.isnan(scores.of("auc")).all()
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
    simulation = simulation_of(
        FedAvg(lr=0.05), Weave(4), federation=federation, task=task
    )
    simulation.run_exchange()
    theta = simulation.state.server.shared
    said = task.predict(theta, (inputs,)).reshape(targets.shape).detach().numpy()
    truth = targets.numpy()
    for scores in simulation.evaluate("test").scores:
        for n, rows in enumerate(source.test):
            y, p = truth[rows], said[rows]
            if len(rows) == 0:
                assert all(np.isnan(values[n]) for values in scores.values.values())
                continue
            rmse = np.sqrt(np.square(y - p).mean())
            assert scores.of("rmse")[n] == pytest.approx(rmse, rel=1e-10)
            mae = mean_absolute_error(y, p)
            assert scores.of("mae")[n] == pytest.approx(mae, rel=1e-10)
            explained = scores.of("explained_variance")[n]
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
    simulation = simulation_of(FedAvg(), Weave(4), federation=federation, task=task)
    for scores in simulation.evaluate("validation").scores:
        for values in scores.values.values():
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
    simulation = simulation_of(FedAvg(), Weave(4), federation=federation, task=task)
    for scores in simulation.evaluate("test").scores:
        assert {"loss", "accuracy"} <= scores.values.keys()
        assert not {"auc", "f1"} & (scores.values.keys() | scores.pooled.keys())


def placed(federation: Federation) -> Samples:
    return Samples.of(federation, federation.test, torch.device("cpu"))


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
def test_a_clients_sums_are_the_same_whoever_is_scored_beside_it(
    runner: Loop | Weave,
) -> None:
    """One client alone sends what it sends among others, samples or none."""
    federation = small_federation()
    task = Task(nn.Linear(3, 2), dtype=torch.float64)
    together = sums_of_shared(task, task.start, placed(federation), runner)
    assert together.values[0].dtype == torch.float64
    for n in range(COUNT):
        alone = sums_of_shared(task, task.start, placed(federation.only([n])), runner)
        assert alone.samples.tolist() == [TESTS[n]]
        for mine, ours in zip(alone.values, take(together, [n]).values, strict=True):
            torch.testing.assert_close(mine, ours, equal_nan=True)


def pictures(count: int) -> Federation:
    """Two clients that test on many pictures, some of them the same."""
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.integers(0, 256, (count, 3, 8, 8), dtype=np.uint8))
    third = count // 3
    return Federation(
        dataset=Dataset("tiny", (x,), torch.arange(count) % 4, classes=4, scale=255.0),
        train=Ragged.of([np.arange(1), np.arange(1, 2)]),
        validation=Ragged.of([np.arange(0)] * 2),
        test=Ragged.of([np.arange(2, 2 * third), np.arange(third, count)]),
        names=("a", "b"),
        teams=np.array([0, 1]),
        shares_test=True,
    )


@pytest.mark.skipif(native_library(64) is None, reason="there is no C compiler")
def test_a_shared_model_is_shown_its_samples_by_code_of_our_own() -> None:
    """It says what PyTorch says, in several calls, without what PyTorch sets aside."""
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4)
    )
    task = Watched(module, dtype=torch.float64, scale=255.0)
    samples = placed(pictures(2500))
    expected = sums_of_shared(task, task.start, samples)
    assert task.shown == len(samples.distinct[0]) + 1  # one shows the shapes
    task.shown = 0
    found = sums_of_shared(task, task.start, samples, Seen())
    assert task.shown == 1  # shows the shapes
    for mine, theirs in zip(found.values, expected.values, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9, equal_nan=True)


class Seen(Weave):
    """A weave that takes a watched task for an ordinary one."""

    def __init__(self) -> None:
        super().__init__(4)

    def outputs_of(self, task: Task, samples: Samples) -> Outputs | None:
        plain = Task(task.module, dtype=task.dtype, scale=255.0)
        return super().outputs_of(plain, samples)


class Watched(Task):
    """A task that remembers how many samples its models were shown."""

    shown = 0

    def measure(
        self, theta: Tensor, inputs: tuple[Tensor, ...], targets: Tensor
    ) -> Outcome:
        self.shown += len(targets)
        return super().measure(theta, inputs, targets)


def overlapping() -> Federation:
    """Three clients that test on 7, 5 and 7 of the same 9 samples."""
    draw = np.random.default_rng(0)
    x, y = torch.from_numpy(draw.normal(size=(15, 3))), torch.arange(15) % 2
    tests = [np.arange(9, 15), np.arange(6, 11), np.arange(6, 15)]
    return Federation(
        dataset=Dataset("tiny", (x,), y, classes=2),
        train=Ragged.of([np.arange(2 * n, 2 * n + 2) for n in range(3)]),
        validation=Ragged.of([np.arange(0)] * 3),
        test=Ragged.of(tests),
        names=("a", "b", "c"),
        teams=np.array([0, 1, 0]),
        shares_test=True,
    )


def test_a_sample_that_clients_share_is_shown_to_a_shared_model_once() -> None:
    federation = overlapping()
    task = Watched(nn.Linear(3, 2), dtype=torch.float64)
    together = sums_of_shared(task, task.start, placed(federation))
    one_more = 1  # shows the shapes
    assert task.shown == 9 + one_more
    for n in range(3):
        alone = sums_of_shared(task, task.start, placed(federation.only([n])))
        for mine, ours in zip(alone.values, take(together, [n]).values, strict=True):
            torch.testing.assert_close(mine, ours, equal_nan=True)


@pytest.mark.parametrize(
    ("method", "shown"),
    [(FedAvg(), 10), (Local(), 10), (PFedMT(), 10 + 10 + 6 + 10)],
    ids=["fedavg", "local", "pfedmt"],
)
def test_models_that_are_the_same_are_scored_once(
    method: AnyAlgorithm, shown: int
) -> None:
    """Of FedAvg the shared model alone; of pFedMT each team's on its own clients.

    One sample more each time shows the shapes; personal models are padded to the
    largest client, and those of all clients are one call.
    """
    scores = []
    for runner in (Loop(), Weave(2)):
        task = Watched(nn.Linear(3, 2), dtype=torch.float64)
        with torch.no_grad():
            task.start.copy_(torch.linspace(-1, 1, task.d))
        simulation = simulation_of(method, runner, federation=overlapping(), task=task)
        simulation.run_exchange()
        task.shown = 0
        scores.append(simulation.evaluate("test").scores)
    assert task.shown == shown
    for looped, woven in zip(*scores, strict=True):
        np.testing.assert_allclose(woven.of("loss"), looped.of("loss"), rtol=1e-10)


def test_what_a_shared_model_says_of_a_sample_is_looked_up_once() -> None:
    task = Watched(nn.Linear(3, 2), dtype=torch.float64)
    federation = overlapping()
    simulation = simulation_of(
        FedAvg(lr=0.5), Weave(2), federation=federation, task=task
    )
    simulation.run_exchange()
    task.shown = 0
    found = simulation.outcomes("test")
    assert task.shown == 9
    assert found is not None
    module, data = task.fresh_module(), federation.dataset
    params = task.unflatten(simulation.state.server.shared)
    out = torch.func.functional_call(module, params, (data.inputs[0],))
    is_right = (out.argmax(1) == data.targets).double()
    assert found.rows.tolist() == federation.test.indices.tolist()
    assert torch.equal(found.values, is_right[found.rows])
    assert found.work.tolist() == [0, 0, 0]


@pytest.mark.parametrize("sizes", [[1], [3, 3, 3], [1] * 500, [1, 5, 900, 2000, 9999]])
def test_groups_of_clients_fill_a_call_and_leave_nobody_out(sizes: list[int]) -> None:
    groups = list(_groups(np.array(sizes), 64, 2048))
    assert [n for group in groups for n in range(group.start, group.stop)] == list(
        range(len(sizes))
    )
    for group in groups:
        count = group.stop - group.start
        assert count <= 64
        assert count == 1 or count * sizes[group.stop - 1] <= 2048


@pytest.mark.parametrize("sizes", [[1], [3, 3, 3], [1] * 500, [900, 1, 5, 9999, 20]])
def test_neighbours_are_few_enough_and_nobody_is_left_out(sizes: list[int]) -> None:
    groups = list(_neighbours(np.array(sizes), 64, 2048))
    assert [n for group in groups for n in range(group.start, group.stop)] == list(
        range(len(sizes))
    )
    for group in groups:
        count = group.stop - group.start
        assert count <= 64
        assert count == 1 or sum(sizes[group]) <= 2048


@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
def test_average_predictions_and_single_samples_are_those_of_each_client(
    runner: Loop | Weave,
) -> None:
    federation = small_federation()
    task, samples = Task(nn.Linear(3, 2), dtype=torch.float64), placed(federation)
    draw = torch.Generator().manual_seed(0)
    thetas = torch.randn(COUNT, 3, task.d, generator=draw, dtype=torch.float64)
    averaged = sums_of_own(
        task, runner, samples, lambda rows: thetas[rows], is_average=True, block=3
    )
    values = values_of_own(task, runner, samples, lambda rows: thetas[rows, 0])
    single = values.split(list(TESTS))
    for n, own in enumerate(federation.test):
        x, y = federation.dataset.inputs[0][own], federation.dataset.targets[own]
        loss = task.measure_average(thetas[n], (x,), y).loss.sum()
        torch.testing.assert_close(averaged.values[0][n], loss.detach())
        right = task.measure(thetas[n, 0], (x,), y).is_right
        assert torch.equal(single[n], right)


def test_large_samples_are_shown_few_at_a_time() -> None:
    samples = placed(small_federation())
    assert _Calls.of(samples).at_once == 1024
    large = replace(samples, inputs=(torch.empty(1, 1).expand(1, 1 << 19),))
    assert _Calls.of(large) == (128, 128, 128)


@pytest.mark.parametrize("name", ["fedamp", "heurfedamp", "fedacs", "fedfomo"])
def test_nobodys_attention_is_computed_to_be_scored(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = simulation_of(REGISTRY[name](lr=0.1), Weave(4))
    simulation.run_exchange()

    def download(*_: object) -> None:
        raise AssertionError("the download of training was made")

    monkeypatch.setattr(REGISTRY[name], "download", download)
    assert simulation.evaluate("test").scores


def test_a_client_sends_sums_for_the_metrics_of_its_task_and_no_others() -> None:
    task = Task(nn.Linear(3, 2), dtype=torch.float64)
    sums = sums_of_shared(task, task.start, placed(small_federation()))
    columns = zip(statistics(), sums.values, strict=True)
    shapes = {statistic.name: column.shape[1:] for statistic, column in columns}
    assert shapes == {
        "loss": (),
        "right": (),
        "squared_errors": (0,),
        "nll": (),
        "brier": (),
        "calibration_gap": (CONFIDENCE_BINS,),
        "pairs": (2,),
        "margins": (2 * MARGIN_BINS,),
        "true_positives": (),
        "wrong_calls": (),
        "absolute_errors": (0,),
        "target_spread": (0,),
    }


def test_a_metric_is_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is computed, sent, scored, summed up and written without another line."""
    doubt = Metric(
        name="doubt",
        title="doubt",
        description="The doubt is the mean probability of the less probable classes.",
        applies_to="classes",
        sent=(Statistic("doubt", lambda o: 1 - o.confidence),),
    )
    monkeypatch.setitem(METRICS, "doubt", doubt)
    simulation = simulation_of(FedAvg(lr=0.5), Weave(4))
    scores = simulation.evaluate("test").scores
    own = simulation.state.server.shared.expand(COUNT, -1)
    expected = [
        (0.5 - np.abs(p - 0.5)).mean() if len(p) else np.nan
        for p in probabilities(simulation, own)
    ]
    for each in scores:
        np.testing.assert_allclose(each.of("doubt"), expected, rtol=1e-10)
    summary = scores[0].summary(simulation.federation.sizes)
    assert summary["doubt"] == pytest.approx(np.nanmean(expected), rel=1e-10)
    assert summary["doubt_worst_decile"] == pytest.approx(np.nanmax(expected))
    assert summary["doubt_clients"] == COUNT - 1
    RowFiles(tmp_path).append_scores(1, simulation.federation.names, scores)
    (table,) = read_batches(tmp_path / "clients.arrows")
    np.testing.assert_allclose(
        table["doubt"].to_numpy(), expected * len(scores), rtol=1e-10
    )
