"""Files of outcomes: what models said of every held-out sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.core.errors import DataError
from fedloom.results.directory import RunDirectory
from fedloom.results.outcomes import Outcomes, RunOutcomes, read_outcomes
from fedloom.results.reader import RunReader, read_yardsticks

MANIFEST: dict[str, Any] = {
    "fedloom": "0",
    "algorithm": "ditto",
    "dataset": "made up",
    "clients": 1,
    "parameters": 1,
    "metric": "accuracy",
    "seed": 0,
    "device": "cpu",
    "torch": "2",
    "threads": 1,
    "split": "",
    "is_own": False,
    "config": {},
}


def made() -> RunOutcomes:
    rows, clients = np.array([7, 3, 9, 1]), np.array([0, 0, 2, 2], dtype=np.int32)
    test = Outcomes(rows, clients, np.array([1.0, 0.0, 1.0, 1.0]))
    return RunOutcomes({"test": test}, np.array([40, 0, 60]))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.write_outcomes(20, made())
    assert (tmp_path / "outcomes" / "round-00020.npz").is_file()
    again = directory.read_outcomes()
    assert again is not None
    assert again.work is not None
    assert again.work.tolist() == [40, 0, 60]
    assert again.parts["test"].rows.tolist() == [7, 3, 9, 1]
    assert again.parts["test"].values.tolist() == [1, 0, 1, 1]
    assert again.parts["test"].clients.dtype == np.int32


def test_the_reader_gives_parts_and_work(tmp_path: Path) -> None:
    reader = RunReader(tmp_path)
    assert reader.outcomes is None
    assert reader.alone_outcomes is None
    assert reader.work is None
    reader.files.write_outcomes(3, made())
    made().write(reader.files.alone_outcomes)
    assert reader.outcomes is not None
    assert reader.alone_outcomes is not None
    assert list(reader.outcomes) == ["test"]
    assert reader.alone_outcomes["test"].values.tolist() == [1, 0, 1, 1]
    assert reader.alone_work is not None
    assert reader.alone_work.tolist() == [40, 0, 60]


def test_a_client_is_found_by_its_number() -> None:
    test = made().parts["test"]
    assert test.rows[test.of_client(2)].tolist() == [9, 1]
    assert test.rows[test.of_client(1)].tolist() == []


def test_a_damaged_file_is_named_and_reads_as_nothing(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.write_outcomes(1, made())
    file = tmp_path / "outcomes" / "round-00001.npz"
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(DataError, match="not a whole file of outcomes"):
        read_outcomes(file)
    assert RunReader(tmp_path).outcomes is None


def test_rounds_after_a_checkpoint_are_forgotten_with_what_hangs_on_them(
    tmp_path: Path,
) -> None:
    directory = RunDirectory(tmp_path)
    for round_ in (1, 2):
        directory.write_outcomes(round_, made())
    made().write(directory.alone_outcomes)
    directory.write_manifest(MANIFEST)
    directory.truncate_rows(-1)
    assert directory.outcome_rounds() == []
    assert not directory.alone_outcomes.exists()


def test_a_directory_without_yardsticks_has_none(tmp_path: Path) -> None:
    assert read_yardsticks(tmp_path) == {}
