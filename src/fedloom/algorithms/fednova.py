"""FedNova: an average of directions, so that nobody counts more for stepping more.

Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in
Heterogeneous Federated Optimization. NeurIPS 2020. arXiv:2007.07481.

    paper      here                  lives
    x          Download.shared       sent to the cohort
    ||a_i||_1  Upload.length         sent back
    eta d_i    Upload.direction      sent back
    p_i        Cohort.sizes          known to the server
    tau_eff    ServerLog.length      on the server
    rho        momentum              configuration

Client i moves by -eta G_i a_i: its gradients G_i, each counted as often as momentum
repeats it. With x_i^k = x^k - eta v^k, v^k = rho v^(k-1) + g^k, a_i is

    a_i = [1 - rho^tau_i, 1 - rho^(tau_i - 1), ..., 1 - rho] / (1 - rho)

and all ones without momentum, so that ||a_i||_1 = tau_i.

Deviations: ||a_i||_1 is summed up step by step, which is the same and also holds for
rho = 1. Local solvers are SGD and SGD with momentum; the paper's proximal solver and
server momentum are left out. p_i are the shares of training samples in the cohort, or
equal. The paper has no personal model: a client uses the shared one, tuned for `tuning`
epochs without momentum if asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, SGDState, counts_of
from fedloom.core.records import Empty, Logged, PerClient
from fedloom.core.settings import Positive, Weighting, Whole
from fedloom.core.sums import Bound, Vector, Weight, over
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The shared model."""

    shared: Tensor


class Download(NamedTuple):
    """Server to client: the shared model."""

    shared: Tensor


class Work(NamedTuple):
    """During a round, beside the model the way of a gradient that is always one."""

    shared: SGDState
    speed: Tensor
    """How far its last step went, for a learning rate of one."""
    length: Tensor
    """How far it went."""


class Upload(NamedTuple):
    """Client to server: where the model went, and how long the way was."""

    direction: Tensor
    """The change of the model for each unit of length, as a descent."""
    length: Tensor
    """The number of local steps; more with momentum, which repeats them."""


class Summand(NamedTuple):
    """What one client adds: its upload, times its weight, and the weight."""

    direction: Vector[Tensor]
    length: Annotated[Tensor, Bound("share", setting="most_length")]
    """Over `most_length` where there is one: a share of it."""
    weight: Weight[Tensor]


class ServerLog(NamedTuple):
    """How the ways were made comparable."""

    length: Tensor
    """tau_eff, how many unit steps the server takes along the mean direction. It is the
    mean of the clients' own lengths, so that the pace is that of FedAvg."""
    change_weight: PerClient[Tensor]
    """p_i tau_eff / ||a_i||_1, what the client's change is multiplied by. FedAvg has
    p_i, which favours those who took more steps."""


@dataclass(frozen=True, kw_only=True)
class FedNova(Algorithm[Server, Empty, Download, Work, Upload]):
    """One shared model; updates are divided by the number of local steps."""

    name = "fednova"
    group = "global"
    why_sgd = "it counts how often a gradient enters what a client moved"

    weights: Weighting = "size"
    """Clients count by training samples or equally (p_i)."""
    most_length: Positive | None = None
    """Longest way of a client that counts, in steps: one that is longer is taken for
    this long. For privacy, which needs a bound on it; no bound if absent."""
    tuning: Whole = 0
    """Epochs of local training that turn the shared model into the personal one."""

    def aggregate(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> Logged[Server, ServerLog]:
        shares = cohort.weights(self.weights)
        # tau_eff = sum_i p_i ||a_i||_1
        length = shares @ self._counted(uploads.length)
        # x <- x - tau_eff sum_i p_i eta d_i
        new = Server(server.shared - length * (shares @ uploads.direction))
        change_weight = shares * length / uploads.length.clamp(min=1.0)
        return Logged(new, ServerLog(length, change_weight))

    def summand(
        self, upload: Upload, down: Download, client: Client, task: Task
    ) -> Summand:
        weight = counts_of(client.size, self.weights)
        length = self._counted(upload.length) / (self.most_length or 1.0)
        return Summand(weight * upload.direction, weight * length, weight)

    def from_sum(self, server: Server, total: Summand, cohort: Cohort) -> Server:
        length = over(total.length, total.weight) * (self.most_length or 1.0)
        return Server(server.shared - length * over(total.direction, total.weight))

    def _counted(self, length: Tensor) -> Tensor:
        return length.clamp(max=self.most_length or math.inf)

    def begin(self, down: Download, memory: Empty, client: Client, task: Task) -> Work:
        none = torch.zeros_like(client.size)
        return Work(self.sgd_start(down.shared), speed=none, length=none)

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """One step of local SGD, and the same step on a gradient that is one."""
        gradient = task.grad(work.shared.at, batch)
        speed = self.momentum * work.speed + 1.0
        return Work(
            shared=self.sgd_step(work.shared, gradient, batch),
            speed=speed,
            length=work.length + speed,
        )

    def finish(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> tuple[Empty, Upload]:
        # d_i = G_i a_i / ||a_i||_1, and x - x_i = eta G_i a_i
        direction = (down.shared - work.shared.at) / work.length.clamp(min=1.0)
        return memory, Upload(direction, work.length)
