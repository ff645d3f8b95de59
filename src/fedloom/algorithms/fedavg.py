"""FedAvg: local SGD from the shared model, then an average.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017. arXiv:1602.05629.

    paper   here              lives
    w_t     Download.shared   sent to the cohort
    w^k     Upload.shared     sent back after local training
    n_k     Cohort.sizes      known to the server
    E, B    epochs, batch_size

Deviations: none known in training. The paper has no personal model. With `tuning = 0`
a client uses the shared one; with `tuning` above 0 it uses the shared model after that
many epochs on its own training data, without momentum, which is kept by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.optimizers import ANY
from fedloom.core.phases import plain_descent
from fedloom.core.records import Empty
from fedloom.core.settings import Weighting, Whole
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The shared model."""

    shared: Tensor


class Download(NamedTuple):
    """Server to client: the shared model."""

    shared: Tensor


Work = SGDState
"""During a round: the shared model, as it is trained."""


class Upload(NamedTuple):
    """Client to server: the shared model after local training."""

    shared: Tensor


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm[Server, Empty, Download, Work, Upload]):
    """One shared model, averaged from local training."""

    name = "fedavg"
    group = "global"
    optimizers = ANY
    averages = ("shared",)

    weights: Weighting = "size"
    """Clients count by training samples (FedAvg-w) or equally (FedAvg-e)."""
    tuning: Whole = 0
    """Epochs of local training that turn the shared model into the personal one."""

    def init_server(self, population: Population) -> Server:
        return Server(population.theta(0))

    def download(self, server: Server, cohort: Cohort) -> Download:
        return Download(server.shared)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        # Alg. 1: w_{t+1} <- sum_k (n_k / n) w^k_{t+1}
        return Server(cohort.weights(self.weights) @ uploads.shared)

    def begin(self, down: Download, memory: Empty, client: Client, task: Task) -> Work:
        return self.sgd_start(down.shared)

    @plain_descent
    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1, ClientUpdate: w <- w - eta grad l(w; b)."""
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> tuple[Empty, Upload]:
        return memory, Upload(work.at)

    def personal(
        self, down: Download, memory: Empty, client: Client, task: Task
    ) -> Tensor:
        return down.shared
