"""Ditto: a personal model pulled toward the shared one.

Li, Hu, Beirami, Smith. ICML 2021. arXiv:2012.04221.

    paper   here              lives
    w^t     Download.shared   sent to the cohort
    v_k     Memory.personal   on client k, never sent
    lambda  Ditto.pull        configuration

Deviations: v_k starts at the shared model that its client first meets, not at w^0, so
that a client who joins late begins like everybody else. w and v_k step on the same
batch, as in the authors' code; the shared part is averaged by training samples, or
equally as they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.optimizers import ANY
from fedloom.core.settings import NonNegative, Positive, Weighting
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
    """During a round: both models move on the same batches."""

    shared: SGDState
    personal: SGDState


class Upload(NamedTuple):
    """Client to server: the shared model after local training, nothing personal."""

    shared: Tensor


@dataclass(frozen=True, kw_only=True)
class Ditto(Algorithm[Server, Memory, Download, Work, Upload]):
    """FedAvg for the shared model, and beside it a personal one that stays near."""

    name = "ditto"
    group = "personalised"
    optimizers = ANY
    averages = ("shared",)

    pull: NonNegative = 1.0
    """Strength of the pull toward the shared model (lambda); 0 is local training."""
    personal_lr: Positive | None = None
    """Learning rate of the personal model (eta_p); that of the shared one if absent."""
    weights: Weighting = "size"
    """Clients count by training samples or equally."""

    def init_server(self, population: Population) -> Server:
        return Server(population.theta(0))

    def download(self, server: Server, cohort: Cohort) -> Download:
        return Download(server.shared)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        return Server(cohort.weights(self.weights) @ uploads.shared)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(down.shared)

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return Work(self.sgd_start(down.shared), self.sgd_start(memory.personal))

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1: the shared model descends F_k, the personal one h_k."""
        shared, personal = work.shared.at, work.personal.at
        toward = self.pull * (personal - down.shared)
        return Work(
            # w_k <- w_k - eta grad F_k(w_k)
            shared=self.sgd_step(work.shared, task.grad(shared, batch), batch),
            # v_k <- v_k - eta_p (grad F_k(v_k) + lambda (v_k - w^t))
            personal=self.sgd_step(
                work.personal,
                task.grad(personal, batch) + toward,
                batch,
                lr=self.personal_lr,
            ),
        )

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        return Memory(work.personal.at), Upload(work.shared.at)

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return memory.personal
