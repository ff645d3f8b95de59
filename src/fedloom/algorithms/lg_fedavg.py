"""LG-FedAvg: every client has a representation of its own under a shared head.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. Think Locally, Act
Globally: Federated Learning with Local and Global Representations. 2020.
arXiv:2001.01523.

    paper       here            lives
    theta^g     Download.head   sent to the cohort, and sent back after training
    theta_m^l   Memory.base     on client m, never sent
    N_m         Cohort.sizes    known to the server

Deviations: the authors' code starts from a model that FedAvg has trained; here a run
starts at the model's own parameters, or at another run's shared model if `warm_start`
names it. The shared head is one module, by default the last linear layer, where that
code shares the last two or three layers: name a larger one to do so. Clients count by
training samples, or equally as in that code. What the paper adds to the
local loss, for fair representations, and its ensemble of all local models for samples
of unknown origin are left out: a client uses its own. A model that is all head makes
this FedAvg, one without a head Local.
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
    """The shared head."""

    head: Tensor


class Memory(NamedTuple):
    """On one client, from round to round. Never sent."""

    base: Tensor


class Download(NamedTuple):
    """Server to client: the shared head."""

    head: Tensor


Work = SGDState
"""During a round: base and head as one vector, for they move together."""


class Upload(NamedTuple):
    """Client to server: the head after local training. The representation stays."""

    head: Tensor


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(Algorithm[Server, Memory, Download, Work, Upload]):
    """FedAvg on the head; the layers below are trained with it and kept."""

    name = "lg-fedavg"
    group = "personalised"
    optimizers = ANY
    averages = ("head",)

    weights: Weighting = "size"
    """Clients count by training samples or equally."""

    def init_server(self, population: Population) -> Server:
        return Server(population.task.split(population.theta(0))[1])

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        # theta^g <- sum_m (N_m / N) theta_m^g
        return Server(cohort.weights(self.weights) @ uploads.head)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(task.split(task.start)[0])

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return self.sgd_start(task.join(memory.base, down.head))

    @plain_descent
    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Both parts descend: theta <- theta - eta grad F_m(theta_m^l, theta_m^g)."""
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        base, head = task.split(work.at)
        return Memory(base), Upload(head)

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return task.join(memory.base, down.head)
