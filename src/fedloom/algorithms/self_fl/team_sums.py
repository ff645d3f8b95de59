"""Self-FL's clusters, and how they go by sums where they are teams.

A team's representative is the weighted mean of its active members. For a server that
sees sums per team alone, a client weighs itself as in lagged.py, beside the mean
variance of the clusters, and adds to its team's sum

    Summand.change   w (theta_m - theta)          Summand.weight   w
    Summand.ratio    s_m / (s_0 + s_m)            Summand.warm     1 if s_m is known

with s_0 = sigma_0^2 of the round before and s_m = sigma_m^2. The variance of a
representative is the one whose ratio is the mean of its warm members' ratios, and
sigma_0^2 follows from the representatives, which the server has.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedloom.algorithms.self_fl import lagged, uncertainty
from fedloom.algorithms.self_fl.uncertainty import Report, is_warm
from fedloom.core.algorithm import Cohort
from fedloom.core.records import PerClient
from fedloom.core.sums import Share, Vector, over


class Server(NamedTuple):
    """The shared model, one model per cluster, and scalars about each client."""

    shared: Tensor
    between: Tensor
    """sigma_0^2."""
    models: Tensor
    """(k, d) the representatives."""
    within: Tensor
    """(k,) their variances."""
    has_model: Tensor
    """(k,) whether the cluster was ever active."""
    has_within: Tensor
    """(k,) whether its variance rests on any warm client."""
    noise: Tensor
    """(k,) variance of the noise in the representatives that hides clients, or 0."""
    reports: PerClient[Report]
    """(M,) each."""
    member: PerClient[Tensor]
    """(M,) cluster of each client."""
    last: PerClient[Tensor]
    """(M,) the round in which each client's model was last taken in; -1 for never."""


class Summand(NamedTuple):
    """What one client adds to its team's sum; see the head of this file."""

    change: Vector[Tensor]
    weight: Share[Tensor]
    ratio: Share[Tensor]
    warm: Share[Tensor]


class Representatives(NamedTuple):
    """What a round says of every cluster, (k, ...) each, and who was active in it."""

    models: Tensor
    within: Tensor
    has_within: Tensor
    noise: Tensor
    is_active: Tensor


def precisions(server: Server) -> Tensor:
    """(k,) the precision of every cluster seen so far."""
    within = uncertainty.impute(server.within, server.has_within)
    return uncertainty.precision(server.between, within, server.has_model)


def shares(server: Server) -> Tensor:
    """(k,) how much of the shared model is each cluster's."""
    each = precisions(server)
    return over(each, each.sum())


def mean_within(server: Server) -> Tensor:
    """The mean variance of the clusters that have one, beside which clients weigh."""
    known = server.has_within
    return torch.where(known, server.within, 0.0).sum() / known.sum().clamp(min=1)


def summand(
    model: Tensor,
    report: Report,
    shared: Tensor,
    between: Tensor,
    mean: Tensor,
    is_there: Tensor,
) -> Summand:
    """What a client adds.

    Args:
        model: theta_m.
        report: sigma_m^2 and what it rests on.
        shared: theta, as it was sent.
        between: sigma_0^2, as it was sent.
        mean: the mean variance of the clusters, as it was sent.
        is_there: whether the client has samples.
    """
    own = lagged.weights(between, mean, report)
    weight = torch.where(is_there, own, 0.0)
    change = model - shared
    return Summand(
        change=weight.to(change.dtype) * change,
        weight=weight,
        ratio=torch.where(is_there, lagged.ratios(between, report), 0.0),
        warm=(is_warm(report.seen) & is_there).double(),
    )


def from_sum(server: Server, total: Summand, noise: Summand | None) -> Representatives:
    """What follows from the totals of the teams.

    Args:
        server: as it was when they were called.
        total: (k, ...) the sums of summands.
        noise: the standard deviations of the noise in the totals, if they have any. A
            team whose weight is within its noise may be nobody, and is not active.
    """
    weight, warm, own = total.weight, total.warm, torch.zeros_like(server.noise)
    if noise is not None:
        weight = torch.where(weight > 2.0 * noise.weight, weight, 0.0)
        warm = torch.where(warm > 2.0 * noise.warm, warm, 0.0)
        each = noise.change.double().expand(len(weight))
        own = server.shared.numel() * over(each, weight).square()
    return Representatives(
        models=server.shared + over(total.change, weight),
        within=_within(server, total.ratio, warm),
        has_within=server.has_within | (warm > 0),
        noise=own,
        is_active=weight > 0,
    )


def from_uploads(
    server: Server, models: Tensor, reports: Report, cohort: Cohort
) -> tuple[Representatives, Tensor]:
    """The same from all uploads, (n, ...) each; and the clients' shares in it, (k, n).

    Args:
        server: as it was when they were called.
        models: theta_m.
        reports: sigma_m^2.
        cohort: whose they are.
    """
    present = cohort.sizes > 0
    members = one_hot(cohort.teams, len(server.models)).T.double()
    own = lagged.weights(server.between, mean_within(server), reports)
    mass = members * torch.where(present, own, 0.0)
    total = mass.sum(1)
    of_each = mass / torch.where(total > 0, total, 1.0)[:, None]
    warm = (is_warm(reports.seen) & present).double()
    ratio = members @ (lagged.ratios(server.between, reports) * warm)
    made = Representatives(
        models=of_each.to(models.dtype) @ models,
        within=_within(server, ratio, members @ warm),
        has_within=server.has_within | (members @ warm > 0),
        noise=torch.zeros_like(server.noise),
        is_active=total > 0,
    )
    return made, of_each


def _within(server: Server, ratio: Tensor, warm: Tensor) -> Tensor:
    """(k,) the variances of the clusters, from the sums of their members' ratios."""
    return lagged.mean_variance(ratio, warm, server.between, server.within)
