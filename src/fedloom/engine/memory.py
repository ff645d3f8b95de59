"""What every client keeps: one row per client, touched only for the cohort.

The tensors have room for everybody and are allocated without being written. Rows are
given out in the order in which clients first appear, so that they lie side by side: the
table takes the memory, or of a sparse file the blocks, of the clients that were there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import MessageError
from fedloom.core.records import from_named, map_record, named
from fedloom.engine.footprint import memory_bytes

_IN_MEMORY_BYTES = 8 << 30
"""Most that a table takes in memory, however much there is."""

_NO_ROW = -1
"""In the place of a row: the client was never here."""

_SETTLED = -1
"""In the place of the number of an upload: nothing depends on whether it arrived."""


_INDEXED = {"seen": ("memory.",), "unsettled": ("if_lost.", "awaiting")}
"""In what is saved: by the field that says whose rows they are, the rows."""


class MemoryTable:
    """Client memory by row.

    A client whose upload may get lost keeps two memories, where they differ: what it
    has if the server took the upload, and what it has if not. `settle` decides.

    Args:
        count: number of clients.
        device: where the rows live, unless they lie in files.
        folder: where sparse files go if the table is larger than `limit_bytes`; by
            default a temporary one that goes away with the table, or with the process
            if that is killed.
        limit_bytes: the most that is held in memory; by default 8 GiB, or half of what
            the device has if that is less.
    """

    def __init__(
        self,
        count: int,
        device: torch.device,
        *,
        folder: Path | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        self.count = count
        self.seen = torch.zeros(count, dtype=torch.bool, device=device)
        self.columns: dict[str, Tensor] = {}
        """By dotted name, (count, ...) each; made when the first row is written. Whose
        a row is, `places` says."""
        self.places = torch.full((count,), _NO_ROW, device=device)
        """(count,) the row of each client, -1 before it has one."""
        self._given = torch.zeros((), dtype=torch.int64, device=device)
        self._if_lost: dict[str, Tensor] = {}
        self._awaiting = torch.full((count,), _SETTLED, device=device)
        self._folder = folder
        if limit_bytes is None:
            limit_bytes = min(_IN_MEMORY_BYTES, memory_bytes(device) // 2)
        self._limit_bytes = limit_bytes

    def read(self, rows: Tensor, fresh: Any) -> Any:
        """The records of some clients; for one never seen, its row of `fresh`.

        Raises:
            MessageError: The table holds records of another shape.
        """
        seen = self.seen[rows]
        if not self.columns or not bool(seen.any()):
            return fresh
        places = self.places[rows].clamp(min=0)
        kept = {
            name: column[places.to(column.device)].to(seen.device)
            for name, column in self.columns.items()
        }

        def pick(old: Tensor, new: Tensor) -> Tensor:
            return torch.where(seen.view(-1, *[1] * (new.dim() - 1)), old, new)

        return map_record(pick, from_named(fresh, kept, "client memory"), fresh)

    def write(
        self, rows: Tensor, records: Any, if_lost: Any = (), number: int = _SETTLED
    ) -> None:
        """Keep what some clients came to.

        Args:
            rows: whose.
            records: what each keeps, one row per client.
            if_lost: what each keeps instead if its upload got lost; the same if empty.
            number: of the upload that this depends on.
        """
        new = named(records)
        if not new:  # of methods whose clients keep nothing
            self.seen[rows] = True
            return
        if not self.columns:
            self.columns = self._allocate(new, "memory")
        places = self._give_places(rows)
        _put(self.columns, places, new)
        self.seen[rows] = True
        self._awaiting[rows] = _SETTLED
        other = named(if_lost)
        if not other:
            return
        differs = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        for name, tensor in other.items():
            differs |= (tensor != new[name]).reshape(len(rows), -1).any(1)
        if bool(differs.any()):
            if not self._if_lost:
                self._if_lost = self._allocate(other, "if_lost")
            differing = {name: tensor[differs] for name, tensor in other.items()}
            _put(self._if_lost, places[differs], differing)
            self._awaiting[rows[differs]] = number

    def settle(self, rows: Tensor, taken: Tensor) -> None:
        """Decide which memory holds, by the number of the last upload that was taken.

        Args:
            rows: whose.
            taken: (n,) the number that the server says; -1 if it took none.
        """
        if not self._if_lost:
            return
        awaiting = self._awaiting[rows]
        lost = rows[(awaiting != _SETTLED) & (awaiting != taken)]
        for name, column in self._if_lost.items():
            at = self.places[lost].to(column.device)
            self.columns[name][at] = column[at]
        self._awaiting[rows] = _SETTLED

    def save(self) -> dict[str, Tensor]:
        """The rows that were ever written, for a checkpoint."""
        rows = self.seen.nonzero()[:, 0]
        tensors = {
            f"memory.{name}": column[self.places[rows].to(column.device)].cpu()
            for name, column in self.columns.items()
        }
        unsettled = (self._awaiting != _SETTLED).nonzero()[:, 0]
        if len(unsettled):
            tensors |= {
                f"if_lost.{name}": column[
                    self.places[unsettled].to(column.device)
                ].cpu()
                for name, column in self._if_lost.items()
            }
            tensors["unsettled"] = unsettled.cpu()
            tensors["awaiting"] = self._awaiting[unsettled].cpu()
        return tensors | {"seen": rows.cpu()}

    def restore(
        self, tensors: dict[str, Tensor], like: Any, where: str = "memory"
    ) -> None:
        """Take back what `save` gave.

        Args:
            tensors: as `save` gave them.
            like: what one client keeps; it shows names, types and shapes.
            where: how messages call the place.

        Raises:
            MessageError: A field is missing or misshapen; nothing was changed.
        """
        rows, unsettled = self._rows_of(tensors, "seen", where), None
        memory = _below(tensors, "memory.", like, len(rows), where)
        if_lost: dict[str, Tensor] = {}
        if "unsettled" in tensors:
            unsettled = self._rows_of(tensors, "unsettled", where)
            if_lost = _below(tensors, "if_lost.", like, len(unsettled), where)
            if len(tensors.get("awaiting", ())) != len(unsettled):
                raise MessageError(
                    f"{where}: field 'awaiting' should have {len(unsettled)} rows."
                )
        self.places.fill_(_NO_ROW)
        self._given.zero_()
        self.columns = self._allocate(memory, "memory")
        _put(self.columns, self._give_places(rows), memory)
        self.seen.zero_()
        self.seen[rows] = True
        self._awaiting.fill_(_SETTLED)
        self._if_lost = self._allocate(if_lost, "if_lost")
        if unsettled is not None:
            _put(self._if_lost, self._give_places(unsettled), if_lost)
            self._awaiting[unsettled] = tensors["awaiting"].to(self._awaiting.device)

    def _give_places(self, clients: Tensor) -> Tensor:
        """The rows of some clients; who has none yet gets the next that is free."""
        places = self.places[clients]
        is_new = places == _NO_ROW
        places = torch.where(is_new, self._given + is_new.cumsum(0) - 1, places)
        self.places[clients] = places
        self._given += is_new.sum()
        return places

    def _rows_of(self, tensors: dict[str, Tensor], name: str, where: str) -> Tensor:
        if name not in tensors:
            raise MessageError(f"{where}: field {name!r} is missing.")
        rows = tensors[name].to(self.seen.device)
        odd = rows[(rows < 0) | (rows >= self.count)]
        if len(odd):
            raise MessageError(
                f"{where}: field {name!r} names client {int(odd[0])}, and there "
                f"are {self.count}."
            )
        return rows

    def _allocate(self, like: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
        """Columns for all clients, of the shapes of some rows, unwritten."""
        row_bytes = sum(t[:1].numel() * t.element_size() for t in like.values())
        if self.count * row_bytes <= self._limit_bytes:
            return {
                name: rows.new_empty(
                    (self.count, *rows.shape[1:]), device=self.seen.device
                )
                for name, rows in like.items()
            }
        folder = self._folder
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="fedloom-memory-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        columns = {
            name: _mapped(
                folder / kind / f"{name}.rows",
                (self.count, *rows.shape[1:]),
                rows.dtype,
            )
            for name, rows in like.items()
        }
        if self._folder is None and os.name == "posix":
            # Mapped files need no name; without one they cannot outlive the process.
            shutil.rmtree(folder)
        return columns


def join_saved(
    parts: Sequence[dict[str, Tensor]], numbers: Sequence[Tensor]
) -> dict[str, Tensor]:
    """What several tables saved, as one table of all their clients would have.

    Args:
        parts: as `MemoryTable.save` gave them; empty where nothing is kept.
        numbers: by table, (k,) the row of each of its clients among all.
    """
    columns: dict[str, list[Tensor]] = {}
    for part, own in zip(parts, numbers, strict=True):
        for name, rows in part.items():
            placed = own.cpu()[rows] if name in _INDEXED else rows
            columns.setdefault(name, []).append(placed)
    joined = {name: torch.cat(rows) for name, rows in columns.items()}
    for index, starts in _INDEXED.items():
        if index in joined:
            order = joined[index].argsort()
            for name in joined:
                if name == index or name.startswith(starts):
                    joined[name] = joined[name][order]
    return joined


def cut_saved(tensors: dict[str, Tensor], numbers: Tensor) -> dict[str, Tensor]:
    """What a table of some of the clients would have saved: `join_saved` backwards.

    Fields of another length than they should have stay as they are, for whoever reads
    them to refuse.

    Args:
        tensors: as `MemoryTable.save` gave them.
        numbers: (k,) the rows of these clients among all, ascending.
    """
    own, cut = numbers.cpu(), {}
    for index, starts in _INDEXED.items():
        if index not in tensors:
            continue
        rows = tensors[index]
        chosen = torch.isin(rows, own)
        if index != "seen" and not bool(chosen.any()):
            continue
        cut[index] = torch.searchsorted(own, rows[chosen])
        for name, column in tensors.items():
            if name.startswith(starts):
                is_whole = column.shape[:1] == rows.shape
                cut[name] = column[chosen] if is_whole else column
    return cut


def _below(
    tensors: dict[str, Tensor], prefix: str, like: Any, count: int, where: str
) -> dict[str, Tensor]:
    """The rows of `count` clients that are saved under names that begin so."""
    if not count:
        return {}
    chosen = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    rows = map_record(lambda tensor: tensor.expand(count, *tensor.shape), like)
    return named(from_named(rows, chosen, f"{where}: {prefix.rstrip('.')}"))


def _put(columns: dict[str, Tensor], places: Tensor, new: dict[str, Tensor]) -> None:
    for name, column in columns.items():
        column[places.to(column.device)] = new[name].to(column.device)


def _mapped(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = int(torch.tensor(shape).prod())
    flat = torch.from_file(str(path), shared=True, size=count, dtype=dtype)
    return flat.view(shape)
