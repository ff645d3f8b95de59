"""A method that uses all that the contract allows, and a small federation for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import (
    Algorithm,
    AnyAlgorithm,
    Client,
    Cohort,
    Phase,
    Population,
    SGDState,
)
from fedloom.core.records import Logged, PerClient
from fedloom.core.settings import NonNegative
from fedloom.core.streams import normal, seeded
from fedloom.core.task import Batch, Task
from fedloom.data.dataset import Dataset
from fedloom.engine.job import Runner
from fedloom.engine.loop import Loop
from fedloom.server.simulation import Simulation

SIZES = (2, 9, 5, 1, 14, 7)
TESTS = (3, 0, 2, 300, 1, 4)
COUNT = len(SIZES)
D = 3 * 2 + 2


class Server(NamedTuple):
    shared: Tensor
    before: Tensor
    """The same tensor as `shared` until the first aggregation."""
    models: PerClient[Tensor]
    """(M, d)."""
    concluded: Tensor
    """How many rounds were closed."""


class Trace(NamedTuple):
    visits: Tensor
    is_warm: Tensor


class Memory(NamedTuple):
    personal: Tensor
    trace: Trace
    empty: Tensor


class Download(NamedTuple):
    shared: Tensor
    own: PerClient[Tensor]


class Work(NamedTuple):
    personal: SGDState
    total: Tensor
    """Loss of the last pass over all data."""
    last: Tensor
    epochs_ended: Tensor
    positions: Tensor
    """Sum of `batch.step`, to see that it counts from 0 in each phase."""


class Upload(NamedTuple):
    personal: Tensor
    loss: Tensor
    empty: Tensor


class ClientLog(NamedTuple):
    round: Tensor
    exchange: Tensor
    uploads: Tensor
    epochs_ended: Tensor
    positions: Tensor


class ServerLog(NamedTuple):
    weight: PerClient[Tensor]
    concluded: Tensor


@dataclass(frozen=True, kw_only=True)
class Patchwork(Algorithm[Server, Memory, Download, Work, Upload]):
    """Own lengths, two batches per step, stopping when settled, noise, exchanges."""

    name = "patchwork"
    group = "personalised"

    noise: NonNegative = 0.01
    tolerance: NonNegative = 0.02

    @property
    def exchanges(self) -> int:
        return 2

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase(step="stroll", steps=5, length="own_length"),
            Phase(step="pair", epochs=1, batches=2),
            Phase(step="settle", passes=12, until="has_settled"),
            Phase(step="stroll", epochs=0),
        )

    @property
    def adaptation(self) -> tuple[Phase, ...]:
        return (Phase(step="tune", steps=3),)

    def init_server(self, population: Population) -> Server:
        theta = population.theta(0)
        models = theta.repeat(population.count, 1)
        return Server(theta, theta, models, torch.zeros((), dtype=torch.int64))

    def download(self, server: Server, cohort: Cohort) -> Download:
        return Download(server.shared, server.models[cohort.clients])

    def aggregate(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> Logged[Server, ServerLog]:
        weights = cohort.weights("size")
        models = server.models.index_copy(0, cohort.clients, uploads.personal)
        new = Server(
            weights @ uploads.personal, server.shared, models, server.concluded
        )
        return Logged(new, ServerLog(weights, server.concluded))

    def end_round(self, server: Server, cohort: Cohort) -> Server:
        return server._replace(concluded=server.concluded + 1)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        trace = Trace(torch.zeros_like(client.round), client.round < 0)
        return Memory(down.shared, trace, down.shared[:0])

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        nothing = torch.zeros_like(client.size)
        none = torch.zeros_like(client.round)
        start = 0.5 * memory.personal + 0.25 * (down.shared + down.own)
        return Work(self.sgd_start(start), nothing + 1e9, nothing + 2e9, none, none)

    def own_length(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """0 for the smallest, more than the phase allows for the largest."""
        return (client.size // 2).to(torch.int64) * 2 - memory.trace.visits % 2

    def stroll(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        gradient = task.grad(work.personal.at, batch)
        gradient = gradient + self.noise * normal(batch.key, (task.d,), task.dtype)
        return work._replace(
            personal=self.sgd_step(work.personal, gradient, batch),
            epochs_ended=work.epochs_ended + batch.ends_epoch,
            positions=work.positions + batch.step,
        )

    def pair(
        self, work: Work, down: Download, batch: tuple[Batch, ...], task: Task
    ) -> Work:
        here, there = batch
        looking = work.personal.at - 0.1 * task.grad(work.personal.at, here)
        gradient = task.grad(looking, there)
        return work._replace(
            personal=self.sgd_step(work.personal, gradient, here),
            epochs_ended=work.epochs_ended + here.ends_epoch,
            positions=work.positions + here.step,
        )

    def settle(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        at = work.personal.at
        point = self.sgd_step(work.personal, task.grad(at, batch), batch)
        return work._replace(
            personal=point, total=task.loss(at, batch), last=work.total
        )

    def has_settled(self, work: Work) -> Tensor:
        return work.last - work.total < self.tolerance * work.total

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        trace = Trace(memory.trace.visits + 1, memory.trace.visits > 0)
        at = work.personal.at
        return Memory(at, trace, at[:0]), Upload(at, work.total, at[:0])

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        return ClientLog(
            client.round,
            client.exchange,
            client.uploads,
            work.epochs_ended,
            work.positions,
        )

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return memory.personal

    def tune(self, theta: Tensor, down: Download, batch: Batch, task: Task) -> Tensor:
        noise = normal(batch.key, (task.d,), task.dtype)
        return theta - self.lr * (task.grad(theta, batch) + self.noise * noise)


def small_federation() -> Federation:
    """Six clients in two teams; three numbers in, two classes out."""
    draw = np.random.default_rng(6)
    total = sum(SIZES) + sum(TESTS)
    labels = draw.integers(0, 2, total)
    inputs = draw.normal(size=(total, 3)) + labels[:, None]
    lists = np.split(np.arange(total), np.cumsum([*SIZES, *TESTS])[:-1])
    return Federation(
        dataset=Dataset(
            name="small",
            inputs=(torch.from_numpy(inputs),),
            targets=torch.from_numpy(labels),
            classes=2,
        ),
        train=Ragged.of(lists[:COUNT]),
        validation=Ragged.of([np.arange(0)] * COUNT),
        test=Ragged.of(lists[COUNT:]),
        names=tuple("abcdef"),
        teams=np.arange(COUNT) % 2,
    )


def small_task(dtype: torch.dtype = torch.float64) -> Task:
    with seeded(0, "model"):
        return Task(nn.Linear(3, 2), dtype=dtype)


def simulation_of(
    algorithm: AnyAlgorithm,
    runner: Runner | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    federation: Federation | None = None,
    task: Task | None = None,
    seed: int = 0,
    **sampling: Any,
) -> Simulation:
    return Simulation(
        algorithm,
        task if task is not None else small_task(dtype),
        federation if federation is not None else small_federation(),
        runner if runner is not None else Loop(),
        sampling=Sampling(**sampling),
        seed=seed,
    )
