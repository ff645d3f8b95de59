"""FedAvg: local SGD from the shared model, then an average.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017. arXiv:1602.05629.

    paper   here              lives
    w_t     Download.shared   sent to the cohort
    w^k     Upload.shared     sent back after local training
    n_k     Cohort.sizes      known to the server
    E, B    epochs, batch_size

Deviations: none known in training. The paper has no personal model. By default a client
uses the shared one; with `tuning` above 0 it uses the shared model after that many
epochs on its own training data, without momentum, which is kept by nobody. With
`personal_model = "last"` it keeps and uses the model of its own last local training, as
papers do that compare with FedAvg's local models; until then it uses the shared one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.errors import ConfigError
from fedloom.core.optimizers import ANY
from fedloom.core.phases import plain_descent
from fedloom.core.settings import Weighting, Whole
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The shared model."""

    shared: Tensor


class Memory(NamedTuple):
    """On one client, from round to round, if it is asked for."""

    last: Tensor
    """The model after the client's own last local training; empty unless
    `personal_model` is "last"."""


class Download(NamedTuple):
    """Server to client: the shared model."""

    shared: Tensor


Work = SGDState
"""During a round: the shared model, as it is trained."""


class Upload(NamedTuple):
    """Client to server: the shared model after local training."""

    shared: Tensor


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm[Server, Memory, Download, Work, Upload]):
    """One shared model, averaged from local training."""

    name = "fedavg"
    group = "global"
    optimizers = ANY

    weights: Weighting = "size"
    """Clients count by training samples (FedAvg-w) or equally (FedAvg-e)."""
    tuning: Whole = 0
    """Epochs of local training that turn the shared model into the personal one."""
    personal_model: Literal["shared", "last"] = "shared"
    """Model that a client uses: the shared one, after `tuning`, or the one that its
    own last local training came to, which it then keeps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tuning and self.personal_model == "last":
            raise ConfigError(
                "fedavg: tuning must be 0 where personal_model is 'last', since that "
                f"model is tuned already; found {self.tuning}. Leave one of them out."
            )

    def init_server(self, population: Population) -> Server:
        return Server(population.theta(0))

    def download(self, server: Server, cohort: Cohort) -> Download:
        return Download(server.shared)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        # Alg. 1: w_{t+1} <- sum_k (n_k / n) w^k_{t+1}
        return Server(cohort.weights(self.weights) @ uploads.shared)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return self._memory(down.shared)

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return self.sgd_start(down.shared)

    @plain_descent
    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1, ClientUpdate: w <- w - eta grad l(w; b)."""
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        return self._memory(work.at), Upload(work.at)

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return memory.last if self.personal_model == "last" else down.shared

    def _memory(self, theta: Tensor) -> Memory:
        """The model if it is kept, else nothing of it."""
        return Memory(theta if self.personal_model == "last" else theta[:0])
