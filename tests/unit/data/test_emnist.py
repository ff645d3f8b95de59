from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from fedloom.core.errors import ConfigError, DataError
from fedloom.data import EmnistByclass, EmnistLetters, EmnistLettersAj, load


def write(folder: Path, part: str, labels: list[int]) -> np.ndarray:
    """An EMNIST part of 5 x 5 images, stored transposed; gives them upright."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(len(labels))
    upright = rng.integers(0, 256, (len(labels), 5, 5), dtype=np.uint8)
    stored = np.ascontiguousarray(upright.transpose(0, 2, 1))
    images = struct.pack(">4I", 0x0803, *stored.shape) + stored.tobytes()
    numbers = struct.pack(">2I", 0x0801, len(labels)) + bytes(labels)
    name = f"{folder.name}-{part}"
    (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
    (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(numbers))
    return upright


@pytest.mark.parametrize(
    ("source", "name", "classes"),
    [
        (EmnistLetters(), "emnist-letters", 26),
        (EmnistLettersAj(), "emnist-letters-aj", 10),
    ],
)
def test_letters_stand_upright_and_count_from_zero(
    tmp_path: Path, source: EmnistLetters | EmnistLettersAj, name: str, classes: int
) -> None:
    train = write(tmp_path / name, "train", [1, classes, 5])
    test = write(tmp_path / name, "test", [2, 3])
    dataset = source.load(tmp_path, 0)
    assert np.array_equal(
        dataset.inputs[0][:, 0].numpy(), np.concatenate([train, test])
    )
    assert dataset.inputs[0].is_contiguous()
    assert dataset.targets.tolist() == [0, classes - 1, 4, 1, 2]
    assert dataset.classes == classes
    assert dataset.class_names is not None
    assert dataset.class_names[:3] == ("a", "b", "c")
    assert dataset.fixed_test is not None
    assert dataset.fixed_test.tolist() == [False, False, False, True, True]


def test_labels_out_of_range_name_the_file(tmp_path: Path) -> None:
    write(tmp_path / "emnist-letters-aj", "train", [1, 11])
    write(tmp_path / "emnist-letters-aj", "test", [2])
    with pytest.raises(DataError, match=r"train-labels.* in 1\.\.10, found 1\.\.11"):
        EmnistLettersAj().load(tmp_path, 0)


def test_classes_a_to_j_are_the_lower_case_letters(tmp_path: Path) -> None:
    train = write(tmp_path / "emnist-byclass", "train", [0, 36, 61, 45, 10, 46])
    test = write(tmp_path / "emnist-byclass", "test", [35, 40])
    every = EmnistByclass().load(tmp_path, 0)
    assert every.classes == 62
    assert every.class_names is not None
    shown = [every.class_names[label] for label in every.targets.tolist()]
    assert shown == ["0", "a", "z", "j", "A", "k", "Z", "e"]
    few = EmnistByclass(classes="a-j").load(tmp_path, 0)
    assert few.targets.tolist() == [0, 9, 4]
    assert few.class_names == tuple("abcdefghij")
    kept = np.stack([train[1], train[3], test[1]])
    assert np.array_equal(few.inputs[0][:, 0].numpy(), kept)
    assert few.fixed_test is not None
    assert few.fixed_test.tolist() == [False, False, True]


def test_other_choices_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="classes must be one of all, a-j"):
        load("emnist-byclass", {"classes": "a-z"})
    with pytest.raises(DataError, match=r"emnist-letters-test-labels.*gzip\.zip"):
        EmnistLetters().load(tmp_path, 0)
