"""Long short-term memory (Hochreiter, Schmidhuber, 1997), batched over clients.

PyTorch's own `nn.LSTM` is one opaque operation that cannot be batched over clients.
This one can, with the same parameters, start and results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, SmallCount, check
from fedloom.models.recurrence import recur

PADDING = 0
"""The token that fills up short sequences; the state passes it unchanged."""


class Recurrence(nn.Module):
    """One layer: the state after every step of a sequence."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        # Gates in PyTorch's order: input, forget, cell, output.
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden, features))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden))
        self.bias_hh = nn.Parameter(torch.empty(4 * hidden))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters from U(-1/sqrt(hidden), 1/sqrt(hidden)), as PyTorch."""
        bound = 1.0 / math.sqrt(self.hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: Tensor, is_real: Tensor | None) -> Tensor:
        """(B, T, features) to (B, T, hidden).

        Args:
            x: a batch of sequences.
            is_real: (B, T) False where a step is padding; None if none is.
        """
        # What the inputs contribute does not wait for the state: one product for all.
        inputs = F.linear(x, self.weight_ih, self.bias_ih)
        if is_real is None:
            is_real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        states: Tensor = recur(inputs, self.weight_hh, self.bias_hh, is_real)
        return states


class RecurrentNetwork(nn.Module):
    """Perhaps an embedding, then layers of recurrence, then the head on the last state.

    A sequence of nothing but padding leaves the state at 0.
    """

    def __init__(
        self,
        embedding: nn.Embedding | None,
        features: int,
        hidden: int,
        layers: int,
        outputs: int,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.layers = nn.ModuleList(
            Recurrence(hidden if layer else features, hidden) for layer in range(layers)
        )
        self.head = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T) tokens or (B, T, features) numbers to (B, outputs)."""
        is_real = None
        if self.embedding is not None:
            is_real = x != PADDING
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, is_real)
        out: Tensor = self.head(x[:, -1])
        return out


@dataclass(frozen=True, kw_only=True)
class LSTM:
    """Layers of LSTM over tokens or over steps of numbers, and one linear layer.

    Token 0 is padding and leaves the state as it is. Where the data bring a vector for
    every token, these are used and stay fixed: they are not sent and not trained.
    """

    layers: SmallCount = 2
    """How many LSTM layers lie on one another."""
    hidden: Count = 256
    """Width of the state of each layer."""
    width: Count = 8
    """Numbers that stand for a token, if the data bring no vectors."""
    trains_embedding: bool = True
    """Whether those numbers are trained and sent; if not, they stay as drawn."""

    def __post_init__(self) -> None:
        check(self)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one sequence of shape (steps, features).

        Raises:
            ConfigError: The input is no sequence.
        """
        if len(input_shape) != 2:
            raise ConfigError(
                "lstm: expected tokens or a sequence of numbers (steps, features), "
                f"found shape {tuple(input_shape)}. Choose mlr or mlp."
            )
        features = input_shape[1]
        return RecurrentNetwork(None, features, self.hidden, self.layers, outputs)

    def build_for_tokens(
        self, tokens: int, outputs: int, vectors: Tensor | None = None
    ) -> nn.Module:
        """The model for sequences of tokens.

        Args:
            tokens: how many there are, from 0, which is padding.
            outputs: width of the output.
            vectors: (tokens, dim), kept as frozen parameters.
        """
        if vectors is not None:
            embedding = nn.Embedding(*vectors.shape)
            embedding.weight = nn.Parameter(vectors.clone(), requires_grad=False)
        else:
            embedding = nn.Embedding(tokens, self.width)
            embedding.requires_grad_(self.trains_embedding)
        return RecurrentNetwork(
            embedding, embedding.embedding_dim, self.hidden, self.layers, outputs
        )
