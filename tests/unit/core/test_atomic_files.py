from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fedloom.core.errors import DataError
from fedloom.core.files import (
    atomic_write,
    cannot_write,
    partial_path,
    remove,
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


def test_a_file_being_written_is_hidden_from_who_reads_the_folder() -> None:
    assert partial_path(Path("clients/000001.parquet")) == Path(
        "clients/.000001.parquet.part"
    )


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
