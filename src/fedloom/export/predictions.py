"""Predictions as a table."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset


def prediction_columns(outputs: Tensor, dataset: Dataset) -> dict[str, list[object]]:
    """What a model said, column by column.

    Args:
        outputs: (n, classes) probabilities; for a regression (n,) or (n, k) numbers.
        dataset: what it was trained on, which names the classes.

    Returns:
        `prediction`, and for classes the probability of each, `p_NAME`.
    """
    if dataset.classes is None:
        values = outputs.reshape(len(outputs), -1).double()
        if values.shape[1] == 1:
            return {"prediction": values[:, 0].tolist()}
        return {
            f"prediction_{k}": values[:, k].tolist() for k in range(values.shape[1])
        }
    names = dataset.class_names or tuple(map(str, range(dataset.classes)))
    # A model may have more outputs than there are classes; those have no name.
    named = outputs[:, : len(names)].double()
    columns: dict[str, list[object]] = {
        "prediction": [names[k] for k in named.argmax(1).tolist()]
    }
    for k, name in enumerate(names):
        columns[f"p_{name}"] = named[:, k].tolist()
    return columns


def write_csv(columns: Mapping[str, Sequence[object]], to: Path | TextIO) -> None:
    """Write columns as CSV, a file whole or not at all.

    Raises:
        ConfigError: the file cannot be written.
    """
    if not isinstance(to, Path):
        writer = csv.writer(to, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        return
    part = to.with_name(to.name + ".part")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", newline="") as file:
            write_csv(columns, file)
        part.replace(to)
    except OSError as error:
        raise ConfigError(f"{to}: cannot be written ({error.strerror}).") from error
