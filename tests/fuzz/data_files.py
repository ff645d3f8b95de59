"""Files of samples: tables and arrays in all dialects, many of them damaged."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from odd_values import TEXTS, pick
from pyarrow import parquet
from worker import Note

from fedloom.config import parse
from fedloom.data import from_arrays
from fedloom.data.new_samples import read_like
from fedloom.plan import make_clients

ODD_CELLS = [
    *("", "nan", "NaN", "inf", "-inf", "1e400", "1,5", "1.5.5", "0x10", "null", "NA"),
    *(
        "=1+1",
        "@x",
        "2020-01-01",
        "12:00",
        "true",
        '"',
        '""',
        "'",
        "\0",
        "\t",
        "ä",
        "€",
    ),
    *("1" * 400, "x" * 70_000, "\ud800", "\u202e", "1 000", "1'000", "-", "+", "."),
]


class Trial:
    """Read as a dataset, and as new samples for models of another one."""

    def __init__(self, folder: Path) -> None:
        self.like = from_arrays(np.zeros((6, 2), np.float32), ["u", "v"] * 3)

    def attempt(self, draw: np.random.Generator, folder: Path, note: Note) -> None:
        """Make a file, damage it perhaps, read it."""
        make = pick(draw, [*[_delimited] * 6, *[_npz] * 4, *[_parquet] * 4, _bomb])
        name, raw = make(draw)
        if draw.random() < 0.25:
            raw = damaged(draw, raw)
        if draw.random() < 0.05:
            name = pick(draw, ["x.npz", "x.parquet", "x.csv", "x.tsv", "x.csv.gz", "x"])
        path = folder / name
        path.write_bytes(raw)
        client = pick(draw, ["who"] * 8 + ["y", "b"])
        target = pick(draw, ["y"] * 8 + ["a", "who"])
        if draw.random() < 0.3:
            note(f"read_like({name}): {raw[:400]!r}")
            read_like(self.like, path, target=target, client=client, arrays=("a",))
            return
        data: dict[str, Any] = {"name": "file", "path": name, "target": target}
        data["inputs"] = [pick(draw, ["a", "b", "x"])]
        if draw.random() < 0.8:
            data["client"] = client
        if draw.random() < 0.2:
            data["task"] = pick(draw, ["classification", "regression"])
        if draw.random() < 0.2:
            data["drop"] = ["b"]
        tables: dict[str, Any] = {"data": data}
        if draw.random() < 0.2:
            key = pick(draw, ["time", "group", "test_column"])
            tables["split"] = {key: pick(draw, ["a", "b", "who"])}
        if draw.random() < 0.3:
            partitions = ["iid", "dirichlet", "natural"]
            tables["partition"] = {"name": pick(draw, partitions)}
        note(f"{tables}: {raw[:400]!r}")
        _, clients = make_clients(parse(tables))
        clients.describe()


def _cells(draw: np.random.Generator, rows: int) -> dict[str, list[str]]:
    """Columns of text, some odd."""
    columns: dict[str, list[str]] = {
        "who": [f"c{n % 3}" for n in range(rows)],
        "a": [f"{x:.3f}" for x in draw.normal(size=rows)],
        "b": [str(x) for x in draw.integers(-5, 99, rows)],
        "y": [str(x) for x in draw.integers(0, 3, rows)],
    }
    for _ in range(int(pick(draw, [0, 0, 1, 2])) if rows else 0):
        column = columns[pick(draw, list(columns))]
        column[int(draw.integers(rows))] = pick(draw, [*ODD_CELLS, *TEXTS])
    if draw.random() < 0.1 and rows:
        name = pick(draw, list(columns))
        columns[name] = [pick(draw, [*ODD_CELLS, *TEXTS]) for _ in range(rows)]
    if draw.random() < 0.05:
        columns[pick(draw, TEXTS)] = ["1"] * rows
    return columns


def _delimited(draw: np.random.Generator) -> tuple[str, bytes]:
    rows = pick(draw, [0, 1, 2, 12, *[30] * 12])
    columns = _cells(draw, rows)
    between = pick(draw, [",", ",", ",", ";", ";", "\t", "\t", "|"])
    lines = [between.join(columns)]
    for row in zip(*columns.values(), strict=True):
        cells = [f'"{c}"' if draw.random() < 0.05 else c for c in row]
        if between == ";" and draw.random() < 0.9:
            cells = [cell.replace(".", ",") for cell in cells]
        lines.append(between.join(cells))
        if draw.random() < 0.01:
            lines.append(pick(draw, ["", between, "#", "1", between.join("123456")]))
    ends = pick(draw, ["\n", "\n", "\r\n", "\r"])
    text = ends.join(lines) + pick(draw, ["", ends])
    codes = ["latin-1", "utf-16", "utf-16-le", "utf-32", "utf-8-sig", *["utf-8"] * 8]
    raw = text.encode(pick(draw, codes), "replace")
    ending = pick(draw, [".csv", ".csv", ".csv", ".tsv", ".csv.gz", ".csv.bz2"])
    if ending.endswith("gz"):
        raw = gzip.compress(raw, mtime=0)
    elif ending.endswith("bz2"):
        raw = bz2.compress(raw)
    return f"t{ending}", raw


def _arrays(draw: np.random.Generator, rows: int) -> dict[str, Any]:
    """Columns or arrays of many types."""
    makers: list[Callable[[], Any]] = [
        lambda: draw.normal(size=rows),
        lambda: draw.normal(size=(rows, 2)).astype(np.float32),
        lambda: draw.normal(size=(rows, 1, 4, 4)).astype(np.float16),
        lambda: draw.integers(0, 3, rows),
        lambda: draw.integers(0, 255, (rows, 3)).astype(np.uint8),
        lambda: draw.integers(0, 2**63, rows).astype(np.uint64),
        lambda: np.array([pick(draw, ["u", "v", "w", ""]) for _ in range(rows)]),
        lambda: np.array([b"x", b"\xff"] * rows)[:rows],
        lambda: np.arange(rows) > 3,
        lambda: np.arange(rows).astype("datetime64[D]"),
        lambda: np.arange(rows).astype("timedelta64[s]"),
        lambda: draw.normal(size=rows) * 1j,
        lambda: np.full(rows, pick(draw, [np.nan, np.inf, 1e300, 0.0])),
        lambda: np.zeros((rows, 0)),
        lambda: np.zeros(()),
        lambda: np.zeros(rows, dtype=[("f", "i4"), ("g", "f8")]),
        lambda: np.zeros(rows, dtype=">f4"),
        lambda: np.zeros(rows, dtype=np.longdouble),
        lambda: np.zeros(rows + 1),
    ]
    names = ["a", "b", "y", "who", "x"][: int(draw.integers(2, 6))]
    return {name: pick(draw, makers)() for name in names}


def _npz(draw: np.random.Generator) -> tuple[str, bytes]:
    file = io.BytesIO()
    save = pick(draw, [np.savez, np.savez_compressed])
    arrays = _arrays(draw, pick(draw, [0, 1, *[20] * 8]))
    if draw.random() < 0.8:
        arrays["y"] = draw.integers(0, 3, 20)
        arrays["who"] = np.arange(20) % 3
    if draw.random() < 0.03:
        arrays["y"] = np.array([object(), None], dtype=object)
    save(file, **arrays)
    return "t.npz", file.getvalue()


def _parquet(draw: np.random.Generator) -> tuple[str, bytes]:
    rows = pick(draw, [0, 1, *[20] * 8])
    makers: list[Callable[[], Any]] = [
        lambda: pyarrow.array(draw.normal(size=rows)),
        lambda: pyarrow.array(draw.integers(0, 3, rows)),
        lambda: pyarrow.array([pick(draw, ["u", "v"]) for _ in range(rows)]),
        lambda: pyarrow.array([pick(draw, ["u", None]) for _ in range(rows)]),
        lambda: pyarrow.array([[1.0, 2.0]] * rows),
        lambda: pyarrow.array([[1.0] * int(n) for n in draw.integers(0, 3, rows)]),
        lambda: pyarrow.array([[[1], [2, 3]]] * rows),
        lambda: pyarrow.array([{"p": 1, "q": [{"r": "s"}]}] * rows),
        lambda: pyarrow.array(
            [[("k", 1)]] * rows, pyarrow.map_(pyarrow.utf8(), "int8")
        ),
        lambda: pyarrow.array([None] * rows),
        lambda: pyarrow.array([b"\xff"] * rows),
        lambda: pyarrow.array(["u", "v"] * rows).dictionary_encode()[:rows],
        lambda: pyarrow.array([True, None] * rows)[:rows],
        lambda: pyarrow.array([datetime.date(2020, 1, 1)] * rows),
        lambda: pyarrow.array([datetime.datetime(2020, 1, 1)] * rows),
        lambda: pyarrow.array([datetime.timedelta(1)] * rows),
        lambda: pyarrow.array([datetime.time(1)] * rows),
        lambda: pyarrow.array([1] * rows, pyarrow.decimal128(38, 10)),
        lambda: pyarrow.array([2**63] * rows, pyarrow.uint64()),
        lambda: pyarrow.array(np.zeros(rows, np.float16)),
    ]
    names = ["a", "b", "y", "who", pick(draw, TEXTS).replace("\ud800", "s")]
    names = [name.replace("\udcff", "s") for name in names]
    columns = [pick(draw, makers)() for _ in names]
    if draw.random() < 0.8:
        columns[:2] = (pyarrow.array(draw.normal(size=rows)) for _ in range(2))
        columns[2:4] = (
            pyarrow.array(np.arange(rows) % 2),
            pyarrow.array([f"c{n % 3}" for n in range(rows)]),
        )
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns, names=names), file)
    return "t.parquet", file.getvalue()


def _bomb(draw: np.random.Generator) -> tuple[str, bytes]:
    """Small files that unpack to a lot."""
    way = draw.random()
    if way < 0.3:
        file = io.BytesIO()
        header = io.BytesIO()
        count = int(pick(draw, [10**9, 10**12, 2**62, 2**64]))
        description = {"descr": "<f8", "fortran_order": False, "shape": (count,)}
        np.lib.format.write_array_header_1_0(header, description)
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(
                zipfile.ZipInfo("a.npy"), header.getvalue() + b"\0" * 10_000
            )
            archive.writestr(zipfile.ZipInfo("y.npy"), b"\0" * 10_000)
        return "t.npz", file.getvalue()
    if way < 0.5:
        rows = 10**6
        table = pyarrow.table({f"x{n}": np.zeros(rows, np.int8) for n in range(20)})
        file = io.BytesIO()
        parquet.write_table(table.append_column("y", [np.zeros(rows)]), file)
        return "t.parquet", file.getvalue()
    if way < 0.75:
        text = b"a,y\n" + b"1,0\n" * pick(draw, [10**5, 10**6])
        return "t.csv.gz", gzip.compress(text, mtime=0) * pick(draw, [1, 40])
    wide = ",".join(f"c{n}" for n in range(pick(draw, [10**3, 2 * 10**4])))
    return "t.csv", f"{wide}\n{wide}".encode()


def damaged(draw: np.random.Generator, raw: bytes) -> bytes:
    """Bytes cut off, changed, repeated or put in."""
    if not raw:
        return raw
    way = int(draw.integers(5))
    at = int(draw.integers(len(raw)))
    if way == 0:
        return raw[:at]
    if way == 1:
        return raw[at:]
    if way == 2:
        return raw[:at] + draw.bytes(int(draw.integers(1, 50))) + raw[at:]
    if way == 3:
        return raw[:at] + raw[at : at + 40] + raw[at:]
    changed = bytearray(raw)
    for _ in range(int(draw.integers(1, 6))):
        changed[int(draw.integers(len(raw)))] ^= 1 << int(draw.integers(8))
    return bytes(changed)
