"""Columns of a table of the `datasets` library to arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.errors import DataError, unknown
from fedloom.data.dataset import Targets, Task, read_input, read_targets
from fedloom.data.images import stack

if TYPE_CHECKING:
    from PIL.Image import Image

_ROWS = 1000


def read_inputs(
    table: Any, names: tuple[str, ...], size: int | None, where: str
) -> tuple[Tensor, ...]:
    """What the model takes, from columns of pictures or numbers.

    A column of pictures becomes bytes, (N, channels, height, width). A column of lists
    keeps its type. Columns of single numbers become one table of float32, (N, columns),
    at the place of the first of them.

    Args:
        table: A `datasets.Dataset`.
        names: The columns, in the model's order.
        size: The side to which pictures are scaled, if at all.
        where: How messages call the table.

    Raises:
        DataError: A column is missing, holds neither, or rows differ in shape.
    """
    inputs: list[Tensor | None] = []
    numbers: list[NDArray[Any]] = []
    place = 0
    for name in names:
        if _is_picture(_feature(table, name, where)):
            pictures = images(table, name, where)
            inputs.append(torch.from_numpy(stack(pictures, len(table), size, where)))
            continue
        values = read_column(table, name, where)
        if values.dtype.kind not in "biuf":
            raise DataError(
                f"{where}: column {name!r} holds {_kind(table, name)}, not numbers or "
                "pictures. Encode it as numbers first, or name the inputs without it."
            )
        if values.ndim > 1:
            inputs.append(read_input(values, f"{where}: column {name!r}"))
            continue
        if not numbers:
            place = len(inputs)
            inputs.append(None)
        numbers.append(values.astype(np.float32))
    if numbers:
        inputs[place] = torch.from_numpy(np.stack(numbers, axis=1))
    return tuple(x for x in inputs if x is not None)


def read_target(table: Any, name: str, task: Task, where: str) -> Targets:
    """What is to be predicted; the names of labels are kept where the table has them.

    Raises:
        DataError: The column is missing or does not suit the task.
    """
    names = getattr(_feature(table, name, where), "names", None)
    values = read_column(table, name, where)
    if names is not None and task != "regression":
        labels = torch.from_numpy(values.astype(np.int64))
        return Targets(labels, len(names), tuple(names))
    return read_targets(values, task=task, where=f"{where}: column {name!r}")


def read_column(table: Any, name: str, where: str) -> NDArray[Any]:
    """A column of numbers, text, or lists of equal shape, without gaps.

    Raises:
        DataError: The column is missing, has gaps, or rows differ in length.
    """
    # Imported here: only users of tables need wait for it.
    import pyarrow
    from pyarrow import compute

    _feature(table, name, where)
    column = table.select_columns([name]).with_format("arrow")[:].column(name)
    values = column.combine_chunks()
    shape = [len(values)]
    while True:
        if isinstance(values, pyarrow.ExtensionArray):
            values = values.storage
        if values.null_count:
            raise DataError(
                f"{where}: column {name!r} has {values.null_count} missing values. "
                "Remove those rows or fill them in."
            )
        if not _is_list(values.type):
            break
        lengths = compute.list_value_length(values).unique().to_pylist()
        if len(lengths) > 1:
            raise DataError(
                f"{where}: lists in column {name!r} have {min(lengths)} to "
                f"{max(lengths)} entries. Pad or cut them to one length."
            )
        shape += lengths or [0]
        values = values.flatten()
    if pyarrow.types.is_nested(values.type) or pyarrow.types.is_binary(values.type):
        raise DataError(
            f"{where}: column {name!r} holds {_kind(table, name)}; expected numbers, "
            "text or lists of numbers."
        )
    array: NDArray[Any] = values.to_numpy(zero_copy_only=False).reshape(shape)
    return array


def images(table: Any, name: str, where: str) -> Iterator[Image]:
    """The pictures of a column, decoded one by one.

    Raises:
        DataError: A picture is missing or cannot be decoded.
    """
    feature = _feature(table, name, where)
    # The format "arrow" leaves them undecoded, so that few are in memory at a time.
    batches = table.select_columns([name]).with_format("arrow").iter(batch_size=_ROWS)
    row = 0
    for batch in batches:
        for value in batch.column(name).to_pylist():
            if value is None:
                raise DataError(
                    f"{where}: row {row} has no picture in column {name!r}. Remove it."
                )
            try:
                yield feature.decode_example(value)
            except (OSError, SyntaxError) as error:
                raise DataError(
                    f"{where}: the picture in row {row} of column {name!r} cannot be "
                    f"decoded ({error}). Remove it."
                ) from error
            row += 1


def _feature(table: Any, name: str, where: str) -> Any:
    if name not in table.features:
        raise DataError(f"{where}: {unknown('column', name, table.features)}")
    return table.features[name]


def _is_picture(feature: Any) -> bool:
    # Imported here: the library takes a second, and is an extra.
    import datasets

    return isinstance(feature, datasets.Image)


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )


def _kind(table: Any, name: str) -> str:
    """What a column holds, in the library's words."""
    feature = table.features[name]
    return str(getattr(feature, "dtype", None) or type(feature).__name__)
