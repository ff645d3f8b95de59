"""FedACS: each client starts from a mean of the models most like its own.

Chen, Li, Shen. Personalized Federated Learning with Attention-based Client Selection.
ICASSP 2024. arXiv:2312.15148.

    paper    here                    lives
    w_i      Memory.personal         on client i, and sent; the last is kept
    u_i      SGDState.at, at first   on client i, of Download and its own w_i
    S        DownloadLog.similarity  on the server
    p        quantile                configuration; a larger p means fewer collaborators
    beta_k   lr                      configuration

Deviations: models that were never trained are nobody's collaborators: S, delta and K_i
are over clients that uploaded. By default S compares what training changed, not whole
models, whose cosines from a common start are all close to 1; `similarity = "model"` is
the paper's. w_i in u_i is the client's own copy, which may be newer than its last
upload. A client that the server has no model of goes on from its own; if it has none
either, from the mean of all known models, which is also its personal model. A client
always collaborates with itself, with weight s_ii = 1; the paper takes for granted that
s_ii exceeds delta, which fails when all models are equal. The threshold is never below
0, so that no weight is negative; `quantile = 0` is 0 itself (everyone with a positive
similarity), where the literal 0-quantile would drop the least similar pair. Eq. (5) is
one full gradient step while the text says several; here it is ordinary local training,
and `steps = 1` with a batch of all data is Eq. (5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.core import client_models
from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.optimizers import ANY
from fedloom.core.phases import plain_descent
from fedloom.core.records import Logged, PerClient
from fedloom.core.settings import Count, Share
from fedloom.core.task import Batch, Task

Server = client_models.ClientModels
"""The last model of every client, whether it ever uploaded, and their mean."""


class Memory(NamedTuple):
    """On one client, from round to round; sent after each round it takes part in."""

    personal: Tensor


Download = client_models.Mixture
"""Server to client: the mean of its collaborators, and what its own model counts."""

Work = SGDState
"""During a round: the personal model, as it is trained."""


class Upload(NamedTuple):
    """Client to server: its model. The server weighs it for the others."""

    personal: Tensor


class ClientLog(NamedTuple):
    """What the others did to one client's model."""

    moved: Tensor
    """||u_i - w_i||, how far the mean of its collaborators is from the client. Near
    0 the client trains alone; large, the others pull it away from its last model."""


class DownloadLog(NamedTuple):
    """The attention that made the starts."""

    similarity: PerClient[Tensor]
    """(n, n) cosines, the diagonal 1; (n, M) with scope `all`. 0 with a client that
    never uploaded. Whole models from a common start are all close to 1, so look at the
    order rather than the size."""
    weights: PerClient[Tensor]
    """(n, n) share of each column's client in each row's start. Rows sum to one; a zero
    means that the two do not collaborate."""
    collaborators: PerClient[Tensor]
    """How many others a client's start was made of. 0 means that nobody was similar
    enough, or that the server has no model of it: it goes on from its own model."""


@dataclass(frozen=True, kw_only=True)
class FedACS(Algorithm[Server, Memory, Download, Work, Upload]):
    """Local training from a similarity-weighted mean of selected clients' models."""

    name = "fedacs"
    group = "personalised"
    optimizers = ANY
    why_single = (
        "the similarity of the clients' `personal` decides whose models make a start"
    )
    model_download = client_models.first_model
    initial_memory = client_models.first_memory

    epochs: Count = 5
    """Local epochs per round."""
    quantile: Share = 0.5
    """Similarities up to this quantile of all of them are ignored (p); 0 ignores only
    those that are not positive, 1 leaves every client alone."""
    similarity: Literal["change", "model", "update"] = "change"
    """Cosines of the models minus the common start, of the models themselves (the
    paper's), or of the models minus their mean."""
    scope: Literal["cohort", "all"] = "cohort"
    """Collaborators are sought in the cohort, or among all that ever took part, by
    the last model that the server has of them."""

    def compared_pairs(self, cohort: int, known: int, clients: int) -> int:
        return (cohort if self.scope == "cohort" else clients) ** 2

    def init_server(self, population: Population) -> Server:
        return client_models.no_models(population)

    def download(self, server: Server, cohort: Cohort) -> Logged[Download, DownloadLog]:
        others = cohort.clients
        if self.scope == "all":
            others = torch.arange(len(server.known), device=others.device)
        similarity, attention = self._attend(server, cohort, others)
        own = attention.new_ones(len(attention))
        # Eq. (4) and Alg. 1, line 8: the client adds s_ii w_i, with s_ii = 1.
        down = client_models.mixture(attention, own, server.models[others], server.mean)
        is_self = cohort.clients[:, None] == others
        scores = torch.where(is_self, 1.0, attention)
        log = DownloadLog(
            similarity=similarity,
            weights=scores / scores.sum(1, keepdim=True),
            collaborators=(attention > 0).sum(1),
        )
        return Logged(down, log)

    def _attend(
        self, server: Server, cohort: Cohort, others: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(n, k) s_ij for `others`, (k,), and the same where j is in K_i, else 0.

        Alg. 1, lines 6 and 7; nobody is in its own K_i here.
        """
        known, models = server.known[others], server.models[others]
        similarity = self._cosines(models, known, cohort.population.theta(0))
        threshold = similarity.new_zeros(())
        if self.quantile > 0 and bool(known.any()):
            among = similarity[known][:, known]
            threshold = _quantile(among, self.quantile).clamp(min=0.0)
        is_self = cohort.clients[:, None] == others
        # Every client of the cohort is among the others, once.
        rows = similarity[is_self.to(torch.int8).argmax(1)]
        return rows, torch.where((rows > threshold) & ~is_self, rows, 0.0)

    def _cosines(self, models: Tensor, known: Tensor, start: Tensor) -> Tensor:
        """(k, k) cosines, 1 on the diagonal; 0 with a client that is not known.

        0 for a vector of length 0, too.
        """
        if self.similarity == "update" and bool(known.any()):
            models = models - models[known].mean(0)
        elif self.similarity == "change":
            models = models - start
        directions = client_models.directions(models)
        cosines = (directions @ directions.T).clamp(-1.0, 1.0)
        # A product may round s_ij and s_ji apart; then of the pair at the threshold one
        # would be above it.
        cosines = (cosines + cosines.T) / 2
        cosines = torch.where(known & known[:, None], cosines, 0.0)
        itself = torch.eye(len(models), dtype=torch.bool, device=models.device)
        return torch.where(itself, 1.0, cosines)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        return client_models.with_uploads(server, uploads.personal, cohort)

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return self.sgd_start(client_models.mixed(down, memory.personal))

    @plain_descent
    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Eq. (5): w_i <- w_i - beta_k grad F_i(w_i), starting from u_i."""
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        return Memory(work.at), Upload(work.at)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        start = client_models.mixed(down, memory.personal)
        return ClientLog(torch.linalg.vector_norm(start - memory.personal))


def _quantile(values: Tensor, share: float) -> Tensor:
    """Linear interpolation, as torch.quantile but without its limit of 2^24 values."""
    ordered = values.flatten().sort().values
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return torch.lerp(ordered[below], ordered[above], place - below)
