"""FedFomo: each client takes of others' models what lowers its own loss.

Zhang, Sapra, Fidler, Yeung, Alvarez. Personalized Federated Learning with First Order
Model Optimization. ICLR 2021. arXiv:2012.08565.

    paper          here               lives
    theta_i^{l-1}  Memory.before      on client i, never sent: where it last began
    theta_i^l      Memory.personal    on client i, and sent: where it came to
    theta_n        Download.models    sent to client i: some others' last models
    w_n            Upload.weights     sent: how much each of them helped
    P              Server.affinity    on the server
    M              models             configuration
    epsilon        exploration        configuration

Deviations: L_i is measured on the client's training data, since local work sees no
other here; the paper measures it on a validation part. So a client's own model, fitted
to that data, has an advantage. As in the authors' code, the client's own last model is
among those it weighs, and the baseline is where its last training began. The affinity
is a sum of the weights, which are never negative; that code adds up signed ones. Greedy
places are filled first, exploring ones from those left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core import client_models, streams
from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.phases import Phase
from fedloom.core.records import Logged, PerClient, PerPair
from fedloom.core.settings import Count, NonNegative, Share
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The last model of every client, and who helped whom so far."""

    models: PerClient[Tensor]
    """(M, d); the common start for a client that was never here."""
    known: PerClient[Tensor]
    """(M,) whether the client ever uploaded."""
    affinity: PerPair[Tensor]
    """(M, M) sum of the weights that a client (row) gave to another (column)."""


class Memory(NamedTuple):
    """On one client, from round to round; `personal` is sent, `before` is not."""

    before: Tensor
    """Where its last local training began."""
    personal: Tensor
    """Where that came to."""


class Download(NamedTuple):
    """Server to client: others' models, another choice for each; not whose."""

    models: PerClient[Tensor]
    """(k, d)."""
    present: PerClient[Tensor]
    """(k,) whether there is a model in this place; early on there may be too few."""


class Work(NamedTuple):
    """During a round."""

    before: Tensor
    personal: SGDState
    weights: Tensor
    """(1 + k,) of the client's own model and of those it was sent."""


class Upload(NamedTuple):
    """Client to server: its model, and how much each model it was sent helped."""

    personal: Tensor
    weights: Tensor
    """(k,)."""


class ClientLog(NamedTuple):
    """What one client took from whom."""

    own_weight: Tensor
    """Weight of the client's own last model. 1 means that nobody else's helped."""
    helpers: Tensor
    """How many of the models that were sent got a weight."""
    moved: Tensor
    """Distance from the client's last model to where its training began."""


class DownloadLog(NamedTuple):
    """What was sent to whom."""

    sent: PerClient[Tensor]
    """(n, k) whose models, as rows of the population."""


class ServerLog(NamedTuple):
    """What that was good for."""

    weights: PerClient[Tensor]
    """(n, k) what they were found to be worth; 0 where there was none."""


_PAIRS = 1 << 22
"""Pairs of clients that are looked at at once."""


@dataclass(frozen=True, kw_only=True)
class FedFomo(Algorithm[Server, Memory, Download, Work, Upload]):
    """Local training from a mixture of models that do well on the client's data."""

    name = "fedfomo"
    group = "personalised"
    why_single = "the `personal` of a client is sent to others as it is"
    model_download = client_models.no_download

    epochs: Count = 5
    """Local epochs per round (E)."""
    models: Count = 5
    """Others' models sent to each client in a round (M), as far as there are any."""
    exploration: Share = 0.3
    """Chance that a place is given to anybody rather than to the client with the
    highest affinity (epsilon)."""
    exploration_decay: NonNegative = 0.05
    """What `exploration` loses each round, down to 0."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return Phase(step="compare", passes=1), self.local_phase("step")

    def init_server(self, population: Population) -> Server:
        models, known, _ = client_models.no_models(population)
        return Server(models, known, models.new_zeros(len(known), len(known)))

    def download(self, server: Server, cohort: Cohort) -> Logged[Download, DownloadLog]:
        chosen, present = self._choose(server, cohort)
        return Logged(Download(server.models[chosen], present), DownloadLog(chosen))

    def _choose(self, server: Server, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """(n, k) whose models each client is sent, and which places are filled.

        A function of the server, the round and the client alone, so that it can be
        had for some at a time: there are numbers for every pair of clients.
        """
        block = max(1, _PAIRS // len(server.known))
        parts = [
            self._choose_for(some, server, cohort)
            for some in torch.split(cohort.clients, block)
        ]
        chosen, present = zip(*parts, strict=True)
        return torch.cat(chosen), torch.cat(present)

    def _choose_for(
        self, clients: Tensor, server: Server, cohort: Cohort
    ) -> tuple[Tensor, Tensor]:
        count = len(server.known)
        k = min(self.models, count - 1)
        root = streams.key(cohort.population.seed, "fedfomo", cohort.round)
        keys = streams.fold(torch.tensor(root, device=clients.device), clients)
        draws = vmap(lambda key: streams.uniform(key, (2 * count + k,), torch.float64))
        ties, order, coins = torch.split(draws(keys), [count, count, k], dim=1)
        everyone = torch.arange(count, device=clients.device)
        available = server.known & (everyone != clients[:, None])
        # Rank by affinity, ties at random; those who cannot be sent come last.
        affinity = torch.where(available, server.affinity[clients], -1.0)
        shuffled = ties.argsort(dim=1)
        best = affinity.gather(1, shuffled).argsort(stable=True, dim=1, descending=True)
        rank = shuffled.gather(1, best).argsort(dim=1)
        chance = max(self.exploration - self.exploration_decay * cohort.round, 0.0)
        greedy = (coins >= chance).sum(1, keepdim=True)
        # First the best, then anybody who is available, then nobody.
        turn = torch.where(rank < greedy, rank - 2.0 * count, order)
        turn = torch.where(available, turn, 2.0)
        chosen = turn.argsort(dim=1, stable=True)[:, :k]
        return chosen, available.gather(1, chosen)

    def aggregate(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> Logged[Server, ServerLog]:
        models, known = client_models.filed(
            server.models, server.known, uploads.personal, cohort
        )
        chosen, _ = self._choose(server, cohort)
        # p_i <- p_i + w_i, for those who have data
        gained = torch.zeros_like(server.affinity[cohort.clients])
        gained = gained.scatter(1, chosen, uploads.weights)
        gained = torch.where(cohort.sizes[:, None] > 0, gained, 0.0)
        affinity = server.affinity.index_add(0, cohort.clients, gained)
        return Logged(Server(models, known, affinity), ServerLog(uploads.weights))

    def initial_memory(self, down: object, client: Client, task: Task) -> Memory:
        return Memory(task.start, task.start)

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return Work(
            before=memory.before,
            personal=self.sgd_start(memory.personal),
            weights=memory.personal.new_zeros(1 + len(down.models)),
        )

    def compare(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Weigh the models on all of the client's data and begin at their mixture."""
        before, own = work.before, work.personal.at
        models = torch.cat([own[None], down.models])
        losses = vmap(lambda theta: task.loss(theta, batch))(models)
        toward = models - before
        distance = torch.linalg.vector_norm(toward, dim=1)
        counts = torch.cat([down.present.new_ones(1), down.present])
        weights = _weigh(task.loss(before, batch) - losses, distance, counts)
        # theta_i = theta_i^{l-1} + sum_n w_n (theta_n - theta_i^{l-1})
        start = before + weights @ toward
        return Work(start, self.sgd_start(start), weights)

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Local training: theta_i <- theta_i - eta grad L_i(theta_i)."""
        gradient = task.grad(work.personal.at, batch)
        return work._replace(personal=self.sgd_step(work.personal, gradient, batch))

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        personal = work.personal.at
        return Memory(work.before, personal), Upload(personal, work.weights[1:])

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        return ClientLog(
            own_weight=work.weights[0],
            helpers=(work.weights[1:] > 0).sum(),
            moved=torch.linalg.vector_norm(work.before - memory.personal),
        )


def _weigh(gains: Tensor, distances: Tensor, counts: Tensor) -> Tensor:
    """(n,) w_n, proportional to what a model gains per distance; all 0 if none does.

    w_n = max((L_i(theta_i^{l-1}) - L_i(theta_n)) / ||theta_n - theta_i^{l-1}||, 0)
    """
    is_elsewhere = counts & (distances > 0)
    slopes = gains.clamp(min=0.0) / torch.where(is_elsewhere, distances, 1.0)
    slopes = torch.where(is_elsewhere, slopes, 0.0)
    total = slopes.sum()
    return slopes / torch.where(total > 0, total, 1.0)
