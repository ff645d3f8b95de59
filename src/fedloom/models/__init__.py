"""Models: ordinary modules without batch statistics, each of which names its `head`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from fedloom.models.audio_cnn import AudioCNN
from fedloom.models.cnn1d import CNN1D
from fedloom.models.cnn2 import CNN2
from fedloom.models.cnn6 import CNN6
from fedloom.models.lenet import LeNet
from fedloom.models.lstm import LSTM
from fedloom.models.mlp import MLP
from fedloom.models.mlr import MLR
from fedloom.models.resnet import ResNet18
from fedloom.models.transformer import Transformer

__all__ = [
    "CNN1D",
    "CNN2",
    "CNN6",
    "LSTM",
    "MLP",
    "MLR",
    "MODELS",
    "AudioCNN",
    "LeNet",
    "Model",
    "ResNet18",
    "TokenModel",
    "Transformer",
]


class Model(Protocol):
    """Settings of a model, which know how to build it."""

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The module for one sample of this shape; the caller seeds the generator."""
        ...


@runtime_checkable
class TokenModel(Model, Protocol):
    """Settings of a model that also reads sequences of tokens."""

    def build_for_tokens(
        self, tokens: int, outputs: int, vectors: Tensor | None
    ) -> nn.Module:
        """The module for token sequences, with fixed vectors where the data have any.

        Args:
            tokens: how many there are, from 0, which is padding.
            outputs: width of the output.
            vectors: (tokens, dim), to be kept as frozen parameters.
        """
        ...


MODELS: dict[str, type[Model]] = {
    "audio-cnn": AudioCNN,
    "cnn1d": CNN1D,
    "cnn2": CNN2,
    "cnn6": CNN6,
    "lenet": LeNet,
    "lstm": LSTM,
    "mlp": MLP,
    "mlr": MLR,
    "resnet18": ResNet18,
    "transformer": Transformer,
}
"""Every model by its name in a config."""
