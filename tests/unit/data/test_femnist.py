from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedloom.core.errors import DataError
from fedloom.data import Femnist

PIXELS = np.arange(784) % 256


def leaf(path: Path, writers: dict[str, list[int]]) -> None:
    """A file as LEAF writes it: bytes divided by 255."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(writers),
        "num_samples": [len(labels) for labels in writers.values()],
        "user_data": {
            name: {
                "x": [((PIXELS + y) % 256 / 255).tolist() for y in labels],
                "y": labels,
            }
            for name, labels in writers.items()
        },
    }
    path.write_text(json.dumps(content))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    leaf(tmp_path / "femnist" / "train" / "1.json", {"f0_1": [61], "f2_3": [36]})
    leaf(tmp_path / "femnist" / "train" / "0.json", {"f1_2": [5, 45]})
    leaf(tmp_path / "femnist" / "test" / "0.json", {"f1_2": [40], "f0_1": [10]})
    return tmp_path


def test_writers_are_the_clients_and_bytes_come_back(data_dir: Path) -> None:
    dataset = Femnist().load(data_dir, 0)
    assert dataset.owner is not None
    assert dataset.owner.tolist() == ["f1_2", "f1_2", "f0_1", "f2_3", "f1_2", "f0_1"]
    assert dataset.targets.tolist() == [5, 45, 61, 36, 40, 10]
    expected = [(PIXELS + label) % 256 for label in dataset.targets.tolist()]
    assert np.array_equal(dataset.inputs[0].numpy().reshape(6, 784), np.stack(expected))
    assert dataset.input_shape == (1, 28, 28)
    assert dataset.fixed_test is not None
    assert dataset.fixed_test.tolist() == [False] * 4 + [True] * 2
    assert dataset.class_names is not None
    assert dataset.class_names[10] == "A"


def test_the_letters_a_to_j_are_numbered_anew(data_dir: Path) -> None:
    dataset = Femnist(classes="a-j").load(data_dir, 0)
    assert dataset.targets.tolist() == [9, 0, 4]
    assert dataset.classes == 10
    assert dataset.owner is not None
    assert dataset.owner.tolist() == ["f1_2", "f2_3", "f1_2"]


def damaged(**user: object) -> str:
    return json.dumps({"users": ["w"], "user_data": {"w": user}})


BLANK = [0.0] * 784


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"users": ["w"], "user', "not a whole LEAF file"),
        ("[1]", "not a whole LEAF file"),
        ('{"users": [], "user_data": {}}', "no writer"),
        (damaged(y=[1]), "not a whole LEAF file .KeyError: 'x'"),
        (damaged(x=[BLANK], y=[1, 2]), r"2 labels and images of shape \(1, 784\)"),
        (damaged(x=[BLANK[1:]], y=[1]), r"images of shape \(1, 783\)"),
        (damaged(x=[[2.0] * 784], y=[1]), r"writer w: pixels must lie in 0\.\.1"),
        (damaged(x=[BLANK], y=[62]), r"writer w: labels .* 0\.\.61, found 62\.\.62"),
        (damaged(x=[BLANK], y=[0.5]), "labels must be whole numbers"),
    ],
)
def test_a_broken_file_is_named(data_dir: Path, content: str, message: str) -> None:
    (data_dir / "femnist" / "test" / "0.json").write_text(content)
    with pytest.raises(DataError, match=rf"test/0\.json: .*{message}"):
        Femnist().load(data_dir, 0)


def test_an_empty_or_missing_folder_is_named(data_dir: Path) -> None:
    (data_dir / "femnist" / "test" / "0.json").unlink()
    with pytest.raises(DataError, match=r"femnist/test: no \.json file"):
        Femnist().load(data_dir, 0)
    (data_dir / "femnist" / "test").rmdir()
    with pytest.raises(DataError, match=r"femnist: no such file: test\. .*LEAF"):
        Femnist().load(data_dir, 0)
