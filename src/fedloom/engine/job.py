"""A job: the same local work for many clients, as both runners take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedloom.clients.batches import (
    Extents,
    Plan,
    plan_batches,
    plan_passes,
    steps_per_epoch,
)
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import AnyAlgorithm, Client, Phase
from fedloom.core.clip import PerSample
from fedloom.core.errors import ContractError
from fedloom.core.messages import CohortDownload, Report
from fedloom.core.records import Empty, take
from fedloom.core.reprs import without_values
from fedloom.core.scaling import Scaling
from fedloom.core.streams import fold
from fedloom.core.task import Task
from fedloom.core.watched import WatchedTask, watch


@without_values
@dataclass(frozen=True, eq=False)
class Samples:
    """The data of all clients where the work is done: one copy, gathered by index."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    indices: Tensor
    """All clients' training samples, one client after another."""
    offsets: Tensor
    """(M,) where each client's begin in `indices`."""
    sizes: Tensor
    """(M,) how many each client has."""

    @classmethod
    def of(cls, federation: Federation, part: Ragged, device: torch.device) -> Samples:
        """Place one part (train, validation, test) of a federation on a device."""
        data = federation.dataset
        return cls(
            inputs=tuple(x.to(device) for x in data.inputs),
            targets=data.targets.to(device),
            indices=torch.as_tensor(part.indices, device=device),
            offsets=torch.as_tensor(part.offsets[:-1], device=device),
            sizes=torch.as_tensor(part.sizes, device=device),
        )

    @classmethod
    def joined(cls, parts: Sequence[Samples]) -> Samples:
        """The clients of several runs one after another; equal data are held once."""
        held: list[Samples] = []
        indices, offsets, before, clients_before = [], [], {}, 0
        for part in parts:
            known = next((n for n, s in enumerate(held) if s.has_data_of(part)), None)
            if known is None:
                known = len(held)
                before[known] = sum(len(s.targets) for s in held)
                held.append(part)
            indices.append(part.indices + before[known])
            offsets.append(part.offsets + clients_before)
            clients_before += len(part.indices)
        columns = zip(*(s.inputs for s in held), strict=True)
        is_one = len(held) == 1
        return cls(
            inputs=held[0].inputs if is_one else tuple(torch.cat(c) for c in columns),
            targets=held[0].targets if is_one else torch.cat([s.targets for s in held]),
            indices=torch.cat(indices),
            offsets=torch.cat(offsets),
            sizes=torch.cat([part.sizes for part in parts]),
        )

    def has_data_of(self, other: Samples) -> bool:
        """Whether inputs and targets are the same, whoever holds which."""
        mine, theirs = (*self.inputs, self.targets), (*other.inputs, other.targets)
        return all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))

    @cached_property
    def host_sizes(self) -> Tensor:
        """`sizes` on the host."""
        return self.sizes.cpu()

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor]:
        """The samples without repetition, and where each of `indices` is among them."""
        values, place = torch.unique(self.indices, return_inverse=True)
        return values, place

    def only(self, rows: Tensor) -> Samples:
        """The same of some clients; the samples themselves are not copied."""
        if len(rows) == len(self.sizes):
            return self
        sizes = self.sizes[rows]
        ends = sizes.cumsum(0)
        starts = self.offsets[rows] - (ends - sizes)
        places = torch.arange(int(sizes.sum()), device=rows.device)
        return replace(
            self,
            indices=self.indices[places + torch.repeat_interleave(starts, sizes)],
            offsets=ends - sizes,
            sizes=sizes,
        )

    def part(self, ragged: Ragged) -> Samples:
        """Another part of the same data; the samples themselves are not copied."""
        device = self.targets.device
        return Samples(
            inputs=self.inputs,
            targets=self.targets,
            indices=torch.as_tensor(ragged.indices, device=device),
            offsets=torch.as_tensor(ragged.offsets[:-1], device=device),
            sizes=torch.as_tensor(ragged.sizes, device=device),
        )


@dataclass(frozen=True, eq=False)
class Job:
    """What each client does: begin, phases, finish."""

    begin: Callable[..., Any]
    phases: tuple[Phase, ...]
    finish: Callable[..., Any]
    algorithm: AnyAlgorithm
    task: Task
    train: Samples
    scaling: Scaling | None = None
    """The scaling of every run, a row each, where runs that differ in it are trained
    together; none is the task's own."""
    run_of: Tensor | None = None
    """(M,) the run of each row of the data, where there is a scaling of each."""
    per_sample: PerSample | None = None
    """How gradients hide single samples. A model that a client adapts for itself is
    never sent, and its gradients hide none."""
    clip: float | None = field(init=False)
    """The method's; asked of it once, since compiled steps cannot ask a method that is
    wrapped around another."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", self.algorithm.clip)

    def scaling_at(self, rows: Tensor) -> Scaling | None:
        """The scaling of some rows of the data; None if it is the task's own."""
        if self.scaling is None or self.run_of is None:
            return None
        scaling: Scaling = take(self.scaling, self.run_of[rows])
        return scaling

    def watched(self, scaling: Scaling | None) -> WatchedTask:
        """The task as one step sees it; `scaling` is that of its client."""
        return watch(self.task, scaling, self.clip, self.per_sample)

    def noise_keys(self, participants: Participants, number: int) -> Tensor:
        """(n,) the streams of the noise in steps of the `number`-th phase.

        They come from the clients' secrets where noise hides samples.
        """
        hides = self.per_sample is not None
        keys = participants.client.secret if hides else participants.keys
        return phase_key(keys, number)

    @cached_property
    def above_base(self) -> Job | None:
        """The same work on what the head of the model takes, if the task allows it."""
        if self.scaling is not None or self.per_sample is not None:
            return None
        some = self.train.indices[:2]
        task = self.task.above_base(tuple(x[some] for x in self.train.inputs))
        return None if task is None else replace(self, task=task)

    @cached_property
    def batch_size(self) -> int:
        """The most samples of a batch: no more than the largest client has.

        The same in every chunk, so that a client's numbers do not depend on its
        company.
        """
        return max(1, min(self.algorithm.batch_size, int(self.train.host_sizes.max())))

    def method(self, name: str) -> Callable[..., Any]:
        """A method that a phase names."""
        method = getattr(self.algorithm, name, None)
        if not callable(method):
            raise ContractError(
                f"{type(self.algorithm).__name__}: a phase names the method {name!r}, "
                "and there is none."
            )
        return method  # type: ignore[no-any-return]


class Participants(NamedTuple):
    """The clients of one call of a runner, n of them; every tensor has n rows."""

    rows: Tensor
    """Which rows of the data are theirs; of no meaning beyond that."""
    keys: Tensor
    """Each client's random stream for this exchange, by its number."""
    client: Client
    memory: Any


class LocalResults(NamedTuple):
    """What n clients came to; every tensor has n rows."""

    result: Any
    """What `finish` returned."""
    report: Report


class TrainingResult(NamedTuple):
    """What the `finish` of a training job returns for one client."""

    memory: Any
    """What the client keeps if its upload is used as the order says."""
    if_lost: Any
    """What it keeps if the upload got lost; `Empty` where nothing can get lost."""
    upload: Any
    client_log: Any


Outputs = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(N, ...) what a module puts out for samples, of the models of clients, (n, d), which
samples, (N,), one client's after another's, and how many are each client's, (n,)."""


class Runner(Protocol):
    """Runs a job for many clients. `loop` and `weave` differ in nothing but speed."""

    def run(
        self, job: Job, sent: CohortDownload, participants: Participants
    ) -> LocalResults:
        """Run the job for some clients."""

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one client's records as one of n rows of them."""

    def outputs_of(self, task: Task, samples: Samples) -> Outputs | None:
        """What gives many models' outputs at once; None if `each` is the way to."""

    def alone(self) -> Runner:
        """A runner of the same kind for a single client."""


def train_job(
    algorithm: AnyAlgorithm, task: Task, train: Samples, *, can_lose: bool = False
) -> Job:
    """The local training of a round; its result is a `TrainingResult`.

    Args:
        algorithm: the method.
        task: model and loss.
        train: the clients' data.
        can_lose: whether uploads may get lost, so that clients keep what they would
            have without uploading too.
    """

    def finish(
        work: Any, down: Any, memory: Any, client: Client, task: Task
    ) -> TrainingResult:
        kept, upload = algorithm.finish(work, down, memory, client, task)
        if_lost: Any = Empty()
        if can_lose:
            unheard = client._replace(uploads=torch.zeros_like(client.uploads))
            if_lost, _ = algorithm.finish(work, down, memory, unheard, task)
        log = algorithm.client_log(work, down, memory, client, task)
        return TrainingResult(kept, if_lost, upload, log)

    return Job(
        algorithm.begin,
        algorithm.phases,
        finish,
        algorithm,
        task,
        train,
        per_sample=algorithm.per_sample,
    )


def personal_job(algorithm: AnyAlgorithm, task: Task, train: Samples) -> Job:
    """A client's personal model, adapted on training data where the method says so."""

    def finish(theta: Tensor, *_: Any) -> Tensor:
        return theta

    return Job(algorithm.personal, algorithm.adaptation, finish, algorithm, task, train)


def planned_steps(phase: Phase, sizes: Tensor, batch_size: int) -> Tensor:
    """(n,) steps of a phase from the sizes alone: the most that `length` may say."""
    if phase.epochs is not None:
        return phase.epochs * steps_per_epoch(sizes, batch_size)
    steps = phase.steps if phase.steps is not None else phase.passes
    return torch.full_like(sizes, steps or 0)


def phase_key(keys: Tensor, number: int) -> Tensor:
    """The stream of the `number`-th phase, below each client's."""
    return fold(keys, number)


def noise_key(keys: Tensor, phase: Phase) -> Tensor:
    """The stream that a phase's steps draw their noise from, below the phase's."""
    return fold(keys, phase.batches)


def plan_phase(
    phase: Phase,
    keys: Tensor,
    sizes: Tensor,
    steps: Tensor,
    batch_size: int,
    extents: Extents | None = None,
) -> Plan:
    """Batches of one phase for C clients; positions are (C, S, k, B) for k batches."""
    if phase.passes is not None:
        plans = [plan_passes(sizes, steps, extents)] * phase.batches
    else:
        plans = [
            plan_batches(fold(keys, stream), sizes, steps, batch_size, extents)
            for stream in range(phase.batches)
        ]
    return Plan(
        positions=torch.stack([p.positions for p in plans], dim=2),
        mask=torch.stack([p.mask for p in plans], dim=2),
        ends_epoch=plans[0].ends_epoch,
    )
