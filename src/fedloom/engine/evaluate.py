"""Evaluation, once for all methods: shared and personal models, client by client."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.task import Task
from fedloom.engine.job import Samples
from fedloom.engine.rounds import Loom
from fedloom.results.scores import Scores

_WIDTH = 256
"""Samples of one client that are evaluated in one call."""


def evaluate(loom: Loom, part: str, *, block: int = 64) -> list[Scores]:
    """Score the shared model and the teams', if there are any, and each personal one.

    Args:
        loom: the run, at some round.
        part: "validation" or "test".
        block: how many personal models are held at once.
    """
    samples = loom.samples.part(getattr(loom.federation, part))
    task, everyone = loom.task, torch.arange(loom.federation.count)
    found = []
    theta = loom.shared()
    if theta is not None:
        sums = _shared_sums(task, theta, samples)
        found.append(_scores("shared", part, task, samples, *sums))
    teams = loom.algorithm.team_models(loom.state.server, task)
    if teams is not None:
        loss, score = torch.zeros(2, len(everyone), dtype=torch.float64)
        for team, theta in enumerate(teams):
            of_team = loom.population.teams.cpu() == team
            sums = _shared_sums(task, theta, samples)
            loss[of_team], score[of_team] = (s[of_team] for s in sums)
        found.append(_scores("team", part, task, samples, loss, score))
    loss, score = torch.zeros(2, len(everyone), dtype=torch.float64)
    order = samples.sizes.argsort(stable=True)
    order = order[samples.sizes[order] > 0]
    for rows in torch.split(order, block) if len(order) else ():
        sums = _personal_sums(loom, loom.personal(rows), samples, rows)
        loss[rows.cpu()], score[rows.cpu()] = (s.cpu().double() for s in sums)
    found.append(_scores("personal", part, task, samples, loss, score))
    return found


def _personal_sums(
    loom: Loom, thetas: Tensor, samples: Samples, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums of loss and score over each client's samples, each by its own model."""
    task, measure = loom.task, loom.runner.each(loom.task.measure)
    sizes, offsets = samples.sizes[rows], samples.offsets[rows]
    loss = torch.zeros(len(rows), dtype=task.dtype, device=thetas.device)
    score = torch.zeros_like(loss)
    for start in range(0, int(sizes.max()), _WIDTH):
        width = min(_WIDTH, int(sizes.max()) - start)
        place = start + torch.arange(width, device=thetas.device)
        mask = place < sizes[:, None]
        chosen = samples.indices[torch.where(mask, offsets[:, None] + place, 0)]
        losses, scores = measure(
            thetas, tuple(x[chosen] for x in samples.inputs), samples.targets[chosen]
        )
        loss = loss + torch.where(mask, losses, 0.0).sum(1)
        score = score + torch.where(mask, scores, 0.0).sum(1)
    return loss, score


def _shared_sums(task: Task, theta: Tensor, samples: Samples) -> tuple[Tensor, Tensor]:
    """Sums of loss and score over each client's samples, all by one model."""
    count = len(samples.sizes)
    owner = torch.repeat_interleave(
        torch.arange(count, device=theta.device), samples.sizes
    )
    loss = torch.zeros(count, dtype=torch.float64, device=theta.device)
    score = torch.zeros_like(loss)
    places = torch.arange(len(samples.indices), device=theta.device)
    for part in torch.split(places, 4096):
        chosen = samples.indices[part]
        losses, scores = task.measure(
            theta, tuple(x[chosen] for x in samples.inputs), samples.targets[chosen]
        )
        loss.index_add_(0, owner[part], losses.detach().double())
        score.index_add_(0, owner[part], scores.detach().double())
    return loss.cpu(), score.cpu()


def _scores(
    kind: str, part: str, task: Task, samples: Samples, loss: Tensor, score: Tensor
) -> Scores:
    sizes = samples.sizes.cpu()
    return Scores(
        kind=kind,
        part=part,
        metric=task.metric,
        samples=sizes.numpy(),
        loss=(loss / sizes).numpy(),
        score=(score / sizes).numpy(),
    )
