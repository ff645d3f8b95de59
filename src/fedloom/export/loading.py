"""An exported folder back to a module; its files may come from anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from fedloom.config import read_toml
from fedloom.core.errors import (
    ConfigError,
    DataError,
    MessageError,
    shown,
    unknown,
)
from fedloom.core.pretrained import output_of
from fedloom.core.reprs import without_values
from fedloom.core.scaling import give_units
from fedloom.core.settings import LARGEST, Count, build, check
from fedloom.data.dataset import Dataset
from fedloom.data.sample_format import SampleFormat
from fedloom.export.listing import refuse_changed
from fedloom.models import MODELS, Model, TokenModel
from fedloom.models.imported import ImportedModel, is_imported
from fedloom.models.sizes import foresee

FORMAT = "fedloom-model-1"
"""What model.toml says that it is."""

WEIGHTS, TABLES = "model.safetensors", "model.toml"

_Level = float | tuple[float, ...] | None


class _Table:
    """A section of model.toml, checked against its annotations."""

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, kw_only=True)
class _Input(_Table):
    """What goes in."""

    shape: tuple[Count, ...]
    types: tuple[str, ...] = ()
    shift: _Level = None
    scale: _Level = None
    features: tuple[str, ...] | None = None
    tokens: Count | None = None
    vectors: tuple[Count, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shape or math.prod(self.shape) > LARGEST:
            raise ConfigError(
                f"shape must have 1 to {LARGEST} places, found {shown(self.shape)}."
            )


@dataclass(frozen=True, kw_only=True)
class _Output(_Table):
    """What comes out."""

    outputs: Count
    task: Literal["regression", "classification"]
    classes: tuple[str, ...] | None = None
    shift: _Level = None
    scale: _Level = None


@dataclass(frozen=True, kw_only=True)
class _Top(_Table):
    """What stands above the sections."""

    format: str
    kind: str
    client: str
    dtype: Literal["float32", "float64"]
    model: dict[str, Any]
    input: dict[str, Any]
    output: dict[str, Any]
    run: dict[str, Any] = field(default_factory=dict)


def load_model(folder: str | Path, model: str | None = None) -> nn.Module:
    """A model from an exported folder, ready to predict.

    It takes inputs as numbers: the preparation in model.toml is not part of it. What it
    gives of a regression is in the target's own units.

    Args:
        folder: as an export wrote it.
        model: where a module of one's own is, such as my_module.py:Net. A folder may
            come from anywhere, so that what it names is never imported by itself.

    Raises:
        ConfigError: the model is a class of its maker's own, which is not given, or
            would not fit in memory.
        DataError: there is no exported model.
        MessageError: the files are damaged or do not belong together.
    """
    return load_exported(Path(folder), model).module


@without_values
@dataclass(frozen=True, eq=False)
class LoadedModel:
    """An exported model with what its samples are like, ready to predict."""

    module: nn.Module
    like: Dataset
    """One sample that says nothing, of the kind that the model takes."""
    shift: Tensor
    scale: Tensor
    """What inputs are prepared with, in a shape that lies along them."""
    dtype: torch.dtype

    def on(self, device: torch.device) -> LoadedModel:
        """The same model on a device, which predicts there."""
        shift, scale = self.shift.to(device), self.scale.to(device)
        return replace(self, module=self.module.to(device), shift=shift, scale=scale)

    def predict(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Probabilities of the classes; for a regression, the predicted numbers.

        Args:
            inputs: as `fedloom.data.new_samples.inputs_like` gives them.
        """
        inputs = tuple(x.to(self.shift.device) for x in inputs)
        ready = [
            (x.to(self.dtype) - self.shift) / self.scale
            if like.dtype != torch.int64
            else x
            for x, like in zip(inputs, self.like.inputs, strict=True)
        ]
        with torch.no_grad():
            outputs = output_of(self.module(*ready))
        return outputs if self.like.classes is None else outputs.softmax(1)


def load_exported(folder: Path, model: str | None = None) -> LoadedModel:
    """What `load_model` gives, and what it takes; see there for what is refused."""
    weights, tables = folder / WEIGHTS, folder / TABLES
    if not (weights.is_file() and tables.is_file()):
        raise DataError(f"{folder}: holds no exported model ({WEIGHTS} and {TABLES}).")
    refuse_changed(folder, WEIGHTS, TABLES)
    values = read_toml(tables)
    if values.get("format") != FORMAT:
        raise MessageError(
            f"{tables}: format is {shown(values.get('format'))}, expected {FORMAT!r}."
        )
    top = build(_Top, values, str(tables))
    output = build(_Output, top.output, f"{tables} [output]")
    _refuse_classes(output, tables)
    make, is_built_in = _maker(top, output, tables, model)
    if is_built_in:
        _refuse_other_shapes(foresee(make, f"{tables}: the model"), weights)
    module = make().to(getattr(torch, top.dtype))
    try:
        module.load_state_dict(load_file(weights))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise MessageError(f"{weights}: does not fit {TABLES} ({error}).") from error
    if output.shift is not None and output.scale is not None:
        units = [torch.tensor(level) for level in (output.shift, output.scale)]
        if not bool((units[1] > 0).all()):
            raise MessageError(f"{tables} [output]: scale must be above 0.")
        if any(level.numel() not in (1, output.outputs) for level in units):
            raise MessageError(
                f"{tables} [output]: shift and scale must be one number or one for "
                f"each of the {output.outputs} outputs, found "
                f"{[level.numel() for level in units]} of them."
            )
        give_units(module, *units)
    dtype = getattr(torch, top.dtype)
    inputs = build(_Input, top.input, f"{tables} [input]")
    return LoadedModel(
        module=module.eval(),
        like=_sample_like(inputs, output, tables),
        shift=_along(inputs.shift, inputs.shape, 0.0, tables).to(dtype),
        scale=_positive(_along(inputs.scale, inputs.shape, 1.0, tables), tables).to(
            dtype
        ),
        dtype=dtype,
    )


def _refuse_classes(output: _Output, path: Path) -> None:
    """Refuse names of classes that are not as many different ones as can come out."""
    names = output.classes or ()
    if len(set(names)) < len(names) or len(names) > output.outputs:
        raise MessageError(
            f"{path} [output]: classes must be at most {output.outputs} different "
            f"names, found {shown(list(names))}."
        )


def _sample_like(inputs: _Input, output: _Output, path: Path) -> Dataset:
    """A sample of the kind that a model takes."""
    is_regression = output.task == "regression"
    types = inputs.types or ("float32",)
    target_shape = (1, output.outputs) if is_regression and output.outputs > 1 else (1,)
    classes = None if is_regression else output.outputs
    if output.classes is not None:
        classes = len(output.classes)
    sample_format = SampleFormat(
        inputs=tuple((word, inputs.shape) for word in types),
        target=("float32" if is_regression else "int64", target_shape[1:]),
        classes=classes,
        class_names=output.classes,
        tokens=inputs.tokens,
        vectors=None,
        shift=0.0,
        scale=1.0,
        standardise=False,
        standardise_targets=False,
        features=inputs.features,
    )
    try:
        return sample_format.blank()
    except KeyError as error:
        raise MessageError(
            f"{path} [input]: types must be those of samples, found {error}."
        ) from error


def _positive(scale: Tensor, path: Path) -> Tensor:
    """A scale that can be divided by."""
    if not bool((scale > 0).all()):
        raise MessageError(f"{path} [input]: scale must be above 0.")
    return scale


def _along(
    level: _Level, shape: tuple[int, ...], default: float, path: Path
) -> torch.Tensor:
    """A shift or scale in a shape that lies along samples: one, by channel, or all."""
    if level is None:
        return torch.tensor(default)
    values = torch.tensor(level, dtype=torch.float64)
    if values.dim() == 0 or tuple(values.shape) == shape:
        return values
    if len(values) == shape[0]:
        return values.reshape(-1, *[1] * (len(shape) - 1))
    if len(values) == math.prod(shape):
        return values.reshape(shape)
    raise MessageError(
        f"{path} [input]: shift and scale must be one number, one for each channel or "
        f"one for each of the {math.prod(shape)} places, found {len(values)}."
    )


def _maker(
    top: _Top, output: _Output, path: Path, own: str | None
) -> tuple[Callable[[], nn.Module], bool]:
    """What builds the module that model.toml describes; whether it is a built-in one.

    Args:
        top: all of model.toml.
        output: what comes out.
        path: of model.toml.
        own: where the user says that a module of their own is.
    """
    settings, where = dict(top.model), f"{path} [model]"
    if "class" in settings:
        raise ConfigError(
            f"{where}: the model is {str(settings['class'])[:100]}, a class of its "
            "maker's own. Build it and load model.safetensors; README.md shows how."
        )
    name = settings.pop("name", None)
    model: Model
    if is_imported(name):
        if own is None or not is_imported(own):
            raise ConfigError(
                f"{where}: the model is {shown(name)}, a module of its maker's own, "
                "which is imported only if you say so. Say where it is: --model "
                f"{name}, or load_model(folder, {name!r})."
            )
        table = {"name": own, "digest": settings.pop("digest", None), **settings}
        model = ImportedModel.from_table(table, where)
    elif own is not None:
        raise ConfigError(
            f"{where}: the model is a built-in one, {shown(name)}. Leave --model out."
        )
    elif not isinstance(name, str) or name not in MODELS:
        raise ConfigError(f"{where}: {unknown('model', name, MODELS)}")
    else:
        model = build(MODELS[name], settings, where)
    is_built_in = own is None
    inputs = build(_Input, top.input, f"{path} [input]")
    tokens, shape = inputs.tokens, inputs.vectors
    if tokens is None or not isinstance(model, TokenModel):
        return partial(model.build, inputs.shape, output.outputs), is_built_in
    if shape is not None and len(shape) != 2:
        raise MessageError(
            f"{path} [input]: vectors must be two numbers, found {shown(shape)}."
        )
    # The vectors themselves are in the state dict.
    vectors = None if shape is None else torch.zeros(*shape)
    make = partial(model.build_for_tokens, tokens, output.outputs, vectors)
    return make, is_built_in


def _refuse_other_shapes(expected: Mapping[str, torch.Size], weights: Path) -> None:
    """Refuse weights of another model before memory is taken for either."""
    try:
        with safe_open(weights, framework="pt") as file:
            held = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise MessageError(f"{weights}: not a whole file ({error}).") from error
    for name in dict.fromkeys((*expected, *held)):
        shapes = [
            str(list(of[name])) if name in of else "nothing" for of in (expected, held)
        ]
        if shapes[0] != shapes[1]:
            raise MessageError(
                f"{weights}: does not fit {TABLES}, which asks for {shapes[0]} as "
                f"{shown(name)}; found {shapes[1]}."
            )
