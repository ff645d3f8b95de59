"""Models: ordinary modules without batch statistics, each of which names its `head`."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from fedloom.models.audio_cnn import AudioCNN
from fedloom.models.lenet import LeNet
from fedloom.models.mlp import MLP
from fedloom.models.mlr import MLR

__all__ = ["MLP", "MLR", "MODELS", "AudioCNN", "LeNet", "Model"]


class Model(Protocol):
    """Settings of a model, which know how to build it."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The module for one sample of this shape; the caller seeds the generator."""
        ...


MODELS: dict[str, type[Model]] = {
    "audio-cnn": AudioCNN,
    "lenet": LeNet,
    "mlp": MLP,
    "mlr": MLR,
}
"""Every model by its name in a config."""
