"""`fedloom export`, `predict` and `personalize`, as a user gives them."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from driver import fedloom, refused

from fedloom.commands.console import print_csv
from fedloom.config import parse
from fedloom.runs import load, run_config

COLUMNS = ("age", "weight", "pressure")


def table(path: Path, rows: int, seed: int, *, client: str | None = "ward") -> Path:
    """Patients; who is heavy is ill."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(rows, 3))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*COLUMNS, *([client] if client else []), "outcome"])
        for n, row in enumerate(x):
            owner = [f"w{n % 3}"] if client else []
            writer.writerow([*row, *owner, "ill" if row[1] > 0 else "well"])
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    data = {"name": "file", "path": str(table(folder / "d.csv", 120, 0))}
    tables = {
        "rounds": 3,
        "algorithm": {"name": "ditto", "lr": 0.3},
        "data": {**data, "target": "outcome", "client": "ward"},
        "model": {"name": "mlr"},
        "engine": {"compile": "off", "device": "cpu"},
    }
    run_config(parse(tables), out=folder / "run")
    return folder / "run"


def test_one_clients_model_is_taken_home(run: Path, tmp_path: Path) -> None:
    done = fedloom("export", run, "--client", "w1", "--out", tmp_path / "e")
    assert done.exit_code == 0, done.output
    assert f"1 model written to {tmp_path / 'e'}" in done.output.replace("\n", "")
    card = (tmp_path / "e" / "README.md").read_text()
    assert "Columns, in this order: age, weight, pressure" in card
    assert "that of your own data" in card
    assert "Dataset: d.csv" in card
    assert str(run.parent) not in card  # where the data lie is nobody's business
    assert "ill, well" in card
    done = fedloom("export", run, "--all", "--shared", "--out", tmp_path / "all")
    assert "4 models" in done.output


def test_export_refuses_what_makes_no_sense(run: Path, tmp_path: Path) -> None:
    to = ("--out", tmp_path / "e")
    assert "say which models" in refused("export", run, *to)
    assert "not both" in refused("export", run, "--all", "--client", "w1", *to)
    assert "Did you mean 'w1'" in refused("export", run, "--client", "ww1", *to)
    assert "Known: w0, w1, w2" in refused("export", run, "--client", "7", *to)
    assert "holds no run" in refused("export", tmp_path, "--all", *to)
    assert list(tmp_path.iterdir()) == []


def test_predictions_have_classes_and_probabilities(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("note,pressure,weight,age\n7,0,2,0\n8,0,-2,0\n")
    to = tmp_path / "deep" / "p.csv"
    done = fedloom("predict", run, "--client", "1", new, "--out", to)
    assert done.exit_code == 0, done.output
    assert "not used: note" in done.stderr
    with to.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == ["ill", "well"]
    x = torch.tensor([[0.0, 2.0, 0.0], [0.0, -2.0, 0.0]])
    expected = load(run).predict("w1", x)
    for row, probabilities in zip(rows, expected, strict=True):
        found = [float(row["p_ill"]), float(row["p_well"])]
        assert found == pytest.approx(probabilities.tolist(), abs=1e-6)


def test_without_out_predictions_go_to_standard_output(
    run: Path, tmp_path: Path
) -> None:
    done = fedloom("predict", run, "--client", "w0", table(tmp_path / "n.csv", 5, 1))
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert len(rows) == 5
    assert set(rows[0]) == {"prediction", "p_ill", "p_well"}


def test_on_a_terminal_names_of_classes_move_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for is_terminal in (True, False):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda answer=is_terminal: answer)
        monkeypatch.setattr(sys, "stdout", stream)
        print_csv([{"prediction": "yes\x1b]0;pwn\x07"}, {"prediction": "=1+1"}])
        monkeypatch.undo()
        name = "yes\\x1b]0;pwn\\x07" if is_terminal else "yes\x1b]0;pwn\x07"
        assert stream.getvalue() == f"prediction\n{name}\n'=1+1\n"


def test_predict_names_what_is_wrong_with_a_file(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("age,wait,pressure\n1,2,3\n")
    words = refused("predict", run, "--client", "w0", new)
    assert "found age, wait, pressure. Missing: weight" in words
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 4)))
    words = refused("predict", run, "--client", "w0", tmp_path / "new.npz")
    assert "expected samples of shape (3,)" in words
    assert "Did you mean 'w1'" in refused("predict", run, "--client", "ww1", new)


def test_newcomers_get_models_and_are_told_their_gain(
    run: Path, tmp_path: Path
) -> None:
    data = table(tmp_path / "new.csv", 60, 5, client="house")
    done = fedloom(
        *("personalize", run, "--data", data, "--client-column", "house"),
        *("--out", tmp_path / "e"),
    )
    assert done.exit_code == 0, done.output
    assert "gain over as many steps alone" in done.output
    assert sorted(p.name for p in (tmp_path / "e").iterdir()) == [
        "client-0-w0",
        "client-1-w1",
        "client-2-w2",
        "export.json",
        "models.csv",
    ]
    one = table(tmp_path / "one.csv", 30, 6, client=None)
    done = fedloom("personalize", run, "--data", one)
    assert done.exit_code == 0, done.output
    assert "one: accuracy" in done.output


def test_personalize_needs_the_target(run: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.csv"
    new.write_text("age,weight,pressure\n1,2,3\n")
    assert "unknown column 'outcome'" in refused("personalize", run, "--data", new)


def test_regression_predicts_numbers(tmp_path: Path) -> None:
    draw = np.random.default_rng(2)
    x = draw.normal(size=(60, 2))
    np.savez(tmp_path / "d.npz", x=x, y=x[:, 0], who=np.arange(60) % 2)
    data = {"name": "file", "path": str(tmp_path / "d.npz"), "client": "who"}
    engine = {"compile": "off", "device": "cpu"}
    tables = {"rounds": 1, "data": data, "model": {"name": "mlr"}, "engine": engine}
    result = run_config(parse(tables), out=tmp_path / "run")
    done = fedloom("predict", tmp_path / "run", "--client", "0", tmp_path / "d.npz")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    expected = result.predict(0, x).flatten().tolist()
    assert [float(row["prediction"]) for row in rows] == pytest.approx(expected)


def test_an_exported_model_predicts_as_its_run_does(run: Path, tmp_path: Path) -> None:
    new = table(tmp_path / "new.csv", 9, 5, client=None)
    fedloom("export", run, "--client", "w1", "--out", tmp_path / "e")
    fedloom("predict", run, new, "--client", "w1", "--out", tmp_path / "a.csv")
    done = fedloom("predict", tmp_path / "e", new, "--out", tmp_path / "b.csv")
    assert done.exit_code == 0, done.output
    assert "not used: outcome" in done.output
    ours, theirs = (
        list(csv.DictReader(io.StringIO((tmp_path / f"{name}.csv").read_text())))
        for name in "ab"
    )
    assert [row["prediction"] for row in ours] == [row["prediction"] for row in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert float(one["p_ill"]) == pytest.approx(float(other["p_ill"]), abs=1e-6)
    assert "Leave --client out" in refused(
        "predict", tmp_path / "e", new, "--client", "w1"
    )
    assert "say whose model" in refused("predict", run, new)
