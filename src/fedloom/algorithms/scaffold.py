"""SCAFFOLD: local steps corrected by how each client's gradients differ from the mean.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic Controlled
Averaging for Federated Learning. ICML 2020. arXiv:1910.06378.

    paper    here                 lives
    x, c     Download             on the server, sent to the cohort
    c_i      Memory.variate       on client i; its changes are sent
    y_i      Work.shared          during the round
    K        Work.steps           during the round, the client's own number
    Delta y  Upload.change        sent back
    Delta c  Upload.variate       sent back
    eta_l    lr                   configuration
    eta_g    server_lr            configuration
    N        Population.sizes     known to the server

Deviations: this is option II. The paper's clients all take K steps; here K is the
client's own number. eta_l is the rate in force in the round, `lr_decay` included;
`clip` and `weight_decay` are part of the gradient, before the correction. So c_i is
always the mean of the gradients that client i applied. Momentum would spoil that and is
refused. `weights = "size"` weighs the mean of the c_i too: were it only that of the
models, the rest point would still be that of equal weights. When all clients train and
some upload, only these change their c_i, as otherwise c would not follow. The paper has
no personal model: a client uses the shared one, tuned for `tuning` epochs if asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.core.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Population,
    SGDState,
    counts_of,
)
from fedloom.core.errors import ConfigError
from fedloom.core.settings import Positive, Weighting, Whole
from fedloom.core.sums import Vector, Weight, over
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The shared model and the mean of the clients' variates."""

    shared: Tensor
    variate: Tensor
    """c, an estimate of the gradient of the mean loss."""


class Memory(NamedTuple):
    """On one client, from round to round. Its changes are sent, and add up to it."""

    variate: Tensor
    """c_i, the mean of the client's gradients when it was last heard."""


class Download(NamedTuple):
    """Server to client: the shared model and the mean variate."""

    shared: Tensor
    variate: Tensor


class Work(NamedTuple):
    """During a round; the correction c - c_i stays as it is."""

    shared: SGDState
    correction: Tensor
    steps: Tensor
    """How many were taken so far."""


class Upload(NamedTuple):
    """Client to server: how far the model and the client's variate moved."""

    change: Tensor
    """y_i - x."""
    variate: Tensor
    """c_i+ - c_i."""


class Summand(NamedTuple):
    """What one client adds: its upload, times its weight, and the weight."""

    change: Vector[Tensor]
    variate: Vector[Tensor]
    weight: Weight[Tensor]


class ClientLog(NamedTuple):
    """How far one client is from the others."""

    correction: Tensor
    """||c - c_i||, the length of what is added to each of the client's gradients. It is
    0 in the first round, and stays large for a client unlike the others."""


@dataclass(frozen=True, kw_only=True)
class Scaffold(Algorithm[Server, Memory, Download, Work, Upload]):
    """One shared model; every local step is corrected for the client's own drift."""

    name = "scaffold"
    group = "global"
    why_sgd = "its control variates take what a client moved for a sum of gradients"

    server_lr: Positive = 1.0
    """Learning rate of the server (eta_g); 1 takes the mean of the clients' models."""
    weights: Weighting = "equal"
    """Clients count equally, as in the paper, or by training samples."""
    tuning: Whole = 0
    """Epochs of local training that turn the shared model into the personal one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum:
            raise ConfigError(
                f"scaffold: momentum must be 0, found {self.momentum:g}. A client's "
                "variate is the mean of its gradients, read off the way it went, and "
                "momentum changes that way. Leave momentum out, or use fedavgm."
            )

    def init_server(self, population: Population) -> Server:
        theta = population.theta(0)
        return Server(theta, torch.zeros_like(theta))

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        counts = cohort.counts(self.weights)
        everyone = cohort.population.counts(self.weights)
        return Server(
            # x <- x + eta_g / |S| sum_S Delta y_i
            server.shared + self.server_lr * (counts / counts.sum()) @ uploads.change,
            # c <- c + 1 / N sum_S Delta c_i, with N all clients, present or not
            server.variate + (counts / everyone.sum()) @ uploads.variate,
        )

    def summand(
        self, upload: Upload, down: Download, client: Client, task: Task
    ) -> Summand:
        weight = counts_of(client.size, self.weights)
        return Summand(weight * upload.change, weight * upload.variate, weight)

    def from_sum(self, server: Server, total: Summand, cohort: Cohort) -> Server:
        change, everyone = over(total.change, total.weight), cohort.population
        counts = everyone.counts(self.weights).sum()
        return Server(
            server.shared + self.server_lr * change,
            server.variate + total.variate / counts,
        )

    def correct_memory(
        self,
        memory: Memory,
        before: Memory,
        summand: Summand,
        sent: Summand,
        client: Client,
    ) -> Memory:
        # c is the mean of the c_i for as long as each moves by what was added to c.
        moved = before.variate + over(sent.variate, summand.weight)
        is_whole = (sent.variate == summand.variate).all()
        return Memory(torch.where(is_whole | ~client.uploads, memory.variate, moved))

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(torch.zeros_like(down.shared))

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return Work(
            shared=self.sgd_start(down.shared),
            correction=down.variate - memory.variate,
            steps=torch.zeros_like(client.size),
        )

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """One corrected step: y_i <- y_i - eta_l (g_i(y_i) - c_i + c)."""
        gradient = task.grad(work.shared.at, batch)
        moved = self.sgd_step(work.shared, gradient, batch)
        pace = self.decayed(self.lr, batch.round, moved.at.dtype)
        at = moved.at - pace * work.correction
        return work._replace(shared=moved._replace(at=at), steps=work.steps + 1.0)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        change = work.shared.at - down.shared
        pace = self.decayed(self.lr, client.round, change.dtype)
        way = work.steps.clamp(min=1.0) * pace
        # Option II: c_i+ <- c_i - c + (x - y_i) / (K eta_l)
        variate = -work.correction - change / way
        kept = torch.where(client.uploads, variate, memory.variate)
        return Memory(kept), Upload(change, variate - memory.variate)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        return ClientLog(torch.linalg.vector_norm(work.correction))
