"""New samples of the kind that a dataset holds, for models that were trained on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedloom.core.errors import DataError, unknown
from fedloom.core.memory import lack_of_memory_explained
from fedloom.core.reprs import without_values
from fedloom.data.dataset import (
    Dataset,
    check_finite,
    first_text,
    read_input,
    to_numpy,
    to_tensor,
)
from fedloom.data.files import read_file, stack_columns
from fedloom.data.folders import PICTURES, files_below
from fedloom.data.image_folder import labels_of
from fedloom.data.images import open_all, stack
from fedloom.data.unpack import LESS_DATA

Inputs = ArrayLike | Tensor | tuple[ArrayLike | Tensor, ...]
"""One array with a row per sample, or a tuple of them."""


@without_values
@dataclass(frozen=True, eq=False)
class NewSamples:
    """What a file holds, as the models of a run take it."""

    inputs: tuple[Tensor, ...]
    targets: Tensor | None
    """As numbers of the run's classes; None if they were not asked for."""
    owner: NDArray[Any] | None
    """The client of each sample; None if that was not asked for."""
    unused: tuple[str, ...] = ()
    """Columns or arrays that were not read."""
    names: tuple[str, ...] = ()
    """What each sample is called, where it is a file of its own."""


@lack_of_memory_explained("The file", LESS_DATA)
def read_like(
    dataset: Dataset,
    path: Path,
    *,
    target: str | None = None,
    client: str | None = None,
    arrays: tuple[str, ...] = ("x",),
    besides: tuple[str, ...] = (),
) -> NewSamples:
    """Read samples like those of a dataset.

    Args:
        dataset: What the models were trained on.
        path: A file, .npz, .parquet or .csv; a picture, or a folder of them, where the
            dataset holds pictures.
        target: Column or array to be predicted, if it is wanted.
        client: Column or array that says whose each sample is, if it is wanted.
        arrays: Arrays of an .npz that the model takes.
        besides: Columns that are no features if they are there.

    Raises:
        ConfigError: The kind of file is not known.
        DataError: The file lacks something, or does not fit the models.
    """
    if path.is_dir() or path.suffix.lower() in PICTURES:
        has_targets = target is not None
        return _read_pictures(dataset, path, has_targets=has_targets)
    if not path.is_file():
        raise DataError(f"no file {path}. Correct the path.")
    others, names = {target, client, *besides}, arrays

    def is_used(name: str) -> bool:
        if name in (target, client):
            return True
        return name in dataset.features if dataset.features else name not in others

    what, held = read_file(path, is_used)
    if what == "column":
        names = dataset.features or tuple(name for name in held if name not in others)
    for name in (target, client):
        if name is not None and name not in held:
            raise DataError(f"{path}: {unknown(what, name, held)}")
    missing = [name for name in names if name not in held]
    if missing:
        raise DataError(
            f"{path}: expected every {what} that the model takes: {', '.join(names)}; "
            f"found {', '.join(held) or 'none'}. Missing: {', '.join(missing)}. Add "
            f"it to the file, or call the {what} there as the model does."
        )
    if what == "array":
        inputs = tuple(held[name] for name in names)
    elif names:
        advice = "Encode them as in the data that the models were trained on."
        inputs = (stack_columns(held, names, path, advice),)
    else:
        raise DataError(f"{path}: there is no column of features.")
    return NewSamples(
        inputs=inputs_like(dataset, inputs, str(path)),
        targets=targets_like(dataset, held[target], f"{path}: {what} {target!r}")
        if target is not None
        else None,
        owner=held[client] if client is not None else None,
        unused=tuple(name for name in held if name not in {*names, *others}),
    )


def _read_pictures(dataset: Dataset, path: Path, *, has_targets: bool) -> NewSamples:
    """Pictures as a dataset of pictures has them; their folders are their classes."""
    shape = dataset.input_shape
    if dataset.inputs[0].dtype != torch.uint8 or len(shape) != 3:
        raise DataError(
            f"{path}: expected a file of samples (.csv, .parquet, .npz), since the "
            "models were not trained on pictures; found pictures or a folder."
        )
    files = files_below(path, PICTURES) if path.is_dir() else [path]
    if not files:
        raise DataError(
            f"{path}: expected pictures ({', '.join(PICTURES[:3])}, ...), found none."
        )
    channels, height, width = shape
    size = height if height == width else None
    mode = "L" if channels == 1 else "RGB"
    pictures = (picture.convert(mode) for picture in open_all(files, size))
    names = tuple(map(str, files))
    pixels = stack(pictures, len(files), size, str(path), names)
    targets, owner = None, None
    if has_targets:
        columns = labels_of(path, files)[1]
        targets = targets_like(dataset, np.array(columns["class"]), f"{path}: folder")
        owner = np.array(columns["client"]) if "client" in columns else None
    inputs = inputs_like(dataset, pixels, str(path))
    return NewSamples(inputs, targets, owner, names=names)


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
    inputs = []
    for n, (part, like) in enumerate(zip(parts, dataset.inputs, strict=True)):
        place = where if len(parts) == 1 else f"{where}: inputs[{n}]"
        inputs.append(_input_like(like, read_input(part, place), place))
    lengths = [len(values) for values in inputs]
    if len(set(lengths)) > 1:
        listed = ", ".join(map(str, lengths))
        raise DataError(f"{where}: inputs have {listed} samples; all need as many.")
    return tuple(inputs)


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
    check_finite(where, new)
    if like.is_floating_point():
        return new if new.is_floating_point() else new.to(like.dtype)
    most = 255 if like.dtype == torch.uint8 else torch.iinfo(torch.int64).max
    is_usable = (new >= 0) & (new <= most)
    if new.is_floating_point():
        is_usable &= new == new.floor()
    if not bool(is_usable.all()):
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
    values = to_numpy(y)
    if values.dtype.kind in "OUST":
        if dataset.class_names is None:
            kind = "numbers" if dataset.classes is None else "numbers of classes"
            raise DataError(
                f"{where}: expected {kind}, found text such as {first_text(values)}."
            )
        names = values.astype(np.str_).tolist()
        strange = sorted(set(names) - set(dataset.class_names))
        if strange:
            raise DataError(
                f"{where}: {unknown('class', strange[0], dataset.class_names)} The "
                "models know no other."
            )
        return torch.tensor([dataset.class_names.index(name) for name in names])
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where}: expected numbers or text, found {values.dtype}.")
    shape = tuple(dataset.targets.shape[1:])
    if values.shape[1:] != shape:
        raise DataError(
            f"{where}: expected targets of shape {shape} per sample, found "
            f"{values.shape[1:]}."
        )
    check_finite(where, to_tensor(values))
    if dataset.classes is None:
        return to_tensor(values).to(dataset.targets.dtype, copy=True)
    inside = (values == np.floor(values)) & (values >= 0) & (values < dataset.classes)
    if not inside.all():
        row = int(np.argwhere(~inside)[0, 0])
        raise DataError(
            f"{where}: classes are whole numbers 0 to {dataset.classes - 1}, as in the "
            f"data that the models were trained on; row {row} has {values[row]}."
        )
    return to_tensor(values).to(torch.int64, copy=True)
