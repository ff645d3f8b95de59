"""APFL: each client learns how much of a private and of the shared model to mix.

Deng, Kamani, Mahdavi. Adaptive Personalized Federated Learning. 2020. arXiv:2003.13461.

    paper    here              lives
    w        Download.shared   sent to the cohort
    w_i      Work.shared       on client i during a round, then sent
    v_i      Memory.private    on client i, never sent
    alpha_i  Memory.mixing     on client i, never sent
    vbar_i   personal          alpha_i v_i + (1 - alpha_i) w_i
    eta      lr                configuration

Deviations: parameters are mixed, as in the formulas; the authors' code mixes outputs,
which is the same for linear models alone. As in that code, w_i moves first and the
gradient of v_i is taken at the mixture with the moved w_i, on the same batch, and
alpha_i moves once a round, in the first step. Its derivative is taken where the
gradient was, before v_i moves. v_i starts at the shared model that its client first
meets. The shared part is averaged by training samples, or equally. `momentum`
and `weight_decay` concern w_i and v_i, not alpha_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, SGDState
from fedloom.core.settings import NonNegative, Share, Weighting
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The shared model."""

    shared: Tensor


class Memory(NamedTuple):
    """On one client, from round to round. `local` was sent, the rest never is."""

    private: Tensor
    local: Tensor
    """The client's own w_i after its last round; empty with `partner = "shared"`."""
    mixing: Tensor
    """alpha_i, a scalar."""


class Download(NamedTuple):
    """Server to client: the shared model."""

    shared: Tensor


class Work(NamedTuple):
    """During a round: both models and the mixing move on the same batches."""

    shared: SGDState
    private: SGDState
    mixing: Tensor


class Upload(NamedTuple):
    """Client to server: the shared model after local training, nothing private."""

    shared: Tensor


class ClientLog(NamedTuple):
    """What one client mixes."""

    mixing: Tensor
    """alpha_i after the round. 1 means that the client has come to use its private
    model alone, 0 that it uses the shared one."""
    distance: Tensor
    """||v_i - w_i||, between the two models that are mixed. Near 0 the mixing decides
    nothing."""


@dataclass(frozen=True, kw_only=True)
class APFL(Algorithm[Server, Memory, Download, Work, Upload]):
    """FedAvg beside a private model; the personal model is a mixture of the two."""

    name = "apfl"
    group = "personalised"
    why_sgd = "its private steps are shorter by alpha, a factor that Adam takes out"
    averages = ("shared",)

    mixing: Share = 0.5
    """Share of the private model in the personal one at first (alpha). Kept at 0 it is
    FedAvg, kept at 1 local training."""
    adaptive: bool = True
    """Whether each client learns its own mixing; if not, it stays as it is."""
    mixing_decay: NonNegative = 0.0
    """Pull of a learnt mixing toward 0; 0.02 in the authors' code."""
    partner: Literal["own", "shared"] = "own"
    """What the private model is mixed with when the client uses it: its own copy of the
    shared model as its last round left it, or the present shared model."""
    weights: Weighting = "size"
    """Clients count by training samples or equally."""

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        return Server(cohort.weights(self.weights) @ uploads.shared)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        mixing = torch.full_like(down.shared[0], self.mixing)
        return Memory(down.shared, self._kept(down.shared), mixing)

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return Work(
            self.sgd_start(down.shared), self.sgd_start(memory.private), memory.mixing
        )

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """One step of both models on one batch, and of alpha_i in the first."""
        alpha, private = work.mixing, work.private.at
        # w_i <- w_i - eta grad f_i(w_i)
        shared = self.sgd_step(work.shared, task.grad(work.shared.at, batch), batch)
        # vbar_i = alpha_i v_i + (1 - alpha_i) w_i
        gradient = task.grad(_mix(alpha, private, shared.at), batch)
        mixing = alpha
        if self.adaptive:
            # alpha_i <- alpha_i - eta <v_i - w_i, grad f_i(vbar_i)>, kept in [0, 1]
            slope = (private - shared.at) @ gradient + self.mixing_decay * alpha
            pace = self.decayed(self.lr, batch.round, alpha.dtype)
            moved = torch.clamp(alpha - pace * slope, 0.0, 1.0)
            mixing = torch.where(batch.step == 0, moved, alpha)
        return Work(
            shared=shared,
            # v_i <- v_i - eta alpha_i grad f_i(vbar_i)
            private=self.sgd_step(work.private, alpha * gradient, batch),
            mixing=mixing,
        )

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        shared = work.shared.at
        memory = Memory(work.private.at, self._kept(shared), work.mixing)
        return memory, Upload(shared)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        distance = torch.linalg.vector_norm(work.private.at - work.shared.at)
        return ClientLog(work.mixing, distance)

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        partner = memory.local if self.partner == "own" else down.shared
        return _mix(memory.mixing, memory.private, partner)

    def _kept(self, shared: Tensor) -> Tensor:
        return shared if self.partner == "own" else shared[:0]


def _mix(alpha: Tensor, private: Tensor, shared: Tensor) -> Tensor:
    return alpha * private + (1 - alpha) * shared
