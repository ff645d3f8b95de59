"""FedAvgM: FedAvg whose server has momentum.

Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification. 2019. arXiv:1909.06335.

    paper    here                   lives
    w        Download.shared        sent to the cohort
    Delta w  Upload.shared          the model after training; the server subtracts
    v        Server.velocity        on the server
    beta     server_momentum        configuration
    n_k      Cohort.sizes           known to the server

Deviations: `server_lr` is not in the paper; its value there is 1. The paper has no
personal model: a client uses the shared one, tuned for `tuning` epochs without momentum
if asked. `momentum` is that of the local steps, as in every method, and has nothing to
do with the server's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.optimizers import ANY
from fedloom.core.records import Empty
from fedloom.core.settings import Interval, Positive, Weighting, Whole
from fedloom.core.task import Task


class Server(NamedTuple):
    """The shared model and what its optimiser remembers."""

    shared: Tensor
    velocity: Tensor
    """The last step, for a server learning rate of one."""


class Download(NamedTuple):
    """Server to client: the shared model."""

    shared: Tensor


Work = SGDState
"""During a round: the shared model, as it is trained."""


class Upload(NamedTuple):
    """Client to server: the shared model after local training."""

    shared: Tensor


@dataclass(frozen=True, kw_only=True)
class FedAvgM(Algorithm[Server, Empty, Download, Work, Upload]):
    """One shared model; the server goes on a little where it went before."""

    name = "fedavgm"
    group = "global"
    optimizers = ANY
    averages = ("shared",)

    server_momentum: Annotated[float, Interval(least=0.0, below=1.0)] = 0.9
    """Share of the server's last step that is repeated (beta); 0 is FedAvg."""
    server_lr: Positive = 1.0
    """Learning rate of the server; a step goes on, and in the end comes to
    1 / (1 - server_momentum) times its length."""
    weights: Weighting = "size"
    """Clients count by training samples or equally."""
    tuning: Whole = 0
    """Epochs of local training that turn the shared model into the personal one."""

    def init_server(self, population: Population) -> Server:
        theta = population.theta(0)
        return Server(theta, torch.zeros_like(theta))

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        # Delta w = sum_k (n_k / n) (w - w_k)
        gradient = server.shared - cohort.weights(self.weights) @ uploads.shared
        # v <- beta v + Delta w;  w <- w - v
        velocity = self.server_momentum * server.velocity + gradient
        return Server(server.shared - self.server_lr * velocity, velocity)

    def finish(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> tuple[Empty, Upload]:
        return memory, Upload(work.at)
