"""What every client keeps: one row per client, touched only for the cohort.

The tensors are allocated without being written, so a row costs nothing before its
client first appears. A table too large for memory lies in sparse files instead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import MessageError
from fedloom.core.records import from_named, leaves, map_record, named, rebuild

_IN_MEMORY_BYTES = 8 << 30


class Table:
    """Client memory by row.

    Args:
        like: one client's record; gives the shapes.
        count: number of clients.
        device: where the rows live, unless they lie in files.
        folder: where sparse files go if the table is larger than `limit_bytes`; by
            default a temporary one that goes away with the table, or with the process
            if that is killed.
        limit_bytes: the most that is held in memory.
    """

    def __init__(
        self,
        like: Any,
        count: int,
        device: torch.device,
        *,
        folder: Path | None = None,
        limit_bytes: int = _IN_MEMORY_BYTES,
    ) -> None:
        row_bytes = sum(t.numel() * t.element_size() for t in leaves(like))
        self.row_bytes = row_bytes
        self.count = count
        on_disk = row_bytes * count > limit_bytes
        is_temporary = on_disk and folder is None
        if is_temporary:
            folder = Path(tempfile.mkdtemp(prefix="fedloom-memory-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.seen = torch.zeros(count, dtype=torch.bool, device=device)
        columns = []
        for name, leaf in named(like).items():
            shape = (count, *leaf.shape)
            if on_disk and folder is not None:
                columns.append(_mapped(folder / f"{name}.rows", shape, leaf.dtype))
            else:
                columns.append(torch.empty(shape, dtype=leaf.dtype, device=device))
        self.columns: Any = rebuild(like, columns)
        if is_temporary and folder is not None and os.name == "posix":
            # Mapped files need no name; without one they cannot outlive the process.
            shutil.rmtree(folder)

    def read(self, rows: Tensor, fresh: Any) -> Any:
        """The records of some clients; for one never seen, its row of `fresh`."""
        seen = self.seen[rows]
        if not bool(seen.any()):
            return fresh

        def pick(column: Tensor, new: Tensor) -> Tensor:
            kept = column[rows.to(column.device)].to(new.device)
            return torch.where(seen.view(-1, *[1] * (new.dim() - 1)), kept, new)

        return map_record(pick, self.columns, fresh)

    def write(self, rows: Tensor, records: Any) -> None:
        """Keep what some clients came to."""
        for column, new in zip(leaves(self.columns), leaves(records), strict=True):
            column[rows.to(column.device)] = new.to(column.device)
        self.seen[rows] = True

    def dump(self) -> dict[str, Tensor]:
        """The rows that were ever written, for a checkpoint."""
        rows = self.seen.nonzero()[:, 0]
        kept = {
            f"memory.{name}": column[rows.to(column.device)].cpu()
            for name, column in named(self.columns).items()
        }
        return kept | {"seen": rows.cpu()}

    def restore(self, tensors: dict[str, Tensor], where: str = "memory") -> None:
        """Take back what `dump` gave.

        Raises:
            MessageError: a field is missing or misshapen; nothing was changed.
        """
        if "seen" not in tensors:
            raise MessageError(f"{where}: field 'seen' is missing.")
        rows = tensors["seen"].to(self.seen.device)
        like = map_record(lambda column: column[: len(rows)], self.columns)
        memory = {
            name.removeprefix("memory."): tensor
            for name, tensor in tensors.items()
            if name.startswith("memory.")
        }
        records = from_named(like, memory, where)
        self.seen.zero_()
        self.write(rows, records)


def _mapped(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = int(torch.tensor(shape).prod())
    flat = torch.from_file(str(path), shared=True, size=count, dtype=dtype)
    return flat.view(shape)
