"""The scale that a model learns on, and the way back to the units of the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Levels = float | tuple[float, ...]
"""One number for a whole sample, one per channel of (channels, ...), or one for each
number of a sample in their order."""


class Scaling(NamedTuple):
    """What puts samples on the scale that a model learns on.

    An input enters the model as `(x - shift) / scale`, and a number y is learned as
    `(y - target_shift) / target_scale`. These are data of a task: runs that differ in
    nothing else are trained in the same passes.
    """

    shift: float | Tensor = 0.0
    scale: float | Tensor = 1.0
    target_shift: float | Tensor = 0.0
    target_scale: float | Tensor = 1.0


def in_units(outputs: Tensor, shift: float | Tensor, scale: float | Tensor) -> Tensor:
    """Standardised numbers, (B, ...), in the units that they were standardised from."""
    scale = torch.as_tensor(scale, dtype=outputs.dtype, device=outputs.device)
    shift = torch.as_tensor(shift, dtype=outputs.dtype, device=outputs.device)
    if scale.dim():
        outputs = outputs.reshape(outputs.shape[0], *scale.shape)
    return outputs * scale + shift


def give_units(module: nn.Module, shift: float | Tensor, scale: float | Tensor) -> None:
    """Let a module that learned standardised numbers give them in their own units."""
    module.register_forward_hook(_InUnits(shift, scale))


@dataclass(frozen=True)
class _InUnits:
    """What is done to the outputs of a module; a class, so that it can be pickled."""

    shift: float | Tensor
    scale: float | Tensor

    def __call__(self, module: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
        return in_units(outputs, self.shift, self.scale)


def in_shape(levels: Levels, shape: tuple[int, ...]) -> Levels | Tensor:
    """One level for each number of a sample in the sample's shape; others as they are.

    Args:
        levels: what bytes are shifted or scaled by.
        shape: of one sample.
    """
    if isinstance(levels, tuple) and shape and len(levels) != shape[0]:
        return torch.tensor(levels, dtype=torch.float64).reshape(shape)
    return levels


def along(level: float | Tensor, x: Tensor) -> float | Tensor:
    """A level per channel as it lies along (B, C, ...); one per feature as it is."""
    if isinstance(level, Tensor) and level.dim() == 1:
        return level.reshape(-1, *[1] * (x.dim() - 2))
    return level
