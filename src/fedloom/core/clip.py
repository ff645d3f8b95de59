"""Gradients that are no longer than a norm; those that are shorter keep their bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from fedloom.core import streams
from fedloom.core.records import leaves, map_record
from fedloom.core.streams import NoiseSource

T = TypeVar("T")


class PerSample(NamedTuple):
    """How gradients hide samples: each is shortened, and their sum gets noise."""

    clip: float
    """Largest norm of the gradient of one sample's loss."""
    noise: float
    """Standard deviation of the noise, in multiples of `clip`."""
    source: NoiseSource | None = None
    """Where the noise comes from; by default from the batch's key alone."""

    def mean(self, rows: Tensor, mask: Tensor, key: Tensor) -> Tensor:
        """(d,) the mean of shortened gradients, with noise in their sum.

        One that has a number that is not finite counts as zeros.

        Args:
            rows: (B, d) the gradient of each sample.
            mask: (B,) 1 for a sample, 0 for padding.
            key: the stream of the noise.
        """
        norms = torch.linalg.vector_norm(rows, dim=1)
        is_used = torch.isfinite(norms) & (mask > 0)
        factors = torch.where(is_used, (self.clip / norms).clamp(max=1.0), 0.0)
        rows = torch.where(is_used[:, None], rows, 0.0)
        total = (factors[:, None] * rows).sum(0)
        if self.noise:
            normal = streams.normal if self.source is None else self.source.normal
            drawn = normal(key, total.shape, total.dtype)
            total = total + self.noise * self.clip * drawn
        return total / mask.sum().clamp(min=1.0)


def clip_factor(parts: Iterable[Tensor], clip: float) -> Tensor:
    """What brings tensors, taken as one vector, down to the norm `clip`; 1 at most.

    The norm is that of the norms of the parts: compiled code takes the norm of each
    while it puts it into its place, which costs no pass over the vector.
    """
    norms = [torch.linalg.vector_norm(part) for part in parts]
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return torch.clamp(clip / norm, max=1.0)


def clipped(gradient: T, clip: float | None) -> T:
    """A gradient no longer than `clip`, all its tensors taken as one vector."""
    if clip is None:
        return gradient
    factor = clip_factor(leaves(gradient), clip)
    return map_record(lambda part: part * factor, gradient)
