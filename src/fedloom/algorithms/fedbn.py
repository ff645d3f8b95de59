"""FedBN: what normalisation layers learn stays on the client, the rest is averaged.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization. ICLR 2021. arXiv:2102.07623.

    paper                        here              lives
    w^(l), l not normalisation   Download.shared   sent, and sent back after training
    w_k^(l), l normalisation     Memory.own        on client k, never sent

Deviations: the paper is about batch normalisation, whose running statistics stay on the
client too. A batch's statistics belong to no parameter vector, so models here have
none; what stays is scale and shift of group, layer, instance and RMS normalisation.
Clients count by training samples, or equally as in the authors' code. A model without
such layers is refused: this would be FedAvg under another name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.errors import ContractError
from fedloom.core.optimizers import ANY
from fedloom.core.phases import plain_descent
from fedloom.core.settings import Weighting
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The shared parameters: all but those of normalisation layers."""

    shared: Tensor


class Memory(NamedTuple):
    """On one client, from round to round. Never sent."""

    own: Tensor
    """Scales and shifts of the normalisation layers."""


class Download(NamedTuple):
    """Server to client: all parameters but those of normalisation layers."""

    shared: Tensor


Work = SGDState
"""During a round: all parameters as one vector, for they move together."""


class Upload(NamedTuple):
    """Client to server: the same parameters as come down, after local training."""

    shared: Tensor


@dataclass(frozen=True, kw_only=True)
class FedBN(Algorithm[Server, Memory, Download, Work, Upload]):
    """FedAvg on all but the normalisation layers, which every client keeps."""

    name = "fedbn"
    group = "personalised"
    optimizers = ANY
    averages = ("shared",)

    weights: Weighting = "size"
    """Clients count by training samples or equally."""

    def init_server(self, population: Population) -> Server:
        task = population.task
        if task.ordinary_d == task.d:
            raise ContractError(
                "fedbn: the model has no normalisation layers with parameters, so that "
                "nothing would be personal and fedbn would be fedavg. Take a model "
                "with nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm (affine=True) or "
                "nn.RMSNorm, or use fedavg."
            )
        shared, _ = task.split_normalisation(population.theta(0))
        return Server(shared)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        # w^(l) <- mean over k of w_k^(l), for every layer l that does not normalise
        return Server(cohort.weights(self.weights) @ uploads.shared)

    def shared(self, server: Server, task: Task) -> None:
        return None

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(task.split_normalisation(task.start)[1])

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return self.sgd_start(task.join_normalisation(down.shared, memory.own))

    @plain_descent
    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """w_k <- w_k - eta grad F_k(w_k), every layer."""
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        shared, own = task.split_normalisation(work.at)
        return Memory(own), Upload(shared)

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return task.join_normalisation(down.shared, memory.own)
