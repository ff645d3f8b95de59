"""Reconstruction of one batch from what somebody sees of a round.

Some clients train one step on one batch each, from the run's first model. Two attackers
see something of it. The server sees what the clients send, before it adds noise or
drops anybody by a rule; single uploads, or their sum where the run has secure sums. All
who get the next shared model see what the round moved it by. Without noise and rules
both are the same but for a factor: against plain descent a gradient, but for its
length.

Two attacks. Where samples enter a linear layer with a bias, each of its rows has the
gradients delta x and delta, whose ratio is the sample x (Phong, Aono, Hayashi, Wang,
Moriai. IEEE TIFS 2018, section III). For any other model samples are sought whose
gradient points in the same direction, with total variation as prior for pictures
(Geiping, Bauermeister, Droege, Moeller. Inverting Gradients. NeurIPS 2020.
arXiv:2003.14053, equation 4). There the attacker is given the targets.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.audit.as_sent import as_sent
from fedloom.audit.promise import Promise
from fedloom.audit.subject import Subject, standardised_like
from fedloom.clients import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core import streams
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.scaling import along
from fedloom.core.task import Batch, Task
from fedloom.engine.loop import Loop
from fedloom.privacy.private import Private
from fedloom.results.audit import EXACT, SHARED, UPLOADS, Inversion, Inversions
from fedloom.server.simulation import Simulation

_TOTAL = 10
"""Clients of a sum, or as many as a round has if those are fewer."""

_PICTURES = 4
"""Samples that are kept for the report."""

_MOST_FEATURES = 12_288
"""Larger samples are scored and not kept: a picture of 64 by 64 pixels in colours."""

_STEPS = 400
"""Steps of the search for samples."""

_RATE = 0.05
"""Length of its first steps, of the range of all numbers."""

_MOST_SOUGHT = 64
"""More samples are not sought together."""

_VARIATION = 1e-3
"""Weight of total variation."""

_SAME = 1e-10
"""Two vectors point in the same direction if one minus their cosine is below this."""


def refusal(subject: Subject) -> str | None:
    """Why nothing can be reconstructed; None if something can."""
    inputs = subject.federation.dataset.inputs
    if subject.simulation.shared() is None:
        return (
            "Inversion is left out: the method has no shared model that a round moves."
        )
    if len(inputs) != 1 or inputs[0].dtype == torch.int64:
        return (
            "Inversion is left out: samples are tokens, or of several parts, and the "
            "attacks here are for numbers and pictures."
        )
    return None


def sees_totals_alone(subject: Subject) -> bool:
    """Whether the server of such a run sees sums of uploads and no single one.

    Clients that have a part of the noise each send it inside secure sums alone: a
    federation refuses anything else.
    """
    promise = Promise.of(subject)
    if promise is not None and promise.at == "clients":
        return True
    return subject.plan.tables.get("secure") is not None


def invert(subject: Subject, batch: int, seed: int) -> Inversions:
    """How near the samples of one client come to be known.

    Args:
        subject: the run, whose method has a shared model.
        batch: how many samples the clients train on, beside a batch of one.
        seed: seed of who is looked at, and of the search.
    """
    federation = subject.federation
    draw = streams.generator(seed, "audit-inversion")
    able = np.flatnonzero(federation.sizes >= batch)
    victim = int(draw.choice(able if len(able) else federation.count))
    batch = min(batch, int(federation.sizes[victim]))
    with_samples = np.flatnonzero(federation.sizes > 0)
    others = draw.permutation(with_samples[with_samples != victim])
    cohort = subject.simulation.coordinator.sampling.draw(federation.count, seed, 0)
    least = _least_clients(subject.simulation.algorithm)
    total = [victim, *others[: max(min(_TOTAL, len(cohort)), least) - 1].tolist()]
    held = _few_samples(federation, batch, draw)
    single = [([victim], 1), ([victim], batch)]
    ways = [(SHARED, *way) for way in (*single, (total, batch)) if len(way[0]) >= least]
    seen_by_server = [(total, batch)] if sees_totals_alone(subject) else single
    ways += [(UPLOADS, *way) for way in seen_by_server]
    plain = {(seen, len(who), size): who for seen, who, size in ways}
    measure = _Measure(federation)
    truth = federation.dataset.inputs[0][torch.from_numpy(held[victim])]
    keeps = truth[0].numel() <= _MOST_FEATURES
    cases = []
    before: dict[tuple[int, int], _Attack] = {}
    for (seen, count, size), who in plain.items():
        moved = _one_round(subject, [own[:size] for own in held], who, seed, seen)
        attack = before.get((count, size))
        if attack is None or not _is_same(attack.moved, moved):
            attack = _attack(subject, held, who, size, seed, moved)
        before[count, size] = attack
        guesses = attack.guesses
        guessed = measure.unit(guesses)
        wanted = measure.unit(truth[:size])
        decibels = measure.psnr(wanted, guessed)
        nearest = guessed[measure.errors(wanted, guessed).argmin(1)]
        cases.append(
            Inversion(
                clients=count,
                batch=size,
                how=attack.how,
                psnr=float(decibels.mean()),
                best=float(decibels.max()),
                guesses=_kept(nearest) if keeps else (),
                seen=seen,
            )
        )
    shown = measure.unit(truth)
    mean = federation.dataset.inputs[0][torch.from_numpy(federation.train.indices)]
    guess = measure.unit(mean.double().mean(0, keepdim=True))
    return Inversions(
        client=federation.names[victim],
        shape=tuple(truth.shape[1:]),
        features=(federation.dataset.features or ()) if truth.dim() == 2 else (),
        truth=_kept(shown) if keeps else (),
        guess=float(measure.psnr(shown, guess).mean()),
        cases=tuple(cases),
    )


def _least_clients(algorithm: AnyAlgorithm) -> int:
    """Fewest clients of a round whose total is used."""
    return algorithm.noisy_clients if isinstance(algorithm, Private) else 1


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Whether two vectors differ in their length alone, which no attack goes by."""
    cosine = torch.cosine_similarity(first.double(), second.double(), dim=0)
    return bool(1.0 - cosine < _SAME)


def _few_samples(
    federation: Federation, batch: int, draw: np.random.Generator
) -> list[np.ndarray]:
    """Training samples of every client, as many as a batch has."""
    return [draw.permutation(own)[:batch] for own in federation.train]


def _kept(samples: Tensor) -> tuple[tuple[float, ...], ...]:
    rows = samples[:_PICTURES].flatten(1).clamp(0.0, 1.0).tolist()
    return tuple(tuple(round(value, 4) for value in row) for row in rows)


class _Attack(NamedTuple):
    """What was seen, and what an attacker made of it."""

    moved: Tensor
    """(d,)"""
    guesses: Tensor
    """(k, ...) samples that are thought to be in it."""
    how: str


def _attack(
    subject: Subject,
    held: Sequence[np.ndarray],
    who: list[int],
    size: int,
    seed: int,
    moved: Tensor,
) -> _Attack:
    """Make samples out of what was seen.

    Args:
        subject: the run.
        held: samples of every client.
        who: the clients of the round.
        size: samples that each of them trains on.
        seed: seed of the search.
        moved: (d,) what was seen.
    """
    task = subject.simulation.task
    layer = first_linear(task, subject.federation)
    if layer is not None:
        ratios = in_data_units(task, rows_of(task, layer, moved), subject)
        return _Attack(moved, ratios, "closed form")
    rows = np.concatenate([held[n][:size] for n in who])[:_MOST_SOUGHT]
    targets = subject.federation.dataset.targets[torch.from_numpy(rows)]
    sought = seek(task, moved, targets.to(task.device), subject, seed)
    return _Attack(moved, in_data_units(task, sought, subject), "cosine")


def _one_round(
    subject: Subject, held: Sequence[np.ndarray], who: list[int], seed: int, seen: str
) -> Tensor:
    """(d,) what one round of some clients moves the shared model by, upwards.

    Args:
        subject: the run.
        held: samples of every client.
        who: the clients of the round.
        seed: seed of the round.
        seen: `SHARED`, or `UPLOADS`: what it would be moved by if the server took in
            what it is sent as it is.
    """
    own = subject.simulation
    nothing = Ragged.of([np.empty(0, dtype=np.int64)] * len(held))
    clients = replace(
        subject.federation,
        train=Ragged.of(held).ascending(),
        validation=nothing,
        test=nothing,
        shares_test=False,
        split=None,
    )
    clients = standardised_like(clients, subject.federation)
    algorithm = one_step(own.algorithm, max(map(len, held)))
    if seen == UPLOADS:
        algorithm = as_sent(algorithm, in_totals=sees_totals_alone(subject))
    simulation = Simulation(algorithm, own.task, clients, Loop(), seed=seed)
    called = torch.tensor(sorted(who), device=own.task.device)
    simulation.called = lambda _: called
    before = simulation.shared()
    while simulation.run_exchange() is None:
        pass
    after = simulation.shared()
    assert before is not None
    assert after is not None
    return (before - after).detach()


def one_step(algorithm: AnyAlgorithm, batch: int) -> AnyAlgorithm:
    """A method whose clients take one step on one batch, in whatever wraps it."""
    inner = vars(algorithm).get("algorithm")
    if inner is None:
        return replace(algorithm, epochs=1, steps=None, batch_size=batch)
    outer = copy.copy(algorithm)
    vars(outer)["algorithm"] = one_step(inner, batch)
    return outer


def first_linear(task: Task, federation: Federation) -> str | None:
    """The name of the linear layer that samples enter as they are, with a bias."""
    features = federation.dataset.inputs[0][0].numel()
    for name, part in task.module.named_modules():
        if not list(part.parameters(recurse=False)):
            continue
        is_fit = isinstance(part, nn.Linear) and part.in_features == features
        has_bias = is_fit and part.bias is not None
        names = {block.name for block in task.layout}
        both = {f"{name}.{what}".lstrip(".") for what in ("weight", "bias")}
        return name if has_bias and both <= names else None
    return None


def rows_of(task: Task, layer: str, gradient: Tensor) -> Tensor:
    """(k, features) the ratios of the rows of a linear layer's gradient."""
    parts = task.unflatten(gradient)
    weight, bias = (parts[f"{layer}.{w}".lstrip(".")] for w in ("weight", "bias"))
    far = bias.abs() > 1e-6 * bias.abs().max()
    if not bool(far.any()):
        return torch.zeros_like(weight[:1])
    return weight[far] / bias[far][:, None]


def in_data_units(task: Task, samples: Tensor, subject: Subject) -> Tensor:
    """What enters the model, as the data have it: (k, ...) of the shape of samples."""
    first = subject.federation.dataset.inputs[0]
    shaped = samples.reshape(len(samples), *first.shape[1:])
    if first.dtype == torch.uint8 or task.scales_floats:
        return shaped * along(task.scale, shaped) + along(task.shift, shaped)
    return shaped


def seek(
    task: Task, moved: Tensor, targets: Tensor, subject: Subject, seed: int
) -> Tensor:
    """(k, ...) samples, as they enter the model, whose gradient points that way.

    Args:
        task: model and loss.
        moved: (d,) where the gradient should point.
        targets: (k,) or (k, outputs) their targets.
        subject: the run, whose data say how large numbers are.
        seed: seed of where the search begins.
    """
    data = subject.federation.dataset.inputs[0]
    low, high = (
        task.prepare((bound,))[0]
        for bound in (data.amin(0, keepdim=True), data.amax(0, keepdim=True))
    )
    low, high = low.to(task.device), high.to(task.device)
    key = torch.tensor(streams.key(seed, "audit-seek"))
    shape = (len(targets), *data.shape[1:])
    start = streams.uniform(key, shape, task.dtype).to(task.device)
    # From 0 to 1, so that a step is as large for every kind of number.
    share = start.requires_grad_()
    direction = moved / moved.norm().clamp(min=1e-30)
    optimizer = torch.optim.Adam([share], lr=_RATE)
    for step in range(_STEPS):
        guess = low + share * (high - low)
        gradient = task.grad(task.start, _batch_of(task, guess, targets, data))
        cosine = (gradient * direction).sum() / gradient.norm().clamp(min=1e-30)
        distance = 1 - cosine + _VARIATION * _variation(share)
        # The authors follow signs, with a rate that is cut down towards the end.
        share.grad = torch.autograd.grad(distance, share)[0].sign()
        for group in optimizer.param_groups:
            group["lr"] = _RATE * 0.1 ** (3 * step // _STEPS)
        optimizer.step()
        with torch.no_grad():
            share.clamp_(0.0, 1.0)
    return (low + share * (high - low)).detach()


def _batch_of(task: Task, samples: Tensor, targets: Tensor, data: Tensor) -> Batch:
    """Samples that enter the model as they are."""
    if task.scales_floats and data.dtype != torch.uint8:
        samples = samples * along(task.scale, samples) + along(task.shift, samples)
    zero = torch.zeros((), dtype=torch.int64, device=task.device)
    ones = torch.ones(len(targets), dtype=task.dtype, device=task.device)
    return Batch((samples,), targets, ones, zero, zero, zero == 0, zero)


def _variation(samples: Tensor) -> Tensor:
    """Mean difference of neighbouring pixels; 0 for rows of a table."""
    if samples.dim() < 3:
        return samples.new_zeros(())
    down, right = samples.diff(dim=-2).abs(), samples.diff(dim=-1).abs()
    return down.mean() + right.mean()


class _Measure:
    """Distances of samples where every number lies between 0 and 1.

    Pixels have one range together, columns of a table each their own.
    """

    def __init__(self, federation: Federation) -> None:
        data = federation.dataset.inputs[0].double()
        is_table = data.dim() == 2
        self._low = data.amin(0) if is_table else data.min()
        span = (data.amax(0) if is_table else data.max()) - self._low
        self._span = torch.where(span > 0, span, 1.0)
        self._varies = (span > 0).expand(data.shape[1:]).flatten()

    def unit(self, samples: Tensor) -> Tensor:
        """Samples in these units; what lies outside is moved to the edge."""
        numbers = samples.detach().cpu().double()
        return ((numbers - self._low) / self._span).clamp(0.0, 1.0)

    def errors(self, truth: Tensor, guesses: Tensor) -> Tensor:
        """(n, k) mean squared error of every guess at every sample."""
        true, guessed = (x.flatten(1)[:, self._varies] for x in (truth, guesses))
        return torch.cdist(true, guessed).square() / max(int(self._varies.sum()), 1)

    def psnr(self, truth: Tensor, guesses: Tensor) -> Tensor:
        """(n,) decibels of the guess that is nearest to each sample."""
        error = self.errors(truth, guesses).amin(1)
        return (-10.0 * error.clamp(min=1e-30).log10()).clamp(max=EXACT)
