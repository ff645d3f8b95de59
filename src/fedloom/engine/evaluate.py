"""Evaluation, once for all methods: shared and personal models, client by client."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.task import BINS, Measures, Task
from fedloom.engine.job import Samples
from fedloom.engine.rounds import Simulation
from fedloom.results import metrics
from fedloom.results.scores import Scores

_WIDTH = 256
"""Samples of one client that are evaluated in one call."""


def evaluate(simulation: Simulation, part: str, *, block: int = 64) -> list[Scores]:
    """Score the shared model and the teams', if there are any, and each personal one.

    Where clients have a posterior, its averaged predictions are scored too.

    Args:
        simulation: the run, at some round.
        part: "validation" or "test".
        block: how many personal models are held at once.
    """
    samples = simulation.samples.part(getattr(simulation.federation, part))
    task, found = simulation.task, []
    is_binary = task.metric == "accuracy" and simulation.federation.dataset.classes == 2
    theta = simulation.shared()
    if theta is not None:
        sums = _shared_sums(task, theta, samples, is_binary)
        found.append(_scores("shared", part, task, samples, sums, is_binary))
    teams = simulation.algorithm.team_models(simulation.state.server, task)
    if teams is not None:
        sums = _no_sums(samples, is_binary)
        for team, theta in enumerate(teams):
            of_team = simulation.population.teams.cpu() == team
            met = _shared_sums(task, theta, samples, is_binary)
            for total, of_all in zip(sums[:-1], met[:-1], strict=True):
                total[of_team] = of_all[of_team]
            if is_binary:
                chosen = of_team[_owners(samples)]
                sums.margin[chosen] = met.margin[chosen]
        found.append(_scores("team", part, task, samples, sums, is_binary))
    sums = _own_sums(
        simulation, samples, simulation.personal, task.measure, block, is_binary
    )
    found.append(_scores("personal", part, task, samples, sums, is_binary))
    if simulation.has_posterior:
        measure = task.measure_average
        sums = _own_sums(
            simulation, samples, simulation.draws, measure, block, is_binary
        )
        found.append(_scores("averaged", part, task, samples, sums, is_binary))
    return found


def _own_sums(
    simulation: Simulation,
    samples: Samples,
    models: Callable[[Tensor], Tensor],
    measure: Callable[..., Measures],
    block: int,
    is_binary: bool,
) -> Measures:
    """Sums over each client's samples, each by its own model or models."""
    sums = _no_sums(samples, is_binary)
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
            met = simulation.runner.each(measure)(
                thetas,
                tuple(x[chosen] for x in samples.inputs),
                samples.targets[chosen],
            )
            for total, values in zip(sums[:-1], met[:-1], strict=True):
                real = mask.view(*mask.shape, *[1] * (values.dim() - 2))
                total[rows.cpu()] += (
                    torch.where(real, values, 0.0).sum(1).cpu().double()
                )
            if is_binary:
                sums.margin[at[mask].cpu()] = met.margin[mask].detach().cpu().double()
    return sums


def _shared_sums(
    task: Task, theta: Tensor, samples: Samples, is_binary: bool
) -> Measures:
    """Sums over each client's samples, all by one model."""
    owner = _owners(samples)
    sums = _no_sums(samples, is_binary)
    places = torch.arange(len(samples.indices), device=theta.device)
    for part in torch.split(places, 4096):
        chosen = samples.indices[part]
        met = task.measure(
            theta, tuple(x[chosen] for x in samples.inputs), samples.targets[chosen]
        )
        places_here = part.cpu()
        for total, values in zip(sums[:-1], met[:-1], strict=True):
            total.index_add_(0, owner[places_here], values.detach().cpu().double())
        if is_binary:
            sums.margin[places_here] = met.margin.detach().cpu().double()
    return sums


def _no_sums(samples: Samples, is_binary: bool) -> Measures:
    """Sums of nothing yet; of two classes the margins are kept sample by sample.

    A margin lies where its sample lies in `samples.indices`, on the host: ranking
    them, which the AUC needs, cannot be done in sums.
    """
    zeros = torch.zeros(len(samples.sizes), 5 + BINS, dtype=torch.float64)
    loss, score, nll, brier, absolute = zeros[:, :5].unbind(1)
    margin = zeros.new_zeros(len(samples.indices) if is_binary else 0)
    return Measures(loss, score, nll, brier, absolute, zeros[:, 5:], margin)


def _owners(samples: Samples) -> Tensor:
    """(N,) the client of each of a part's samples, on the host."""
    sizes = samples.sizes.cpu()
    return torch.repeat_interleave(torch.arange(len(sizes)), sizes)


def _scores(
    kind: str,
    part: str,
    task: Task,
    samples: Samples,
    sums: Measures,
    is_binary: bool,
) -> Scores:
    sizes = samples.sizes.cpu()
    has_classes = task.metric == "accuracy"
    unknown = torch.full((len(sizes),), torch.nan, dtype=torch.float64)
    more: dict[str, NDArray[np.float64]] = {}
    pooled: dict[str, float] = {}
    if is_binary:
        more, pooled = _of_two_classes(samples, sums)
    elif not has_classes:
        more, pooled = _of_numbers(samples, sums)
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
        more=more,
        pooled=pooled,
    )


_More = tuple[dict[str, NDArray[np.float64]], dict[str, float]]
"""Numbers of every client, and of all samples together."""


def _of_two_classes(samples: Samples, sums: Measures) -> _More:
    is_positive = (samples.targets[samples.indices] == 1).cpu().numpy()
    margins, owner = sums.margin.numpy(), _owners(samples).numpy()
    nobody, count = np.zeros_like(owner), len(samples.sizes)
    more, pooled = {}, {}
    for name, metric in (("auc", metrics.auc), ("f1", metrics.f1)):
        more[name] = metric(margins, is_positive, owner, count)
        pooled[name] = float(metric(margins, is_positive, nobody, 1)[0])
    return more, pooled


def _of_numbers(samples: Samples, sums: Measures) -> _More:
    sizes, owner = samples.sizes.cpu(), _owners(samples).numpy()
    targets = samples.targets[samples.indices].cpu().double().numpy()
    targets = targets[:, None] if targets.ndim == 1 else targets
    # `score` is the mean over outputs, of which there may be several.
    squares = sums.score.numpy() * targets.shape[1]
    nobody, count, total = np.zeros_like(owner), len(sizes), float(sizes.sum())
    explained = metrics.explained_variance
    of_all = explained(squares.sum(keepdims=True), targets, nobody, 1)
    more = {
        "rmse": (sums.score / sizes).sqrt().numpy(),
        "mae": (sums.absolute / sizes).numpy(),
        "explained_variance": explained(squares, targets, owner, count),
    }
    pooled = {
        "rmse": float((sums.score.sum() / total).sqrt()),
        "mae": float(sums.absolute.sum() / total),
        "explained_variance": float(of_all[0]),
    }
    return more, pooled
