"""The rows of a run: a few files that only grow.

    rounds.jsonl       one line per round
    clients.arrows     every client's scores at every evaluated round
    client_log.arrows  what drove each participant, exchange by exchange
    arrays.arrows      larger things a method recorded, such as a matrix

The last three are Arrow IPC streams, one record batch per round or exchange, which
`pyarrow.ipc.open_stream(file).read_all()` or `polars.read_ipc_stream(file)` reads. What
a checkpoint counts on is the first so many bytes of each, with their digest; to go back
to it is to cut off the rest.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloom.core.digests import Extent, Hash, check_extent
from fedloom.core.errors import ContractError, MessageError
from fedloom.core.files import cannot_write, remove, sync
from fedloom.core.reading import UNREADABLE
from fedloom.results.rows import Round, RowTail
from fedloom.results.scores import Scores

Columns = Mapping[str, NDArray[Any]]

_NOTHING = Hash().extent
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


class GrowingFile:
    """A file that only grows, and the digest of what it holds.

    Args:
        path: of the file; it is made with its first bytes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._hash = Hash()

    @property
    def extent(self) -> Extent:
        """What was written so far."""
        return self._hash.extent

    def append(self, content: bytes) -> None:
        """Add bytes; another process sees them when this returns.

        Raises:
            DataError: they cannot be written; what was there before is whole.
            MessageError: somebody else has written to the file.
        """
        size = self.extent.size
        try:
            with self.path.open("ab") as file:
                if file.tell() != size:
                    raise MessageError(
                        f"{self.path}: expected {size} bytes, found {file.tell()}: "
                        "somebody else writes to the file. Resume the run."
                    )
                file.write(content)
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, size)
            raise cannot_write(self.path, error) from error
        self._hash.update(content)

    def go_on_after(self, extent: Extent) -> None:
        """Take the first bytes of an existing file as what was written so far.

        Raises:
            MessageError: they are not those that were written; nothing was changed.
        """
        is_new = extent == _NOTHING
        self._hash = (
            Hash() if is_new else check_extent(self.path, extent, may_grow=True)
        )

    def truncate(self) -> None:
        """Cut off what lies after what was written so far.

        Raises:
            DataError: the file cannot be changed.
        """
        size = self.extent.size
        if not size:
            remove(self.path)
            return
        try:
            os.truncate(self.path, size)
        except OSError as error:
            raise cannot_write(self.path, error) from error


class TableFile(GrowingFile):
    """A table that only grows, a record batch at a time."""

    _schema: pa.Schema | None = None

    def go_on_after(self, extent: Extent) -> None:
        """As for every file that grows."""
        super().go_on_after(extent)
        self._schema = None

    def append_rows(self, columns: Mapping[str, Any]) -> None:
        """Add some rows; the first ones say which columns there are.

        Raises:
            ContractError: the columns are others than before.
        """
        batch = pa.record_batch(dict(columns))
        if not batch.num_rows:
            return
        if self.extent.size and self._schema is None:
            with pa.OSFile(str(self.path)) as file:
                self._schema = pa.ipc.open_stream(file).schema
        if self._schema is not None and not batch.schema.equals(self._schema):
            raise ContractError(
                f"{self.path}: expected the columns of the rows before "
                f"({_listed(self._schema)}), found {_listed(batch.schema)}. A log has "
                "the same fields in every exchange."
            )
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, batch.schema, options=_COMPRESSED) as writer:
            writer.write_batch(batch)
            content = stream.getvalue()  # without the mark of its end
        if self.extent.size:
            content = content[batch.schema.serialize().size :]
        self._schema = batch.schema
        self.append(content)


class RowFiles:
    """The files that hold the rows of one run.

    Args:
        folder: where they lie; by default a temporary folder that goes when this does.
    """

    def __init__(self, folder: Path | None = None) -> None:
        if folder is None:
            folder = Path(tempfile.mkdtemp(prefix="fedloom-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.rounds = GrowingFile(folder / "rounds.jsonl")
        self.clients = TableFile(folder / "clients.arrows")
        self.client_log = TableFile(folder / "client_log.arrows")
        self.arrays = TableFile(folder / "arrays.arrows")
        self._synced: dict[str, Extent] = {}

    @property
    def files(self) -> dict[str, GrowingFile]:
        """The files by their names."""
        files = (self.rounds, self.clients, self.client_log, self.arrays)
        return {file.path.name: file for file in files}

    @property
    def extents(self) -> dict[str, Extent]:
        """How much each file that is there holds, by its name."""
        extents = {name: file.extent for name, file in self.files.items()}
        return {name: e for name, e in extents.items() if e != _NOTHING}

    def go_on_after(self, extents: Mapping[str, Extent]) -> None:
        """Take the first bytes of each file as what was written so far.

        Raises:
            MessageError: they are not those that were written; nothing was changed.
        """
        for name, file in self.files.items():
            file.go_on_after(extents.get(name, _NOTHING))

    def truncate(self) -> None:
        """Cut off what lies after what was written so far."""
        for file in self.files.values():
            file.truncate()

    def sync(self) -> None:
        """Have all rows on the disk itself.

        Raises:
            DataError: one cannot be written.
        """
        for name, extent in self.extents.items():
            if self._synced.get(name) != extent:
                path = self.files[name].path
                try:
                    sync(path)
                    sync(path.parent)
                except OSError as error:
                    raise cannot_write(path, error) from error
        self._synced = self.extents

    def copy_from(self, other: RowFiles) -> None:
        """Take over all rows of a run.

        Raises:
            DataError: they cannot be read or written.
        """
        for name, extent in other.extents.items():
            source = other.files[name].path
            try:
                with source.open("rb") as file:
                    left = extent.size
                    while block := file.read(min(left, 1 << 20)):
                        self.files[name].append(block)
                        left -= len(block)
            except OSError as error:
                raise cannot_write(source, error) from error

    def append(self, row: Round) -> None:
        """Add the row of a round."""
        line = json.dumps(row.as_json(), allow_nan=True) + "\n"
        self.rounds.append(line.encode())

    def read_rounds(self) -> list[Round]:
        """The rows so far; a line cut short by a crash is left out."""
        return RowTail(self.rounds.path).read()

    def append_scores(
        self,
        round_: int,
        names: Sequence[str],
        scores: Sequence[Scores],
        clients: NDArray[np.int64] | None = None,
    ) -> None:
        """Scores of clients at one round, one row per client, kind and part.

        Args:
            round_: the round, from 0.
            names: what all clients are called.
            scores: of every kind and part.
            clients: (m,) whose scores these are, by number; everybody's by default.
        """
        if not scores:
            return
        clients = np.arange(len(names)) if clients is None else clients
        count = len(clients)
        columns: dict[str, Any] = {
            "round": np.full(count * len(scores), round_, dtype=np.int32),
            "client": np.tile(clients.astype(np.int32), len(scores)),
            "name": [names[client] for client in clients] * len(scores),
            "kind": np.repeat([s.kind for s in scores], count),
            "part": np.repeat([s.part for s in scores], count),
            "samples": np.concatenate([s.samples for s in scores]),
        }
        for name in scores[0].values:
            columns[name] = np.concatenate([s.values[name] for s in scores])
        self.clients.append_rows(columns)

    def append_client_log(self, columns: Columns) -> None:
        """What drove each participant of an exchange, one row per participant."""
        self.client_log.append_rows(columns)

    def read_client_log(self) -> dict[str, NDArray[Any]]:
        """The columns of the client log, all rounds and exchanges after each other."""
        batches = list(read_batches(self.client_log.path))
        if not batches:
            return {}
        table = pa.Table.from_batches(batches)
        return {name: np.array(table[name].to_numpy()) for name in table.column_names}

    def append_arrays(self, round_: int, exchange: int, arrays: Columns) -> None:
        """Larger things a method recorded of an exchange, one row for each."""
        plain = [np.ascontiguousarray(array) for array in arrays.values()]
        self.arrays.append_rows(
            {
                "round": np.full(len(plain), round_, dtype=np.int32),
                "exchange": np.full(len(plain), exchange, dtype=np.int32),
                "name": pa.array(arrays, pa.string()),
                "dtype": pa.array([a.dtype.str for a in plain], pa.string()),
                "shape": pa.array([a.shape for a in plain], pa.list_(pa.int64())),
                "values": pa.array([a.tobytes() for a in plain], pa.large_binary()),
            }
        )


def read_batches(
    path: Path, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The record batches of a table so far, one after the other.

    It ends before one that is not whole, such as one that is being written.

    Args:
        path: of the table.
        columns: those that are read; all by default.
    """
    with suppress(pa.ArrowException, *UNREADABLE), pa.OSFile(str(path)) as file:
        options = None
        if columns is not None:
            with pa.ipc.open_stream(file) as stream:
                fields = [stream.schema.get_field_index(name) for name in columns]
            options = pa.ipc.IpcReadOptions(included_fields=fields)
            file.seek(0)
        with pa.ipc.open_stream(file, options=options) as stream:
            yield from stream


def read_arrays(batch: pa.RecordBatch) -> dict[str, NDArray[Any]]:
    """The arrays of one record batch of arrays.arrows, by name."""
    return {
        row["name"]: np.frombuffer(row["values"], row["dtype"]).reshape(row["shape"])
        for row in batch.to_pylist()
    }


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
