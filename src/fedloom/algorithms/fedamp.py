"""FedAMP: models attract each other, the more the closer they are.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized Cross-Silo Federated Learning on
Non-IID Data. AAAI 2021. arXiv:2007.03797.

    paper    here                 lives
    w_i      Memory.personal      on client i, and sent; the server keeps the last one
    u_i      Work.cloud           on client i, of Download and its own w_i
    xi_ij    DownloadLog.weights  on the server
    sigma    width                configuration: A(y) = 1 - exp(-y / sigma)
    alpha_k  server_lr            configuration
    lambda   pull                 configuration

Deviations: where the weights of the others would sum to more than 1, they are scaled
down to 1 for that client, so that u_i is always a mean and no weight is negative; the
pull stays lambda / alpha_k. alpha_k is constant. By default sigma is the median squared
distance between the models, since with a sigma of another scale all weights are equal
or 0. The proximal problem is solved by ordinary local training, which starts at u_i.
Only clients that ever uploaded are attended to, by their last model. w_i in u_i is the
client's own copy, which may be newer than its last upload. A client that the server has
no model of goes on from its own; if it has none either, from the mean of all known
models by samples, which is also its personal model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.core import client_models
from fedloom.core.algorithm import Algorithm, Client, Cohort, Population
from fedloom.core.errors import ConfigError
from fedloom.core.optimizers import ANY
from fedloom.core.records import Logged, PerClient
from fedloom.core.settings import Count, NonNegative, Positive
from fedloom.core.task import Batch, Task

_TINY = 1e-30
"""Median squared distances below this say nothing: all models are equal."""


class Server(NamedTuple):
    """The last model of every client, and the scale of their distances."""

    models: PerClient[Tensor]
    """(M, d); the common start for a client that was never here."""
    known: PerClient[Tensor]
    """(M,) whether the client ever uploaded."""
    mean: Tensor
    """(d,) mean of the known models by training samples; at first the common start."""
    width: Tensor
    """sigma in the coming round, a scalar."""


class Memory(NamedTuple):
    """On one client, from round to round; sent after each round it takes part in."""

    personal: Tensor


Download = client_models.Mixture
"""Server to client: the mean of models near its own, and what its own counts."""


Work = client_models.PulledWork
"""During a round: u_i, and the personal model as it is trained."""


class Upload(NamedTuple):
    """Client to server: its model. The server mixes it into the others' means."""

    personal: Tensor


class ClientLog(NamedTuple):
    """What the others did to one client's model."""

    moved: Tensor
    """||u_i - w_i||, how far the mean that the client is pulled to was from its last
    model. Near 0 the client trains alone."""


class DownloadLog(NamedTuple):
    """Who attended to whom."""

    weights: PerClient[Tensor]
    """(n, M) xi_ij, the share of each client's model in the means that were sent."""
    self_weight: PerClient[Tensor]
    """(n,) xi_ii, the share of a client's own model in its mean. 0 means that the
    others' weights were scaled down to sum to 1: `server_lr` is large for `width`."""


@dataclass(frozen=True, kw_only=True)
class FedAMP(Algorithm[Server, Memory, Download, Work, Upload]):
    """Local training near a mean of models, which weighs close ones more."""

    name = "fedamp"
    group = "personalised"
    optimizers = ANY
    why_single = (
        "the distances between the clients' `personal` decide who is pulled to whom"
    )
    model_download = client_models.first_model
    initial_memory = client_models.first_memory

    epochs: Count = 5
    """Local epochs per round, to come near the minimum of the proximal problem."""
    pull: NonNegative = 0.1
    """Weight of the distances between models in what is minimised (lambda)."""
    server_lr: Positive = 1.0
    """Step by which the server moves models together (alpha_k). A client is pulled to
    its mean by `pull` / `server_lr`."""
    width: Positive | Literal["median"] = "median"
    """Squared distance at which attention has fallen to 1/e (sigma); `median` takes
    that of all pairs of models."""

    def __post_init__(self) -> None:
        super().__post_init__()
        jump = self.lr * self.pull / self.server_lr
        if jump >= 1.0:
            raise ConfigError(
                "fedamp: lr * pull / server_lr must be below 1, or models jump past "
                f"what pulls them; found {self.lr:g} * {self.pull:g} / "
                f"{self.server_lr:g} = {jump:g}. Lower lr or pull, or raise server_lr."
            )

    def compared_pairs(self, cohort: int, known: int, clients: int) -> int:
        return max(cohort * clients, known**2 if self.width == "median" else 0)

    def init_server(self, population: Population) -> Server:
        clients = client_models.no_models(population)
        return Server(*clients, self._width(clients))

    def _width(self, clients: client_models.ClientModels) -> Tensor:
        """sigma: as configured, or the median over pairs of known models."""
        unit = torch.ones_like(clients.mean[0])
        if self.width != "median":
            return unit * self.width
        known = clients.models[clients.known]
        among = client_models.squared_distances(known, known, clients.mean)
        pairs = among[torch.ones_like(among, dtype=torch.bool).triu(1)]
        if not len(pairs):
            return unit
        median = pairs.median()
        return torch.where(median > _TINY, median, unit)

    def download(self, server: Server, cohort: Cohort) -> Logged[Download, DownloadLog]:
        others = self._attend(server, cohort)
        own = (1.0 - others.sum(1)).clamp(min=0.0)
        clients = cohort.clients[:, None]
        log = DownloadLog(others.scatter_add(1, clients, own[:, None]), own)
        # u_i = xi_i1 w_1 + ... + xi_im w_m, to which the client adds xi_ii w_i
        down = client_models.mixture(others, own, server.models, server.mean)
        return Logged(down, log)

    def _attend(self, server: Server, cohort: Cohort) -> Tensor:
        """(n, M) the weights xi of the others; 0 for a client's own."""
        models, clients = server.models, cohort.clients
        distances = client_models.squared_distances(
            models[clients], models, server.mean
        )
        is_self = clients[:, None] == torch.arange(len(models), device=clients.device)
        counts = server.known & server.known[clients][:, None] & ~is_self
        # A'(y) = exp(-y / sigma) / sigma, at y = ||w_i - w_j||^2
        attention = torch.exp(-distances / server.width) / server.width
        # xi_ij = alpha_k A'(||w_i - w_j||^2) for j != i, and all xi_ij sum to 1
        others = self.server_lr * torch.where(counts, attention, 0.0)
        return others / others.sum(1, keepdim=True).clamp(min=1.0)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        before = client_models.ClientModels(server.models, server.known, server.mean)
        clients = client_models.with_uploads(before, uploads.personal, cohort)
        return Server(*clients, self._width(clients))

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        cloud = client_models.mixed(down, memory.personal)
        return Work(cloud, self.sgd_start(cloud))

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """One step down F_i(w) + lambda / (2 alpha_k) ||w - u_i||^2."""
        at = work.personal.at
        toward = self.pull / self.server_lr * (at - work.cloud)
        gradient = task.grad(at, batch) + toward
        return work._replace(personal=self.sgd_step(work.personal, gradient, batch))

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        return Memory(work.personal.at), Upload(work.personal.at)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        return ClientLog(torch.linalg.vector_norm(work.cloud - memory.personal))
