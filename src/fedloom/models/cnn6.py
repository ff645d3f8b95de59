"""The six-layer convolutional network of pFedVEM for CIFAR-100."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, check
from fedloom.models.images import image_shape
from fedloom.models.networks import PooledNetwork, check_depth


class SixLayerNetwork(PooledNetwork):
    """Convolutions of 3 x 3, each but the last with pooling; global mean; the head."""

    def __init__(self, depth: int, channels: tuple[int, ...], outputs: int) -> None:
        layers: list[nn.Module] = []
        for place, filters in enumerate(channels, start=1):
            layers.append(nn.Conv2d(depth, filters, 3, padding=1))
            if place < len(channels):
                # The maximum and ReLU commute; padding is minus infinity to both.
                layers.append(nn.MaxPool2d(2, padding=1))
            layers.append(nn.ReLU())
            depth = filters
        super().__init__(layers, depth, outputs)


@dataclass(frozen=True, kw_only=True)
class CNN6:
    """pFedVEM's network for CIFAR-100, for images of any size."""

    channels: tuple[Count, ...] = (32, 64, 128, 256, 100)
    """Filters of the convolutions; the last are the features that the head sees."""

    def __post_init__(self) -> None:
        check(self)
        if not self.channels:
            raise ConfigError("CNN6: channels is empty; give at least one number.")
        check_depth(self.channels, "CNN6: channels")

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one image of shape (channels, height, width).

        Raises:
            ConfigError: The input is not an image.
        """
        depth, _, _ = image_shape(input_shape, "cnn6")
        return SixLayerNetwork(depth, tuple(self.channels), outputs)
