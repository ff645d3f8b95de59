"""Run directories are read while they are written, and after a crash."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from fedloom.core.errors import DataError
from fedloom.results.reader import (
    RowTail,
    RunReader,
    arm_of,
    find_runs,
    read_comparison,
    thin,
)


def rounds(tail: RowTail) -> list[int]:
    return [row.round for row in tail.read()]


def write_table(path: Path, **columns: object) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path)


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
        for folder, name in (
            ("", "split.npz"),
            ("", "gain.parquet"),
            ("clients", "000001.parquet"),
            ("client_log", "000001.parquet"),
            ("arrays", "000001.safetensors"),
        ):
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_bytes(b"PAR1 or the like, cut sho")


def test_scores_are_in_the_order_of_clients_by_kind_and_part(tmp_path: Path) -> None:
    write_table(
        tmp_path / "clients" / "000003.parquet",
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


@pytest.mark.parametrize("is_one_file", [True, False])
def test_of_several_exchanges_the_last_is_read(
    tmp_path: Path, is_one_file: bool
) -> None:
    """Whether they lie in one file with a column, or in a file each."""
    folder = tmp_path / "client_log"
    if is_one_file:
        columns = {"client": [0, 1, 0, 2], "exchange": [0, 0, 1, 1]}
        write_table(folder / "000001.parquet", moved=[1.0, 2.0, 3.0, 4.0], **columns)
    else:
        write_table(folder / "000001-000.parquet", client=[0, 1], moved=[1.0, 2.0])
        write_table(folder / "000001-001.parquet", client=[0, 2], moved=[3.0, 4.0])
    write_table(folder / "000002.parquet", client=[1], moved=[5.0])
    first, second = RunReader(tmp_path).client_log(9)
    assert first.to_pydict() == {"client": [0, 2], "moved": [3.0, 4.0]}
    assert second["moved"].to_pylist() == [5.0]


def test_the_last_arrays_that_are_whole_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "arrays"
    folder.mkdir()
    for n, name in enumerate(("000004-000", "000004-001")):
        save_file({"weights": np.full((2, 2), n)}, folder / f"{name}.safetensors")
    (folder / "000005.safetensors").write_bytes(b"cut short")
    recorded = RunReader(tmp_path).arrays()
    assert recorded is not None
    assert recorded[0] == 4
    assert recorded[1]["weights"][0, 0] == 1


def test_runs_are_looked_for_below_a_folder_and_not_in_hidden_ones(
    tmp_path: Path,
) -> None:
    for place in ("c/a/seed-0", "c/a/seed-1", "b", ".hidden/a", "1/2/3/4/5"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "manifest.json").write_text("{}")
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
