from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedloom.core.errors import DataError
from fedloom.core.files import (
    atomic_write,
    cannot_write,
    remove,
    remove_private_folders,
    write_csv,
)


def write(path: Path, text: str, *, error: Exception | None = None) -> None:
    with atomic_write(path, errors=(ValueError,), lasting=True) as part:
        part.write_text(text)
        if error is not None:
            raise error


def test_a_file_appears_whole_with_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with atomic_write(path) as part:
        part.write_text("half")
        assert not path.exists()
        part.write_text("whole")
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), ValueError("bad")]
)
def test_a_file_that_cannot_be_written_stays_as_it_was(
    error: Exception, tmp_path: Path
) -> None:
    path = tmp_path / "file.txt"
    write(path, "old")
    with pytest.raises(DataError, match=r"file\.txt: cannot be written \("):
        write(path, "new", error=error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_another_kind_is_let_through(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write(tmp_path / "file.txt", "new", error=ZeroDivisionError())
    assert not (tmp_path / "file.txt").exists()


def test_a_file_being_written_lies_where_nobody_else_looks(tmp_path: Path) -> None:
    """Under another name each time, in a folder for its owner alone."""
    names = set()
    for _ in range(2):
        with atomic_write(tmp_path / "file.txt") as part:
            names.add(part.parent.name)
            assert part.parent.stat().st_mode & 0o777 == 0o700
            part.write_text("new")
    assert len(names) == 2
    assert all(name.startswith(".fedloom-") for name in names)


def test_neighbours_of_any_name_are_left_alone(tmp_path: Path) -> None:
    neighbours = ["file.txt.part", ".file.txt.part", "file.txt.old", ".fedloom-x.part"]
    for name in neighbours:
        (tmp_path / name).write_text("precious")
    write(tmp_path / "file.txt", "new")
    remove_private_folders(tmp_path)
    assert [(tmp_path / name).read_text() for name in neighbours] == ["precious"] * 4


def test_all_files_have_the_mode_that_the_user_asked_for(tmp_path: Path) -> None:
    """Some libraries write for their owner alone."""
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "a") as part:
            part.write_text("text")
        with atomic_write(tmp_path / "b") as part:
            save_file({"x": np.zeros(1)}, part)
    finally:
        os.umask(before)
    assert {oct(file.stat().st_mode & 0o777) for file in tmp_path.iterdir()} == {
        "0o640"
    }


def test_a_name_as_long_as_can_be_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write(path, "text")
    assert path.read_text() == "text"


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, "full"), r"\(full\)\. Make room;"),
        (RuntimeError("I/O error: full (os error 28)"), "Make room;"),
        (OSError(errno.EROFS, "read-only"), "Make it writable or choose another"),
        (OSError(errno.EIO, "broken"), "Make room or make it writable;"),
    ],
)
def test_the_advice_suits_the_error(error: Exception, advice: str) -> None:
    found = cannot_write(Path("file"), error)
    assert found.exit_code == 3
    with pytest.raises(DataError, match=advice):
        raise found


def test_what_is_not_there_is_removed_already(tmp_path: Path) -> None:
    remove(tmp_path / "file")
    with pytest.raises(DataError, match="cannot be written"):
        remove(tmp_path)


def test_csv_has_a_column_for_every_key_and_is_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "new" / "t.csv"
    write_csv([{"a": 1, "b": 0.5}, {"a": 2, "c": "x, y"}], file)
    assert file.read_text() == 'a,b,c\n1,0.5,\n2,,"x, y"\n'
    with pytest.raises(DataError, match="cannot be written"):
        write_csv([{"a": 1}], file / "below-a-file.csv")
    assert [path.name for path in file.parent.iterdir()] == ["t.csv"]
