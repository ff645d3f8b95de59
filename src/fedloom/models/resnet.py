"""ResNet-18 with group normalisation, which needs no statistics of a batch.

He, Zhang, Ren, Sun. CVPR 2016. Wu, He. ECCV 2018, for the normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, check
from fedloom.models.images import image_shape
from fedloom.models.networks import PooledNetwork

STAGES = 4
BLOCKS = 2
"""Residual blocks of a stage; two convolutions each."""


class ResidualBlock(nn.Module):
    """Two convolutions of 3 x 3 around a short cut."""

    def __init__(self, depth: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(depth, width, 3, stride, padding=1, bias=False),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(groups, width),
        )
        self.shortcut = nn.Sequential()
        if stride > 1 or depth != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(depth, width, 1, stride, bias=False),
                nn.GroupNorm(groups, width),
            )

    def forward(self, x: Tensor) -> Tensor:
        """(B, depth, height, width) to (B, width, height / stride, width / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


class ResidualNetwork(PooledNetwork):
    """A stem, four stages of two blocks, global mean, the head."""

    def __init__(
        self, depth: int, width: int, groups: int, stem: str, outputs: int
    ) -> None:
        side, stride = (3, 1) if stem == "small" else (7, 2)
        layers: list[nn.Module] = [
            nn.Conv2d(depth, width, side, stride, padding=side // 2, bias=False),
            nn.GroupNorm(groups, width),
            nn.ReLU(),
        ]
        if stem == "large":
            layers.append(nn.MaxPool2d(3, 2, padding=1))
        depth = width
        for stage in range(STAGES):
            for block in range(BLOCKS):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append(ResidualBlock(depth, width << stage, stride, groups))
                depth = width << stage
        super().__init__(layers, depth, outputs)


@dataclass(frozen=True, kw_only=True)
class ResNet18:
    """ResNet-18 with group normalisation, for images of any size."""

    stem: Literal["small", "large"] = "small"
    """What the first layers are: one convolution of 3 x 3 (CIFAR), or 7 x 7 and
    pooling, which shrink an image four times (ImageNet)."""
    width: Count = 64
    """Filters of the first stage; each next stage has twice as many."""
    groups: Count = 32
    """Groups of channels that are normalised together; a divisor of `width`."""

    def __post_init__(self) -> None:
        check(self)
        if self.width % self.groups:
            raise ConfigError(
                f"ResNet18: groups must divide width, found {self.groups} and "
                f"{self.width}."
            )

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one image of shape (channels, height, width).

        Raises:
            ConfigError: The input is not an image.
        """
        depth, _, _ = image_shape(input_shape, "resnet18")
        return ResidualNetwork(depth, self.width, self.groups, self.stem, outputs)
