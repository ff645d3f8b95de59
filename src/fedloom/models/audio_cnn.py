"""A convolutional network for spectrograms, as small devices listen with.

Self-FL's wake-word model is described as a stack of convolutional and max-pooling
layers, 11 in total, with about 3e6 parameters. Ours has seven convolutions of 3 x 3 and
four pools of 2 x 2, 11 in total, then a mean over the plane and the head: 3.07e6
parameters at the default width. Everything else about it is our choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, check
from fedloom.models.networks import PooledNetwork

SMALLEST = 16
"""Fewest bands and frames: four pools of 2 leave nothing of less."""


class Convolution(nn.Conv2d):
    """A convolution of 3 x 3 that keeps the size, drawn as He et al. (2015) do.

    PyTorch's own draw lets the signal fade: seven layers without normalisation then
    stand still for many epochs.
    """

    def __init__(self, depth: int, channels: int) -> None:
        super().__init__(depth, channels, 3, padding=1)

    def reset_parameters(self) -> None:
        """Draw the weights anew from torch's generator; biases become 0."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class SpectrogramNetwork(PooledNetwork):
    """One convolution and three pairs of them, a pool after each; a mean; the head."""

    def __init__(self, depth: int, width: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for stage in range(4):
            channels = width * 2**stage
            if stage > 0:
                layers += [Convolution(depth, channels), nn.ReLU()]
                depth = channels
            # The maximum and ReLU commute; pooling first leaves ReLU less to do.
            layers += [Convolution(depth, channels), nn.MaxPool2d(2), nn.ReLU()]
            depth = channels
        super().__init__(layers, depth, outputs)


@dataclass(frozen=True, kw_only=True)
class AudioCNN:
    """Convolutional network for spectrograms of at least 16 bands and 16 frames."""

    width: Count = 52
    """Filters of the first stage, doubled in each of the next three: 52 makes 3.07e6
    parameters, 8 makes 7.3e4."""

    def __post_init__(self) -> None:
        check(self)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one spectrogram of shape (channels, bands, frames).

        Raises:
            ConfigError: The input is not a spectrogram or too small.
        """
        if len(input_shape) != 3 or min(input_shape[1:]) < SMALLEST:
            raise ConfigError(
                f"audio-cnn: expected a spectrogram (channels, bands, frames) of at "
                f"least {SMALLEST} x {SMALLEST}, found shape {tuple(input_shape)}. "
                "Raise bands or lower hop_s of the data, or choose mlp."
            )
        return SpectrogramNetwork(input_shape[0], self.width, outputs)
