"""What standardises samples, from sums of every client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Moments(NamedTuple):
    """Client to server, at enrolment: what standardises samples over all clients."""

    mean: Tensor
    """(features,) mean over the client's training samples, float64."""
    variance: Tensor
    """(features,) mean squared distance to it; 0 where a feature never varies."""

    @classmethod
    def of(cls, rows: Tensor) -> Moments:
        """Of some samples, one row each."""
        rows = rows.double()
        varies = rows.amax(0) > rows.amin(0)
        return cls(
            mean=torch.where(varies, rows.mean(0), rows[0]),
            variance=torch.where(varies, rows.var(0, correction=0), 0.0),
        )

    @classmethod
    def pooled(cls, moments: Sequence[Moments], sizes: Tensor) -> Moments:
        """Over the samples of several clients, or of several teams.

        Args:
            moments: of each client.
            sizes: (M,) how many samples each has.
        """
        means, variances = (
            torch.stack(column) for column in zip(*moments, strict=True)
        )
        share = (sizes.double() / sizes.sum()).view(-1, *[1] * (means.dim() - 1))
        mean = (share * means).sum(0)
        variance = (share * (variances + (means - mean) ** 2)).sum(0)
        varies = (variances > 0).any(0) | (means != means[0]).any(0)
        return cls(
            mean=torch.where(varies, mean, means[0]),
            variance=torch.where(varies, variance, 0.0),
        )

    @property
    def constants(self) -> Tensor:
        """(2, features) mean and deviation; a feature that never varies has 1."""
        deviation = torch.where(self.variance > 0, self.variance.sqrt(), 1.0)
        return torch.stack([self.mean, deviation])
