"""Evaluation, once for all methods: shared and personal models, client by client."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedloom.core.task import BINS, Measures, Task
from fedloom.engine.job import Samples
from fedloom.engine.rounds import Loom
from fedloom.results.scores import Scores

_WIDTH = 256
"""Samples of one client that are evaluated in one call."""


def evaluate(loom: Loom, part: str, *, block: int = 64) -> list[Scores]:
    """Score the shared model and the teams', if there are any, and each personal one.

    Where clients have a posterior, its averaged predictions are scored too.

    Args:
        loom: the run, at some round.
        part: "validation" or "test".
        block: how many personal models are held at once.
    """
    samples = loom.samples.part(getattr(loom.federation, part))
    task, found = loom.task, []
    theta = loom.shared()
    if theta is not None:
        sums = _shared_sums(task, theta, samples)
        found.append(_scores("shared", part, task, samples, sums))
    teams = loom.algorithm.team_models(loom.state.server, task)
    if teams is not None:
        sums = _no_sums(len(samples.sizes))
        for team, theta in enumerate(teams):
            of_team = loom.population.teams.cpu() == team
            for total, of_all in zip(
                sums, _shared_sums(task, theta, samples), strict=True
            ):
                total[of_team] = of_all[of_team]
        found.append(_scores("team", part, task, samples, sums))
    sums = _own_sums(loom, samples, loom.personal, task.measure, block)
    found.append(_scores("personal", part, task, samples, sums))
    if loom.has_posterior:
        sums = _own_sums(loom, samples, loom.draws, task.measure_average, block)
        found.append(_scores("averaged", part, task, samples, sums))
    return found


def _own_sums(
    loom: Loom,
    samples: Samples,
    models: Callable[[Tensor], Tensor],
    measure: Callable[..., Measures],
    block: int,
) -> Measures:
    """Sums over each client's samples, each by its own model or models."""
    sums = _no_sums(len(samples.sizes))
    order = samples.sizes.argsort(stable=True)
    order = order[samples.sizes[order] > 0]
    for rows in torch.split(order, block) if len(order) else ():
        thetas, sizes = models(rows), samples.sizes[rows]
        for start in range(0, int(sizes.max()), _WIDTH):
            width = min(_WIDTH, int(sizes.max()) - start)
            place = start + torch.arange(width, device=thetas.device)
            mask = place < sizes[:, None]
            at = torch.where(mask, samples.offsets[rows][:, None] + place, 0)
            chosen = samples.indices[at]
            met = loom.runner.each(measure)(
                thetas,
                tuple(x[chosen] for x in samples.inputs),
                samples.targets[chosen],
            )
            for total, values in zip(sums, met, strict=True):
                real = mask.view(*mask.shape, *[1] * (values.dim() - 2))
                total[rows.cpu()] += (
                    torch.where(real, values, 0.0).sum(1).cpu().double()
                )
    return sums


def _shared_sums(task: Task, theta: Tensor, samples: Samples) -> Measures:
    """Sums over each client's samples, all by one model."""
    count = len(samples.sizes)
    owner = torch.repeat_interleave(
        torch.arange(count, device=theta.device), samples.sizes
    )
    sums = _no_sums(count)
    places = torch.arange(len(samples.indices), device=theta.device)
    for part in torch.split(places, 4096):
        chosen = samples.indices[part]
        met = task.measure(
            theta, tuple(x[chosen] for x in samples.inputs), samples.targets[chosen]
        )
        for total, values in zip(sums, met, strict=True):
            total.index_add_(0, owner[part].cpu(), values.detach().cpu().double())
    return sums


def _no_sums(count: int) -> Measures:
    zeros = torch.zeros(count, 4 + BINS, dtype=torch.float64)
    loss, score, nll, brier = zeros[:, :4].unbind(1)
    return Measures(loss, score, nll, brier, zeros[:, 4:])


def _scores(
    kind: str, part: str, task: Task, samples: Samples, sums: Measures
) -> Scores:
    sizes = samples.sizes.cpu()
    has_classes = task.metric == "accuracy"
    unknown = torch.full((len(sizes),), torch.nan, dtype=torch.float64)
    return Scores(
        kind=kind,
        part=part,
        metric=task.metric,
        samples=sizes.numpy(),
        loss=(sums.loss / sizes).numpy(),
        score=(sums.score / sizes).numpy(),
        nll=(sums.nll / sizes if has_classes else unknown).numpy(),
        brier=(sums.brier / sizes if has_classes else unknown).numpy(),
        ece=(sums.gap.abs().sum(1) / sizes if has_classes else unknown).numpy(),
    )
