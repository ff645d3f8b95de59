"""pFedMT: clients near their team's model, teams near the shared one.

Banerjee, Yurtsever, Bhuyan. Personalized Multi-tier Federated Learning. FL-NeurIPS
2022 (workshop).

    paper     here              lives
    x         Server.shared     on the global server, sent to the teams once a round
    w_i       Download.team     on team i's server, sent to its clients K times a round
    theta_ij  Memory.personal   on client j of team i, and sent to its team
    alpha     lr                configuration
    eta       team_lr           configuration
    beta      shared_lr         configuration
    lambda    pull              configuration
    gamma     team_pull         configuration
    K, L      team_iterations, steps

Deviations: line 12 of Alg. 1 is printed without the gamma of Eq. (4), which diverges
unless gamma = 1; this is Eq. (4). Exactly K and L steps are taken, not K + 1 and L + 1.
Each local step uses one batch. Alg. 1 writes a rate alpha_ij for each client and eta_i
for each team; the experiments give one of each, and so do the settings. With partial
participation only teams that have a client in the cohort move, a team counts by the
samples of those clients, and an absent team keeps its last model. Without teams all
clients are one team. By default theta_ij is kept from exchange to exchange, as Alg. 1
prints it, and its own steps have a weaker pull than lambda; the text below Eq. (9) is
`restart = true` with `device_pull` equal to `pull`. Momentum, which the paper has not,
goes on through the exchanges of a round where theta_ij does. A client that never
trained uses its team's model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Population,
    SGDState,
    counts_of,
)
from fedloom.core.errors import ConfigError
from fedloom.core.records import Logged, PerClient, PerTeam
from fedloom.core.settings import Count, NonNegative, Positive, Weighting
from fedloom.core.sums import Needs, Vector, Weight, over
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """All servers: the global one and those of the teams."""

    shared: Tensor
    teams: Tensor
    """(teams, d)."""


class Memory(NamedTuple):
    """On one client, from exchange to exchange."""

    personal: Tensor
    """Sent to its team after each exchange."""
    velocity: Tensor
    """Momentum of the round's steps so far, never sent; empty when there is none."""


class Download(NamedTuple):
    """Team to client: the team's model."""

    team: PerTeam[Tensor]


Work = SGDState
"""During an exchange: the personal model, as it is trained."""


class Upload(NamedTuple):
    """Client to team: the personal model. It goes no further than the team."""

    personal: Tensor


class Summand(NamedTuple):
    """What one client adds to its team's sum: how far it is from the team's model."""

    change: Vector[Tensor]
    weight: Weight[Tensor]


class ClientLog(NamedTuple):
    """How personal one client is."""

    client_drift: Tensor
    """||theta_ij - w_i||, from the client's model to its team's. It grows as `pull` is
    lowered, down to training alone."""


class ServerLog(NamedTuple):
    """What an exchange did to the teams, told to each of their clients."""

    team_drift: PerClient[Tensor]
    """||w_i - x||, from the model of the client's team to the shared one. Teams that
    differ from the rest drift far; near 0 the middle tier does nothing."""
    team_weight: PerClient[Tensor]
    """Share of the client in its team's mean. By training samples, or equal."""


@dataclass(frozen=True, kw_only=True)
class PFedMT(Algorithm[Server, Memory, Download, Work, Upload]):
    """Moreau envelopes twice: client to team and team to all."""

    name = "pfedmt"
    group = "tiered"
    why_sgd = "what clients keep between rounds is the momentum of SGD"

    lr: Positive = 0.05
    """Learning rate of a client's steps (alpha); times the pull in them it must be
    below 1."""
    batch_size: Count = 20
    """Samples per step; a client with fewer takes all it has in one batch."""
    steps: Count | None = 10
    """Local steps per exchange (L)."""
    team_iterations: Count = 4
    """Exchanges between clients and their team in one round (K)."""
    pull: Positive = 5.0
    """Strength of the pull between a client and its team (lambda)."""
    team_pull: Positive = 1.0
    """Strength of the pull of a team toward the shared model (gamma)."""
    team_lr: Positive = 0.1
    """Learning rate of the teams (eta); times the sum of both pulls it must be below
    1."""
    shared_lr: Positive = 1.0
    """Learning rate of the shared model (beta); times `team_pull` at most 1."""
    restart: bool = False
    """A client's model starts each exchange at its team's; if false, where it was."""
    device_pull: NonNegative | None = 0.1
    """Strength of the pull in the client's own steps; the paper's is `pull`, which is
    taken where there is none here."""
    weights: Weighting = "size"
    """Clients in a team, and teams, count by training samples or equally."""

    def __post_init__(self) -> None:
        super().__post_init__()
        jumps = "models jump past what pulls them"
        own = "pull" if self.device_pull is None else "device_pull"
        self.limit(f"lr * {own}", jumps, below=1)
        self.limit("shared_lr * team_pull", jumps, most=1)
        step = self.team_lr * (self.pull + self.team_pull)
        if step >= 1:
            raise ConfigError(
                f"pfedmt: team_lr * (pull + team_pull) must be below 1, or {jumps}; "
                f"found {self.team_lr:g} * ({self.pull:g} + {self.team_pull:g}) = "
                f"{step:g}. Lower one of them."
            )

    @property
    def _own_pull(self) -> float:
        """The pull in the client's own steps."""
        return self.pull if self.device_pull is None else self.device_pull

    @property
    def exchanges(self) -> int:
        return self.team_iterations

    def init_server(self, population: Population) -> Server:
        theta = population.theta(0)
        return Server(theta, theta.repeat(population.team_count, 1))

    def download(self, server: Server, cohort: Cohort) -> Download:
        # Alg. 1, line 4
        return Download(_teams(server, cohort)[cohort.teams])

    def model_download(self, server: Server, cohort: Cohort) -> Download:
        return Download(server.teams[cohort.teams])

    def aggregate(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> Logged[Server, ServerLog]:
        shares, counts = self._within(server, cohort)
        # Alg. 1, line 8
        mean = shares @ uploads.personal
        new = self._moved(server, mean, counts > 0, cohort)
        drift = torch.linalg.vector_norm(new.teams - new.shared, dim=1)
        return Logged(new, ServerLog(drift[cohort.teams], shares.sum(0)))

    def _moved(
        self, server: Server, mean: Tensor, is_there: Tensor, cohort: Cohort
    ) -> Server:
        """The server after the means (teams, d) of those teams that are there."""
        w, x = _teams(server, cohort), server.shared
        # Eq. (7): (1 - eta lambda - eta gamma) w_i + eta gamma x + eta lambda mean
        stay = 1.0 - self.team_lr * (self.pull + self.team_pull)
        moved = stay * w + self.team_lr * (self.team_pull * x + self.pull * mean)
        return Server(x, torch.where(is_there[:, None], moved, server.teams))

    @property
    def needs(self) -> Needs:
        return "sums per team"

    def summand(
        self, upload: Upload, down: Download, client: Client, task: Task
    ) -> Summand:
        weight = counts_of(client.size, self.weights)
        return Summand(weight * (upload.personal - down.team), weight)

    def from_sum(self, server: Server, total: Summand, cohort: Cohort) -> Server:
        mean = _teams(server, cohort) + over(total.change, total.weight)
        return self._moved(server, mean, total.weight > 0, cohort)

    def end_round(self, server: Server, cohort: Cohort) -> Server:
        return self.aggregate_teams(
            server, server.teams, self._within(server, cohort)[1]
        )

    def aggregate_teams(self, server: Server, models: Tensor, counts: Tensor) -> Server:
        counts = counts_of(counts, self.weights)
        # Alg. 1, line 11
        mean = (counts / counts.sum()) @ models
        # Eq. (4): x <- (1 - beta gamma) x + beta gamma mean
        pace = self.shared_lr * self.team_pull
        return Server((1.0 - pace) * server.shared + pace * mean, models)

    def _within(self, server: Server, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """(teams, n) share of each client in its team; (teams,) how much a team counts.

        A team without a client in the cohort counts 0.
        """
        is_member = F.one_hot(cohort.teams, num_classes=len(server.teams)).T
        counts = is_member * cohort.counts(self.weights)
        total = counts.sum(1, keepdim=True)
        return counts / torch.where(total > 0, total, 1.0), total[:, 0]

    def team_models(self, server: Server, task: Task) -> Tensor:
        return server.teams

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(*self.sgd_start(down.team))

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        # The text below Eq. (9) restarts at w_i; Alg. 1 as printed never resets theta.
        if self.restart:
            return self.sgd_start(down.team)
        goes_on = (client.exchange > 0).to(memory.velocity.dtype)
        return SGDState(memory.personal, goes_on * memory.velocity)

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Eq. (10): theta <- theta - alpha (grad f + lambda (theta - w_i))."""
        theta = work.at
        gradient = task.grad(theta, batch) + self._own_pull * (theta - down.team)
        return self.sgd_step(work, gradient, batch)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        return Memory(*work), Upload(work.at)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        return ClientLog(torch.linalg.vector_norm(work.at - down.team))


def _teams(server: Server, cohort: Cohort) -> Tensor:
    """(teams, d) where the teams are: at the shared model when a round begins."""
    at_start = server.shared.expand_as(server.teams)
    return at_start if cohort.exchange == 0 else server.teams
