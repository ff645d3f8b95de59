"""Uncertainty within and between clients: what the Self-FL methods share.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang. NeurIPS 2022. Sections 3.2, E.

    paper      here
    sigma_m^2  within: variance of one client's models over its own rounds
    sigma_0^2  between: variance of the clients' models in one round
    w_m, S_m   precision, others

The variance of vectors is the sum of their entries' variances, a scalar; all scalars
are float64 whatever the models are. A client is cold until its variance rests on two
models; until then it counts with the mean variance of the others.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fedloom.core.algorithm import Client
from fedloom.core.records import map_record
from fedloom.core.two_level import real_steps

Normalise = Literal["n", "n-1", "sum"]
"""What a sum of squares is divided by: n, n - 1, or nothing."""
StepScale = Literal["size", "one", "batch"]
"""The scale of the loss in the step rule: 1/N_m, 1, or 1/B_m."""
Target = Literal["paper", "posterior"]
"""What the steps aim at: theta^(FL) of Eq. (3), or the mean of the posterior."""

_TINY = 1e-12
"""Floor of a variance, so that a client at rest keeps a finite precision."""
_ENOUGH = 2
"""Models that a variance needs."""
_ALL = 1 << 62
"""Longer than any phase: take all of its steps."""


class Past(NamedTuple):
    """The models a client has had so far, as far as their variance needs them."""

    mean: Tensor
    """(d,) their running mean."""
    variance: Tensor
    """Their running variance, over n."""
    seen: Tensor
    """How many there were."""


class Report(NamedTuple):
    """What the server knows of a client's past; it keeps one for everybody."""

    within: Tensor
    """sigma_m^2."""
    seen: Tensor
    """How many models that rests on."""


def no_past(like: Tensor) -> Past:
    """Nothing seen yet; `like` is a model."""
    zero = torch.zeros((), dtype=torch.float64, device=like.device)
    return Past(torch.zeros_like(like), zero, zero.to(torch.int64))


def remember(past: Past, model: Tensor, counts: Tensor) -> Past:
    """Take in one more model if it counts.

    Eq. (19) with its middle term squared: as printed, `xbar_t - xbar_{t-1}` is not,
    and the recursion then differs from Eq. (18).
    """
    seen = past.seen + 1
    kept = past.seen.double() / seen
    mean = past.mean + (model - past.mean) / seen
    drift, rest = _square(mean - past.mean), _square(model - mean)
    after = Past(mean, kept * (past.variance + drift) + rest / seen, seen)
    return map_record(lambda new, old: torch.where(counts, new, old), after, past)


def report(past: Past, normalise: Normalise) -> Report:
    """sigma_m^2 of Eqs. (13) and (20), and what it rests on."""
    return Report(past.variance * past.seen * _per(normalise, past.seen), past.seen)


def no_reports(count: int, device: torch.device) -> Report:
    """The server's reports of `count` clients before any has come in."""
    within = torch.zeros(count, dtype=torch.float64, device=device)
    return Report(within, within.to(torch.int64))


def file(table: Report, clients: Tensor, reports: Report, present: Tensor) -> Report:
    """The server's reports with those of some clients replaced, where `present`."""
    rows = clients[present]
    return map_record(
        lambda old, new: old.index_copy(0, rows, new[present]), table, reports
    )


def between_clients(
    models: Tensor, present: Tensor, normalise: Normalise, before: Tensor
) -> Tensor:
    """sigma_0^2 of Eqs. (14) and (22): the variance of the rows where `present`.

    One model alone has none: then the value `before` is kept.
    """
    count = present.sum()
    mean = (present.to(models.dtype) / count) @ models
    squares = torch.where(present, (models - mean).square().sum(1).double(), 0.0)
    return torch.where(count > 1, squares.sum() * _per(normalise, count), before)


def is_warm(seen: Tensor) -> Tensor:
    """Whether a variance rests on enough models."""
    return seen >= _ENOUGH


def impute(values: Tensor, known: Tensor) -> Tensor:
    """Put the mean of the known values in the place of the unknown; 0 if none is."""
    mean = torch.where(known, values, 0.0).sum() / known.sum().clamp(min=1)
    return torch.where(known, values, mean)


def precision(between: Tensor, within: Tensor, present: Tensor) -> Tensor:
    """1 / (sigma_0^2 + sigma_m^2), w_m of section H; 0 for who is not there."""
    return torch.where(present, 1.0 / (between + within + _TINY), 0.0)


class ServerLog(NamedTuple):
    """How an aggregation weighed its clients."""

    weight: Tensor
    """Share of this client's model in the new estimate of the shared one. Proportional
    to 1 / (sigma_0^2 + sigma_m^2), or to training samples where these are switched off.
    """
    between: Tensor
    """Variance of the models that arrived (sigma_0^2). It weighs this aggregation and
    goes down with the next round."""


def precisions(between: Tensor, reports: Report, present: Tensor) -> Tensor:
    """(n,) w_m of every client, the cold ones with the mean variance of the warm.

    Divided by their sum they are the weights of Eqs. (11) and (23), which are equal if
    every client is cold.
    """
    known = is_warm(reports.seen) & present
    return precision(between, impute(reports.within, known), present)


class Balance(NamedTuple):
    """How a client weighs the others against its own data; 0 while it cannot."""

    within: Tensor
    """Variance of this client's models over its past rounds (sigma_m^2). Large when
    its data are few or noisy, or while it still moves from round to round."""
    between: Tensor
    """Variance of the clients' models in the round before (sigma_0^2). Large when
    clients differ, which calls for more personal training."""
    correction: Tensor
    """How far beyond the shared model the client starts, away from its own last one, as
    a multiple of their distance (w_m / S_m, at most 1). Near 1 / (n - 1) for n clients
    of the same uncertainty, so that it starts at the mean of the others."""
    steps: Tensor
    """Local steps computed from both variances, rounded and capped (l_m). 0 means that
    the client is cold or alone and does the ordinary local work."""
    wanted: Tensor
    """The same number before rounding and capping. Far above the cap, the cap decides
    and not the uncertainty."""
    moved: Tensor
    """How much of the way to its own optimum the client means to go, from 0 to 1. 1
    would be training alone, 0 would be keeping the others' model."""
    gain: Tensor
    """Estimated factor by which the federation shrinks this client's variance (GAIN_m).
    1 means that the others have nothing to tell it."""


class StepSettings(Protocol):
    """What a method is asked for by `balance`; its own settings of these names."""

    @property
    def lr(self) -> float: ...  # noqa: D102
    @property
    def lr_decay(self) -> float: ...  # noqa: D102
    @property
    def batch_size(self) -> int: ...  # noqa: D102
    @property
    def most_steps(self) -> int: ...  # noqa: D102
    @property
    def step_scale(self) -> StepScale: ...  # noqa: D102
    @property
    def target(self) -> Target: ...  # noqa: D102
    @property
    def normalise(self) -> Normalise: ...  # noqa: D102


def balance(
    settings: StepSettings,
    past: Past,
    between: Tensor,
    others: Tensor,
    client: Client,
) -> Balance:
    """What follows for a client from its past and the precision of the others.

    Args:
        settings: the method.
        past: the client's own models.
        between: sigma_0^2.
        others: S_m; 0 or less if the client is alone.
        client: its size and round.
    """
    can = is_warm(past.seen) & (others > 0)
    own = report(past, settings.normalise).within
    within, rest = own.clamp(min=_TINY), torch.where(can, others, 1.0)
    is_posterior = settings.target == "posterior"
    aim = 1.0 / (between + 1.0 / rest) if is_posterior else rest
    pace = _pace(settings, client)
    # As eta / s_m rises to 1, ell of Eq. (8) falls to 0; beyond, it stays there.
    is_slow = pace < within
    ell = real_steps(within, aim, torch.where(is_slow, pace, 0.5 * within))
    wanted = torch.where(can & is_slow, ell, 0.0)
    steps = wanted.round().clamp(1, settings.most_steps).to(torch.int64)
    return Balance(
        within=own,
        between=between,
        correction=(precision(between, within, can) / rest).clamp(max=1.0),
        steps=torch.where(can, steps, 0),
        wanted=wanted,
        # 1 - q with q = S / (1 / s_m + S), the right side of Eq. (8)
        moved=torch.where(can, 1.0 / (1.0 + within * aim), 0.0),
        gain=torch.where(can, 1.0 + within * rest, 0.0),
    )


def unless(computed: Tensor) -> Tensor:
    """The length of the ordinary work: all of it, or none if steps were computed."""
    return torch.where(computed > 0, 0, _ALL)


def _pace(settings: StepSettings, client: Client) -> Tensor:
    """The learning rate times the scale of the loss, as Eq. (8) takes it."""
    lr = settings.lr * settings.lr_decay ** client.round.double()
    if settings.step_scale == "one":
        return lr
    size = client.size.double().clamp(min=1.0)
    is_batch = settings.step_scale == "batch"
    return lr / (size.clamp(max=settings.batch_size) if is_batch else size)


def _square(vector: Tensor) -> Tensor:
    return vector.square().sum().double()


def _per(normalise: Normalise, count: Tensor) -> Tensor:
    if normalise == "sum":
        return torch.ones_like(count, dtype=torch.float64)
    less = 1 if normalise == "n-1" else 0
    return 1.0 / (count - less).clamp(min=1).double()
