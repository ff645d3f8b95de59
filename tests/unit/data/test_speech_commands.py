from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sounds import tone, write_wav

from fedloom.core.errors import DataError
from fedloom.data import Dataset, SpeechCommands, speech_commands
from fedloom.data.fetch import Tables
from fedloom.data.speech_commands import COMMANDS

RATE = 16000
_SOUND = {"bytes": "binary", "path": "string"}
SPEAKERS = ("0a1b", "2c3d", "4e5f", "6a7b")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The archive in small: four speakers, ten commands, two other words, noise."""
    folder = tmp_path / "speech-commands"
    for number, word in enumerate((*COMMANDS, "cat", "dog")):
        for speaker in SPEAKERS:
            sound = tone(300 + 100 * number, 0.2, RATE)
            write_wav(folder / word / f"{speaker}_nohash_0.wav", sound, rate=RATE)
    words = sorted(path.name for path in folder.iterdir())
    listed = {"validation": SPEAKERS[2], "testing": SPEAKERS[3]}
    for part, speaker in listed.items():
        lines = [f"{word}/{speaker}_nohash_0.wav\n" for word in words]
        (folder / f"{part}_list.txt").write_text("".join(lines))
    noise = np.random.default_rng(0).normal(0, 0.1, 3 * RATE)
    write_wav(folder / "_background_noise_" / "tap.wav", noise, rate=RATE)
    return tmp_path


def test_words_are_folders_and_speakers_are_clients(data_dir: Path) -> None:
    dataset = SpeechCommands().load(data_dir, 0)
    assert dataset.inputs[0].shape == (48, 1, 40, 61)
    assert dataset.class_names == tuple(sorted((*COMMANDS, "cat", "dog")))
    assert dataset.targets.bincount().tolist() == [4] * 12
    assert dataset.owner is not None
    assert sorted(set(dataset.owner)) == list(SPEAKERS)
    assert dataset.fixed_test is not None
    assert (dataset.fixed_test == (dataset.owner == SPEAKERS[3])).all()
    parts = dict(
        zip(*np.unique(dataset.groups["part"], return_counts=True), strict=True)
    )
    assert parts == {"train": 24, "validation": 12, "test": 12}


def test_twelve_classes_have_unknown_words_and_silence(data_dir: Path) -> None:
    dataset = SpeechCommands(task="commands").load(data_dir, 0)
    assert dataset.class_names == (*COMMANDS, "unknown", "silence")
    # Four recordings of each command, so four unknown words and four silences.
    assert dataset.targets.bincount().tolist() == [4] * 12
    assert set(dataset.owner[dataset.targets == 11]) <= set(SPEAKERS)
    # Noise is everywhere; a tone of 0.2 s leaves most of its second empty.
    silent = (dataset.inputs[0] == 0).float().mean((1, 2, 3))
    assert float(silent[dataset.targets == 11].max()) < 0.5
    assert float(silent[dataset.targets != 11].min()) > 0.5
    again = SpeechCommands(task="commands").load(data_dir, 0)
    assert (again.inputs[0] == dataset.inputs[0]).all()


def test_an_archive_that_is_not_whole_says_what_is_missing(data_dir: Path) -> None:
    folder = data_dir / "speech-commands"
    (folder / "cat" / f"{SPEAKERS[3]}_nohash_0.wav").unlink()
    with pytest.raises(DataError, match=r"testing_list\.txt: names cat/6a7b_nohash_0"):
        SpeechCommands().load(data_dir, 0)
    for path in (folder / "yes").iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"no recordings of yes\..*task = words"):
        SpeechCommands(task="commands").load(data_dir, 0)
    (folder / "testing_list.txt").unlink()
    with pytest.raises(DataError, match=r"no such file: testing_list\.txt"):
        SpeechCommands().load(data_dir, 0)


def test_silence_needs_the_background_recordings(data_dir: Path) -> None:
    noise = data_dir / "speech-commands" / "_background_noise_" / "tap.wav"
    write_wav(noise, np.zeros(100), rate=RATE)
    with pytest.raises(DataError, match=r"at least 16000 samples at 16000 .*found 100"):
        SpeechCommands(task="commands").load(data_dir, 0)
    noise.unlink()
    with pytest.raises(DataError, match=r"_background_noise_: no \.wav file"):
        SpeechCommands(task="commands").load(data_dir, 0)


def test_a_file_without_a_speaker_is_named(data_dir: Path) -> None:
    path = data_dir / "speech-commands" / "yes" / "somebody.wav"
    write_wav(path, np.zeros(100), rate=RATE)
    with pytest.raises(DataError, match=r"somebody\.wav: expected a name such as"):
        SpeechCommands().load(data_dir, 0)


def test_a_folder_without_words_says_what_to_unpack(tmp_path: Path) -> None:
    folder = tmp_path / "speech-commands"
    folder.mkdir()
    for part in ("validation", "testing"):
        (folder / f"{part}_list.txt").write_text("")
    with pytest.raises(DataError, match=r"no \.wav file in any folder of a word"):
        SpeechCommands().load(tmp_path, 0)


def test_without_files_the_hub_gives_the_same_words(
    data_dir: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> None:
    """The small archive as the table that the hub would give, and a silence more."""
    datasets = pytest.importorskip("datasets")
    files = sorted((data_dir / "speech-commands").glob("[a-z]*/*.wav"))
    names = [*sorted({file.parent.name for file in files}), "_silence_"]
    part_of = dict(zip(SPEAKERS, ("train", "train", "validation", "test"), strict=True))
    splits = {}
    for part in ("train", "validation", "test"):
        held = [f for f in files if part_of[f.name.partition("_")[0]] == part]
        rows = {
            "audio": [{"bytes": f.read_bytes(), "path": f.name} for f in held],
            "label": [names.index(f.parent.name) for f in held],
            "speaker_id": [f.name.partition("_")[0] for f in held],
        }
        if part == "train":
            rows["audio"].append(rows["audio"][0])
            rows["label"].append(names.index("_silence_"))
            rows["speaker_id"].append("nobody")
        features = datasets.Features(
            audio={k: datasets.Value(v) for k, v in _SOUND.items()},
            label=datasets.ClassLabel(names=names),
            speaker_id=datasets.Value("string"),
        )
        splits[part] = datasets.Dataset.from_dict(rows, features=features)
    monkeypatch.setattr(
        speech_commands, "fetch", lambda *_, **__: Tables(splits, "google@abc")
    )
    empty = tmp_path_factory.mktemp("empty")
    found, expected = (SpeechCommands().load(place, 0) for place in (empty, data_dir))
    assert found.class_names == expected.class_names
    assert found.origin == "google@abc"

    def rows_of(data: Dataset) -> set[tuple[Any, ...]]:
        assert data.owner is not None
        spectra = [bytes(x.numpy()) for x in data.inputs[0]]
        tags = data.groups["part"].tolist()
        columns = data.targets.tolist(), data.owner.tolist(), tags, spectra
        return set(zip(*columns, strict=True))

    assert rows_of(found) == rows_of(expected)
    with pytest.raises(DataError, match="only task = words"):
        SpeechCommands(task="commands").load(empty, 0)
