"""FedRep: fit the own head to the shared base, then move the base under that head.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting Shared Representations for
Personalized Federated Learning. ICML 2021. arXiv:2102.07078.

    paper   here            lives
    phi     Download.base   sent to the cohort, and sent back after training
    h_i     Memory.head     on client i, never sent
    alpha   lr              configuration, the same for head and base
    tau     head_epochs     configuration; the paper counts updates of the head

Deviations: clients count by training samples, or equally as in the paper (1 / rn). The
paper moves the base by one update; here by `epochs` or `steps`, as its experiments do.
The authors' code runs a last round in which all clients tune their heads, which no
other method here is given; there is none. All heads start at the model's own. A model
without a head makes this FedAvg, one that is all head Local with `head_epochs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.optimizers import ANY
from fedloom.core.phases import Phase
from fedloom.core.settings import Count, Weighting, Whole
from fedloom.core.task import Batch, Models, Task


class Server(NamedTuple):
    """The shared base."""

    base: Tensor


class Memory(NamedTuple):
    """On one client, from round to round. Never sent."""

    head: Tensor


class Download(NamedTuple):
    """Server to client: the shared base."""

    base: Tensor


class Work(NamedTuple):
    """During a round: first the head moves, then the base."""

    base: SGDState
    head: SGDState


class Upload(NamedTuple):
    """Client to server: the base after local training. The head stays."""

    base: Tensor


@dataclass(frozen=True, kw_only=True)
class FedRep(Algorithm[Server, Memory, Download, Work, Upload]):
    """A shared base and a head per client, trained one after the other."""

    name = "fedrep"
    group = "personalised"
    optimizers = ANY
    averages = ("base",)

    epochs: Count = 1
    """Local epochs of the base per round, after those of the head."""
    steps: Count | None = None
    """Local steps of the base per round, instead of epochs."""
    head_epochs: Whole = 10
    """Local epochs of the head per round, the base held fixed; they are cheap, since
    only the head is differentiated. 0 leaves every head at its start."""
    weights: Weighting = "size"
    """Clients count by training samples or equally."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        base = self.local_phase("step_base")
        if not self.head_epochs:
            return (base,)
        head = Phase(step="step_head", epochs=self.head_epochs, frozen="received_base")
        return head, base

    def init_server(self, population: Population) -> Server:
        return Server(population.task.split(population.theta(0))[0])

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        return Server(cohort.weights(self.weights) @ uploads.base)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(task.split(task.start)[1])

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return Work(self.sgd_start(down.base), self.sgd_start(memory.head))

    def step_head(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """h_i <- h_i - alpha grad_h f_i(h_i, phi), phi as it was received."""

        def models(head: Tensor) -> Models:
            return Models(work.base.at, head)

        gradient = task.grad_through(models, work.head.at, batch)
        return work._replace(head=self.sgd_step(work.head, gradient, batch))

    def step_base(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """phi_i <- phi_i - alpha grad_phi f_i(h_i, phi_i), h_i as just fitted."""
        theta = task.join(work.base.at, work.head.at)
        gradient, _ = task.split(task.grad(theta, batch))
        return work._replace(base=self.sgd_step(work.base, gradient, batch))

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        return Memory(work.head.at), Upload(work.base.at)

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return task.join(down.base, memory.head)
