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
from typing import Literal, NamedTuple

from torch import Tensor

from fedloom.core.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Phase,
    Population,
    SGDState,
)
from fedloom.core.records import Empty
from fedloom.core.settings import Whole
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The shared model."""

    shared: Tensor


class Download(NamedTuple):
    """Server to client: the shared model."""

    shared: Tensor


class Work(NamedTuple):
    """During a round."""

    shared: SGDState


class Upload(NamedTuple):
    """Client to server: the shared model after local training."""

    shared: Tensor


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm[Server, Empty, Download, Work, Upload]):
    """One shared model, averaged from local training."""

    name = "fedavg"
    group = "global"

    weights: Literal["size", "equal"] = "size"
    """Clients count by training samples (FedAvg-w) or equally (FedAvg-e)."""
    tuning: Whole = 0
    """Epochs of local training that turn the shared model into the personal one."""

    @property
    def adaptation(self) -> tuple[Phase, ...]:
        return (Phase(step="tune", epochs=self.tuning),) if self.tuning else ()

    def init_server(self, population: Population) -> Server:
        return Server(population.theta(0))

    def download(self, server: Server, cohort: Cohort) -> Download:
        return Download(server.shared)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        shares = cohort.by_size() if self.weights == "size" else cohort.equally()
        # Alg. 1: w_{t+1} <- sum_k (n_k / n) w^k_{t+1}
        return Server(shares @ uploads.shared)

    def shared(self, server: Server, task: Task) -> Tensor:
        return server.shared

    def initial_memory(self, down: Download, client: Client, task: Task) -> Empty:
        return Empty()

    def begin(self, down: Download, memory: Empty, client: Client, task: Task) -> Work:
        return Work(self.sgd_start(down.shared))

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1, ClientUpdate: w <- w - eta grad l(w; b)."""
        gradient = task.grad(work.shared.at, batch)
        return Work(self.sgd_step(work.shared, gradient, batch))

    def finish(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> tuple[Empty, Upload]:
        return memory, Upload(work.shared.at)

    def personal(
        self, down: Download, memory: Empty, client: Client, task: Task
    ) -> Tensor:
        return down.shared

    def tune(self, theta: Tensor, down: Download, batch: Batch, task: Task) -> Tensor:
        """One step of fine-tuning the shared model on the client's own data."""
        return self.sgd_step(self.sgd_start(theta), task.grad(theta, batch), batch).at
