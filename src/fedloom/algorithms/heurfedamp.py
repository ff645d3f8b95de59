"""HeurFedAMP: FedAMP for deep networks, with attention by the angle between models.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang. Personalized Cross-Silo Federated Learning on
Non-IID Data. AAAI 2021. arXiv:2007.03797.

    paper             here                 lives
    w_i               Memory.personal      on client i, and sent; the last is kept
    u_i               Work.cloud           on client i, of Download and its own w_i
    xi_ij             DownloadLog.weights  on the server
    xi_ii, sigma, lambda / alpha_k         self_weight, sharpness, pull

Deviations: the proximal problem is solved by ordinary local training, which starts at
u_i. Only clients that ever uploaded are attended to, by their last model. w_i in u_i is
the client's own copy; a client that the server has no model of goes on from its own, or
from the mean of all known, its first model. A model of zeros has cosine 0 with all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.core import client_models
from fedloom.core.algorithm import Algorithm, Client, Cohort, Population
from fedloom.core.optimizers import ANY
from fedloom.core.records import Logged, PerClient
from fedloom.core.settings import Count, NonNegative, Share
from fedloom.core.task import Batch, Task

Server = client_models.ClientModels
"""The last model of every client, whether it ever uploaded, and their mean."""


class Memory(NamedTuple):
    """On one client, from round to round; sent after each round it takes part in."""

    personal: Tensor


Download = client_models.Mixture
"""Server to client: the mean of models like its own, and what its own counts."""


Work = client_models.PulledWork
"""During a round: u_i, and the personal model as it is trained."""


class Upload(NamedTuple):
    """Client to server: its model. The server mixes it into the others' means."""

    personal: Tensor


class ClientLog(NamedTuple):
    """What the others did to one client's model."""

    moved: Tensor
    """||u_i - w_i||, from its last model to its mean. Near 0 it trains alone."""


class DownloadLog(NamedTuple):
    """Who attended to whom."""

    weights: PerClient[Tensor]
    """(n, M) xi_ij, the share of each client's model in the means that were sent."""


@dataclass(frozen=True, kw_only=True)
class HeurFedAMP(Algorithm[Server, Memory, Download, Work, Upload]):
    """Local training near a mean of models, which weighs alike ones more."""

    name = "heurfedamp"
    group = "personalised"
    optimizers = ANY
    why_single = (
        "the angles between the clients' `personal` decide who is pulled to whom"
    )
    model_download = client_models.first_model
    initial_memory = client_models.first_memory

    epochs: Count = 5
    """Local epochs per round, to come near the minimum of the proximal problem."""
    pull: NonNegative = 0.1
    """Strength of the pull toward the mean (lambda / alpha_k)."""
    self_weight: Share = 0.5
    """Share of a client's own model in its mean (xi_ii)."""
    sharpness: NonNegative = 10.0
    """How strongly alike models are preferred (sigma); 0 weighs all others equally."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.limit("lr * pull", "models jump past what pulls them", below=1)

    def compared_pairs(self, cohort: int, known: int, clients: int) -> int:
        return cohort * clients

    def init_server(self, population: Population) -> Server:
        return client_models.no_models(population)

    def download(self, server: Server, cohort: Cohort) -> Logged[Download, DownloadLog]:
        models, clients = server.models, cohort.clients
        cosines = client_models.cosines(models, clients)
        is_self = clients[:, None] == torch.arange(len(models), device=clients.device)
        counts = server.known & server.known[clients][:, None] & ~is_self
        has_others = counts.any(1, keepdim=True)
        # xi_ij = (1 - xi_ii) exp(sigma cos(w_i, w_j)) / sum_{h != i} exp(sigma cos)
        scores = torch.where(counts | ~has_others, self.sharpness * cosines, -torch.inf)
        own = torch.where(has_others, self.self_weight, torch.ones_like(cosines[:, :1]))
        others = (1.0 - own) * scores.softmax(1)
        # u_i = xi_i1 w_1 + ... + xi_im w_m, to which the client adds xi_ii w_i
        down = client_models.mixture(others, own[:, 0], models, server.mean)
        return Logged(down, DownloadLog(others + own * is_self))

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        return client_models.with_uploads(server, uploads.personal, cohort)

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        cloud = client_models.mixed(down, memory.personal)
        return Work(cloud, self.sgd_start(cloud))

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """One step down F_i(w) + lambda / (2 alpha_k) ||w - u_i||^2."""
        own = work.personal
        gradient = task.grad(own.at, batch) + self.pull * (own.at - work.cloud)
        return work._replace(personal=self.sgd_step(own, gradient, batch))

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        return Memory(work.personal.at), Upload(work.personal.at)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        return ClientLog(torch.linalg.vector_norm(work.cloud - memory.personal))
