from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedloom
from fedloom.data.locations import VARIABLE
from fedloom.experiments import EXPERIMENTS
from fedloom.experiments.self_fl import audio
from fedloom.experiments.self_fl.audio_tables import TABLES, Row, to_markdown
from fedloom.models import AudioCNN
from fedloom.results.detection import Errors


def row(method: str, device: str, accepts: int, start: int, seed: int = 0) -> Row:
    return Row(
        method,
        "shared",
        "normal",
        device,
        seed,
        Errors(accepts, 100, 5, 50),
        Errors(start, 100, 5, 50),
    )


def test_tables_show_ours_beside_the_papers() -> None:
    rows = [
        row("Self-FL", "A", 3, 10),
        row("Self-FL", "A", 2, 10, seed=1),
        row("Self-FL", "B", 4, 0),
    ]
    lines = to_markdown(rows).splitlines()
    first = next(line for line in lines if line.startswith("| Self-FL |"))
    # Over both seeds 5 of 20; nothing to divide by; nothing ran; 9 of 20 in all.
    cells = ["0.25 / 0.92", "- / 0.94", "NA / 0.91", "NA / 0.91", "NA / 1.01", "0.45"]
    assert first == f"| Self-FL | {' | '.join(cells)} |"
    assert "| the start's false accepts, normal | 20 | 0 | 0 | 0 | 0 | 20 |" in lines
    assert "| PerFedAvg | NA / 1.06 |" in to_markdown(rows)


def test_the_papers_numbers_are_all_there() -> None:
    numbers = [n for table in TABLES for line in table.lines for n in line.paper]
    assert len(numbers) == 5 * (6 + 4 + 2 + 6 + 6)
    assert numbers.count(None) == 8


def test_every_line_has_a_method_that_runs() -> None:
    asked = {line.method for table in TABLES for line in table.lines}
    assert set(audio.ARMS) == asked
    assert {"self_fl/audio", "self_fl/audio-full"} <= set(EXPERIMENTS)


def make_clients() -> fedloom.Federation:
    """Two types, tested on every second sample; wake words are brighter."""
    draw = np.random.default_rng(0)
    count = 160
    labels = np.arange(count) // 2 % 2
    x = draw.integers(0, 200, (count, 1, 16, 16)) + 50 * labels[:, None, None, None]
    device = np.where(np.arange(count) < count // 2, "A", "B")
    dataset = fedloom.Dataset(
        name="toy",
        inputs=(torch.from_numpy(x.astype(np.uint8)),),
        targets=torch.from_numpy(labels),
        classes=2,
        owner=device,
        shift=128.0,
        scale=64.0,
        fixed_test=np.arange(count) % 2 == 0,
        groups={"device": device, "state": np.repeat("normal", count)},
    )
    split = fedloom.Split(fixed=True)
    return fedloom.divide(dataset, fedloom.Natural(), split, seed=0)


def test_a_model_that_did_not_move_is_as_good_as_the_start() -> None:
    clients, start = make_clients(), AudioCNN(width=2).build((1, 16, 16), 2)
    result = fedloom.run(fedloom.Local(lr=1e-12), start, clients, rounds=1)
    assert result.shared_model() is None
    result = fedloom.run(fedloom.Ditto(lr=1e-12), start, clients, rounds=1)
    rows = list(audio.compare("Ditto", result, start, 0))
    assert [(r.model, r.device) for r in rows] == [
        ("shared", "A"),
        ("shared", "B"),
        ("personal", "A"),
        ("personal", "B"),
    ]
    for found in rows:
        assert found.own == found.start
        assert (found.own.positives, found.own.negatives) == (20, 20)


def test_a_client_is_scored_by_its_own_model() -> None:
    clients, start = make_clients(), AudioCNN(width=2).build((1, 16, 16), 2)
    result = fedloom.run(fedloom.Ditto(lr=0.05, epochs=5), start, clients, rounds=3)
    rows = {(r.model, r.device): r for r in audio.compare("Ditto", result, start, 0)}
    held = clients.test[1]
    scores = audio.score(result.model(1), clients, held)
    is_wake = clients.dataset.targets.numpy()[held] == 1
    own = rows["personal", "B"].own
    threshold = np.sort(scores[is_wake])[own.false_rejects]
    assert (scores[~is_wake] >= threshold).sum() == own.false_accepts


@pytest.mark.slow
def test_the_study_runs_from_recordings_to_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = os.environ.get(VARIABLE)
    if not root or not (Path(root) / "fsdd").is_dir():
        pytest.skip(f"set {VARIABLE} to a folder that holds fsdd/ to run this")
    arms = {name: audio.ARMS[name] for name in ("Self-FL", "client-level, C = 0.25")}
    monkeypatch.setattr(audio, "ARMS", arms)
    scale = replace(audio.SMALL, width=2, pretraining=1, rounds=2)
    table = audio.reproduce(tmp_path, 0, scale)
    assert (tmp_path / "audio.md").read_text() == table
    lines = (tmp_path / "audio.csv").read_text().splitlines()
    # Five types in three states but for two alarms, two models, two arms.
    assert len(lines) == 1 + 13 * 2 * 2
