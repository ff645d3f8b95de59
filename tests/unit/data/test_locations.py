"""Whether a source's files are here, without reading them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.core.errors import DataError
from fedloom.data import SOURCES, whereabouts
from fedloom.data.locations import folder_of, look


def test_looking_finds_the_folder_and_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "a.bin").touch()

    def load() -> None:
        folder_of("toy", ["a.bin"], tmp_path)
        raise AssertionError("it went on to read")

    assert look(load) == tmp_path / "toy"
    assert folder_of("toy", ["a.bin"], tmp_path) == tmp_path / "toy"


def test_looking_for_a_file_that_is_missing_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="toy: not all of its files are there"):
        look(lambda: folder_of("toy", ["a.bin"], tmp_path))
    with pytest.raises(DataError, match=r"no such file: a\.bin"):
        folder_of("toy", ["a.bin"], tmp_path)


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
