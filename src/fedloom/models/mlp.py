"""Fully connected layers with ReLU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, check
from fedloom.models.networks import LayeredNetwork, check_depth


@dataclass(frozen=True, kw_only=True)
class MLP:
    """Multi-layer perceptron."""

    hidden: tuple[Count, ...] = (100,)
    """Width of each hidden layer."""
    normalised: bool = False
    """Whether a LayerNorm follows each hidden layer, which fedbn keeps personal."""

    def __post_init__(self) -> None:
        check(self)
        if not self.hidden:
            raise ConfigError("MLP: hidden is empty; for no hidden layer use mlr.")
        check_depth(self.hidden, "MLP: hidden")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one sample of this shape."""
        width = math.prod(input_shape)
        return LayeredNetwork(
            (), width, self.hidden, outputs, normalised=self.normalised
        )
