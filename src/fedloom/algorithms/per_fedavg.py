"""Per-FedAvg: a shared model that is one gradient step away from every client.

Fallah, Mokhtari, Ozdaglar. Personalized Federated Learning with Theoretical Guarantees:
A Model-Agnostic Meta-Learning Approach. NeurIPS 2020. arXiv:2002.07948.

    paper         here                   lives
    w             Download.shared        sent to the cohort
    alpha         PerFedAvg.inner_lr     configuration
    beta          lr                     configuration
    delta         PerFedAvg.difference   configuration
    D, D', D''    batch                  independent batches of one local step
    F_i           PerFedAvg.step         f_i(w - alpha grad f_i(w)), which it descends

Deviations: the exact Hessian is not offered, only the paper's two approximations of it.
The batches of a step come from independent shuffles of the client's data, so a client
with a single batch meets the same samples in each. `momentum`, `weight_decay` and
`lr_decay` shape the outer step; the inner one is w - alpha g(w) as printed, since
alpha belongs to the objective. `clip` holds for every gradient. The personal model
takes that step with the gradient over all of the client's training data, which leaves
nothing to chance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, SGDState
from fedloom.core.phases import Phase
from fedloom.core.records import Empty
from fedloom.core.settings import NonNegative, Positive, Weighting
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
    """Client to server: the shared model after local training, before any adaptation.

    The personal model, one step further, is never sent.
    """

    shared: Tensor


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(Algorithm[Server, Empty, Download, Work, Upload]):
    """FedAvg on the loss after one step of adaptation (MAML)."""

    name = "per-fedavg"
    group = "personalised"
    why_sgd = "its gradient is taken through a step of SGD"
    averages = ("shared",)

    gradient: Literal["first-order", "hessian-free"] = "first-order"
    """How the Hessian in the gradient of F_i is treated: dropped (two batches and two
    gradients per step), or its product by a difference of gradients (three batches and
    four gradients)."""
    inner_lr: NonNegative = 0.05
    """Step of the adaptation, in training and of the personal model (alpha); 0 is
    FedAvg."""
    difference: Positive = 1e-3
    """Width of the difference of gradients (delta); for `hessian-free` alone."""
    weights: Weighting = "equal"
    """Clients count equally or by training samples."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        batches = 2 if self.gradient == "first-order" else 3
        return (replace(self.local_phase("step"), batches=batches),)

    @property
    def adaptation(self) -> tuple[Phase, ...]:
        return (Phase(step="adapt", passes=1),)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        return Server(cohort.weights(self.weights) @ uploads.shared)

    def step(
        self, work: Work, down: Download, batch: tuple[Batch, ...], task: Task
    ) -> Work:
        """One step on F_i: w <- w - beta (I - alpha Hessian) grad f_i(w~)."""
        w = work.at
        # w~ = w - alpha grad f_i(w; D)
        adapted = self.adapt(w, down, batch[0], task)
        # grad f_i(w~; D')
        gradient = task.grad(adapted, batch[1])
        if self.gradient == "hessian-free":
            # Hessian G = [grad f_i(w + delta G; D'') - grad f_i(w - delta G; D'')]
            #             / (2 delta)
            ahead = task.grad(w + self.difference * gradient, batch[2])
            behind = task.grad(w - self.difference * gradient, batch[2])
            curved = (ahead - behind) / (2 * self.difference)
            gradient = gradient - self.inner_lr * curved
        return self.sgd_step(work, gradient, batch[0])

    def finish(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> tuple[Empty, Upload]:
        return memory, Upload(work.at)

    def adapt(self, theta: Tensor, down: Download, batch: Batch, task: Task) -> Tensor:
        """The client's one step: w - alpha grad f_i(w)."""
        return theta - self.inner_lr * task.grad(theta, batch)
