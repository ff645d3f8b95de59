"""Self-FL by sums alone: a round is weighed by sigma_0^2 of the round before.

As printed, sigma_0^2 of the models of a round weighs that same round, Eqs. (11) and
(14), so that the server must see every model. Here a client weighs itself when it is
done, by what it was sent, and adds up to

    Summand.change   w (theta_m - theta)          Summand.weight   w
    Summand.square   w ||theta_m - theta||^2      Summand.ratio    s_m / (s_0 + s_m)
    Summand.warm     1 if s_m rests on enough models, else 0

with s_0 = sigma_0^2 of the round before and s_m = sigma_m^2. w is the precision over
twice that of a client of mean variance, and at most 1: weights that are not relative to
the mean would sink below any noise. sigma_0^2 is the variance weighted by w. From the
ratios follows the mean variance, which is all that is kept of the clients: S_m counts
every other client with it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.algorithms.self_fl.uncertainty import TINY, Normalise, Report, is_warm
from fedloom.core.errors import ConfigError
from fedloom.core.sums import Share, Square, Vector, over

WeighBy = Literal["round", "last"]
"""Whose sigma_0^2 weighs a round."""

_NEARLY_ONE = 1.0 - 1e-6


def refuse_other_divisors(name: str, by: WeighBy, normalise: Normalise) -> None:
    """Refuse a divisor of the variance that sums do not give.

    Raises:
        ConfigError: It is another one than n.
    """
    if by == "last" and normalise != "n":
        raise ConfigError(
            f'{name}: weigh_by = "last" takes variances over n, for sums give no '
            f"others; found normalise = {normalise!r}. Leave normalise out."
        )


class Summand(NamedTuple):
    """What one client adds; see the head of this file."""

    change: Vector[Tensor]
    weight: Share[Tensor]
    square: Square[Tensor]
    ratio: Share[Tensor]
    warm: Share[Tensor]


class Estimate(NamedTuple):
    """What a server makes of a round."""

    change: Tensor
    """(d,) from the shared model to the mean of the clients' models."""
    between: Tensor
    """sigma_0^2."""
    within: Tensor
    """Mean variance of the warm clients."""


def mean_within(reports: Report) -> Tensor:
    """The mean variance that a server keeps, in the place of every client's own."""
    known = is_warm(reports.seen)
    return torch.where(known, reports.within, 0.0).sum() / known.sum().clamp(min=1)


def pooled(reports: Report, within: Tensor, has_warm: Tensor) -> Report:
    """Reports in which every client has the mean variance, once there is any."""
    seen = torch.where(has_warm, 2, reports.seen)
    return Report(torch.where(has_warm, within, reports.within), seen)


def weights(between: Tensor, mean: Tensor, report: Report) -> Tensor:
    """w, of one client or of many; a cold client has the mean variance."""
    own = torch.where(is_warm(report.seen), report.within, mean)
    relative = (between + mean + TINY) / (between + own + TINY)
    return (0.5 * relative).clamp(max=1.0)


def summand(
    model: Tensor, report: Report, shared: Tensor, between: Tensor, weight: Tensor
) -> Summand:
    """What a client adds.

    Args:
        model: theta_m.
        report: sigma_m^2 and what it rests on.
        shared: theta, as it was sent.
        between: sigma_0^2, as it was sent.
        weight: w, 0 for a client without samples.
    """
    change, is_there = model - shared, weight > 0
    return Summand(
        change=weight.to(change.dtype) * change,
        weight=weight,
        square=weight * change.square().sum().double(),
        ratio=torch.where(is_there, ratios(between, report), 0.0),
        warm=(is_warm(report.seen) & is_there).double(),
    )


def from_sum(
    total: Summand, between: Tensor, within: Tensor, count: int, noise: Summand | None
) -> Estimate:
    """What follows from the totals of a round.

    Args:
        total: the sum of summands.
        between: sigma_0^2 of the round before.
        within: the mean variance of the round before.
        count: how many clients there were; one alone has no variance. Where there is
            noise it must not matter: it would tell.
        noise: the standard deviations of the noise in the total, if it has any. A
            weight within its noise may be nobody's, and nothing follows from it.
    """
    weight, warm = total.weight, total.warm
    if noise is not None:
        weight = torch.where(weight > 2.0 * noise.weight, weight, 0.0)
        warm = torch.where(warm > 2.0 * noise.warm, warm, 0.0)
    change, square = over(total.change, weight), over(total.square, weight)
    spread = square - change.square().sum().double()
    if noise is not None:
        # Noise lengthens the mean: its expected square is taken out again.
        own = over(noise.change, weight).double().square()
        spread = spread + total.change.numel() * own
    is_there = (weight > 0) & (count > 1 or noise is not None)
    return Estimate(
        change,
        torch.where(is_there, spread.clamp(min=0.0), between),
        mean_variance(total.ratio, warm, between, within),
    )


def from_uploads(
    models: Tensor,
    reports: Report,
    shared: Tensor,
    between: Tensor,
    within: Tensor,
    weight: Tensor,
) -> Estimate:
    """The same from all uploads, (n, ...) each."""
    share = over(weight, weight.sum())
    mean = share.to(models.dtype) @ models
    spread = share @ (models - mean).square().sum(1).double()
    is_there = weight > 0
    warm = is_warm(reports.seen) & is_there
    of_warm = torch.where(warm, ratios(between, reports), 0.0)
    return Estimate(
        mean - shared,
        torch.where(is_there.sum() > 1, spread, between),
        mean_variance(of_warm.sum(), warm.sum().double(), between, within),
    )


def ratios(between: Tensor, report: Report) -> Tensor:
    """s_m / (s_0 + s_m), of one client or of many; 0 of a cold one."""
    own = torch.where(is_warm(report.seen), report.within, 0.0)
    return own / (between + own + TINY)


def mean_variance(
    ratio: Tensor, warm: Tensor, between: Tensor, within: Tensor
) -> Tensor:
    """The variance whose ratio is the mean of the ratios; the old one if there is none.

    s = s_0 r / (1 - r) for r = s / (s_0 + s).
    """
    mean = over(ratio, warm).clamp(min=0.0, max=_NEARLY_ONE)
    return torch.where(warm > 0, (between + TINY) * mean / (1.0 - mean), within)
