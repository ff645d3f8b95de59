"""FedPer: the base is averaged, every client keeps a head of its own.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers.
2019. arXiv:1912.00818.

    paper   here            lives
    W_B     Download.base   sent to the cohort, and sent back after training
    W_Pj    Memory.head     on client j, never sent
    n_j     Cohort.sizes    known to the server
    e, b    epochs, batch_size

Deviations: all heads start at the model's own, so that a client that joins late, or was
never sampled, has the common start above the present base. The head is one module, by
default the last linear layer, where the paper tries several depths: name another to
change it. A model without a head makes this FedAvg, one that is all head Local.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.optimizers import ANY
from fedloom.core.phases import plain_descent
from fedloom.core.settings import Weighting
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The shared base."""

    base: Tensor


class Memory(NamedTuple):
    """On one client, from round to round. Never sent."""

    head: Tensor


class Download(NamedTuple):
    """Server to client: the shared base."""

    base: Tensor


Work = SGDState
"""During a round: base and head as one vector, for they move together."""


class Upload(NamedTuple):
    """Client to server: the base after local training. The head stays."""

    base: Tensor


@dataclass(frozen=True, kw_only=True)
class FedPer(Algorithm[Server, Memory, Download, Work, Upload]):
    """FedAvg on the layers below the head; the head is trained with them and kept."""

    name = "fedper"
    group = "personalised"
    optimizers = ANY
    averages = ("base",)

    weights: Weighting = "size"
    """Clients count by training samples or equally."""

    def init_server(self, population: Population) -> Server:
        return Server(population.task.split(population.theta(0))[0])

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        # W_B <- sum_j (n_j / n) W_Bj
        return Server(cohort.weights(self.weights) @ uploads.base)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(task.split(task.start)[1])

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return self.sgd_start(task.join(down.base, memory.head))

    @plain_descent
    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """(W_B, W_Pj) <- (W_B, W_Pj) - eta grad F_j(W_B, W_Pj)."""
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        base, head = task.split(work.at)
        return Memory(head), Upload(base)

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return task.join(down.base, memory.head)
