"""Uncertainty within and between clients: what the Self-FL methods share.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang. NeurIPS 2022. Sections 3.2, E.

    paper      here
    sigma_m^2  within: variance of one client's models over its own rounds
    sigma_0^2  between: variance of the clients' models in one round
    w_m        precision; S_m, the sum over the others, is in step_rule.py

The variance of vectors is the sum of their entries' variances, a scalar; all scalars
are float64 whatever the models are. A client is cold until its variance rests on two
models; until then it counts with the mean variance of the others.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.core.records import WholeNumbers, map_record

Normalise = Literal["n", "n-1", "sum"]
"""What a sum of squares is divided by: n, n - 1, or nothing."""

TINY = 1e-12
"""Floor of a variance, so that a client at rest keeps a finite precision."""


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
    seen: Annotated[Tensor, WholeNumbers()]
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
    drift = (mean - past.mean).square().sum().double()
    rest = (model - mean).square().sum().double()
    after = Past(mean, kept * (past.variance + drift) + rest / seen, seen)
    return map_record(lambda new, old: torch.where(counts, new, old), after, past)


def report(past: Past, normalise: Normalise) -> Report:
    """sigma_m^2 of Eqs. (13) and (20), and what it rests on."""
    return Report(past.variance * past.seen * _per(normalise, past.seen), past.seen)


def no_reports(count: int, device: torch.device) -> Report:
    """The server's reports of `count` clients before any has come in."""
    within = torch.zeros(count, dtype=torch.float64, device=device)
    return Report(within, within.to(torch.int64))


def between_clients(
    models: Tensor,
    present: Tensor,
    normalise: Normalise,
    before: Tensor,
    noise: Tensor | None = None,
) -> Tensor:
    """sigma_0^2 of Eqs. (14) and (22): the variance of the rows where `present`.

    One model alone has none: then the value `before` is kept. What is known of the
    rows' own `noise`, the variance of each, is taken out again.
    """
    count = present.sum()
    mean = (present.to(models.dtype) / count) @ models
    squares = torch.where(present, (models - mean).square().sum(1).double(), 0.0)
    total = squares.sum()
    if noise is not None:
        # Errors e move rows apart by e - mean(e), whose square is this on average.
        own = torch.where(present, noise, 0.0).sum()
        total = (total - own * (1.0 - 1.0 / count.clamp(min=1))).clamp(min=0.0)
    return torch.where(count > 1, total * _per(normalise, count), before)


def is_warm(seen: Tensor) -> Tensor:
    """Whether a variance rests on enough models, which are two."""
    return seen >= 2


def impute(values: Tensor, known: Tensor) -> Tensor:
    """Put the mean of the known values in the place of the unknown; 0 if none is."""
    mean = torch.where(known, values, 0.0).sum() / known.sum().clamp(min=1)
    return torch.where(known, values, mean)


def precision(between: Tensor, within: Tensor, present: Tensor) -> Tensor:
    """1 / (sigma_0^2 + sigma_m^2), w_m of section H; 0 for who is not there."""
    return torch.where(present, 1.0 / (between + within + TINY), 0.0)


def precisions(between: Tensor, reports: Report, present: Tensor) -> Tensor:
    """(n,) w_m of every client, the cold ones with the mean variance of the warm.

    Divided by their sum they are the weights of Eqs. (11) and (23), which are equal if
    every client is cold.
    """
    known = is_warm(reports.seen) & present
    return precision(between, impute(reports.within, known), present)


def _per(normalise: Normalise, count: Tensor) -> Tensor:
    if normalise == "sum":
        return torch.ones_like(count, dtype=torch.float64)
    less = 1 if normalise == "n-1" else 0
    return 1.0 / (count - less).clamp(min=1).double()
