"""Gaussians with a diagonal covariance: a mean and a standard deviation each."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core import streams


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


def softplus_inverse(value: float) -> float:
    """The number whose softplus, log(1 + exp(.)), is `value`; it must be positive."""
    return value + math.log(-math.expm1(-value))
