"""Fully connected layers with ReLU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, check
from fedloom.models.networks import LayeredNetwork, check_depth

_WIDE = 1000
"""Numbers of a sample beyond which layers are normalised by default."""


@dataclass(frozen=True, kw_only=True)
class MLP:
    """Multi-layer perceptron."""

    hidden: tuple[Count, ...] = (100,)
    """Width of each hidden layer."""
    normalised: bool | Literal["auto"] = "auto"
    """Whether a LayerNorm follows each hidden layer, which fedbn keeps personal. By
    default where samples have more than 1000 numbers: a step that suits a few of them
    is far too long for so many."""

    def __post_init__(self) -> None:
        check(self)
        if not self.hidden:
            raise ConfigError("MLP: hidden is empty; for no hidden layer use mlr.")
        check_depth(self.hidden, "MLP: hidden")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one sample of this shape."""
        width = math.prod(input_shape)
        is_normalised = self.normalised
        if is_normalised == "auto":
            is_normalised = width > _WIDE
        return LayeredNetwork((), width, self.hidden, outputs, normalised=is_normalised)
