"""Worlds with a known truth: what they draw, what they train, what they judge."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.comparison import MAIN_JOB, run_comparison, run_directory
from fedloom.experiments import EXPERIMENTS
from fedloom.experiments.worlds import answers, study, training
from fedloom.experiments.worlds.answers import MethodRow, WorldRow
from fedloom.experiments.worlds.world import (
    FEATURES,
    KINDS,
    World,
    draw_world,
    in_groups,
)
from fedloom.results.directory import RunDirectory
from fedloom.results.outcomes import RunOutcomes, read_outcomes


def world_of(kind: str, *, outputs: int | None = None, after: int = 0) -> World:
    """The first world of a kind, perhaps with so many outputs."""
    return next(
        world
        for world in map(draw_world, range(after, 2000))
        if world.kind == kind and outputs in (None, world.outputs)
    )


def test_a_number_names_a_world() -> None:
    world, again, other = draw_world(12), draw_world(12), draw_world(12, seed=1)
    rows = world.rows()
    for name, values in again.rows().items():
        np.testing.assert_array_equal(rows[name], values)
    assert not np.array_equal(rows["x"][:10], other.rows()["x"][:10])


def test_the_study_has_twenty_worlds_of_every_kind_and_all_shapes() -> None:
    worlds = [draw_world(number) for number in range(study.WORLDS)]
    assert study.WORLDS >= 200
    for kind in KINDS:
        assert sum(world.kind == kind for world in worlds) == 20
    shapes = {(world.features, world.outputs) for world in worlds}
    assert shapes == {(f, o) for f in FEATURES for o in (1, 2, 3, 4)}
    for world in worlds:
        most = 240 if world.kind == "alike, very unequal sizes" else 80
        assert 10 <= world.clients <= 20
        assert world.sizes.min() >= 12
        assert world.sizes.max() <= most


def test_rows_follow_the_law() -> None:
    world = world_of("all different", outputs=3)
    sizes = np.full(world.clients, 20_000)
    many = World(**{**vars(world), "sizes": sizes})
    rows = many.rows()
    for client in (0, world.clients - 1):
        own = rows["client"] == client
        law = many.law(client, rows["x"][own])  # type: ignore[arg-type]
        shares = np.bincount(rows["y"][own].astype(int), minlength=3) / own.sum()
        np.testing.assert_allclose(shares, law.mean(axis=0), atol=0.015)
        # The best answer is right as often as the law says that it is.
        is_right = law.argmax(axis=1) == rows["y"][own]
        assert world.score(law, law) == pytest.approx(is_right.mean(), abs=0.015)


def test_a_regression_has_its_noise_and_no_more() -> None:
    world = world_of("all alike", outputs=1)
    law = world.law(0, world.draw_inputs(0, 500, "test"))
    noise = (world.unit * world.noise) ** 2
    assert world.score(law, law) == pytest.approx(noise)
    assert world.score(law, law + 3 * world.unit) == pytest.approx(
        noise + 9 * world.unit**2
    )
    rows = World(**{**vars(world), "sizes": np.full(world.clients, 5000)}).rows()
    within = [rows["y"][rows["client"] == c].var() for c in range(world.clients)]  # type: ignore[attr-defined]
    assert world.variance() == pytest.approx(np.mean(within), rel=0.1)


@pytest.mark.parametrize("outputs", [1, 3])
def test_rows_of_a_group_are_alike_and_each_follows_the_law(outputs: int) -> None:
    world = in_groups(world_of("all alike", outputs=outputs))
    assert (world.sizes % 8 == 0).all()
    sizes = np.where(np.arange(world.clients) == 1, 16_000, 8)
    large = dataclasses.replace(world, sizes=sizes)
    rows = large.rows()
    x, y, own = rows["x"], rows["y"].astype(float), rows["client"] == 1  # type: ignore[attr-defined]
    group = rows["group"][own]
    assert np.bincount(group.astype(int)).tolist() == [8] * 2000
    # Two neighbours of a group have 0.8 of the variance in common, others nothing.
    left, right = x[own][::8, 0], x[own][1::8, 0]
    assert np.corrcoef(left, right)[0, 1] == pytest.approx(0.8, abs=0.05)
    assert np.corrcoef(left[1:], left[:-1])[0, 1] == pytest.approx(0.0, abs=0.1)
    law = large.law(1, x[own])  # type: ignore[arg-type]
    if outputs == 1:
        luck = (y[own] - law[:, 0]) / (large.unit * large.noise)
        assert luck.std() == pytest.approx(1.0, abs=0.05)
    else:
        is_right = law.argmax(axis=1) == y[own]
        assert is_right.mean() == pytest.approx(large.score(law, law), abs=0.03)
        luck = is_right - law.max(axis=1)
    assert np.corrcoef(luck[::8], luck[1::8])[0, 1] > 0.15
    assert np.corrcoef(luck[8::8], luck[7:-1:8])[0, 1] == pytest.approx(0, abs=0.1)


def test_a_world_in_groups_keeps_them_in_one_piece(tmp_path: Path) -> None:
    world = in_groups(draw_world(0))
    training._begin(world, tmp_path / "world")
    comparison = training.comparison_of(tmp_path / "world", has_groups=True)
    seed = training._Seed(world, tmp_path / "world", comparison, 0)
    groups = seed.clients.groups
    assert groups is not None
    held = [set(groups[part.indices]) for part in seed.clients.parts]
    assert not held[0] & held[1] | held[0] & held[2] | held[1] & held[2]
    assert len(groups) == 8 * len(set.union(*held))


def test_nothing_can_be_learnt_where_labels_are_noise() -> None:
    world = world_of("labels are noise", outputs=3)
    x = world.draw_inputs(0, 100, "test")
    law = world.law(0, x)
    guesses = np.random.default_rng(0).standard_normal(law.shape)
    assert world.score(law, guesses) == pytest.approx(1 / 3, abs=1e-12)


def test_clients_have_in_common_what_their_kind_says() -> None:
    def spread(kind: str) -> int:
        weights = world_of(kind).weights
        return len(np.unique(weights.reshape(len(weights), -1).round(9), axis=0))

    assert spread("all alike") == 1
    assert spread("two clusters") == 2
    assert spread("three clusters") == 3
    assert spread("all different") == world_of("all different").clients
    base = world_of("common base, own deviation").weights
    little = world_of("little in common").weights
    # The common part is the mean over clients, up to the own parts' mean.
    assert base.mean(axis=0).std() / base.std() > 0.6
    assert little.mean(axis=0).std() / little.std() < 0.6


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds, two rounds and two methods beside training alone."""
    arms = {arm: training.ARMS[arm] for arm in ("local", "fedavg", "pfedme")}
    job = {**MAIN_JOB, "rounds": 2, "split": {"validation": 0.1}}
    monkeypatch.setattr(training, "MAIN_JOB", job)
    for module in (training, answers):
        monkeypatch.setattr(module, "SEEDS", 2)
        monkeypatch.setattr(module, "ARMS", arms)
    monkeypatch.setattr(training, "FRESH", 400)


def scores(folder: Path, arm: str, seed: int) -> Any:
    return RunDirectory(run_directory(folder, arm, seed)).read_rounds()[-1].scores


def alone_outcomes(folder: Path, arm: str, seed: int) -> RunOutcomes:
    path = RunDirectory(run_directory(folder, arm, seed)).alone_outcomes
    outcomes = read_outcomes(path)
    assert outcomes is not None
    return outcomes


@pytest.mark.slow
def test_worlds_that_train_together_are_what_compare_makes_of_each(
    short: None, tmp_path: Path
) -> None:
    first = world_of("all different", outputs=2)
    alike = (w for w in map(draw_world, range(first.number + 1, 500)))
    second = next(
        w for w in alike if (w.features, w.outputs) == (first.features, first.outputs)
    )
    folders = [tmp_path / "first", tmp_path / "second"]
    truths = training.train_worlds([first, second], folders)
    assert set(truths) == {
        (w.number, arm, seed)
        for w in (first, second)
        for arm in ("local", "fedavg", "pfedme", "constant", "alone-longer")
        for seed in (0, 1)
    }
    (tmp_path / "by itself").mkdir()
    comparison = training.comparison_of(folders[1])
    run_comparison(comparison, tmp_path / "by itself" / "second", jobs=1)
    for arm in ("local", "fedavg", "pfedme"):
        for seed in (0, 1):
            together = scores(folders[1], arm, seed)
            by_itself = scores(tmp_path / "by itself" / "second", arm, seed)
            for part in ("validation", "test"):
                ours, theirs = (s["personal"][part] for s in (together, by_itself))
                assert ours["accuracy"] == theirs["accuracy"]
                assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
            if arm != "local":
                ours, theirs = (
                    alone_outcomes(path, arm, seed)
                    for path in (folders[1], tmp_path / "by itself" / "second")
                )
                np.testing.assert_array_equal(ours.work, theirs.work)
                for part in ("validation", "test"):
                    np.testing.assert_array_equal(
                        ours.parts[part].values, theirs.parts[part].values
                    )
    for yardstick in ("constant", "alone-longer"):
        ours, theirs = (
            read_outcomes(path / "yardsticks" / yardstick / "seed-1.npz")
            for path in (folders[1], tmp_path / "by itself" / "second")
        )
        assert ours is not None
        assert theirs is not None
        np.testing.assert_array_equal(
            ours.parts["test"].values, theirs.parts["test"].values
        )


@pytest.mark.slow
def test_alone_with_as_much_work(short: None, tmp_path: Path) -> None:
    world = world_of("all alike", outputs=2)
    truths = training.train_worlds([world], [tmp_path / "world"])
    for seed in (0, 1):
        local = truths[world.number, "local", seed]
        # As much work as training alone took is training alone.
        np.testing.assert_allclose(local.alone, local.score, atol=1e-6)
        # FedAvg adapts for five epochs once, Local trains for five in each round.
        fedavg = truths[world.number, "fedavg", seed]
        np.testing.assert_allclose(fedavg.work, 1.5 * local.work)
        # Five inner gradients on each of twenty batches of twenty.
        pfedme = truths[world.number, "pfedme", seed]
        assert (pfedme.work > 2 * local.work).all()
        assert not np.allclose(pfedme.alone, local.alone)
        for arm, truth in (("fedavg", fedavg), ("pfedme", pfedme)):
            alone = alone_outcomes(tmp_path / "world", arm, seed)
            assert alone.work is not None
            # To the nearest round of training alone.
            assert (np.abs(alone.work - truth.work) <= local.work / 4).all()


def test_training_alone_that_diverges_has_no_truth_and_stops_nobody(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = {**training.ARMS, "local": {"name": "local", "lr": 1e30}}
    for module in (training, answers):
        monkeypatch.setattr(module, "ARMS", arms)
    world = world_of("all alike", outputs=2)
    truths = training.train_worlds([world], [tmp_path / "world"])
    for seed in (0, 1):
        assert np.isnan(truths[world.number, "local", seed].score).all()
        assert np.isnan(truths[world.number, "fedavg", seed].alone).all()
        assert np.isfinite(truths[world.number, "fedavg", seed].score).all()


@pytest.mark.slow
def test_a_true_score_is_that_on_many_rows(short: None, tmp_path: Path) -> None:
    world = world_of("all alike", outputs=2)
    seed = training._Seed(
        world,
        tmp_path / "world",
        training.comparison_of(tmp_path / "world"),
        training._begin(world, tmp_path / "world")[0],
    )
    (run,) = training._train([seed], "local")
    truth = training._Fresh(world).scores(run.task, run.models)
    large = World(**{**vars(world), "sizes": np.full(world.clients, 4000)}).rows()
    for client in range(3):
        own = large["client"] == client
        inputs = torch.from_numpy(large["x"][own])
        said = run.task.predict(run.models[client], (inputs,)).argmax(1).numpy()
        assert truth[client] == pytest.approx(
            (said == large["y"][own]).mean(), abs=0.05
        )


@pytest.mark.slow
def test_a_study_goes_on_where_it_was(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = study.study([1, 12], tmp_path, jobs=1)
    finished = json.loads((tmp_path / "finished" / "seed-0" / "0012.json").read_text())
    assert finished["world"]["kind"] == "all different"
    assert {row["method"] for row in finished["methods"]} == set(training.ARMS) & {
        "local",
        "fedavg",
        "pfedme",
    }
    assert not list(tmp_path.glob("worlds-*"))
    trained = []
    monkeypatch.setattr(study, "_work", lambda group: trained.append(group) or group)
    assert study.study([1, 12], tmp_path, jobs=1) == table
    assert not trained
    with pytest.raises(FileNotFoundError):  # other worlds, which were not trained
        study.study([1], tmp_path, seed=1, jobs=1)
    assert trained == ["1"]
    assert (tmp_path / "worlds.md").read_text() == table
    assert len((tmp_path / "worlds.csv").read_text().splitlines()) == 3
    assert len((tmp_path / "methods.csv").read_text().splitlines()) == 7


def made_world(**changes: Any) -> WorldRow:
    values: dict[str, Any] = {
        "world": 0,
        "kind": "all alike",
        "classes": 2,
        "clients": 10,
        "features": 5,
        "rows": 300,
        "answer": "ditto",
        "gain": 4.0,
        "score": 80.0,
        "said_score": 81.0,
        "alone": 75.0,
        "best": "ditto",
        "best_score": 80.0,
        "best_gain": 4.0,
        "best_lead": 4.0,
        "worst_lead": 1.0,
        "headline": "",
    }
    return WorldRow(**{**values, **changes})


def made_method(**changes: Any) -> MethodRow:
    values: dict[str, Any] = {
        "world": 0,
        "kind": "all alike",
        "method": "ditto",
        "score": 80.0,
        "gain": 4.0,
        "work": 2.0,
        "said_score": 81.0,
        "score_low": 79.0,
        "score_high": 83.0,
        "said_gain": 5.0,
        "gain_low": 4.5,
        "gain_high": 5.5,
    }
    return MethodRow(**{**values, **changes})


def test_the_table_counts_what_it_says() -> None:
    worlds = [
        made_world(),
        made_world(answer="local", gain=0.0, score=75.0, said_score=75.0),
        # Ahead of as much work alone, and behind training alone that stopped in time.
        made_world(answer="fedper", gain=1.0, score=72.0, worst_lead=-3.0),
        made_world(answer="", gain=np.nan, score=np.nan, said_score=np.nan),
        made_world(
            kind="labels are noise",
            answer="ditto",
            gain=0.0,
            best_gain=0.0,
            best_lead=0.0,
            worst_lead=0.0,
        ),
        made_world(
            kind="labels are noise",
            answer="constant",
            gain=np.nan,
            said_score=80.0,
            best_gain=0.0,
            best_lead=0.0,
        ),
    ]
    methods = [
        made_method(),
        made_method(method="local", score=85.0, gain_low=np.nan),
    ]
    lines = study.to_markdown(worlds, methods).splitlines()
    # Said minus true: 1, 0, 9 in the three worlds with an answer.
    assert "| all alike | 4 | 1 | 2 | 0 | 1 | 4 | 1 | 1 of 2 | 0 of 1 | +3.3 |" in lines
    assert "| labels are noise | 2 | 0 | 1 | 1 | 0 | 0 | 0 |" in "\n".join(lines)
    assert (
        "| no method gains: a federated one is recommended | 2 worlds | 1, 50.0 % |"
        in lines
    )
    demands = "\n".join(lines)
    assert "such a one is recommended | 1 worlds | 1, 100.0 % |" in demands
    assert "within 1 point of the best | 4 worlds | 1, 25.0 % |" in demands
    assert "| worlds with an answer | 6 worlds | 5, 83.3 % |" in lines
    assert "| scores in their interval | 2 intervals | 1, 50.0 % |" in lines
    assert "| gains in their interval | 1 intervals | 0, 0.0 % |" in lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "jobs", "message"),
    [
        ("digits", "2", "--jobs is for private, worlds"),
        ("worlds", "0", "expected 1 or more processes, found 0"),
    ],
)
def test_processes_are_for_worlds_and_at_least_one(
    name: str, jobs: str, message: str
) -> None:
    assert EXPERIMENTS["worlds"] is study.reproduce
    code = "from fedloom.cli import main; main()"
    command = [sys.executable, "-c", code, "reproduce", name, "--jobs", jobs]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert message in " ".join(ended.stderr.split())
