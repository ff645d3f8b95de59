"""What the built-in networks have in common: features, hidden layers, and the head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from fedloom.core.errors import ConfigError

_DEEPEST = 1000
"""Most layers that a setting may list."""


def check_depth(layers: Sequence[int], setting: str) -> None:
    """Refuse a list of more layers than anybody means.

    Raises:
        ConfigError: There are too many.
    """
    if len(layers) > _DEEPEST:
        raise ConfigError(
            f"{setting} must list at most {_DEEPEST} layers, found {len(layers)}."
        )


class LayeredNetwork(nn.Module):
    """Features of the input, flattened, then hidden layers in `body`, then the head."""

    def __init__(
        self,
        features: Sequence[nn.Module],
        width: int,
        hidden: Sequence[int],
        outputs: int,
        *,
        normalised: bool = False,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        layers: list[nn.Module] = []
        for units in hidden:
            norm = [nn.LayerNorm(units)] if normalised else []
            layers += [nn.Linear(width, units), *norm, nn.ReLU()]
            width = units
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) to (B, outputs)."""
        out: Tensor = self.head(self.body(self.features(x).flatten(1)))
        return out


class PooledNetwork(nn.Module):
    """Features of an image, the mean of each over the plane, then the head."""

    def __init__(self, features: Sequence[nn.Module], depth: int, outputs: int) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.head = nn.Linear(depth, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, height, width) to (B, outputs)."""
        out: Tensor = self.head(self.features(x).mean((2, 3)))
        return out
