"""FedBABU: the base is trained under a head that never moves, and tuned afterwards.

Oh, Kim, Yun. FedBABU: Towards Enhanced Representation for Federated Image
Classification. ICLR 2022. arXiv:2106.06042.

    paper       here            lives
    theta_ext   Download.base   sent to the cohort, and sent back after training
    theta_cls   Memory.head     on every client, from the model that all are given
                                beforehand; never trained and never sent
    tau_f       tuning          configuration

Deviations: clients count by training samples, or equally as in the authors' code. That
code tunes with momentum, at the learning rate that training ended with; here tuning
takes the present round's and no momentum. A model without a head makes this FedAvg; one
that is all head is refused, for its rounds would train nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.errors import ContractError
from fedloom.core.optimizers import ANY
from fedloom.core.phases import Phase
from fedloom.core.settings import Weighting, Whole
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The shared base."""

    base: Tensor


class Memory(NamedTuple):
    """On one client, from round to round. Never sent, and the same for all."""

    head: Tensor


class Download(NamedTuple):
    """Server to client: the shared base."""

    base: Tensor


class Work(NamedTuple):
    """During a round: the base alone moves."""

    base: SGDState
    head: Tensor


class Upload(NamedTuple):
    """Client to server: the base after local training."""

    base: Tensor


@dataclass(frozen=True, kw_only=True)
class FedBABU(Algorithm[Server, Memory, Download, Work, Upload]):
    """FedAvg on the base under a frozen random head; tuning makes it personal."""

    name = "fedbabu"
    group = "personalised"
    optimizers = ANY
    averages = ("base",)

    tuning: Whole = 5
    """Epochs on the client's own training data that turn the shared model into the
    personal one (tau_f); 0 leaves it as it is."""
    tuned: Literal["all", "head"] = "all"
    """What tuning moves: the whole model, or the head above the shared base."""
    weights: Weighting = "size"
    """Clients count by training samples or equally."""

    def init_server(self, population: Population) -> Server:
        task = population.task
        if task.base_d == 0:
            raise ContractError(
                "fedbabu: the head is all of the model, and fedbabu trains only what "
                "lies below it. Take a model with a layer below the head, name a "
                "smaller head, or use fedavg with algorithm.tuning."
            )
        base, _ = task.split(population.theta(0))
        return Server(base)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        return Server(cohort.weights(self.weights) @ uploads.base)

    def shared(self, server: Server, task: Task) -> Tensor:
        return task.join(server.base, task.split(task.start)[1])

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(task.split(task.start)[1])

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return Work(self.sgd_start(down.base), memory.head)

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """theta_ext <- theta_ext - eta grad_ext F_k(theta_ext, theta_cls)."""
        theta = task.join(work.base.at, work.head)
        gradient, _ = task.split(task.grad(theta, batch))
        return Work(self.sgd_step(work.base, gradient, batch), work.head)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        return memory, Upload(work.base.at)

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return task.join(down.base, memory.head)

    @property
    def adaptation(self) -> tuple[Phase, ...]:
        frozen = "received_base" if self.tuned == "head" else None
        return tuple(replace(phase, frozen=frozen) for phase in super().adaptation)

    def tune(self, theta: Tensor, down: Download, batch: Batch, task: Task) -> Tensor:
        """One step of tuning all of the model, or the head above the shared base."""
        if self.tuned == "all":
            return super().tune(theta, down, batch, task)
        base, head = task.split(theta)

        def objective(head: Tensor) -> Tensor:
            return batch.mean(task.losses_of(base, head, batch))

        gradient = task.grad_of(objective, head, batch)
        return task.join(base, self.sgd_step(self.sgd_start(head), gradient, batch).at)
