"""pFedMe: personal models inside a Moreau envelope around the shared one.

Dinh, Tran, Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.
arXiv:2006.08848.

    paper           here                   lives
    w^t             Download.shared        sent to the cohort
    w_i             Work.local             on client i during a round, then sent
    theta_i         Memory.personal        on client i, never sent
    lambda, K, eta  pull, inner_steps, lr
    beta, R, |D|    server_mixing, steps, batch_size

Deviations: the inner problem is solved by K steps, not to an accuracy. They start at
the last theta_i, of an earlier round too; with `restart` at the shared model, as in the
authors' code. That code also has an L2 term in the inner problem (`weight_decay =
0.001`), averages by samples (`weights = "size"`), and overwrites theta_i by w_i before
it is evaluated, an error: here theta_i is used. Its protocol is train-all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, SGDState
from fedloom.core.settings import Count, Positive, Weighting
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The shared model."""

    shared: Tensor


class Memory(NamedTuple):
    """On one client, from round to round. Never sent."""

    personal: Tensor


class Download(NamedTuple):
    """Server to client: the shared model."""

    shared: Tensor


class Work(NamedTuple):
    """During a round: the personal model, and the local copy that follows it."""

    local: SGDState
    personal: SGDState


class Upload(NamedTuple):
    """Client to server: the local copy of the shared model, not the personal one."""

    local: Tensor


class ClientLog(NamedTuple):
    """How personal one client is."""

    client_drift: Tensor
    """||theta_i - w_i||, from the personal model to the local copy of the shared one.
    It grows as `pull` is lowered; near 0 the client has nothing of its own."""


@dataclass(frozen=True, kw_only=True)
class PFedMe(Algorithm[Server, Memory, Download, Work, Upload]):
    """The shared model descends the clients' Moreau envelopes."""

    name = "pfedme"
    group = "personalised"
    why_sgd = "its inner steps are an SGD solver, and the outer ones no gradients"
    averages = (("local", "shared"),)
    auto_rates = ("personal_lr",)  # `lr` multiplies the pull, no gradient.

    batch_size: Count = 20
    """Samples per step; a client with fewer takes all it has in one batch."""
    steps: Count | None = 20
    """Local steps per round (R), each on one batch and with one inner problem."""
    pull: Positive = 15.0
    """Pull of theta_i toward w_i (lambda); at most 1 / lr, below 2 / personal_lr."""
    inner_steps: Count = 5
    """Gradient steps on each inner problem, all on its one batch (K)."""
    personal_lr: Positive = 0.05
    """Learning rate of the inner steps."""
    server_mixing: Positive = 1.0
    """Share of the new average in the shared model (beta); above 1 it goes beyond."""
    restart: bool = False
    """The personal model starts a round at the shared one; if false, where it was."""
    weights: Weighting = "equal"
    """Clients count equally or by training samples."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.limit("lr * pull", "the local copy jumps past the personal model", most=1)
        self.limit("personal_lr * pull", "the inner steps diverge on any loss", below=2)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        # w^{t+1} = (1 - beta) w^t + beta sum_i w_i / S
        beta, mean = self.server_mixing, cohort.weights(self.weights) @ uploads.local
        return Server((1 - beta) * server.shared + beta * mean)

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        theta = down.shared if self.restart else memory.personal
        return Work(self.sgd_start(down.shared), self.sgd_start(theta))

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """One local round: theta for this batch, then w_i a step on its envelope."""
        w, theta = work.local.at, work.personal
        for _ in range(self.inner_steps):
            # theta_i ~ argmin f_i(theta; D) + lambda/2 ||theta - w_i||^2
            gradient = task.grad(theta.at, batch) + self.pull * (theta.at - w)
            theta = self.sgd_step(theta, gradient, batch, lr=self.personal_lr)
        # w_i <- w_i - eta lambda (w_i - theta_i); an L2 term is part of f_i above
        envelope = self.pull * (w - theta.at)
        return Work(self.sgd_step(work.local, envelope, batch, weight_decay=0.0), theta)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        return Memory(work.personal.at), Upload(work.local.at)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        return ClientLog(torch.linalg.vector_norm(work.personal.at - work.local.at))
