"""Whether a source's files are here, without reading them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fedloom.core.errors import DataError
from fedloom.data import SOURCES, Dataset, Source, whereabouts
from fedloom.data.locations import Absent


@dataclass(frozen=True, kw_only=True)
class Toy(Source):
    """A source that must not be loaded."""

    folder_name, file_names = "toy", ("a.bin", "b.bin")
    file_hint = "They are toys."

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """It went on to read."""
        raise AssertionError("it went on to read")


def test_looking_finds_the_folder_and_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy").mkdir()
    for name in Toy.file_names:
        (tmp_path / "toy" / name).touch()
    assert Toy().find(tmp_path) == tmp_path / "toy"
    monkeypatch.setitem(SOURCES, "toy", Toy)
    assert whereabouts("toy", tmp_path) == str(tmp_path / "toy")


def test_looking_for_a_file_that_is_missing_says_so(tmp_path: Path) -> None:
    with pytest.raises(Absent, match=r"no such file: a\.bin, b\.bin.*They are toys\."):
        Toy().find(tmp_path)
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.bin").touch()
    with pytest.raises(DataError, match=r"no such file: b\.bin") as error:
        Toy().find(tmp_path)
    assert not isinstance(error.value, Absent)


def test_whereabouts_are_told_in_few_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    assert whereabouts("gaussian") == "built in"
    assert whereabouts("file") == "needs settings"
    assert whereabouts("mnist") == "not found"
    assert whereabouts("mnist", tmp_path) == "not found"
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (folder / f"{part}-{kind}-ubyte.gz").touch()
    # Empty files are found all the same: looking reads nothing.
    assert whereabouts("mnist", tmp_path) == str(folder)
    assert all(whereabouts(name, tmp_path) for name in SOURCES)
