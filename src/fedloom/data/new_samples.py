"""New samples of the kind that a dataset holds, for models that were trained on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedloom.core.errors import ConfigError, DataError, unknown
from fedloom.data.dataset import Dataset, read_input
from fedloom.data.files import read_columns, read_npz

Inputs = ArrayLike | Tensor | tuple[ArrayLike | Tensor, ...]
"""One array with a row per sample, or a tuple of them."""


@dataclass(frozen=True, eq=False)
class NewSamples:
    """What a file holds, as the models of a run take it."""

    inputs: tuple[Tensor, ...]
    targets: Tensor | None
    """As numbers of the run's classes; None if they were not asked for."""
    owner: NDArray[Any] | None
    """The client of each sample; None if that was not asked for."""
    unused: tuple[str, ...]
    """Columns or arrays that were not read."""


def read_like(
    dataset: Dataset,
    path: Path,
    *,
    target: str | None = None,
    client: str | None = None,
    arrays: tuple[str, ...] = ("x",),
    besides: tuple[str, ...] = (),
) -> NewSamples:
    """Read a file of samples like those of a dataset.

    Args:
        dataset: What the models were trained on.
        path: .npz, .parquet or .csv.
        target: Column or array to be predicted, if it is wanted.
        client: Column or array that says whose each sample is, if it is wanted.
        arrays: Arrays of an .npz that the model takes.
        besides: Columns that are no features if they are there.

    Raises:
        ConfigError: The kind of file is not known.
        DataError: The file lacks something, or does not fit the models.
    """
    if not path.is_file():
        raise DataError(f"no file {path}. Correct the path.")
    if path.suffix == ".npz":
        what, held = "array", read_npz(path)
        names = arrays
    elif path.suffix == ".parquet" or ".csv" in path.suffixes:
        what, held = "column", read_columns(path)
        others = {target, client, *besides}
        names = dataset.features or tuple(n for n in held if n not in others)
    else:
        known = (".npz", ".parquet", ".csv")
        raise ConfigError(
            f"{path}: {unknown('kind of file', path.suffix, known)} "
            "Convert it to one of these."
        )
    for name in (*names, target, client):
        if name is not None and name not in held:
            takes = f" The model takes {', '.join(names)}." if name in names else ""
            raise DataError(f"{path}: {unknown(what, name, held)}{takes}")
    if what == "array":
        inputs = tuple(held[name] for name in names)
    else:
        inputs = (_stack(held, names, path),)
    used = {*names, target, client, *besides}
    return NewSamples(
        inputs=inputs_like(dataset, inputs, str(path)),
        targets=targets_like(dataset, held[target], f"{path}: {what} {target!r}")
        if target is not None
        else None,
        owner=held[client] if client is not None else None,
        unused=tuple(name for name in held if name not in used),
    )


def _stack(
    columns: Mapping[str, NDArray[Any]], names: tuple[str, ...], path: Path
) -> NDArray[Any]:
    text = [name for name in names if columns[name].dtype.kind not in "biuf"]
    if text:
        raise DataError(
            f"{path}: columns {', '.join(text)} are not numeric. Encode them as in the "
            "data that the models were trained on, or leave them out of the file."
        )
    if not names:
        raise DataError(f"{path}: there is no column of features.")
    return np.stack([columns[name] for name in names], axis=1)


def inputs_like(dataset: Dataset, x: Inputs, where: str = "x") -> tuple[Tensor, ...]:
    """Inputs in the shape and type of a dataset's; nothing is rounded or cut.

    A flat row per sample is put into the dataset's shape.

    Raises:
        DataError: There are too many or too few inputs, features or values.
    """
    parts = x if isinstance(x, tuple) else (x,)
    if len(parts) != len(dataset.inputs):
        raise DataError(
            f"{where}: the model takes {len(dataset.inputs)} inputs, found "
            f"{len(parts)}. Give a tuple with one array for each."
        )
    found = []
    for n, (part, like) in enumerate(zip(parts, dataset.inputs, strict=True)):
        place = where if len(parts) == 1 else f"{where}: inputs[{n}]"
        found.append(_input_like(like, read_input(part, place), place))
    if len({len(one) for one in found}) > 1:
        lengths = ", ".join(str(len(one)) for one in found)
        raise DataError(f"{where}: inputs have {lengths} samples; all need as many.")
    return tuple(found)


def _input_like(like: Tensor, new: Tensor, where: str) -> Tensor:
    shape = tuple(like.shape[1:])
    if tuple(new.shape[1:]) != shape:
        if new.ndim != 2 or new.shape[1] != math.prod(shape):
            flat = f" or flat, {math.prod(shape)} numbers" if len(shape) > 1 else ""
            raise DataError(
                f"{where}: expected samples of shape {shape}{flat}, the first "
                f"dimension counting them; found {tuple(new.shape)}."
            )
        new = new.reshape(-1, *shape)
    if new.is_floating_point() and not bool(torch.isfinite(new).all()):
        row = int((~torch.isfinite(new)).reshape(len(new), -1).any(1).nonzero()[0, 0])
        raise DataError(
            f"{where}: values are nan or infinite, the first in row {row}. Remove "
            "those rows or fill them in."
        )
    if like.is_floating_point():
        return new if new.is_floating_point() else new.to(like.dtype)
    most = 255 if like.dtype == torch.uint8 else torch.iinfo(torch.int64).max
    whole = new == new.floor() if new.is_floating_point() else torch.ones_like(new) > 0
    if not bool((whole & (new >= 0) & (new <= most)).all()):
        kind = "bytes, 0 to 255" if like.dtype == torch.uint8 else "whole numbers"
        raise DataError(
            f"{where}: the model was trained on {kind}; found values from "
            f"{new.min():g} to {new.max():g}. Give them unscaled: scaling is done "
            "here."
        )
    return new.to(like.dtype)


def targets_like(dataset: Dataset, y: ArrayLike | Tensor, where: str = "y") -> Tensor:
    """Targets as a dataset has them: text becomes the number of its class.

    Raises:
        DataError: A class is not among the dataset's, or a value is no number.
    """
    values = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if values.dtype.kind in "OUST":
        if dataset.class_names is None:
            kind = "numbers" if dataset.classes is None else "numbers of classes"
            raise DataError(
                f"{where}: expected {kind}, found text such as {str(values.flat[0])!r}."
            )
        place = {name: n for n, name in enumerate(dataset.class_names)}
        for name in np.unique(values.astype(np.str_)):
            if str(name) not in place:
                raise DataError(
                    f"{where}: {unknown('class', str(name), dataset.class_names)} The "
                    "models know no other."
                )
        codes = [place[str(name)] for name in values.astype(np.str_)]
        return torch.tensor(codes, dtype=torch.int64)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where}: expected numbers or text, found {values.dtype}.")
    shape = tuple(dataset.targets.shape[1:])
    if values.shape[1:] != shape:
        raise DataError(
            f"{where}: expected targets of shape {shape} per sample, found "
            f"{values.shape[1:]}."
        )
    if not np.isfinite(values).all():
        row = int(np.argwhere(~np.isfinite(values))[0, 0])
        raise DataError(f"{where}: row {row} is nan or infinite. Remove it.")
    if dataset.classes is None:
        return torch.tensor(values, dtype=dataset.targets.dtype)
    inside = (values == np.floor(values)) & (values >= 0) & (values < dataset.classes)
    if not inside.all():
        row = int(np.argwhere(~inside)[0, 0])
        raise DataError(
            f"{where}: classes are whole numbers 0 to {dataset.classes - 1}, as in the "
            f"data that the models were trained on; row {row} has {values[row]}."
        )
    return torch.tensor(values, dtype=torch.int64)
