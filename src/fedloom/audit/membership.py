"""Membership inference by likelihood ratios against reference runs.

Carlini, Chien, Nasr, Song, Terzis, Tramer. Membership Inference Attacks From First
Principles. S&P 2022. arXiv:2112.03570 (LiRA).

    paper            here
    phi(p)           score: log(p / (1 - p)) of the true class
    mu_in, mu_out    means of a sample's score over references with and without it
    sigma_in, _out   deviations, common to all samples (the paper's choice for few
                     references)
    Lambda           the ratio of the two normal densities at the run's own score

Deviations: references keep the run's size of training sets, so that a sample is in
more than half of them; and the variance of an estimated mean is added to sigma^2.
Numbers to predict have the score -log of their squared error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.audit.references import Pool, reference_federations
from fedloom.audit.subject import Subject, train_bundle
from fedloom.core import streams
from fedloom.core.task import Task
from fedloom.engine.job import Samples
from fedloom.results.audit import FALSE_POSITIVES, Membership
from fedloom.results.statistics import LEVEL, Estimate, over_clients
from fedloom.server.simulation import Simulation

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]

_MODELS_BYTES = 1 << 26
"""Personal models that are held at once."""

_TINY = 1e-12
"""Squared errors and variances below this are as good as nothing."""

_DRAWS = 1000
"""How often clients are drawn anew for an interval."""


def infer_membership(
    subject: Subject,
    count: int,
    seed: int,
    after_round: Callable[[int], None] | None = None,
) -> tuple[Membership, ...]:
    """How well shared and personal models tell what they were trained on.

    Args:
        subject: the run.
        count: number of reference runs.
        seed: seed of the audit.
        after_round: is told of every round of references that is over.

    Returns:
        One for each kind of model; nothing if no client holds samples out.
    """
    pool = Pool.of(subject.federation)
    if not len(pool.samples.indices):
        return ()
    kinds = (
        ["personal"] if subject.simulation.shared() is None else ["shared", "personal"]
    )
    own = {kind: scores_of(subject.simulation, pool, kind) for kind in kinds}
    seen: dict[str, list[Scores]] = {kind: [] for kind in kinds}
    is_in: list[Labels] = []
    clients = reference_federations(subject.federation, pool, count, seed)
    for bundle in subject.again(clients, seed, "audit-reference"):
        train_bundle(bundle, subject.rounds, after_round)
        for simulation in bundle.simulations:
            is_in.append(pool.trained_by(simulation.federation))
            for kind in kinds:
                seen[kind].append(scores_of(simulation, pool, kind))
    return tuple(
        summarise(kind, own[kind], np.stack(seen[kind]), np.stack(is_in), pool, seed)
        for kind in kinds
    )


def scores_of(simulation: Simulation, pool: Pool, kind: str) -> Scores:
    """(total,) how sure a run's models are of what is true of each sample.

    Args:
        simulation: the run.
        pool: the samples.
        kind: shared, or personal: each client's model on its own samples.
    """
    task = simulation.task
    samples = simulation.clients.samples.part(pool.samples)
    everyone = simulation.coordinator.everyone
    shared = simulation.shared() if kind == "shared" else None
    scores = []
    block = max(1, _MODELS_BYTES // (task.d * task.dtype.itemsize))
    for some in torch.split(everyone, block):
        thetas = None if shared is not None else simulation.personal(some)
        for place, client in enumerate(some.tolist()):
            theta = shared if thetas is None else thetas[place]
            assert theta is not None
            scores.append(_score(task, theta, samples, client))
    return np.concatenate(scores)


@torch.no_grad()
def _score(task: Task, theta: Tensor, samples: Samples, client: int) -> Scores:
    first, size = int(samples.offsets[client]), int(samples.sizes[client])
    if not size:
        return np.empty(0)
    chosen = samples.indices[first : first + size]
    inputs = tuple(x[chosen] for x in samples.inputs)
    targets = samples.targets[chosen]
    outcome = task.measure(theta, inputs, targets)
    if task.metric != "accuracy":
        errors = outcome.over_outputs(outcome.errors.double().square())
        return (-(errors + _TINY).log()).cpu().numpy()
    logs = outcome.outputs.double().log_softmax(1)
    true = logs.gather(1, targets[:, None])[:, 0]
    others = logs.scatter(1, targets[:, None], -torch.inf).logsumexp(1)
    return (true - others).clamp(-100.0, 100.0).cpu().numpy()


def likelihood_ratio(own: Scores, seen: Scores, is_in: Labels) -> Scores:
    """(N,) log of how much likelier each score is if the run trained on the sample.

    nan for a sample that all references trained on, or none.

    Args:
        own: (N,) scores by the run's models.
        seen: (references, N) scores by those of the references.
        is_in: (references, N) whether they trained on the sample.
    """
    with_it = _log_density(own, seen, is_in)
    without = _log_density(own, seen, ~is_in)
    return with_it - without


def _log_density(own: Scores, seen: Scores, chosen: Labels) -> Scores:
    """The normal density at a score, of the scores of some references."""
    count = chosen.sum(0)
    known = count > 0
    mean = np.full(own.shape, np.nan)
    mean[known] = np.where(chosen, seen, 0.0).sum(0)[known] / count[known]
    spread = np.where(chosen, seen - np.where(known, mean, 0.0), 0.0)
    freedom = int(count[known].sum() - known.sum())
    variance = float(np.square(spread).sum()) / max(freedom, 1)
    # The mean of n scores is off by a variance of sigma^2 / n.
    total = np.maximum(variance, _TINY) * (1.0 + 1.0 / np.maximum(count, 1))
    density: Scores = -0.5 * (np.square(own - mean) / total + np.log(total))
    return density


def summarise(
    kind: str, own: Scores, seen: Scores, is_in: Labels, pool: Pool, seed: int
) -> Membership:
    """What the scores of all samples come to.

    Args:
        kind: of model.
        own: (total,) of each sample of the pool, by the run's models.
        seen: (references, total) by those of the references.
        is_in: (references, total) whether they trained on the sample.
        pool: the samples.
        seed: seed of the interval.
    """
    ratio = likelihood_ratio(own, seen, is_in)
    parts = _by_client(ratio, pool)
    # A reference knows nothing of who is a member of the run: the same attack on it,
    # beside all other references, must find nothing.
    ignorant = []
    for n, scores in enumerate(seen):
        others = np.arange(len(seen)) != n
        guessed = likelihood_ratio(scores, seen[others], is_in[others])
        ignorant.append([auc(*part) for part in _by_client(guessed, pool)])
    clients = [auc(*part) for part in parts]
    is_known = np.isfinite(ratio)
    return Membership(
        kind=kind,
        auc=over_clients(clients),
        hits=_hits_over_clients(parts, seed),
        control=over_clients(np.mean(ignorant, axis=0)),
        clients=tuple(clients),
        members=int((is_known & pool.is_member).sum()),
        others=int((is_known & ~pool.is_member).sum()),
    )


def _by_client(ratio: Scores, pool: Pool) -> list[tuple[Scores, Labels]]:
    """The known ratios of each client's samples, and which of these are members."""
    parts = []
    for start, stop in itertools.pairwise(pool.samples.offsets.tolist()):
        is_known = np.isfinite(ratio[start:stop])
        own = ratio[start:stop][is_known], pool.is_member[start:stop][is_known]
        parts.append(own)
    return parts


def auc(ratio: Scores, is_member: Labels) -> float:
    """Chance that a member has a larger ratio than a non-member, equal ones half.

    nan without both.
    """
    members, others = int(is_member.sum()), int((~is_member).sum())
    if not members or not others:
        return math.nan
    _, place, counts = np.unique(ratio, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    above = ranks[is_member].sum() - members * (members + 1) / 2
    return float(above / (members * others))


def hits(ratio: Scores, is_member: Labels) -> float:
    """Share of members above what `FALSE_POSITIVES` of non-members are above."""
    members, others = ratio[is_member], np.sort(ratio[~is_member])[::-1]
    if not len(members) or not len(others):
        return math.nan
    allowed = int(FALSE_POSITIVES * len(others))
    return float((members > others[min(allowed, len(others) - 1)]).mean())


def _hits_over_clients(parts: Sequence[tuple[Scores, Labels]], seed: int) -> Estimate:
    """`hits` of all samples, with a percentile interval over clients drawn anew."""
    ratios, labels = zip(*parts, strict=True)
    mean = hits(np.concatenate(ratios), np.concatenate(labels))
    having = [n for n, own in enumerate(labels) if len(own)]
    if len(having) < 2:
        return _without_interval(mean, len(having))
    draw = streams.generator(seed, "audit-interval")
    again = []
    for _ in range(_DRAWS):
        some = draw.choice(having, len(having))
        again.append(
            hits(
                np.concatenate([ratios[n] for n in some]),
                np.concatenate([labels[n] for n in some]),
            )
        )
    known = np.array(again)[np.isfinite(again)]
    if not len(known):
        return _without_interval(mean, len(having))
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean, float(known.std()), float(low), float(high), len(having))


def _without_interval(mean: float, count: int) -> Estimate:
    return Estimate(mean, math.nan, math.nan, math.nan, count)
