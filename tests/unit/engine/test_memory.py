from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fedloom.core.errors import MessageError
from fedloom.core.records import Empty, leaves, named, stack, take
from fedloom.engine.memory import MemoryTable

CPU = torch.device("cpu")


class Row(NamedTuple):
    vector: Tensor
    count: Tensor
    empty: Tensor


def row(value: float) -> Row:
    return Row(
        torch.full((4,), float(value)),
        torch.tensor(int(value)),
        torch.zeros(0).double(),
    )


def rows(*values: float) -> Row:
    return stack([row(value) for value in values])


ROW = take(rows(0), 0)
"""What one client keeps."""


def on_disk(folder: Path, count: int = 10) -> MemoryTable:
    return MemoryTable(count, CPU, folder=folder, limit_bytes=1)


def test_a_client_never_seen_has_its_fresh_row() -> None:
    table = MemoryTable(5, CPU)
    some = torch.tensor([1, 4])
    assert table.read(some, rows(7, 8)).count.tolist() == [7, 8]
    table.write(torch.tensor([4]), rows(3))
    assert table.read(some, rows(7, 8)).count.tolist() == [7, 3]
    assert table.read(some, rows(7, 8)).vector[:, 0].tolist() == [7.0, 3.0]


def test_only_the_rows_written_are_touched() -> None:
    table = MemoryTable(5, CPU)
    table.write(torch.tensor([3]), rows(1))
    for column in table.columns.values():
        column.fill_(99)
    table.write(torch.tensor([3, 0]), rows(1, 2))
    assert table.columns["count"].tolist() == [1, 2, 99, 99, 99]
    assert table.columns["vector"][:, 2].tolist() == [1.0, 2.0, 99.0, 99.0, 99.0]
    assert table.places.tolist() == [1, -1, -1, 0, -1]
    assert table.seen.tolist() == [True, False, False, True, False]


def test_what_a_row_held_before_its_client_came_does_not_show() -> None:
    table = MemoryTable(3, CPU)
    table.write(torch.tensor([1]), rows(1))
    table.columns["vector"].fill_(torch.nan)
    table.write(torch.tensor([1]), rows(1))
    found = table.read(torch.tensor([0, 1, 2]), rows(5, 6, 7))
    assert found.vector[:, 0].tolist() == [5.0, 1.0, 7.0]


def test_reading_gives_copies() -> None:
    table = MemoryTable(3, CPU)
    table.write(torch.tensor([1]), rows(1))
    table.read(torch.tensor([1]), rows(0)).vector.fill_(9)
    assert table.read(torch.tensor([1]), rows(0)).vector[0, 0] == 1.0


def test_nothing_can_be_kept() -> None:
    table = MemoryTable(3, CPU)
    table.write(torch.tensor([2]), Empty())
    assert table.read(torch.tensor([0, 2]), Empty()) == Empty()
    assert table.seen.tolist() == [False, False, True]


def test_a_table_too_large_without_a_folder_lies_in_files_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even a process that is killed leaves them behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = MemoryTable(10, CPU, limit_bytes=1)
    rows = torch.tensor([2, 7])
    given = stack([row(3), row(4)])
    table.write(rows, given)
    assert list(tmp_path.iterdir()) == []
    maps = Path("/proc/self/maps")
    assert not maps.exists() or "fedloom-memory-" in maps.read_text()
    for one, two in zip(leaves(table.read(rows, given)), leaves(given), strict=True):
        assert torch.equal(one, two)


def test_a_table_too_large_for_memory_lies_in_files(tmp_path: Path) -> None:
    table = on_disk(tmp_path)
    table.write(torch.tensor([2]), rows(6))
    names = sorted(path.name for path in (tmp_path / "memory").iterdir())
    assert "vector.rows" in names
    assert "count.rows" in names
    assert table.read(torch.tensor([2, 3]), rows(0, 8)).count.tolist() == [6, 8]


def test_a_file_of_rows_takes_the_room_of_the_rows_written(tmp_path: Path) -> None:
    table = on_disk(tmp_path, count=1_000_000)
    path = tmp_path / "memory" / "vector.rows"
    table.write(torch.tensor([500_000]), rows(6))
    assert path.stat().st_size == 16_000_000
    assert path.stat().st_blocks * 512 < 1_000_000


def test_small_tables_make_no_file(tmp_path: Path) -> None:
    MemoryTable(10, CPU, folder=tmp_path).write(torch.tensor([2]), rows(6))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_saved_holds_the_seen_rows_and_can_be_restored(
    tmp_path: Path, is_on_disk: bool
) -> None:
    def make(name: str) -> MemoryTable:
        if is_on_disk:
            return on_disk(tmp_path / name)
        return MemoryTable(10, CPU)

    table = make("one")
    table.write(torch.tensor([7, 2]), rows(1, 2))
    saved = table.save()
    assert saved["seen"].tolist() == [2, 7]
    assert saved["memory.count"].tolist() == [2, 1]
    assert saved["memory.vector"].shape == (2, 4)
    again = make("two")
    again.write(torch.tensor([0]), rows(5))
    again.restore(saved, ROW)
    assert torch.equal(again.seen, table.seen)
    fresh = rows(*range(100, 110))
    everyone = torch.arange(10)
    for one, two in zip(
        leaves(again.read(everyone, fresh)),
        leaves(table.read(everyone, fresh)),
        strict=True,
    ):
        assert torch.equal(one, two)


def test_a_saved_is_no_view_of_the_table() -> None:
    table = MemoryTable(3, CPU)
    table.write(torch.tensor([0, 1, 2]), rows(1, 2, 3))
    saved = table.save()
    table.write(torch.tensor([0]), rows(9))
    assert saved["memory.count"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("memory.vector", torch.zeros(1, 1)),
        ("memory.vector", torch.zeros(1, 5)),
        ("memory.count", torch.zeros(1)),
        ("memory.vector", None),
        ("seen", None),
    ],
)
def test_a_saved_of_another_memory_is_refused_before_anything_changes(
    name: str, wrong: Tensor | None
) -> None:
    table = MemoryTable(3, CPU)
    table.write(torch.tensor([0, 1]), rows(1, 2))
    saved = {"seen": torch.tensor([2])}
    saved |= {f"memory.{field}": t for field, t in named(rows(5)).items()}
    if wrong is None:
        del saved[name]
    else:
        saved[name] = wrong
    with pytest.raises(MessageError, match=name.removeprefix("memory.")):
        table.restore(saved, ROW)
    assert table.seen.tolist() == [True, True, False]
    assert table.read(torch.tensor([0, 1]), rows(0, 0)).count.tolist() == [1, 2]


def test_a_memory_waits_for_what_became_of_its_upload() -> None:
    table = MemoryTable(4, CPU)
    everyone = torch.arange(4)
    table.write(everyone, rows(1, 2, 3, 4), rows(1, 20, 30, 40), number=7)
    assert table.read(everyone, rows(0, 0, 0, 0)).count.tolist() == [1, 2, 3, 4]
    saved = table.save()
    assert saved["unsettled"].tolist() == [1, 2, 3]  # the first has one memory anyway
    again = MemoryTable(4, CPU)
    again.restore(saved, ROW)
    for one in (table, again):
        one.settle(torch.tensor([0, 1, 2]), torch.tensor([-1, 7, 6]))
        assert one.read(everyone, rows(0, 0, 0, 0)).count.tolist() == [1, 2, 30, 4]
        one.settle(everyone, torch.tensor([9, 9, 9, 7]))
        assert one.read(everyone, rows(0, 0, 0, 0)).count.tolist() == [1, 2, 30, 4]
        assert "unsettled" not in one.save()


def test_memories_that_do_not_differ_are_kept_once() -> None:
    table = MemoryTable(2, CPU)
    table.write(torch.arange(2), rows(1, 2), rows(1, 2), number=0)
    assert table.save().keys() == {
        "seen",
        "memory.vector",
        "memory.count",
        "memory.empty",
    }


def test_rows_of_more_clients_than_there_are_are_refused() -> None:
    with pytest.raises(MessageError, match="names client 3, and there are 3"):
        MemoryTable(3, CPU).restore({"seen": torch.tensor([3])}, ROW)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seen": torch.tensor([-1])}, "names client -1"),
        ({"awaiting": None}, "'awaiting' should have 2 rows"),
        ({"awaiting": torch.zeros(3)}, "'awaiting' should have 2 rows"),
        ({"if_lost.vector": torch.zeros(2, 5)}, "if_lost: field 'vector' should be"),
        ({"if_lost.count": None}, "if_lost: field 'count' is missing"),
    ],
    ids=["negative", "missing", "too long", "misshapen", "lacking"],
)
def test_what_waits_is_checked_before_anything_changes(
    change: dict[str, Tensor | None], message: str
) -> None:
    table = MemoryTable(2, CPU)
    table.write(torch.arange(2), rows(1, 2), rows(10, 20), number=7)
    damaged = table.save() | change
    other = MemoryTable(2, CPU)
    other.write(torch.arange(2), rows(5, 6))
    with pytest.raises(MessageError, match=message):
        other.restore({k: t for k, t in damaged.items() if t is not None}, ROW)
    assert other.read(torch.arange(2), rows(0, 0)).count.tolist() == [5, 6]


def test_clients_that_come_first_lie_side_by_side_whatever_their_numbers(
    tmp_path: Path,
) -> None:
    """A row in every block of a file would take the room of a whole table."""
    table = on_disk(tmp_path, count=1_000_000)
    spread = torch.arange(0, 1_000_000, 1000)
    table.write(spread, rows(*range(1000)))
    path = tmp_path / "memory" / "vector.rows"
    assert path.stat().st_blocks * 512 < 100_000
    few = spread[[7, 999]]
    assert table.read(few, rows(0, 0)).count.tolist() == [7, 999]


def test_no_more_is_held_in_memory_than_half_of_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedloom.engine.memory.memory_bytes", lambda device: 400)
    MemoryTable(5, CPU, folder=tmp_path).write(torch.tensor([2]), rows(6))
    assert list(tmp_path.iterdir()) == []
    MemoryTable(50, CPU, folder=tmp_path).write(torch.tensor([2]), rows(6))
    assert (tmp_path / "memory" / "vector.rows").is_file()
