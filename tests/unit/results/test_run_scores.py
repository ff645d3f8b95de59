"""Numbers for tables and figures, from the files of made-up runs and of a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedloom
from fedloom.clients import Federation
from fedloom.core.errors import ConfigError, DataError
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round
from fedloom.results.run_scores import (
    client_log,
    run_scores,
    score_curve,
    scores_by_size,
)
from fedloom.results.scores import Scores

TRAIN = 10 * np.random.default_rng(0).permutation(np.arange(1, 21))
"""Training samples of twenty clients; as many are for testing."""
TESTED = TRAIN.copy()
ACCURACY = np.random.default_rng(1).permutation(np.arange(20)) / 20


def clients() -> Federation:
    who = np.repeat([f"client-{n:02}" for n in range(20)], 2 * TRAIN)
    x = np.zeros((len(who), 1), dtype=np.float32)
    return fedloom.federation(x, np.arange(len(who)) % 3, clients=who, test=0.5)


def scores(kind: str, part: str, values: np.ndarray) -> Scores:
    numbers = {"accuracy": values, "loss": 1 - values}
    samples = np.minimum(TRAIN, 50) if part == "train" else TESTED
    return Scores(kind, part, "accuracy", samples, numbers)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After round n = 1 to 4 all shared models are better by n / 100; no log."""
    path = tmp_path_factory.mktemp("made") / "run"
    path.mkdir()
    directory, held = RunDirectory(path), clients()
    assert (held.sizes == TRAIN).all()
    directory.write_text(directory.config, "rounds = 4\n")
    held.save(directory.split)
    about = {"fedloom": "0.1.0", "torch": "2.0", "device": "cpu", "threads": 1}
    about |= {"algorithm": "ditto", "dataset": "made", "metric": "accuracy", "seed": 0}
    about |= {"clients": 20, "parameters": 9, "split": held.hash, "is_own": False}
    directory.write_manifest(about | {"config": {"rounds": 4}})
    for number in range(5):
        made = [
            scores("shared", "test", ACCURACY / 2 + number / 100),
            scores("personal", "test", ACCURACY),
        ]
        if number in (2, 4):
            made.append(scores("personal", "train", ACCURACY / 2 + number / 10))
        directory.rows.append_scores(number, held.names, made)
        summary: dict[str, dict[str, dict[str, float]]] = {}
        for one in made:
            summary.setdefault(one.kind, {})[one.part] = one.summary(held.sizes)
        directory.rows.append(Round(round=number, scores=summary))
    return path


def test_every_number_is_what_its_name_says(path: Path) -> None:
    found = run_scores(path)
    assert found.keys() == {"shared", "personal"}
    own = found["personal"]
    assert own["accuracy"] == pytest.approx(ACCURACY.mean(), abs=1e-12)
    right = (ACCURACY * TESTED).sum()
    assert own["accuracy_weighted"] == pytest.approx(right / TESTED.sum(), abs=1e-12)
    # A tenth of twenty clients is two of them.
    assert own["accuracy_worst_decile"] == pytest.approx(np.mean([0, 0.05]), abs=1e-12)
    largest, smallest = np.isin(TRAIN, [190, 200]), np.isin(TRAIN, [10, 20])
    weighted = (ACCURACY * TESTED)[largest].sum() / TESTED[largest].sum()
    assert own["accuracy_largest_decile"] == pytest.approx(weighted, abs=1e-12)
    # Every small client counts once, however few samples it is tested on.
    mean = ACCURACY[smallest].mean()
    assert own["accuracy_smallest_decile"] == pytest.approx(mean, abs=1e-12)
    assert own["loss"] == pytest.approx(1 - ACCURACY.mean(), abs=1e-12)


def test_a_swinging_model_has_the_mean_of_its_last_evaluations(path: Path) -> None:
    (once, twice, all_) = (run_scores(path, last=n)["shared"] for n in (1, 2, 4))
    middle = ACCURACY.mean() / 2
    assert once["accuracy"] == pytest.approx(middle + 0.04, abs=1e-12)
    assert twice["accuracy"] == pytest.approx(middle + 0.035, abs=1e-12)
    # What was scored before any training is not among them.
    assert all_["accuracy"] == pytest.approx(middle + 0.025, abs=1e-12)
    with pytest.raises(DataError, match="at least 5 evaluations on test data, found 4"):
        run_scores(path, last=5)
    with pytest.raises(ConfigError, match="last must be at least 1"):
        run_scores(path, last=0)


def test_training_scores_are_weighed_by_all_training_samples(path: Path) -> None:
    """Clients with many are scored on some of them."""
    (own,) = run_scores(path, "train").values()
    values = ACCURACY / 2 + 0.4
    expected = (values * TRAIN).sum() / TRAIN.sum()
    assert own["accuracy_weighted"] == pytest.approx(expected, abs=1e-12)
    curve = score_curve(path, "accuracy_weighted", part="train")
    assert curve.rounds.tolist() == [2, 4]
    np.testing.assert_allclose(curve.values, [expected - 0.2, expected], atol=1e-12)


def test_a_curve_has_every_evaluated_round(path: Path) -> None:
    curve = score_curve(path, "accuracy", "shared")
    assert curve.rounds.tolist() == [0, 1, 2, 3, 4]
    assert np.diff(curve.values) == pytest.approx([0.01] * 4, abs=1e-12)
    with pytest.raises(ConfigError, match="unknown number 'accuracy_worst'"):
        score_curve(path, "accuracy_worst", "shared")
    with pytest.raises(DataError, match="no shared scores on train data"):
        score_curve(path, "accuracy", "shared", "train")


def test_scores_lie_against_training_samples(path: Path) -> None:
    found = scores_by_size(path, bins=20)
    order = np.argsort(TRAIN)
    assert found.sizes.tolist() == TRAIN[order].tolist()
    np.testing.assert_allclose(found.scores, ACCURACY[order], atol=1e-12)
    with pytest.raises(DataError, match="no auc of personal models on test data"):
        scores_by_size(path, number="auc")


def test_what_is_no_run_and_what_has_no_log_are_said(
    path: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="has no log of its clients"):
        client_log(path)
    calls: list[Any] = [run_scores, scores_by_size, client_log]
    for call in calls:
        with pytest.raises(DataError, match="holds no run"):
            call(tmp_path)


def test_a_run_of_self_fl_has_what_its_figures_show(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    x, who = draw.normal(size=(240, 4)).astype(np.float32), np.arange(240) % 8
    held = fedloom.federation(x, (x[:, 0] > 0).astype(int), clients=who)
    method = fedloom.SelfFL(steps=3, most_steps=9, least_steps=1)
    out = tmp_path / "run"
    result = fedloom.run(
        method, "mlr", held, rounds=5, evaluate_train=True, out=out, progress=False
    )
    assert run_scores(out, last=2) == result.run_scores(last=2)
    for kind in ("shared", "personal"):
        curve = score_curve(out, "accuracy_weighted", kind, "train")
        assert curve.rounds.tolist() == [1, 2, 3, 4, 5]
        values = result.scores(kind, "train")
        expected = np.average(values, weights=held.sizes)
        assert curve.values[-1] == pytest.approx(expected, abs=1e-12)
    log = client_log(out)
    assert len(log["wanted"]) == 5 * 8
    late = log["round"] == 5
    assert sorted(log["client"][late]) == list(range(8))
    # What a client computed is what it took.
    assert (log["computed"][late] == log["steps"][late]).all()
    assert (log["computed"][late] >= 1).all()
    assert (log["computed"][late] <= 9).all()
    held_in = np.clip(np.round(log["wanted"][late]), 1, 9)
    assert (log["computed"][late] == held_in).all()
    # No client can compute its steps before it has trained twice.
    assert not log["computed"][log["round"] <= 2].any()
