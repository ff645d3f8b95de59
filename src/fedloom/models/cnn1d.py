"""A convolutional network for signals: sound, heart beats, motion."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, check
from fedloom.models.networks import check_depth


class Convolution(nn.Conv1d):
    """A convolution that keeps the length, drawn as He et al. (2015) do.

    PyTorch's own draw lets the signal fade from layer to layer.
    """

    def __init__(self, depth: int, channels: int, kernel: int) -> None:
        super().__init__(depth, channels, kernel, padding=kernel // 2)

    def reset_parameters(self) -> None:
        """Draw the weights anew from torch's generator; biases become 0."""
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class SignalNetwork(nn.Module):
    """Convolutions, a pool of 2 after each; the mean over time; the head."""

    def __init__(
        self, depth: int, channels: tuple[int, ...], kernel: int, outputs: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for filters in channels:
            # The maximum and ReLU commute; pooling first leaves ReLU less to do.
            layers += [Convolution(depth, filters, kernel), nn.MaxPool1d(2), nn.ReLU()]
            depth = filters
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(depth, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, samples), or (B, samples) of one channel, to (B, outputs)."""
        if x.dim() == 2:
            x = x.unsqueeze(1)
        out: Tensor = self.head(self.features(x).mean(2))
        return out


@dataclass(frozen=True, kw_only=True)
class CNN1D:
    """Convolutional network for signals of any length, (channels, samples).

    A table of numbers is taken for signals of one channel, column after column in time.
    """

    channels: tuple[Count, ...] = (32, 64, 128)
    """Filters of the convolutions; a pool after each halves the length."""
    kernel: Count = 7
    """Samples that a filter sees at a time, an odd number."""

    def __post_init__(self) -> None:
        check(self)
        if not self.channels:
            raise ConfigError("CNN1D: channels is empty; give at least one number.")
        check_depth(self.channels, "CNN1D: channels")
        if self.kernel % 2 == 0:
            raise ConfigError(
                f"CNN1D: kernel must be odd, so that a filter has a middle; found "
                f"{self.kernel}. Give {self.kernel + 1}."
            )

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one signal of shape (channels, samples), or (samples,).

        Raises:
            ConfigError: The input is no signal, or too short for so many pools.
        """
        shortest = 2 ** len(self.channels)
        if len(input_shape) not in (1, 2) or input_shape[-1] < shortest:
            raise ConfigError(
                f"cnn1d: expected a signal (channels, samples) of at least {shortest} "
                f"samples, found shape {tuple(input_shape)}. Give fewer channels "
                "(--set model.channels=[32]), or choose mlr or mlp."
            )
        depth = input_shape[0] if len(input_shape) == 2 else 1
        return SignalNetwork(depth, tuple(self.channels), self.kernel, outputs)
