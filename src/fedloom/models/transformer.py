"""A small transformer (Vaswani et al., 2017) that reads a sequence and says one thing.

Normalisation comes first in every block (Xiong et al., 2020), so that no warm-up of the
learning rate is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, Interval, SmallCount, check

PADDING = 0
"""The token that fills up short sequences; nobody attends to it."""


class Block(nn.Module):
    """Attention among the places of a sequence, then two layers for each place."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_before_layers = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, attended: Tensor | None) -> Tensor:
        """(B, T, width) to the same.

        Args:
            x: a batch of sequences.
            attended: (B, 1, 1, T) the places that may be attended to; None for all.
        """
        joint = self.query_key_value(self.norm_before_attention(x))
        parts = joint.unflatten(-1, (3, self.heads, -1)).unbind(-3)
        query, key, value = (part.transpose(-3, -2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, attended)
        x = x + self.dropout(self.mix(mixed.transpose(-3, -2).flatten(-2)))
        out: Tensor = x + self.dropout(self.layers(self.norm_before_layers(x)))
        return out


class TransformerNetwork(nn.Module):
    """Tokens or numbers with their places, blocks, the mean over places, the head.

    A sequence of nothing but padding has a mean of 0.
    """

    def __init__(
        self,
        embedding: nn.Embedding | None,
        features: int,
        settings: Transformer,
        outputs: int,
    ) -> None:
        super().__init__()
        width = settings.width
        self.embedding = embedding
        fits = embedding is not None and features == width
        self.enter = nn.Identity() if fits else nn.Linear(features, width)
        self.blocks = nn.ModuleList(
            Block(width, settings.heads, settings.hidden, settings.dropout)
            for _ in range(settings.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T) tokens or (B, T, features) numbers to (B, outputs)."""
        if self.embedding is None:
            is_real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
            attended = None
        else:
            is_real = x != PADDING
            # Where all is padding it attends to itself: a softmax needs something.
            attended = is_real | ~is_real.any(1, keepdim=True)
            attended = attended[:, None, None, :]
            x = self.embedding(x)
        x = self.enter(x)
        # Places count from the first real one, so that padding before it moves nothing.
        x = x + places(is_real.cumsum(1) - 1, x.shape[-1]).to(x.dtype)
        for block in self.blocks:
            x = block(x, attended)
        real = is_real[..., None].to(x.dtype)
        mean = (self.norm(x) * real).sum(1) / real.sum(1).clamp(min=1.0)
        out: Tensor = self.head(mean)
        return out


def places(numbers: Tensor, width: int) -> Tensor:
    """(..., width) sines and cosines that say at which place something stands.

    Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/width)), PE(pos, 2i+1) = cos(same);
    here all sines come first, then all cosines.
    """
    step = -math.log(10_000.0) * 2 / width
    rates = (step * torch.arange((width + 1) // 2, device=numbers.device)).exp()
    angles = numbers[..., None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width]


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """Blocks of self-attention over tokens or over steps of numbers, one linear layer.

    Token 0 is padding, which nobody attends to. Where the data bring a vector for every
    token, these are used and stay fixed: they are not sent and not trained.
    """

    layers: SmallCount = 2
    """How many blocks lie on one another."""
    width: Count = 64
    """Numbers that stand for each place of a sequence."""
    heads: Count = 4
    """How many ways of attending a block has; they share the width, so they must divide
    it."""
    hidden: Count = 128
    """Width of the hidden layer of each block."""
    dropout: Annotated[float, Interval(least=0.0, below=1.0)] = 0.0
    """Share of what a block adds that is dropped in training."""
    trains_embedding: bool = True
    """Whether what stands for tokens is trained and sent; if not, it stays as drawn."""

    def __post_init__(self) -> None:
        check(self)
        if self.width % self.heads:
            raise ConfigError(
                f"Transformer: heads must divide width, found {self.heads} and "
                f"{self.width}."
            )

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one sequence of shape (steps, features).

        Raises:
            ConfigError: The input is no sequence.
        """
        if len(input_shape) != 2:
            raise ConfigError(
                "transformer: expected tokens or a sequence of numbers (steps, "
                f"features), found shape {tuple(input_shape)}. Choose mlr or mlp."
            )
        return TransformerNetwork(None, input_shape[1], self, outputs)

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
        return TransformerNetwork(embedding, embedding.embedding_dim, self, outputs)
