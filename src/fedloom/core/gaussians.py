"""Gaussians with a diagonal covariance: a mean and a standard deviation each.

Where one is trained, it is kept as mean and spread, (2, d) or a pair: the standard
deviation is softplus(spread), so that every spread is allowed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedloom.core import streams
from fedloom.core.task import Batch

Pair = tuple[Tensor, Tensor]
"""Means and standard deviations, or means and spreads."""
NOISE = 1 << 32
"""Which stream below a batch's key draws come from; dropout takes 0, 1, 2, ..."""


def kl(mean: Tensor, scale: Tensor, prior_mean: Tensor, prior_scale: Tensor) -> Tensor:
    """KL(N(mean, scale^2) || N(prior_mean, prior_scale^2)), exact, a scalar.

    Args:
        mean: (d,).
        scale: (d,) standard deviations.
        prior_mean: (d,).
        prior_scale: (d,) standard deviations, or one for all coordinates.
    """
    ratio = scale / prior_scale
    shift = (mean - prior_mean) / prior_scale
    return (0.5 * (ratio.square() + shift.square() - 1.0) - torch.log(ratio)).sum()


def draw(mean: Tensor, scale: Tensor, key: Tensor, count: int) -> Tensor:
    """(count, d) draws by reparameterisation, a stream below `key` for each."""
    keys = streams.fold(key, torch.arange(count, device=key.device))
    noise = vmap(lambda k: streams.normal(k, mean.shape, mean.dtype))(keys)
    return mean + scale * noise


def noise_key(batch: Batch) -> Tensor:
    """The stream of what a step draws beside dropout."""
    return streams.fold(batch.key, NOISE)


def moments(gaussian: Tensor | Pair) -> Pair:
    """Means and standard deviations of a Gaussian kept as mean and spread."""
    return gaussian[0], F.softplus(gaussian[1])


def sample(gaussian: Tensor | Pair, key: Tensor, count: int) -> Tensor:
    """(count, d) draws from a Gaussian kept as mean and spread."""
    return draw(*moments(gaussian), key, count)


def settled(after: Tensor, before: Tensor) -> Pair:
    """A Gaussian after its training, or before it if that failed; and whether it did.

    It failed where any number is not finite: that never recovers.
    """
    failed = ~torch.isfinite(after).all()
    return torch.where(failed, before, after), failed


def variance_and_shift(gaussian: Pair, centre: Tensor) -> Pair:
    """Tr(Sigma), the total variance, and the squared distance of mean and `centre`."""
    mean, scale = moments(gaussian)
    return scale.square().sum(), (mean - centre).square().sum()


def spreads(mean: Tensor, scale: float) -> Tensor:
    """Spreads for a mean, all of the same standard deviation."""
    return torch.full_like(mean, softplus_inverse(scale))


def softplus_inverse(value: float) -> float:
    """The number whose softplus, log(1 + exp(.)), is `value`; it must be positive."""
    return value + math.log(-math.expm1(-value))
