from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.config import parse
from fedloom.core.errors import DataError
from fedloom.data import FashionMnist, Mnist
from fedloom.data.checksums import SUMS
from fedloom.data.locations import VARIABLE
from fedloom.export.loading import load_exported
from fedloom.runs import run_config

IMAGES = "train-images-idx3-ubyte.gz"


def write(path: Path, array: np.ndarray, magic: int | None = None) -> None:
    magic = 0x0800 + array.ndim if magic is None else magic
    header = struct.pack(f">{1 + array.ndim}I", magic, *array.shape)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    for part, count in (("train", 6), ("t10k", 2)):
        images = np.arange(count * 28 * 28).reshape(count, 28, 28) % 256
        write(tmp_path / "mnist" / f"{part}-images-idx3-ubyte.gz", images)
        write(tmp_path / "mnist" / f"{part}-labels-idx1-ubyte.gz", np.arange(count))
    return tmp_path


def test_images_and_labels_are_read_as_written(data_dir: Path) -> None:
    dataset = Mnist(verify=False).load(data_dir, 0)
    assert dataset.inputs[0].shape == (8, 1, 28, 28)
    assert dataset.inputs[0].dtype == torch.uint8
    assert dataset.inputs[0][0, 0, 1, :3].tolist() == [28, 29, 30]
    assert dataset.targets.tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert dataset.fixed_test is not None
    assert dataset.fixed_test.tolist() == [False] * 6 + [True] * 2
    assert (dataset.shift, dataset.scale) == (0, 255)


def test_a_model_of_standardised_pixels_takes_the_bytes_themselves(
    data_dir: Path, tmp_path: Path
) -> None:
    tables = {
        "rounds": 1,
        "data": {"name": "mnist", "verify": False, "normalise": "pixels"},
        "partition": {"name": "iid", "clients": 2},
        "model": {"name": "mlr"},
    }
    found = run_config(parse(tables), out=tmp_path / "run", data_dir=data_dir)
    found.export(tmp_path / "models", clients=[1])
    x = found.federation.dataset.inputs[0]
    said = load_exported(tmp_path / "models").predict((x,))
    assert torch.allclose(said, found.predict(1, x), atol=1e-6)


def test_the_directory_may_come_from_the_environment(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(data_dir))
    assert len(Mnist(verify=False).load(None, 0)) == 8


def test_no_directory_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(DataError, match=r"mnist: .*Set FEDLOOM_DATA.*mnist/train-im"):
        Mnist().load(None, 0)


def test_a_missing_file_says_where_to_put_it(data_dir: Path) -> None:
    with pytest.raises(DataError, match=f"no such file: {IMAGES}.*fashion-mnist"):
        FashionMnist().load(data_dir, 0)
    (data_dir / "mnist" / IMAGES).unlink()
    # Three of four files are here: this is no case for the hub.
    with pytest.raises(DataError, match=f"no such file: {IMAGES}\\. [^@]*IDX files.$"):
        Mnist().load(data_dir, 0)


def test_labels_out_of_range_name_the_file(data_dir: Path) -> None:
    write(data_dir / "mnist" / "t10k-labels-idx1-ubyte.gz", np.array([3, 10]))
    with pytest.raises(DataError, match=r"t10k-labels.* in 0\.\.9, found 3\.\.10"):
        Mnist(verify=False).load(data_dir, 0)


def test_files_other_than_the_published_ones_are_refused(data_dir: Path) -> None:
    with pytest.raises(DataError, match=r"train-images.* md5 sum .*verify = false"):
        Mnist().load(data_dir, 0)


def test_a_file_compressed_again_is_the_same_file(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = data_dir / "mnist"
    sums = {}
    for path in folder.iterdir():
        content = gzip.decompress(path.read_bytes())
        sums[path.name] = hashlib.md5(content).hexdigest()
        path.write_bytes(gzip.compress(content, 1, mtime=7))
    monkeypatch.setitem(SUMS, "mnist", sums)
    assert len(Mnist().load(data_dir, 0)) == 8
    content = bytearray(gzip.decompress((folder / IMAGES).read_bytes()))
    content[-1] ^= 1
    (folder / IMAGES).write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=f"{IMAGES}: its content has the md5 sum"):
        Mnist().load(data_dir, 0)


@pytest.mark.parametrize("damage", ["cut", "noise", "flipped"])
def test_a_damaged_file_is_named(data_dir: Path, damage: str) -> None:
    path = data_dir / "mnist" / IMAGES
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "noise":
        content = bytearray(b"hello")
    else:
        content[-6] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{IMAGES}: not a whole gzip file"):
        Mnist(verify=False).load(data_dir, 0)


def test_another_kind_of_file_is_recognised_by_its_magic_number(data_dir: Path) -> None:
    path = data_dir / "mnist" / IMAGES
    write(path, np.zeros((6, 28, 28)), magic=0x0801)
    with pytest.raises(DataError, match=r"expected .*0x0803, found 0x0801"):
        Mnist(verify=False).load(data_dir, 0)


def test_too_few_bytes_are_counted(data_dir: Path) -> None:
    path = data_dir / "mnist" / IMAGES
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-7]))
    with pytest.raises(DataError, match=r"announces 4704 bytes .*found 4697"):
        Mnist(verify=False).load(data_dir, 0)
    path.write_bytes(gzip.compress(b"abc"))
    with pytest.raises(DataError, match="header of 16 bytes, found 3"):
        Mnist(verify=False).load(data_dir, 0)


def test_files_that_do_not_belong_together_are_refused(data_dir: Path) -> None:
    write(data_dir / "mnist" / "train-labels-idx1-ubyte.gz", np.zeros(5))
    with pytest.raises(DataError, match="train has 6 images and 5 labels"):
        Mnist(verify=False).load(data_dir, 0)
