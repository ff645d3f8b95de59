"""IFCA: a few models, and each client trains the one that fits it best.

Ghosh, Chung, Yin, Ramchandran. An Efficient Framework for Clustered Federated Learning.
NeurIPS 2020. arXiv:2006.04088.

    paper     here              lives
    theta_j   Download.models   on the server, all k sent to the cohort
    jhat      Work.cluster      found by client i in every round, and sent
    theta_i~  Upload.model      theta_jhat after local training
    k         cluster_count     configuration
    gamma     lr                configuration

Deviations: this is the model averaging of the paper; its gradient averaging is `steps =
1` with a batch of all data. A cluster's clients count by training samples, or equally
as in the paper. jhat has the lowest loss over all of the client's training data, with
dropout off. A client uses the model that has the lowest such loss when it is asked for;
test data decide nothing. The first model starts where every other method starts, the
others are drawn anew; the paper's several restarts are several runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedloom.core.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Population,
    SGDState,
    counts_of,
)
from fedloom.core.errors import ConfigError
from fedloom.core.optimizers import ANY
from fedloom.core.phases import Phase
from fedloom.core.records import Empty, Logged, PerClient, WholeNumbers
from fedloom.core.settings import SmallCount, Weighting
from fedloom.core.sums import Share, Vector, over
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """One model per cluster."""

    models: Tensor
    """(k, d)."""


class Download(NamedTuple):
    """Server to client: all models, so that it can choose."""

    models: Tensor
    """(k, d)."""


class Work(NamedTuple):
    """During a round: the chosen model, after a look at all of them."""

    model: SGDState
    cluster: Tensor
    """Which one, from 0."""
    losses: Tensor
    """(k,) of the models as they came."""


class Upload(NamedTuple):
    """Client to server: the chosen model after local training, and which it was."""

    model: Tensor
    cluster: Annotated[Tensor, WholeNumbers(below="cluster_count")]


class Summand(NamedTuple):
    """What one client adds: a row for every cluster, zeros but for its own."""

    change: Vector[Tensor]
    """(k, d)."""
    weight: Share[Tensor]
    """(k,)."""


class ClientLog(NamedTuple):
    """What one client chose, and how clearly."""

    cluster: Tensor
    """The cluster whose model has the lowest training loss. It may change from round to
    round; when the clusters are found it no longer does."""
    margin: Tensor
    """How much higher the training loss of the second best model is. Near 0 the choice
    is a toss-up; 0 when there is one cluster only."""


class ServerLog(NamedTuple):
    """What the clusters are made of."""

    weight: PerClient[Tensor]
    """Share of the client in the new model of its cluster. 1 means that nobody else
    chose it."""
    clusters_used: Tensor
    """How many clusters were chosen by anybody. The others keep their models; a cluster
    that is never chosen is one too many, or started badly."""


@dataclass(frozen=True, kw_only=True)
class IFCA(Algorithm[Server, Empty, Download, Work, Upload]):
    """FedAvg within clusters that the clients form by their training losses."""

    name = "ifca"
    group = "clustered"
    optimizers = ANY

    cluster_count: SmallCount = 2
    """How many models there are (k); 1 is FedAvg. A round sends each client all of
    them."""
    weights: Weighting = "size"
    """The clients of a cluster count by training samples or equally."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Phase(step="choose", passes=1), self.local_phase("step"))

    @property
    def adaptation(self) -> tuple[Phase, ...]:
        return (Phase(step="adopt", passes=1),)

    def init_server(self, population: Population) -> Server:
        models = torch.stack([population.theta(j) for j in range(self.cluster_count)])
        if len(torch.unique(models, dim=0)) < self.cluster_count:
            raise ConfigError(
                f"ifca: {self.cluster_count} different initial models are needed, and "
                "some are equal: the model has no layer whose reset_parameters() draws "
                "new values. Give your module such a method, or set cluster_count = 1."
            )
        return Server(models)

    def aggregate(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> Logged[Server, ServerLog]:
        mass = cohort.weights(self.weights)
        chosen = one_hot(uploads.cluster, self.cluster_count).T * mass
        total = chosen.sum(1, keepdim=True)
        is_chosen = total > 0
        # (k, n) the clients' shares in each model; a row of zeros if nobody chose it
        shares = chosen / torch.where(is_chosen, total, 1.0)
        # theta_j <- sum_i s_ij theta_i~ / sum_i s_ij; unchanged if nobody chose it
        models = torch.where(is_chosen, shares @ uploads.model, server.models)
        return Logged(Server(models), ServerLog(shares.sum(0), is_chosen.sum()))

    def summand(
        self, upload: Upload, down: Download, client: Client, task: Task
    ) -> Summand:
        weight = counts_of(client.size, self.weights)
        own = one_hot(upload.cluster, self.cluster_count) * weight
        change = upload.model - _pick(down.models, upload.cluster)
        return Summand(own.to(change.dtype)[:, None] * change, own)

    def from_sum(self, server: Server, total: Summand, cohort: Cohort) -> Server:
        return self.from_noisy_sum(server, total, cohort, None)

    def from_noisy_sum(
        self, server: Server, total: Summand, cohort: Cohort, noise: Summand | None
    ) -> Server:
        # A count within its noise may be of nobody: such a cluster keeps its model.
        least = 0.0 if noise is None else 2.0 * noise.weight
        weight = torch.where(total.weight > least, total.weight, 0.0)
        return Server(server.models + over(total.change, weight))

    def begin(self, down: Download, memory: Empty, client: Client, task: Task) -> Work:
        return Work(
            model=self.sgd_start(down.models[0]),
            cluster=torch.zeros_like(client.round),
            losses=torch.zeros_like(down.models[:, 0]),
        )

    def choose(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Which model fits: jhat = argmin_j F_i(theta_j), over all training data."""
        losses = _losses(down.models, batch, task)
        cluster = losses.argmin()
        return Work(self.sgd_start(_pick(down.models, cluster)), cluster, losses)

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """LocalUpdate: theta <- theta - gamma grad F_i(theta)."""
        gradient = task.grad(work.model.at, batch)
        return work._replace(model=self.sgd_step(work.model, gradient, batch))

    def finish(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> tuple[Empty, Upload]:
        return memory, Upload(work.model.at, work.cluster)

    def client_log(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> ClientLog:
        ordered = work.losses.sort().values
        return ClientLog(work.cluster, ordered[min(1, len(ordered) - 1)] - ordered[0])

    def personal(
        self, down: Download, memory: Empty, client: Client, task: Task
    ) -> Tensor:
        return down.models[0]

    def adopt(self, theta: Tensor, down: Download, batch: Batch, task: Task) -> Tensor:
        """The model with the lowest training loss, whoever and whenever one is."""
        return _pick(down.models, _losses(down.models, batch, task).argmin())


def _losses(models: Tensor, batch: Batch, task: Task) -> Tensor:
    """(k,) the mean loss of every model, dropout off."""
    measured = [task.measure(m, batch.inputs, batch.targets).loss for m in models]
    return torch.stack([batch.mean(losses) for losses in measured])


def _pick(models: Tensor, index: Tensor) -> Tensor:
    """The row of `models` at a place that differs between clients."""
    return models.index_select(0, index[None])[0]
