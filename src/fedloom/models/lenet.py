"""LeNet-5 with ReLU and max pooling, for images of any number of channels."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedloom.core.errors import ConfigError, shown
from fedloom.core.settings import Count, check
from fedloom.models.images import image_shape
from fedloom.models.networks import LayeredNetwork, check_depth

SMALLEST = 16
"""Fewest pixels of a side: smaller images vanish in two convolutions and pools."""


class ConvolutionalNetwork(LayeredNetwork):
    """Two convolutions of 5 x 5, each with pooling; hidden layers; the head."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        channels: tuple[int, ...],
        hidden: tuple[int, ...],
        outputs: int,
    ) -> None:
        depth, height, width = shape
        layers: list[nn.Module] = []
        for filters in channels:
            # The maximum and ReLU commute; pooling first leaves ReLU less to do.
            layers += [nn.Conv2d(depth, filters, 5), nn.MaxPool2d(2), nn.ReLU()]
            depth = filters
        area = _shrunk(height) * _shrunk(width)
        super().__init__(layers, depth * area, hidden, outputs)


def _shrunk(side: int) -> int:
    """What two convolutions of 5 without padding and two pools of 2 leave of a side."""
    return ((side - 4) // 2 - 4) // 2


@dataclass(frozen=True, kw_only=True)
class LeNet:
    """LeNet for images of at least 16 x 16."""

    channels: tuple[Count, ...] = (6, 16)
    """Filters of the two convolutions; pFedVEM uses 16 and 32."""
    hidden: tuple[Count, ...] = (120, 84)
    """Width of each layer between the convolutions and the head."""

    def __post_init__(self) -> None:
        check(self)
        if len(self.channels) != 2:
            raise ConfigError(
                f"LeNet: channels must be two numbers, found {shown(self.channels)}."
            )
        check_depth(self.hidden, "LeNet: hidden")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one image of shape (channels, height, width).

        Raises:
            ConfigError: The input is not an image or too small.
        """
        shape = image_shape(input_shape, "lenet", SMALLEST)
        return ConvolutionalNetwork(
            shape, tuple(self.channels), tuple(self.hidden), outputs
        )
