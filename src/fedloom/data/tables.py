"""Tables as files: text with separators as programs write it, and parquet."""

from __future__ import annotations

import codecs
import csv
import io
import re
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import DataError, shown
from fedloom.data.unpack import check_unpacked_size, open_unpacked, refuse_size

_HEAD = 1 << 16
"""Bytes by which the dialect of a text is told."""

_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""What a text in another encoding than UTF-8 begins with; the longer ones first."""

_BROKEN = (OSError, ValueError, EOFError, zlib.error)
"""What is raised, apart from pyarrow's own errors, if a file is not whole."""

_LISTED = 8
"""Columns with gaps that a message names beside the first."""

_SEPARATORS = (",", ";", "\t", "|")

_USUAL = "utf-8-sig"
"""The encoding of a text that does not begin with one of `_MARKS`."""


def read_table(
    path: Path, kind: str, is_used: Callable[[str], bool]
) -> dict[str, NDArray[Any]]:
    """Every column of a table as an array, without gaps where it is used.

    Text is UTF-8, or UTF-16 that says so at its beginning. Its columns are separated
    by commas, semicolons, tabs or bars, whichever its first line has most of; beside
    the others than commas a number may have a decimal comma.

    Args:
        path: The file.
        kind: How its name ends; what is not .parquet is text.
        is_used: Whether a column must be usable, by its name.

    Raises:
        DataError: The file is not a whole table, has gaps, or holds something else
            than numbers, text and dates.
    """
    # Imported here: only users of tables need wait for it.
    import pyarrow

    try:
        table = _read_parquet(path) if kind == ".parquet" else _read_text(path)
    except (pyarrow.ArrowException, *_BROKEN) as error:
        odd = _uneven_line(path) if "columns, got" in str(error) else None
        if odd is not None:
            raise DataError(f"{path}, {odd}") from error
        raise DataError(f"{path}: not a readable {kind} table ({error}).") from error
    is_text = kind != ".parquet"
    if is_text and table.num_columns == 1 and re.search(r"\s", table.column_names[0]):
        raise DataError(
            f"{path}: expected columns that are separated by commas, semicolons, tabs "
            f"or bars, found one column, {shown(table.column_names[0])}. Save the "
            "table with one of these separators."
        )
    if table.num_rows == 0:
        raise DataError(f"{path}: expected rows below the heading, found none.")
    if all(map(_is_number, table.column_names)):
        raise DataError(
            f"{path}: expected a first line with the names of the columns, found "
            f"numbers ({', '.join(table.column_names[:5])}, ...). Write a heading."
        )
    repeated = [name for name, n in Counter(table.column_names).items() if n > 1]
    if repeated:
        raise DataError(f"{path}: column {repeated[0]!r} occurs twice. Rename one.")
    _refuse_gaps(table, path, is_used)
    return {
        name: _read_column(table.column(name), path, name)
        if is_used(name)
        else np.empty(table.num_rows, dtype=object)
        for name in table.column_names
    }


def place_of(path: Path, row: int) -> str:
    """Where a reader of the file finds a row of its table.

    Args:
        path: The file.
        row: The row, from 0, without the heading.
    """
    if path.suffix == ".parquet":
        return f"row {row} (the first is row 0)"
    text = _read_all(path)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_dialect(text)[0])
    row_at, line = -2, 1
    try:
        for fields in lines:
            row_at += bool(fields)  # an empty line is no row
            if row_at == row:
                return f"line {line}"
            line = lines.line_num + 1
    except csv.Error:
        pass  # a field that is longer than the library allows
    return f"row {row} below the heading (the first is row 0)"


def _uneven_line(path: Path) -> str | None:
    """The first line of a table that has more or fewer fields than its heading."""
    text = _read_all(path)
    separator = _dialect(text)[0]
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    expected: int | None = None
    try:
        for fields in lines:
            if expected is None:
                expected = len(fields) or None
            elif fields and len(fields) != expected:
                return (
                    f"line {lines.line_num}: expected {expected} columns, as in the "
                    f"first line, found {len(fields)}. Correct the line; a text that "
                    f"contains {separator!r} must stand in quotes."
                )
    except csv.Error:
        pass  # a field that is longer than the library allows
    return None


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        # Repeated values take next to nothing in the file.
        about = file.metadata
        refuse_size(path, 8.0 * about.num_rows * about.num_columns)
        table = file.read()
        table.validate(full=True)  # text that is none is found by nobody else
        return table


def _read_text(path: Path) -> Any:
    import pyarrow
    from pyarrow import csv as arrow_csv

    check_unpacked_size(path)
    with open_unpacked(path) as file:
        head = file.read(_HEAD)
    source: Any = path
    if _encoding(head) != _USUAL:
        source = pyarrow.BufferReader(_read_all(path).encode())
        head = source.read(_HEAD)
        source.seek(0)
    text = _decoded(head, path)
    separator, decimal = _dialect(text)
    table = arrow_csv.read_csv(
        source,
        parse_options=arrow_csv.ParseOptions(delimiter=separator),
        convert_options=arrow_csv.ConvertOptions(decimal_point=decimal),
    )
    return table.rename_columns([name.strip() for name in table.column_names])


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _read_all(path: Path) -> str:
    """The text of a file, whatever its encoding."""
    with open_unpacked(path) as file:
        content: bytes = file.read()
    return content.decode(_encoding(content), errors="replace")


def _encoding(content: bytes) -> str:
    return next((e for mark, e in _MARKS.items() if content.startswith(mark)), _USUAL)


def _decoded(head: bytes, path: Path) -> str:
    """The beginning of a file as text."""
    try:
        # What is cut off in the middle of a character is no error.
        text = codecs.getincrementaldecoder(_USUAL)().decode(head)
    except UnicodeDecodeError as error:
        raise _other_encoding(f"{path}:", f"{error}") from error
    if "\0" in text:
        raise _other_encoding(f"{path}:", "zero bytes")
    return text


def _other_encoding(where: str, reason: str) -> DataError:
    return DataError(
        f"{where} expected text in UTF-8, found something else ({reason}), such as "
        "Latin-1 or Windows-1252. Save the table as UTF-8."
    )


def _dialect(text: str) -> tuple[str, str]:
    """What separates columns, and what separates the digits of a number."""
    lines = text.lstrip("\r\n").splitlines()
    first = re.sub('"[^"]*"', "", lines[0] if lines else "")
    separator = max(_SEPARATORS, key=first.count)
    has_comma = re.search(r"(^|[;\t|])\s*[-+]?\d+,\d+\s*($|[;\t|])", text, re.MULTILINE)
    has_point = re.search(r"\d\.\d", text)
    is_comma = separator != "," and has_comma and not has_point
    return separator, "," if is_comma else "."


def _is_missing(column: Any) -> NDArray[np.bool_]:
    """(N,) where a column has nothing, or a text without a character."""
    from pyarrow import compute, types

    is_missing: NDArray[np.bool_] = column.is_null().to_numpy()
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_string(kind) or types.is_large_string(kind):
        text = compute.utf8_trim_whitespace(column.cast(kind))
        is_empty = compute.fill_null(compute.equal(text, ""), True)
        is_missing = is_missing | is_empty.to_numpy()
    return is_missing


def _refuse_gaps(table: Any, path: Path, is_used: Callable[[str], bool]) -> None:
    """Refuse missing values, those of all columns at once."""
    missing = {
        name: _is_missing(table.column(name))
        for name in filter(is_used, table.column_names)
    }
    gaps = {name: rows for name, rows in missing.items() if rows.any()}
    if not gaps:
        return
    (name, rows), *others = gaps.items()
    count, place = int(rows.sum()), place_of(path, int(rows.argmax()))
    found = f"a missing value in {place}"
    if count > 1:
        found = f"{count} missing values, the first in {place}"
    advice = "Remove that row or fill it in."
    if count > 1 or others:
        advice = "Remove those rows or fill them in."
    if others:
        listed = ", ".join(f"{shown(n)} {int(r.sum())}" for n, r in others[:_LISTED])
        if len(others) > _LISTED:
            listed += f" and {len(others) - _LISTED} other columns"
        incomplete = int(np.logical_or.reduce([*gaps.values()]).sum())
        found += f"; so have others: {listed}. In all, {incomplete} of "
        found += f"{table.num_rows} rows have a gap"
    raise DataError(f"{path}: column {shown(name)} has {found}. {advice}")


def _read_column(column: Any, path: Path, name: str) -> NDArray[Any]:
    """A column that is used, as an array."""
    import pyarrow
    from pyarrow import types

    where = f"{path}: column {shown(name)}"
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if types.is_binary(kind) or types.is_large_binary(kind):
        raise _other_encoding(where, "bytes")
    if types.is_nested(kind) or types.is_time(kind) or types.is_duration(kind):
        raise DataError(
            f"{where} holds {kind}; expected numbers, text or dates. Make a column of "
            "each entry, or leave it out by data.drop."
        )
    if types.is_decimal(kind):
        column = column.cast(pyarrow.float64())
    values: NDArray[Any] = column.to_numpy()
    return values
