from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.task import Task
from fedloom.data import Cifar10, Cifar100, load
from fedloom.data.checksums import SUMS

BATCHES = [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]


def records(labels: np.ndarray, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    return np.concatenate([labels.astype(np.uint8), pixels], axis=1)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "cifar10").mkdir()
    for seed, file in enumerate(BATCHES):
        labels = (np.arange(3)[:, None] + seed) % 10
        records(labels, seed).tofile(tmp_path / "cifar10" / file)
    (tmp_path / "cifar100").mkdir()
    for seed, file in enumerate(["train.bin", "test.bin"]):
        labels = np.array([[3, 40 + seed], [19, 99], [0, 7]])
        records(labels, seed).tofile(tmp_path / "cifar100" / file)
    return tmp_path


def test_records_are_read_as_written(data_dir: Path) -> None:
    dataset = Cifar10(verify=False).load(data_dir, 0)
    assert dataset.inputs[0].shape == (18, 3, 32, 32)
    assert dataset.inputs[0].dtype == torch.uint8
    second = records(np.zeros((3, 1)), 1)[2, 1:].reshape(3, 32, 32)
    assert np.array_equal(dataset.inputs[0][5].numpy(), second)
    assert dataset.targets[:6].tolist() == [0, 1, 2, 1, 2, 3]
    assert dataset.fixed_test is not None
    assert dataset.fixed_test.tolist() == [False] * 15 + [True] * 3
    assert dataset.class_names is None
    assert dataset.subclass is None


def test_coarse_labels_carry_the_fine_ones(data_dir: Path) -> None:
    fine = Cifar100(verify=False).load(data_dir, 0)
    coarse = Cifar100(labels="coarse", verify=False).load(data_dir, 0)
    assert (fine.classes, coarse.classes) == (100, 20)
    assert fine.targets.tolist() == [40, 99, 7, 41, 99, 7]
    assert coarse.targets.tolist() == [3, 19, 0, 3, 19, 0]
    assert coarse.subclass is not None
    assert coarse.subclass.tolist() == fine.targets.tolist()
    assert fine.subclass is None


def test_normalisation_is_that_of_the_literature(data_dir: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2))
    white = torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)
    black = torch.zeros(1, 3, 1, 1, dtype=torch.uint8)

    def enter(x: torch.Tensor, **values: object) -> list[float]:
        source = load("cifar10", {"verify": False, **values}, data_dir=data_dir)
        task = Task(model, shift=source.shift, scale=source.scale, dtype=torch.float64)
        return task.prepare((x,))[0].flatten().tolist()

    mean, deviation = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    pairs = list(zip(mean, deviation, strict=True))
    assert enter(white) == pytest.approx([(1 - m) / d for m, d in pairs], abs=1e-12)
    assert enter(black) == pytest.approx([-m / d for m, d in pairs], abs=1e-12)
    assert enter(white, normalise="half") == [1.0, 1.0, 1.0]
    assert enter(black, normalise="half") == [-1.0, -1.0, -1.0]
    assert enter(white, normalise="none") == [1.0, 1.0, 1.0]


def test_names_are_taken_from_the_archive(data_dir: Path) -> None:
    path = data_dir / "cifar10" / "batches.meta.txt"
    path.write_text("\n".join("abcdefghij") + "\n\n")
    dataset = Cifar10(verify=False).load(data_dir, 0)
    assert dataset.class_names == tuple("abcdefghij")
    path.write_text("a\nb\n")
    with pytest.raises(DataError, match=r"meta\.txt: expected 10 names, found 2"):
        Cifar10(verify=False).load(data_dir, 0)


def test_a_wrong_record_length_is_told(data_dir: Path) -> None:
    path = data_dir / "cifar10" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"batch_3\.bin: .*3073 bytes, found 9119 "):
        Cifar10(verify=False).load(data_dir, 0)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"batch_3\.bin: .* found 0 bytes"):
        Cifar10(verify=False).load(data_dir, 0)


def test_labels_out_of_range_name_the_file(data_dir: Path) -> None:
    bad = records(np.array([[2, 30], [20, 99]]), 0)
    bad.tofile(data_dir / "cifar100" / "test.bin")
    with pytest.raises(DataError, match=r"test\.bin: .*\(20, 100\).*\(20, 99\)"):
        Cifar100(verify=False).load(data_dir, 0)


def test_files_other_than_the_published_ones_are_refused(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"data_batch_1\.bin: .*sha1.*verify = false"):
        Cifar10().load(data_dir, 0)
    folder = data_dir / "cifar100"
    sums = {
        file: hashlib.sha1((folder / file).read_bytes()).hexdigest()
        for file in ("train.bin", "test.bin")
    }
    monkeypatch.setitem(SUMS, "cifar100", sums)
    assert len(Cifar100().load(data_dir, 0)) == 6


def test_a_missing_file_is_named_with_its_archive(data_dir: Path) -> None:
    (data_dir / "cifar10" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"file: data_batch_4\.bin\. .*binary\.tar\.gz"):
        Cifar10().load(data_dir, 0)


def test_an_unknown_kind_of_label_is_refused() -> None:
    with pytest.raises(ConfigError, match="labels must be one of fine, coarse"):
        load("cifar100", {"labels": "middle"})
