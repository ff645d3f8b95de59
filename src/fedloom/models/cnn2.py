"""The two-layer convolutional network of pFedMe, and of pFedMT after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from fedloom.core.errors import ConfigError, shown
from fedloom.core.settings import Count, Interval, check
from fedloom.models.images import image_shape
from fedloom.models.networks import LayeredNetwork

SMALLEST = 5
"""Fewest pixels of a side: convolutions and pools take four away."""


class TwoLayerNetwork(LayeredNetwork):
    """Two convolutions of 2 x 2 with pooling of stride 1; a wide layer; the head."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        channels: tuple[int, ...],
        hidden: int,
        dropout: tuple[float, ...],
        outputs: int,
    ) -> None:
        depth, height, width = shape
        layers: list[nn.Module] = []
        for filters, rate in zip(channels, dropout, strict=True):
            # The maximum and ReLU commute.
            layers += [nn.Conv2d(depth, filters, 2), nn.MaxPool2d(2, 1), nn.ReLU()]
            if rate > 0:
                layers.append(nn.Dropout(rate))
            depth = filters
        area = (height - 4) * (width - 4)
        super().__init__(layers, depth * area, (hidden,), outputs)


@dataclass(frozen=True, kw_only=True)
class CNN2:
    """pFedMe's convolutional network for MNIST: wide, 2.4 million parameters."""

    channels: tuple[Count, ...] = (16, 32)
    """Filters of the two convolutions."""
    hidden: Count = 128
    """Width of the layer before the head."""
    dropout: tuple[Annotated[float, Interval(least=0.0, below=1.0)], ...] = (0.0, 0.0)
    """Share dropped after each pooling: pFedMe has 0.25 and 0.5, its successor none."""

    def __post_init__(self) -> None:
        check(self)
        if len(self.channels) != 2 or len(self.dropout) != 2:
            raise ConfigError(
                "CNN2: channels and dropout must be two numbers each, found "
                f"{shown(self.channels)} and {shown(self.dropout)}."
            )

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one image of shape (channels, height, width).

        Raises:
            ConfigError: The input is not an image or too small.
        """
        shape = image_shape(input_shape, "cnn2", SMALLEST)
        return TwoLayerNetwork(
            shape, tuple(self.channels), self.hidden, tuple(self.dropout), outputs
        )
