"""Fully connected layers with ReLU."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, check


class Perceptron(nn.Module):
    """Hidden layers in `body`, then the head."""

    def __init__(
        self,
        features: int,
        hidden: tuple[int, ...],
        outputs: int,
        *,
        normalised: bool = False,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in hidden:
            norm = [nn.LayerNorm(width)] if normalised else []
            layers += [nn.Linear(features, width), *norm, nn.ReLU()]
            features = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(features, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) to (B, outputs)."""
        out: Tensor = self.head(self.body(x.flatten(1)))
        return out


@dataclass(frozen=True, kw_only=True)
class MLP:
    """Multi-layer perceptron."""

    hidden: tuple[Count, ...] = (100,)
    """Width of each hidden layer."""
    normalised: bool = False
    """A LayerNorm after each hidden layer, which fedbn keeps personal."""

    def __post_init__(self) -> None:
        check(self)
        if not self.hidden:
            raise ConfigError("MLP: hidden is empty; for no hidden layer use mlr.")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one sample of this shape."""
        return Perceptron(
            math.prod(input_shape),
            tuple(self.hidden),
            outputs,
            normalised=self.normalised,
        )
