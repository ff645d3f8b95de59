"""An exported folder back to a module; its files may come from anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from fedloom.config import read_toml
from fedloom.core.errors import (
    ConfigError,
    DataError,
    MessageError,
    shown,
    unknown,
)
from fedloom.core.scaling import give_units
from fedloom.core.settings import LARGEST, Count, build, check
from fedloom.models import MODELS, TokenModel
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


def load_model(folder: str | Path) -> nn.Module:
    """A built-in model from an exported folder, ready to predict.

    It takes inputs as numbers: the preparation in model.toml is not part of it. What it
    gives of a regression is in the target's own units.

    Raises:
        ConfigError: the model is a class of its maker's own, which only they can build,
            or would not fit in memory.
        DataError: there is no exported model.
        MessageError: the files are damaged or do not belong together.
    """
    weights, tables = Path(folder) / WEIGHTS, Path(folder) / TABLES
    if not (weights.is_file() and tables.is_file()):
        raise DataError(f"{folder}: holds no exported model ({WEIGHTS} and {TABLES}).")
    values = read_toml(tables)
    if values.get("format") != FORMAT:
        raise MessageError(
            f"{tables}: format is {shown(values.get('format'))}, expected {FORMAT!r}."
        )
    top = build(_Top, values, str(tables))
    output = build(_Output, top.output, f"{tables} [output]")
    make = _maker(top, output, tables)
    _refuse_other_shapes(foresee(make, f"{tables}: the model"), weights)
    module = make().to(getattr(torch, top.dtype))
    try:
        module.load_state_dict(load_file(weights))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise MessageError(f"{weights}: does not fit {TABLES} ({error}).") from error
    if output.shift is not None and output.scale is not None:
        levels = (torch.tensor(level) for level in (output.shift, output.scale))
        give_units(module, *levels)
    return module.eval()


def _maker(top: _Top, output: _Output, path: Path) -> Callable[[], nn.Module]:
    """What builds the module that model.toml describes."""
    settings, where = dict(top.model), f"{path} [model]"
    if "class" in settings:
        raise ConfigError(
            f"{where}: the model is {str(settings['class'])[:100]}, a class of its "
            "maker's own. Build it and load model.safetensors; README.md shows how."
        )
    name = settings.pop("name", None)
    if not isinstance(name, str) or name not in MODELS:
        raise ConfigError(f"{where}: {unknown('model', name, MODELS)}")
    model = build(MODELS[name], settings, where)
    inputs = build(_Input, top.input, f"{path} [input]")
    tokens, shape = inputs.tokens, inputs.vectors
    if tokens is None or not isinstance(model, TokenModel):
        return partial(model.build, inputs.shape, output.outputs)
    if shape is not None and len(shape) != 2:
        raise MessageError(
            f"{path} [input]: vectors must be two numbers, found {shown(shape)}."
        )
    # The vectors themselves are in the state dict.
    return lambda: model.build_for_tokens(
        tokens, output.outputs, None if shape is None else torch.zeros(*shape)
    )


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
