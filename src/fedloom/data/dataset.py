"""One dataset in memory: inputs, targets and, where known, whose each sample is."""

from __future__ import annotations

import hashlib
import math
import mmap
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from fedloom.core.errors import ConfigError, DataError, shown, unknown
from fedloom.core.reprs import without_values
from fedloom.core.scaling import Levels

Task = Literal["auto", "classification", "regression"]

# Whole-number targets that would make more classes than this, and more than there are
# samples, are far more often a quantity than a label.
_PLAUSIBLE_CLASSES = 1000

# Whole numbers of more values than these may be labels or a quantity; floating numbers
# that are whole and take no more values than these may be labels, too.
_FEW_VALUES = 20

# Samples that are looked at in one go.
_ROWS_AT_ONCE = 65_536

_OWNER_TYPES = (np.integer, np.str_, np.object_)
_TAG_TYPES = (*_OWNER_TYPES, np.bool_, np.floating, np.datetime64)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """All samples of one source, before they are divided among clients.

    Raises:
        DataError: The tensors contradict one another or hold unusable values.
    """

    name: str
    """What messages and results call it."""
    inputs: tuple[Tensor, ...]
    """What the model takes, one tensor per argument, each (N, ...): uint8 (images),
    floating, or int64 (tokens)."""
    targets: Tensor
    """(N,) int64 labels, or (N,) or (N, k) floating values for regression."""
    classes: int | None = None
    """Number of classes; None means regression."""
    owner: NDArray[Any] | None = None
    """(N,) natural client of each sample, whole numbers or text, where there is one."""
    shift: Levels = 0.0
    """A uint8 input enters the model as (x - shift) / scale; one number, one per
    channel of inputs (N, channels, ...), or one for each number of a sample."""
    scale: Levels = 1.0
    """See `shift`."""
    vectors: Tensor | None = None
    """(tokens, dim) fixed vector of every token of the first input, where it has any;
    a model takes them as frozen parameters, so that they are never sent."""
    standardise: bool = False
    """Whether the one floating input enters the model with mean 0 and standard
    deviation 1 per feature, over the training samples of all clients together."""
    standardise_targets: bool = True
    """Whether a regression learns targets with mean 0 and standard deviation 1, over
    the training samples of all clients together; predictions and scores are in the
    targets' own units all the same."""
    fixed_test: NDArray[np.bool_] | None = None
    """(N,) True where the source itself says that the sample is for testing."""
    class_names: tuple[str, ...] | None = None
    """What the labels stand for, where the source says."""
    subclass: NDArray[np.int64] | None = None
    """(N,) finer class of each sample within its class, where the source has one."""
    features: tuple[str, ...] | None = None
    """Names of the columns of the first input, where it came from a table."""
    left_out: tuple[str, ...] = ()
    """Columns of the table that are no features, although nothing else uses them."""
    target_name: str | None = None
    """Column or array of the targets, where the source has names."""
    owner_name: str | None = None
    """Column or array that says whose each sample is, where the source has names."""
    owner_source: str = ""
    """Where the clients come from if not from a column, such as "from its folders"."""
    origin: str | None = None
    """Id and revision on the hub, if it came from there."""

    groups: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """(N,) tags of the samples by name, such as the device that recorded each, a time
    or a visit. Nothing trains on them; splits can go by them, and results can be told
    apart by them."""

    def __post_init__(self) -> None:
        self._check_lengths()
        for i, values in enumerate(self.inputs):
            if values.dtype not in (torch.uint8, torch.int64) and not (
                values.is_floating_point()
            ):
                raise DataError(
                    f"{self.name}: inputs[{i}] must be uint8, int64 or floating, "
                    f"found {values.dtype}. Convert it, or use from_arrays."
                )
            check_finite(f"{self.name}: inputs[{i}]", values)
        self._check_levels()
        if self.standardise and not (
            len(self.inputs) == 1 and self.inputs[0].is_floating_point()
        ):
            types = ", ".join(str(x.dtype) for x in self.inputs)
            raise DataError(
                f"{self.name}: only one floating input can be standardised, found "
                f"{types}. Set standardise to false."
            )
        if self.vectors is not None:
            self._check_vectors(self.vectors)
        if self.classes is None:
            self._check_values()
        else:
            self._check_labels(self.classes)

    def __len__(self) -> int:
        return int(self.targets.shape[0])

    def __repr__(self) -> str:
        shapes = ", ".join(f"{x.dtype} {tuple(x.shape[1:])}" for x in self.inputs)
        return (
            f"Dataset({self.name!r}, samples={len(self)}, classes={self.classes}, "
            f"inputs=[{shapes}])"
        )

    @property
    def outputs(self) -> int:
        """Width of the model's output: the classes, or the values per sample."""
        if self.classes is not None:
            return self.classes
        return 1 if self.targets.ndim == 1 else int(self.targets.shape[1])

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample of the first input."""
        return tuple(self.inputs[0].shape[1:])

    @property
    def tokens(self) -> int | None:
        """How many tokens there are, from 0; None if samples are no token sequences."""
        first = self.inputs[0]
        if first.dtype != torch.int64 or first.ndim != 2:
            return None
        if self.vectors is not None:
            return len(self.vectors)
        return int(first.max()) + 1 if first.numel() else 1

    def tag(self, name: str, setting: str) -> NDArray[Any]:
        """The tags of that name, which a setting asks for.

        Raises:
            DataError: There are none.
        """
        if name not in self.groups:
            if not self.groups:
                raise DataError(
                    f"{self.name}: {setting} names {name!r}, and these data have no "
                    f"columns beside inputs, targets and clients. Leave out {setting}."
                )
            raise DataError(
                f"{self.name}: {setting}: {unknown('column', name, self.groups)}"
            )
        return self.groups[name]

    @cached_property
    def hash(self) -> str:
        """BLAKE2b of inputs, targets and scaling: equal hashes mean equal samples."""
        digest = hashlib.blake2b(f"{self.shift}{self.scale}".encode(), digest_size=32)
        for values in (*self.inputs, self.targets):
            digest.update(f"{values.dtype}{tuple(values.shape)}".encode())
            flat = values.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def _check_lengths(self) -> None:
        if not self.inputs:
            raise DataError(f"{self.name}: inputs is empty; give at least one tensor.")
        tags = {f"groups[{name!r}]": values for name, values in self.groups.items()}
        named: dict[str, Any] = {f"inputs[{i}]": x for i, x in enumerate(self.inputs)}
        for what in ("targets", "owner", "fixed_test", "subclass"):
            if getattr(self, what) is not None:
                named[what] = getattr(self, what)
        named |= tags
        for what, values in named.items():
            if values.ndim == 0:
                raise DataError(
                    f"{self.name}: {what} is a single value; expected one per sample."
                )
        lengths = {what: int(values.shape[0]) for what, values in named.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{what} has {n}" for what, n in lengths.items())
            raise DataError(
                f"{self.name}: lengths differ: {listed}. All need one row per sample."
            )
        if len(self) == 0:
            raise DataError(f"{self.name}: empty, it has no samples.")
        self._check_kind("fixed_test", self.fixed_test, "boolean, one", np.bool_)
        self._check_kind("subclass", self.subclass, "one int64 number", np.int64)
        self._check_kind("owner", self.owner, "one whole number or text", *_OWNER_TYPES)
        for what, values in tags.items():
            self._check_kind(what, values, "one number, date or text", *_TAG_TYPES)

    def _check_kind(
        self, what: str, values: NDArray[Any] | None, wanted: str, *kinds: type
    ) -> None:
        if values is None or (
            values.ndim == 1 and any(np.issubdtype(values.dtype, k) for k in kinds)
        ):
            return
        raise DataError(
            f"{self.name}: {what} must be {wanted} per sample, found shape "
            f"{values.shape} of {values.dtype}."
        )

    def _check_levels(self) -> None:
        for what, level in (("shift", self.shift), ("scale", self.scale)):
            for i, values in enumerate(self.inputs):
                channels = values.shape[1] if values.ndim > 1 else 0
                fitting = {channels}
                if len(self.inputs) == 1 and values.ndim > 1:
                    fitting.add(math.prod(values.shape[1:]))
                if (
                    isinstance(level, tuple)
                    and values.dtype == torch.uint8
                    and len(level) not in fitting
                ):
                    raise DataError(
                        f"{self.name}: {what} has {len(level)} values, but inputs[{i}] "
                        f"has {channels} channels. Give one per channel of (N, "
                        "channels, ...), one for each number of a sample where there "
                        "is one input, or a single number."
                    )
        shifts = self.shift if isinstance(self.shift, tuple) else (self.shift,)
        scales = self.scale if isinstance(self.scale, tuple) else (self.scale,)
        if not (
            all(map(math.isfinite, shifts)) and all(0 < s < math.inf for s in scales)
        ):
            raise DataError(
                f"{self.name}: shift must be finite and scale above 0, "
                f"found {self.shift} and {self.scale}."
            )

    def _check_vectors(self, vectors: Tensor) -> None:
        if vectors.ndim != 2 or not vectors.is_floating_point():
            raise DataError(
                f"{self.name}: vectors must be floating, one row per token, found "
                f"{vectors.dtype} {tuple(vectors.shape)}."
            )
        check_finite(f"{self.name}: vectors", vectors)
        first = self.inputs[0]
        if self.tokens is None or first.min() < 0 or first.max() >= len(vectors):
            raise DataError(
                f"{self.name}: {len(vectors)} vectors need a first input of int64 "
                f"tokens 0..{len(vectors) - 1}, (samples, length); found {first.dtype} "
                f"{tuple(first.shape)}, values {first.min()}..{first.max()}."
            )

    def _check_values(self) -> None:
        if not self.targets.is_floating_point() or self.targets.ndim > 2:
            raise DataError(
                f"{self.name}: targets of a regression must be floating, (N,) or "
                f"(N, k); found {self.targets.dtype} {tuple(self.targets.shape)}. "
                "For classification say how many classes there are."
            )
        check_finite(f"{self.name}: targets", self.targets)

    def _check_labels(self, classes: int) -> None:
        if self.targets.dtype != torch.int64 or self.targets.ndim != 1:
            raise DataError(
                f"{self.name}: targets of a classification must be int64 labels of "
                f"shape (N,), found {self.targets.dtype} {tuple(self.targets.shape)}. "
                "Convert them, or set classes to None for regression."
            )
        outside = (self.targets < 0) | (self.targets >= classes)
        if outside.any():
            row = int(outside.nonzero()[0, 0])
            raise DataError(
                f"{self.name}: labels must lie in 0..{classes - 1}, found "
                f"{int(self.targets.min())}..{int(self.targets.max())}; row {row} has "
                f"{int(self.targets[row])}. Number them from 0, e.g. with "
                "np.unique(y, return_inverse=True), or correct the number of classes."
            )
        if self.class_names is not None and len(self.class_names) != classes:
            raise DataError(
                f"{self.name}: {len(self.class_names)} class names for "
                f"{classes} classes."
            )


def name_row(row: int) -> str:
    """How a message calls a row of an array."""
    return f"row {row}"


def check_finite(
    what: str, values: Tensor, place_of: Callable[[int], str] = name_row
) -> None:
    """Refuse values that are nan or infinite.

    Args:
        what: How the message calls the values.
        values: One row per sample.
        place_of: How the message calls a row.

    Raises:
        DataError: There are some.
    """
    if not values.is_floating_point():
        return
    # Block by block, for data that barely fit in memory or lie in a mapped file.
    count, row = 0, -1
    for start in range(0, len(values), _ROWS_AT_ONCE):
        broken = ~torch.isfinite(values[start : start + _ROWS_AT_ONCE])
        if broken.any():
            in_row = broken.reshape(len(broken), -1).any(dim=1)
            row = start + int(in_row.nonzero()[0, 0]) if row < 0 else row
            count += int(broken.sum())
    if not count:
        return
    place = place_of(row)
    if count == 1:
        raise DataError(
            f"{what}: the value in {place} is nan or infinite. Remove that row or fill "
            "it in."
        )
    raise DataError(
        f"{what}: {count} values are nan or infinite, the first in {place}. Remove "
        "those rows or fill them in."
    )


@without_values
class Targets(NamedTuple):
    """Targets as a dataset wants them."""

    values: Tensor
    classes: int | None
    class_names: tuple[str, ...] | None


def read_targets(
    y: ArrayLike | Tensor,
    *,
    task: Task = "auto",
    classes: int | None = None,
    where: str = "targets",
    setting: str = "data.task",
    place_of: Callable[[int], str] = name_row,
) -> Targets:
    """Decide what kind of targets these are: text and whole numbers are labels.

    Whole numbers of many values may be labels or a quantity, and floating numbers that
    are few whole ones may be either as well. Nothing is guessed then.

    Args:
        y: Text, booleans, whole or floating numbers, one row per sample.
        task: Overrides the guess, which is regression for floating numbers only.
        classes: Number of classes; the largest label + 1 if not given.
        where: How messages call these targets.
        setting: What the user sets to say which of both they are.
        place_of: How messages call a row.

    Raises:
        DataError: The values do not suit the task, or could be labels or a quantity.
    """
    if classes is not None:
        if task == "regression":
            raise ConfigError(f"{where}: a regression has no classes, found {classes}.")
        task = "classification"
    values = to_numpy(y)
    if values.dtype.kind in "OUST":
        return _read_text(values, task, classes, where)
    if values.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: expected numbers or text, found {values.dtype}. Convert them."
        )
    if task == "auto":
        _refuse_to_guess(values, where, setting)
    if task == "regression" or (task == "auto" and values.dtype.kind == "f"):
        floating = values if values.dtype.kind == "f" else values.astype(np.float32)
        return Targets(to_tensor(floating), None, None)
    if values.dtype.kind == "f":
        is_label = np.isfinite(values) & (values == np.floor(values))
        if not is_label.all():
            row = int(np.argwhere(~is_label)[0, 0])
            raise DataError(
                f"{where}: labels must be whole numbers, {place_of(row)} has "
                f"{values[row]!s}. For regression, set the task or leave out classes."
            )
    if values.size and values.dtype.kind in "uf" and values.max() >= 2**63:
        raise DataError(
            f"{where}: labels must be below 2**63, found {values.max()!s}. For "
            "regression, set the task or leave out classes."
        )
    labels = to_tensor(values.astype(np.int64))
    if classes is None:
        classes = max(int(labels.max()) + 1, 1) if labels.numel() else 1
        if task == "auto" and classes > max(len(labels), _PLAUSIBLE_CLASSES):
            raise DataError(
                f"{where}: whole numbers up to {classes - 1} in {len(labels)} samples "
                f"look like a quantity. {_ask(setting)}"
            )
    return Targets(labels, classes, None)


def _refuse_to_guess(values: NDArray[Any], where: str, setting: str) -> None:
    """Refuse numbers that may be labels or a quantity."""
    if values.ndim != 1 or values.dtype.kind == "b":
        return
    distinct = np.unique(values)
    are_few = len(distinct) <= _FEW_VALUES
    if values.dtype.kind in "iu":
        if are_few:
            return
        kind = f"{len(distinct)} different whole numbers"
    else:
        # A quantity seldom takes the same few whole values again and again.
        is_whole = bool(np.isfinite(distinct).all()) and bool(
            (distinct == np.floor(distinct)).all()
        )
        if not (is_whole and are_few and 1 < len(distinct) <= len(values) / 2):
            return
        kind = f"floating numbers that are all whole, {len(distinct)} different ones"
    shown = ", ".join(f"{value:g}" for value in distinct[:3])
    shown += ", ..." if len(distinct) > 3 else ""
    raise DataError(
        f"{where}: expected labels or a quantity, found {kind} ({shown}), which "
        f"may be either. {_ask(setting)}"
    )


def _ask(setting: str) -> str:
    return (
        f'Set {setting} = "classification" if they are labels, or {setting} = '
        '"regression" if they are a quantity.'
    )


def _read_text(
    values: NDArray[Any], task: Task, classes: int | None, where: str
) -> Targets:
    if task == "regression":
        raise DataError(
            f"{where}: a regression needs numbers, found text such as "
            f"{first_text(values)}. Convert it, or choose classification."
        )
    try:
        texts = values.astype(np.str_)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: expected text, found other bytes ({error}). Decode them first."
        ) from error
    names, codes = np.unique(texts, return_inverse=True)
    labels = to_tensor(codes.reshape(values.shape).astype(np.int64))
    if classes is not None and classes != len(names):
        raise DataError(
            f"{where}: {len(names)} different texts for {classes} classes. "
            "Number the labels yourself, or leave out the number of classes."
        )
    return Targets(labels, len(names), tuple(str(n) for n in names))


def first_text(values: NDArray[Any]) -> str:
    """The first of some texts, as a message shows it."""
    return shown(str(next(iter(values.flat), "")))


def to_numpy(values: ArrayLike | Tensor) -> NDArray[Any]:
    """An array of anything that holds numbers or text, on whatever device."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)


def to_tensor(values: NDArray[Any]) -> Tensor:
    """A tensor of an array, without a copy where that is possible."""
    # PyTorch knows no floating numbers of more than 64 bits.
    kind = np.dtype(np.float64) if values.dtype == np.longdouble else values.dtype
    native = values.astype(kind.newbyteorder("="), copy=False)
    if _is_mapped(native) and native.flags.c_contiguous:
        # Larger than memory, perhaps. A file that was opened for reading cannot be
        # written through the tensor either, whatever PyTorch warns of.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(native)
    # A read-only array would make a tensor that can be written all the same.
    return torch.from_numpy(np.require(native, requirements=["C", "W"]))


def _is_mapped(values: NDArray[Any]) -> bool:
    """Whether an array, or the one that it is a view of, lies in a mapped file."""
    base: object = values
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)


def read_input(values: ArrayLike | Tensor, where: str) -> Tensor:
    """One input as a tensor of a type that a dataset holds.

    Raises:
        DataError: The values are not numbers.
    """
    if isinstance(values, Tensor):
        tensor = values.detach().cpu()
    else:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise DataError(
                f"{where}: expected numbers, found {array.dtype}. Encode text and "
                "categories as numbers first."
            )
        if array.dtype == np.uint64 and (array > np.iinfo(np.int64).max).any():
            raise DataError(
                f"{where}: expected numbers below 2**63, found {array.max()}. Scale "
                "them, or convert them to floating numbers."
            )
        if array.dtype.kind in "iu" and array.dtype != np.uint8:
            array = array.astype(np.int64, copy=False)
        tensor = to_tensor(array)
    if 0 in tensor.shape[1:]:
        raise DataError(
            f"{where}: expected at least one number for each sample, found the shape "
            f"{tuple(tensor.shape)}."
        )
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8)
    if tensor.is_floating_point() or tensor.dtype == torch.uint8:
        return tensor
    return tensor.to(torch.int64)


def from_arrays(
    x: ArrayLike | Tensor | tuple[ArrayLike | Tensor, ...],
    y: ArrayLike | Tensor,
    *,
    clients: ArrayLike | Tensor | None = None,
    classes: int | None = None,
    task: Task = "auto",
    name: str = "arrays",
    shift: Levels = 0.0,
    scale: Levels = 1.0,
    standardise: bool = False,
    standardise_targets: bool = True,
    groups: Mapping[str, ArrayLike | Tensor] | None = None,
) -> Dataset:
    """A dataset from the user's own arrays, which are shared, not copied, if possible.

    Floating inputs keep their precision, uint8 stays uint8 and other whole numbers
    become int64. Floating targets mean regression unless `classes` is given; whole
    numbers and text are labels. Where numbers may be either, `task` must say it.

    Args:
        x: One array with a row per sample; a tuple of them for a model that takes
            several arguments.
        y: One target per sample.
        clients: Natural client of each sample, whole numbers or text.
        classes: Number of classes; the largest label + 1 if not given.
        task: What the targets are, where that cannot be seen.
        name: How messages call this dataset.
        shift: A uint8 input enters the model as (x - shift) / scale; one number, one
            per channel of images (N, channels, ...), or one for each number of a
            sample, such as a pixel.
        scale: See `shift`; 255 for ordinary images.
        standardise: Whether features enter the model with mean 0 and standard
            deviation 1, over the training samples of all clients.
        standardise_targets: Whether a regression learns standardised targets; scores
            and predictions are in the targets' own units all the same.
        groups: Tags of the samples by name, which a split can go by.

    Raises:
        DataError: The arrays contradict one another or hold unusable values.
    """
    return assemble(
        name,
        x if isinstance(x, tuple) else (x,),
        read_targets(
            y, task=task, classes=classes, where=f"{name}: targets", setting="task"
        ),
        owner=None if clients is None else to_numpy(clients),
        shift=shift,
        scale=scale,
        standardise=standardise,
        standardise_targets=standardise_targets,
        groups={tag: to_numpy(values) for tag, values in (groups or {}).items()},
    )


def assemble(
    name: str,
    inputs: Iterable[ArrayLike | Tensor],
    targets: Targets,
    **fields: Any,
) -> Dataset:
    """A dataset of these inputs and targets; `fields` are others of `Dataset`."""
    return Dataset(
        name=name,
        inputs=tuple(
            read_input(values, f"{name}: inputs[{i}]")
            for i, values in enumerate(inputs)
        ),
        targets=targets.values,
        classes=targets.classes,
        class_names=targets.class_names,
        **fields,
    )
