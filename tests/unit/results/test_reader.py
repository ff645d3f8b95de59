"""Run directories are read while they are written, and after a crash."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fedloom.core.errors import DataError
from fedloom.results.reader import (
    RunReader,
    arm_of,
    find_runs,
    read_comparison,
    thin,
)
from fedloom.results.row_files import RowFiles, TableFile
from fedloom.results.rows import RowTail


def rounds(tail: RowTail) -> list[int]:
    return [row.round for row in tail.read()]


def write_rows(file: TableFile, **columns: list[Any]) -> None:
    file.append_rows({name: pa.array(values) for name, values in columns.items()})


def test_a_half_written_line_waits_for_its_end(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    tail = RowTail(file)
    assert rounds(tail) == []
    file.write_text('{"round": 0}\n{"rou')
    assert rounds(tail) == [0]
    with file.open("a") as more:
        more.write('nd": 1}\n')
    assert rounds(tail) == [0, 1]


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    """As when a run goes on from an earlier checkpoint."""
    file, other = tmp_path / "rounds.jsonl", tmp_path / "other"
    file.write_text('{"round": 0}\n{"round": 1}\n')
    tail = RowTail(file)
    assert len(tail.read()) == 2
    other.write_text('{"round": 0}\n{"round": 5}\n{"round": 6}\n')
    os.replace(other, file)
    assert rounds(tail) == [0, 5, 6]
    file.write_text('{"round": 7}\n')
    assert rounds(tail) == [7]


def test_what_is_not_there_or_not_whole_reads_as_nothing(tmp_path: Path) -> None:
    reader = RunReader(tmp_path)
    for _ in range(2):
        assert reader.rounds() == []
        assert reader.scores(1) is None
        assert reader.client_data() is None
        assert reader.gain() is None
        assert list(reader.client_log(9)) == []
        assert reader.arrays() is None
        for name in (
            "split.npz",
            "gain.parquet",
            "clients.arrows",
            "client_log.arrows",
            "arrays.arrows",
        ):
            (tmp_path / name).write_bytes(b"PAR1 or the like, cut sho")


def test_scores_are_in_the_order_of_clients_by_kind_and_part(tmp_path: Path) -> None:
    write_rows(
        TableFile(tmp_path / "clients.arrows"),
        round=[3] * 4,
        client=[1, 0, 0, 1],
        name=["b", "a", "a", "b"],
        kind=["personal", "personal", "shared", "shared"],
        part=["test"] * 4,
        accuracy=[0.2, 0.1, 0.3, 0.4],
    )
    scores = RunReader(tmp_path).scores(3)
    assert scores is not None
    assert scores.names == ("a", "b")
    assert scores.get("personal", "test", "accuracy").tolist() == [0.1, 0.2]
    assert scores.get("shared", "test", "accuracy").tolist() == [0.3, 0.4]
    assert np.isnan(scores.get("shared", "validation", "accuracy")).all()


def test_of_several_exchanges_the_last_is_read(tmp_path: Path) -> None:
    log = TableFile(tmp_path / "client_log.arrows")
    write_rows(log, round=[1, 1], exchange=[0, 0], client=[0, 1], moved=[1.0, 2.0])
    write_rows(log, round=[1, 1], exchange=[1, 1], client=[0, 2], moved=[3.0, 4.0])
    write_rows(log, round=[2], exchange=[0], client=[1], moved=[5.0])
    first, second = RunReader(tmp_path).client_log(9)
    columns = {"round": [1, 1], "client": [0, 2], "moved": [3.0, 4.0]}
    assert first.to_pydict() == columns
    assert second["moved"].to_pylist() == [5.0]


def test_the_last_arrays_that_are_whole_are_read(tmp_path: Path) -> None:
    rows = RowFiles(tmp_path)
    for n in range(3):
        rows.append_arrays(4 + n // 2, n % 2, {"weights": np.full((2, 2), n)})
    file = tmp_path / "arrays.arrows"
    file.write_bytes(file.read_bytes()[:-3])
    recorded = RunReader(tmp_path).arrays()
    assert recorded is not None
    assert recorded[0] == 4
    assert recorded[1]["weights"].tolist() == [[1, 1], [1, 1]]


def test_runs_are_looked_for_below_a_folder_and_not_in_hidden_ones(
    tmp_path: Path,
) -> None:
    for place in ("c/a/seed-0", "c/a/seed-1", "b", ".hidden/a", "1/2/3/4/5", "app"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "manifest.json").write_text("{}")
        if place != "app":
            (tmp_path / place / "rounds.jsonl").write_text("")
    (tmp_path / "c" / "compare.toml").write_text("seeds = [0, 1]\n[methods.a]\n")
    runs = list(find_runs(tmp_path))
    assert [str(run.relative_to(tmp_path)) for run in runs] == [
        "b",
        "c/a/seed-0",
        "c/a/seed-1",
    ]
    assert [arm_of(run) for run in runs] == ["", "a", "a"]
    asked = read_comparison(tmp_path / "c")
    assert (asked.methods, asked.seeds) == (("a",), (0, 1))
    (tmp_path / "c" / "compare.toml").write_text("seeds = [0, 1]\n")
    with pytest.raises(DataError, match="not the file of a comparison"):
        read_comparison(tmp_path / "c")


def test_few_are_taken_evenly_with_the_first_and_the_last() -> None:
    assert thin(list(range(5)), 5) == [0, 1, 2, 3, 4]
    assert thin(list(range(101)), 5) == [0, 25, 50, 75, 100]
