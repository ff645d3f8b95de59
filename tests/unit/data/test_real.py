"""The real files, where they are: what they hold, and a round of training on them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom
from fedloom.core.errors import DataError
from fedloom.data import Dataset, load
from fedloom.data.locations import VARIABLE


def real(name: str, values: dict[str, Any]) -> Dataset:
    root = os.environ.get(VARIABLE)
    if not root or not (Path(root) / name).is_dir():
        pytest.skip(f"set {VARIABLE} to a folder that holds {name}/ to run this")
    return load(name, values)


NAMED = [
    ("mnist", {}, (1, 28, 28), 10_000),
    ("fashion-mnist", {}, (1, 28, 28), 10_000),
    ("emnist-letters-aj", {}, (1, 28, 28), 8_000),
    ("cifar10", {}, (3, 32, 32), 10_000),
    ("cifar100", {"labels": "coarse"}, (3, 32, 32), 10_000),
]


@pytest.mark.parametrize(("name", "values", "shape", "testing"), NAMED)
def test_the_real_files_are_the_published_ones_and_train(
    name: str, values: dict[str, Any], shape: tuple[int, ...], testing: int
) -> None:
    dataset = real(name, values)
    assert dataset.inputs[0].dtype == torch.uint8
    assert dataset.input_shape == shape
    assert dataset.fixed_test is not None
    assert dataset.fixed_test.sum() == testing
    counts = dataset.targets.bincount()
    assert len(counts) == dataset.classes
    if name == "mnist":
        # The published counts of the digits, training and test together.
        found = [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
        assert counts.tolist() == found
    else:
        assert (counts == len(dataset) // dataset.classes).all()
    some = torch.arange(120).reshape(4, 30)
    partition = fedloom.Given(members=tuple(map(tuple, some.tolist())))
    clients = fedloom.divide(dataset, partition, fedloom.Split(), seed=0)
    result = fedloom.run(fedloom.FedAvg(lr=0.05), "lenet", clients, rounds=1)
    assert np.isfinite(result.scores()).all()


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_real_colours_are_where_the_constants_say(name: str) -> None:
    dataset = real(name, {})
    training = dataset.inputs[0][:50_000].numpy()
    means = [training[:, c].mean(dtype=np.float64) for c in range(3)]
    np.testing.assert_allclose(means, dataset.shift, rtol=0, atol=0.1)


def test_every_real_subclass_lies_in_one_superclass() -> None:
    dataset = real("cifar100", {"labels": "coarse"})
    assert dataset.subclass is not None
    pairs = np.unique(np.stack([dataset.targets.numpy(), dataset.subclass]), axis=1)
    assert (np.bincount(pairs[0]) == 5).all()
    assert pairs[1].tolist() != list(range(100))
    assert sorted(pairs[1].tolist()) == list(range(100))


def test_cifar10_is_read_and_verified_within_five_seconds() -> None:
    began = time.monotonic()
    real("cifar10", {})
    assert time.monotonic() - began < 5


def test_a_changed_pixel_of_a_real_file_is_found(tmp_path: Path) -> None:
    real("cifar100", {})
    folder = Path(os.environ[VARIABLE]) / "cifar100"
    (tmp_path / "cifar100").mkdir()
    for file in ("train.bin", "test.bin"):
        (tmp_path / "cifar100" / file).symlink_to(folder / file)
    content = bytearray((folder / "test.bin").read_bytes())
    content[1000] ^= 1
    (tmp_path / "cifar100" / "test.bin").unlink()
    (tmp_path / "cifar100" / "test.bin").write_bytes(content)
    with pytest.raises(DataError, match=r"test\.bin: its content has the sha1 sum"):
        load("cifar100", {}, data_dir=tmp_path)
