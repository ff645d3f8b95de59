"""A learning rate from a short range test on training data: `lr = "auto"`.

Some clients train alone for a few dozen steps of plain SGD, once with each of a grid of
rates, all of them woven as more clients. Their loss on all of their training data is
taken before and after. The rate is that of the largest step which still does about as
well as the best, divided by a factor of safety, since a run is longer than the test.

The test is the same for every method with the same batch size, momentum, weight decay
and clip, whatever the method adds to the loss. It draws from the seed alone, and looks
at neither validation nor test data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core import streams
from fedloom.core.algorithm import Algorithm, AnyAlgorithm, Client, SGDState
from fedloom.core.errors import ConfigError, NumericalError
from fedloom.core.messages import CohortDownload
from fedloom.core.phases import Phase
from fedloom.core.records import Empty
from fedloom.core.task import Batch, Task
from fedloom.engine.job import Job, Participants, Runner, Samples

RATES = tuple(float(f"{10 ** (n / 2):.1g}") for n in range(-10, 2))
"""The grid: 1e-05, 3e-05, ..., 0.3, 1, 3."""
LIKE = ("batch_size", "momentum", "weight_decay", "clip")
"""Settings of a method that the test takes over; with the same, it is the same test."""
SAFETY = 3.0
"""What the largest good rate is divided by."""
_ENOUGH = 0.9
"""A good rate lowers the loss by this share of what the best lowers it by."""
_CLIENTS = 6
_SAMPLES = 256
"""Training samples of a client that take part, at most."""
_STEPS = 30


@dataclass(frozen=True, kw_only=True)
class FoundRate:
    """What came of a range test; prints as a sentence."""

    rate: float
    """The learning rate to train with."""
    largest: float
    """The largest good rate of the grid."""
    rates: tuple[float, ...]
    """All rates that were tried."""
    losses: tuple[float | None, ...]
    """Mean training loss of the clients after the test at each rate; None where it
    was not finite for all of them."""
    before: float
    """The same before the test."""
    clients: int
    """Number of clients that took part."""

    def __str__(self) -> str:
        return (
            f"lr = auto: {self.rate:g}, from a range test of {_STEPS} steps of "
            f"{self.clients} clients on training data; {self.largest:g} is the largest "
            f"of {self.rates[0]:g} to {self.rates[-1]:g} whose loss falls about as far "
            "as the best"
        )


def find_rate(
    algorithm: AnyAlgorithm,
    task: Task,
    federation: Federation,
    runner: Runner,
    *,
    seed: int,
) -> FoundRate:
    """A learning rate for a method's local steps.

    Args:
        algorithm: the method, of which the settings in `LIKE` are used.
        task: model and loss.
        federation: the clients; some of those with training data are drawn.
        runner: what trains them.
        seed: seed of who is drawn, and of the batches.

    Raises:
        NumericalError: the loss falls at none of the rates.
    """
    sample = _draw(federation, seed)
    before, after = _train(algorithm, task, federation, sample, runner, seed)
    start, means = float(before.mean()), after.mean(1)
    falls = torch.where(torch.isfinite(means), start - means, 0.0)
    best = float(falls.max())
    if not best > 0:
        raise NumericalError(
            f"lr = auto: the training loss of {len(sample)} clients, {start:.4g} at "
            f"first, falls at none of the rates {RATES[0]:g} to {RATES[-1]:g}. Look "
            "at the inputs, the targets and the loss for numbers that are not finite "
            "or of very different size."
        )
    place = int((falls >= _ENOUGH * best).nonzero().max())
    return FoundRate(
        rate=float(f"{RATES[place] / SAFETY:.1g}"),
        largest=RATES[place],
        rates=RATES,
        losses=tuple(m if math.isfinite(m) else None for m in means.tolist()),
        before=start,
        clients=len(sample),
    )


def with_rate(algorithm: AnyAlgorithm, found: FoundRate) -> AnyAlgorithm:
    """A method that trains at a rate that was found, or the next lower that it takes.

    Raises:
        ConfigError: it takes none of the rates.
    """
    lower = [rate for rate in reversed(found.rates) if rate < found.rate]
    refusal: ConfigError | None = None
    for rate in (found.rate, *lower):
        try:
            rates: dict[str, Any] = dict.fromkeys(algorithm.auto_rates, rate)
            return replace(algorithm, **rates)
        except ConfigError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _draw(federation: Federation, seed: int) -> Ragged:
    """Some samples of some clients who have any, for a test."""
    draw = streams.generator(seed, "range test")
    with_data = federation.sizes.nonzero()[0]
    count = min(_CLIENTS, len(with_data))
    clients = sorted(draw.choice(with_data, count, replace=False))
    own = [federation.train[client] for client in clients]
    return Ragged.of([draw.permutation(samples)[:_SAMPLES] for samples in own])


def _train(
    algorithm: AnyAlgorithm,
    task: Task,
    federation: Federation,
    sample: Ragged,
    runner: Runner,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """(k,) losses of k clients before, and (rates, k) after training at each rate."""
    plain = _PlainSGD(**{name: getattr(algorithm, name) for name in LIKE})
    phases = (
        Phase(step="look_before", passes=1),
        Phase(step="step", steps=_STEPS),
        Phase(step="look_after", passes=1),
    )
    samples = Samples.of(federation, sample, task.device)
    job = Job(plain.begin, phases, plain.losses, plain, task, samples)
    rows = torch.arange(len(sample), device=task.device).repeat(len(RATES))
    root = torch.tensor(streams.key(seed, "range test"), device=task.device)
    keys = streams.fold(root, rows)
    zeros = torch.zeros_like(rows)
    client = Client(
        size=samples.sizes[rows].to(task.dtype),
        round=zeros,
        exchange=zeros,
        uploads=zeros > 0,
        key=keys,
        secret=keys,
    )
    rates = torch.tensor(RATES, dtype=task.dtype, device=task.device)
    memory = _Memory(rates.repeat_interleave(len(sample)))
    participants = Participants(rows, keys, client, memory)
    done = runner.run(job, CohortDownload.of(Empty()), participants).result
    before, after = (losses.reshape(len(RATES), -1).double().cpu() for losses in done)
    return before[0], after


class _Memory(NamedTuple):
    """What a client of a test knows."""

    rate: Tensor


class _Losses(NamedTuple):
    """Loss on all training samples of a client of a test."""

    before: Tensor
    after: Tensor


class _Work(NamedTuple):
    """During a test."""

    state: SGDState
    rate: Tensor
    losses: _Losses


@dataclass(frozen=True, kw_only=True)
class _PlainSGD(Algorithm[Empty, _Memory, Empty, _Work, Empty]):
    """Plain SGD at a rate that every client has of its own."""

    name = "range-test"
    group = "local"

    def begin(self, down: Empty, memory: _Memory, client: Client, task: Task) -> _Work:
        nothing = torch.zeros_like(memory.rate)
        losses = _Losses(nothing, nothing)
        return _Work(self.sgd_start(task.start), memory.rate, losses)

    def look_before(self, work: _Work, down: Empty, batch: Batch, task: Task) -> _Work:
        """Take the loss before the first step."""
        loss = task.loss(work.state.at, batch)
        return work._replace(losses=work.losses._replace(before=loss))

    def look_after(self, work: _Work, down: Empty, batch: Batch, task: Task) -> _Work:
        """Take the loss after the last step."""
        loss = task.loss(work.state.at, batch)
        return work._replace(losses=work.losses._replace(after=loss))

    def step(self, work: _Work, down: Empty, batch: Batch, task: Task) -> _Work:
        gradient = task.grad(work.state.at, batch)
        moved = self.sgd_step(work.state, gradient, batch, lr=work.rate)
        return work._replace(state=moved)

    def losses(self, work: _Work, *_: Any) -> _Losses:
        """What the test is about."""
        return work.losses
