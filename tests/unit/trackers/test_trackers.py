"""Trackers: what they are told, what they keep, and that they can do no harm."""

from __future__ import annotations

import csv
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedloom
from fedloom.comparison import parse_comparison, run_comparison, run_directory
from fedloom.config import parse
from fedloom.results.rows import Round
from fedloom.runs import load, resume, run_config
from fedloom.trackers import (
    About,
    Csv,
    Ending,
    MLflow,
    TensorBoard,
    make_trackers,
)

QUICK: dict[str, Any] = {
    "rounds": 3,
    "checkpoint_every": 1,
    "algorithm": {"name": "ditto", "batch_size": 100},
    "partition": {"name": "label-skew", "clients": 4, "classes": 5},
    "model": {"name": "mlp", "hidden": [8]},
    "engine": {"compile": "off", "device": "cpu"},
}


class Memory:
    """Keeps what it is told."""

    name = "memory"

    def __init__(self) -> None:
        self.about: About | None = None
        self.rows: list[Round] = []
        self.ending: Ending | None = None

    def start(self, about: About) -> None:
        self.about = about

    def round(self, row: Round) -> None:
        self.rows.append(row)

    def end(self, ending: Ending) -> None:
        self.ending = ending


class Broken(Memory):
    """Fails when it is told one thing."""

    name = "broken"

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when, self.times = when, 0

    def fail(self, what: str) -> None:
        if what == self.when:
            self.times += 1
            raise OSError("the disk is full")

    def start(self, about: About) -> None:
        self.fail("start")

    def round(self, row: Round) -> None:
        self.fail("round")

    def end(self, ending: Ending) -> None:
        self.fail("end")


def stop_in(number: int) -> Any:
    class Stop:
        def start(self, *_: Any) -> None:
            pass

        def round(self, row: Round) -> None:
            if row.round == number:
                raise RuntimeError("power cut")

    return Stop()


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """The curves that TensorBoard would show."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        tag: {event.step: event.value for event in events.Scalars(tag)}
        for tag in events.Tags()["scalars"]
    }


def test_a_tracker_is_told_settings_manifest_every_row_and_the_end(
    tmp_path: Path,
) -> None:
    told = Memory()
    result = run_config(parse(QUICK), out=tmp_path / "r", track=[told])
    assert told.about is not None
    assert told.ending is not None
    assert told.about.settings()["algorithm.name"] == "ditto"
    assert told.about.settings()["rounds"] == 3
    assert told.about.manifest["split"] == result.federation.hash
    assert told.about.path == tmp_path / "r"
    assert told.rows == result.history.rounds
    assert [row.round for row in told.rows] == [0, 1, 2, 3]
    assert list(told.ending.table) == list(result.table())
    assert told.ending.failure is None


def test_a_run_that_diverges_ends_with_its_reason() -> None:
    told = Memory()
    tables = {**QUICK, "algorithm": {"name": "fedavg", "lr": 1e30}}
    with pytest.raises(fedloom.NumericalError):
        run_config(parse(tables), track=[told])
    assert told.ending is not None
    assert "lr is 1e+30" in str(told.ending.failure)


def test_trackers_change_no_number(tmp_path: Path) -> None:
    with_them = run_config(
        parse(QUICK), out=tmp_path / "r", track=make_trackers("csv, tensorboard")
    )
    without = run_config(parse(QUICK))
    for client in range(4):
        mine, theirs = with_them.model(client), without.model(client)
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("when", ["start", "round", "end"])
def test_a_tracker_that_raises_is_mentioned_once_and_the_run_goes_on(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = Broken(when), Memory()
    with caplog.at_level(logging.WARNING):
        result = run_config(parse(QUICK), track=[broken, sound])
    assert len(result.history.rounds) == 4
    assert broken.times == 1
    assert [r.getMessage() for r in caplog.records] == [
        "tracker broken failed (OSError: the disk is full); the run goes on without it"
    ]
    assert len(sound.rows) == 4
    assert sound.ending is not None


def test_tensorboard_reads_back_every_number(tmp_path: Path) -> None:
    result = run_config(parse(QUICK), out=tmp_path / "r", track=[TensorBoard()])
    found = scalars(tmp_path / "r" / "tensorboard")
    for row in result.history.rounds:
        for name, value in row.numbers().items():
            assert found[name][row.round] == pytest.approx(value, rel=1e-6)
    assert set(found["personal/test/accuracy"]) == {1, 2, 3}
    assert set(found["train_loss"]) == {1, 2, 3}


def test_a_resumed_run_has_one_curve_in_tensorboard(tmp_path: Path) -> None:
    """Round 2 is written before the cut, and again from the checkpoint of round 1."""
    out = tmp_path / "r"
    with pytest.raises(RuntimeError, match="power cut"):
        run_config(parse(QUICK), out=out, progress=stop_in(2), track=[TensorBoard()])
    (out / "checkpoint-before.safetensors").replace(out / "checkpoint.safetensors")
    result = resume(out, track=[TensorBoard()])
    curve = scalars(out / "tensorboard")["personal/test/loss"]
    assert sorted(curve) == [1, 2, 3]
    last = result.history.rounds[-1].scores["personal"]["test"]["loss"]
    assert curve[3] == pytest.approx(last, rel=1e-6)


def test_a_fresh_run_leaves_no_curve_of_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "r"
    run_config(parse(QUICK), out=out, track=make_trackers("csv,tensorboard"))
    run_config(parse({**QUICK, "rounds": 1}), out=out, fresh=True)
    assert not (out / "tensorboard").exists()
    assert not (out / "rounds.csv").exists()


def test_event_files_in_a_folder_of_the_users_own_stay(tmp_path: Path) -> None:
    """Other runs may write there too."""
    other = tmp_path / "events.out.tfevents.1.other"
    other.write_bytes(b"of another run")
    run_config(parse(QUICK), out=tmp_path / "r", track=[TensorBoard(tmp_path)])
    assert other.read_bytes() == b"of another run"


def test_csv_has_a_line_per_round_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    out = tmp_path / "r"
    with pytest.raises(RuntimeError, match="power cut"):
        run_config(parse(QUICK), out=out, progress=stop_in(2), track=[Csv()])
    with (out / "rounds.csv").open(newline="") as file:
        assert [line["round"] for line in csv.DictReader(file)] == ["0", "1", "2"]
    result = resume(out, track=[Csv()])
    with (out / "rounds.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["round"] for line in lines] == ["0", "1", "2", "3"]
    for line, row in zip(lines, result.history.rounds, strict=True):
        found = {k: float(v) for k, v in line.items() if k != "round" and v != ""}
        assert found == pytest.approx(row.numbers())


def test_a_run_without_a_directory_needs_a_folder_for_its_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_config(
        parse(QUICK), track=[Csv(tmp_path / "a"), TensorBoard(str(tmp_path / "b"))]
    )
    assert (tmp_path / "a" / "rounds.csv").is_file()
    assert scalars(tmp_path / "b")["steps"][3] > 0
    run_config(parse(QUICK), track=[Csv()])
    assert "give Csv a folder" in caplog.text


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "mlruns").as_uri()


def test_mlflow_reads_back_settings_and_every_number(
    tmp_path: Path, store: str
) -> None:
    result = run_config(parse(QUICK), out=tmp_path / "r", track=[MLflow(store)])
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("fedloom")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.name"] == "ditto"
    assert run.data.params["model.hidden"] == "(8,)"
    assert run.data.tags["fedloom.split"] == result.federation.hash
    for name in ("personal/test/accuracy", "bytes_up"):
        curve = client.get_metric_history(run.info.run_id, name)
        found = {metric.step: metric.value for metric in curve}
        rows = {r.round: r.numbers() for r in result.history.rounds}
        assert found == {n: row[name] for n, row in rows.items() if name in row}
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_mlflow_goes_on_with_the_run_that_was_stopped(
    tmp_path: Path, store: str
) -> None:
    out = tmp_path / "r"
    with pytest.raises(RuntimeError, match="power cut"):
        run_config(parse(QUICK), out=out, progress=stop_in(2), track=[MLflow(store)])
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    run_id = json.loads((out / "mlflow.json").read_text())["run"]
    assert client.get_run(run_id).info.status == "FAILED"
    assert client.get_run(run_id).data.tags["fedloom.failure"] == "power cut"
    (out / "checkpoint-before.safetensors").replace(out / "checkpoint.safetensors")
    resume(out, track=[MLflow(store)])
    curve = client.get_metric_history(run_id, "personal/test/accuracy")
    assert [metric.step for metric in curve] == [1, 2, 3]
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_store_that_cannot_be_reached_does_not_kill_a_run(
    tmp_path: Path, store: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mlruns").write_text("a file where a folder should be")
    result = run_config(parse(QUICK), track=[MLflow(store)])
    assert len(result.history.rounds) == 4
    assert "tracker mlflow failed" in caplog.text


def test_every_run_of_a_comparison_is_followed(tmp_path: Path) -> None:
    tables = {k: v for k, v in QUICK.items() if k != "algorithm"}
    tables |= {"methods": {"fedavg": {}, "wild": {"name": "fedavg", "lr": 1e30}}}
    comparison = parse_comparison({**tables, "seeds": 2, "rounds": 2})
    run_comparison(comparison, tmp_path / "c", jobs=1, track="csv,tensorboard")
    for seed in (0, 1):
        path = run_directory(tmp_path / "c", "fedavg", seed)
        rows = load(path).history.rounds
        curve = scalars(path / "tensorboard")["personal/test/loss"]
        expected = [row.scores["personal"]["test"]["loss"] for row in rows[1:]]
        assert list(curve.values()) == pytest.approx(expected, rel=1e-6)
        wild = run_directory(tmp_path / "c", "wild", seed)
        with (wild / "rounds.csv").open(newline="") as file:
            assert [line["round"] for line in csv.DictReader(file)] == ["0"]


def test_an_unknown_tracker_is_refused_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    with pytest.raises(fedloom.ConfigError, match="Did you mean 'tensorboard'"):
        make_trackers("tensorbord")
    tables = {k: v for k, v in QUICK.items() if k != "algorithm"}
    comparison = parse_comparison({**tables, "methods": ["fedavg"], "seeds": 1})
    with pytest.raises(fedloom.ConfigError, match="unknown tracker 'wandb'"):
        run_comparison(comparison, tmp_path / "c", jobs=1, track="wandb")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("name", "module"),
    [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.entities")],
)
def test_a_missing_library_says_which_command_installs_it(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(fedloom.ConfigError, match=r"pip install 'fedloom\[track\]'"):
        make_trackers(name)


def test_the_documented_tracker_of_weights_and_biases_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The block of the page is run as it stands, with a stand-in for the library."""
    page = Path(__file__).parents[3] / "docs" / "how-to" / "trackers.md"
    block = page.read_text().split("```python\n")[1].split("```")[0]
    lines = [line for line in block.splitlines() if line.strip()]
    assert len(lines) <= 15
    kept: dict[str, Any] = {"log": []}

    class Run:
        def __init__(self) -> None:
            self.summary: dict[str, Any] = {}

        def log(self, numbers: dict[str, float], step: int) -> None:
            kept["log"].append((step, numbers))

        def finish(self, exit_code: int) -> None:
            kept["exit_code"] = exit_code

    class Library:
        @staticmethod
        def init(**settings: Any) -> Run:
            kept["settings"] = settings
            return Run()

    monkeypatch.setitem(sys.modules, "wandb", Library)
    space: dict[str, Any] = {}
    exec(block, space)
    result = run_config(parse(QUICK), track=[space["WandB"]()])
    assert kept["settings"]["config"]["algorithm.name"] == "ditto"
    assert kept["log"] == [(r.round, r.numbers()) for r in result.history.rounds]
    assert kept["exit_code"] == 0
