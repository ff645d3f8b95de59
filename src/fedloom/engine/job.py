"""A job: the same local work for many clients, as both runners take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.clients.batches import Plan, plan_batches, plan_passes, steps_per_epoch
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import Algorithm, Client, Phase
from fedloom.core.errors import ContractError
from fedloom.core.records import leaves, message_bytes, rebuild, row_fields
from fedloom.core.streams import fold
from fedloom.core.task import Task

AnyAlgorithm = Algorithm[Any, Any, Any, Any, Any]


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

    def method(self, name: str) -> Callable[..., Any]:
        """A method that a phase names."""
        found = getattr(self.algorithm, name, None)
        if not callable(found):
            raise ContractError(
                f"{type(self.algorithm).__name__}: a phase names the method {name!r}, "
                "and there is none."
            )
        return found  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class CohortDownload:
    """A download as the server made it: some fields for all, some with a row each."""

    record: Any
    has_rows: list[bool]
    """For each tensor, whether it has one row per client."""

    @classmethod
    def of(cls, record: Any) -> CohortDownload:
        """Read off the record's type which fields have rows."""
        return cls(record, row_fields(record))

    @property
    def in_dims(self) -> list[int | None]:
        """For each tensor, the dimension that counts clients, as `vmap` takes it."""
        return [0 if has_row else None for has_row in self.has_rows]

    @property
    def bytes(self) -> int:
        """What one client receives."""
        return message_bytes(self.record, has_rows=self.has_rows)

    @classmethod
    def joined(
        cls, parts: Sequence[CohortDownload], counts: Sequence[int]
    ) -> CohortDownload:
        """The downloads of several runs one after another, each with a row per client.

        Args:
            parts: the downloads, of one type.
            counts: how many clients each is for.
        """
        columns: list[list[Tensor]] = [[] for _ in parts[0].has_rows]
        for part, count in zip(parts, counts, strict=True):
            flags = zip(leaves(part.record), part.has_rows, strict=True)
            for column, (leaf, has_row) in zip(columns, flags, strict=True):
                column.append(leaf if has_row else leaf.expand(count, *leaf.shape))
        record = rebuild(parts[0].record, [torch.cat(column) for column in columns])
        return cls(record, [True] * len(columns))

    def take(self, index: Any) -> CohortDownload:
        """The same for some clients, by their rows."""
        values = [
            leaf[index] if has_row else leaf
            for leaf, has_row in zip(leaves(self.record), self.has_rows, strict=True)
        ]
        return CohortDownload(rebuild(self.record, values), self.has_rows)

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of (one client's download, its records...) for all at once."""

        def one(down_leaves: list[Tensor], *rows: Any) -> Any:
            return function(rebuild(self.record, down_leaves), *rows)

        def call(*records: Any) -> Any:
            in_dims = (self.in_dims, *[0] * len(records))
            return vmap(one, in_dims=in_dims)(leaves(self.record), *records)

        return call


class Participants(NamedTuple):
    """The clients of one call of a runner, n of them; every tensor has n rows."""

    rows: Tensor
    """Which clients, as rows of the population."""
    keys: Tensor
    """Each client's random stream for this exchange."""
    client: Client
    memory: Any


class LocalResults(NamedTuple):
    """What n clients came to; every tensor has n rows."""

    result: Any
    """What `finish` returned."""
    loss: Tensor
    """Mean training loss that the gradient steps met."""
    steps: Tensor
    """Gradient steps taken."""


class Runner(Protocol):
    """Runs a job for many clients. `loop` and `weave` differ in nothing but speed."""

    def run(self, job: Job, sent: CohortDownload, crew: Participants) -> LocalResults:
        """Run the job for the clients of a crew."""

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one client's records as one of n rows of them."""


def train_job(algorithm: AnyAlgorithm, task: Task, train: Samples) -> Job:
    """The local training of a round; its result is (memory, upload, notes)."""

    def finish(*everything: Any) -> tuple[Any, Any, Any]:
        memory, upload = algorithm.finish(*everything)
        return memory, upload, algorithm.client_log(*everything)

    return Job(algorithm.begin, algorithm.phases, finish, algorithm, task, train)


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
    phase: Phase, keys: Tensor, sizes: Tensor, steps: Tensor, batch_size: int
) -> Plan:
    """Batches of one phase for C clients; positions are (C, S, k, B) for k batches."""
    if phase.passes is not None:
        plans = [plan_passes(sizes, steps)] * phase.batches
    else:
        plans = [
            plan_batches(fold(keys, stream), sizes, steps, batch_size)
            for stream in range(phase.batches)
        ]
    return Plan(
        positions=torch.stack([p.positions for p in plans], dim=2),
        mask=torch.stack([p.mask for p in plans], dim=2),
        ends_epoch=plans[0].ends_epoch,
    )
