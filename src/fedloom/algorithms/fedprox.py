"""FedProx: FedAvg whose local steps are pulled toward the shared model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. MLSys 2020. arXiv:1812.06127.

    paper   here              lives
    w^t     Download.shared   sent to the cohort
    w_k     Upload.shared     sent back after local training
    mu      FedProx.pull      configuration

Deviations: the proximal problem is solved inexactly by the same number of local steps
for every client; the paper lets it vary (gamma-inexactness). Devices count by their
training samples; the paper samples them by size and averages equally, which is the
same in expectation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, SGDState
from fedloom.core.optimizers import ANY
from fedloom.core.records import Empty
from fedloom.core.settings import NonNegative, Weighting
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
    """Client to server: the shared model after local training."""

    shared: Tensor


@dataclass(frozen=True, kw_only=True)
class FedProx(Algorithm[Server, Empty, Download, Work, Upload]):
    """One shared model; local training stays near it."""

    name = "fedprox"
    group = "global"
    optimizers = ANY
    averages = ("shared",)

    pull: NonNegative = 0.1
    """Strength of the proximal term (mu); 0 is FedAvg."""
    weights: Weighting = "size"
    """Clients count by training samples or equally."""

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        return Server(cohort.weights(self.weights) @ uploads.shared)

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """One step on h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2, Eq. (2)."""
        toward = self.pull * (work.at - down.shared)
        return self.sgd_step(work, task.grad(work.at, batch) + toward, batch)

    def finish(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> tuple[Empty, Upload]:
        return memory, Upload(work.at)
