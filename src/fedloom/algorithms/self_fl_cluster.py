"""Self-FL, cluster-level: clusters of clients, active or not, make the shared model.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang. NeurIPS 2022. Section G.4.

    paper           here               lives
    theta^t         Server.shared      sent to the cohort
    theta_m^t       Memory.personal    on client m, sent after training
    representative  Server.models      one per cluster, from its last active members
    sigma_m^2       Memory.past        on client m, the scalar is sent
    sigma_0^2       Server.between     variance of the representatives

Deviations: as in self_fl.py. The paper describes this variant in one paragraph. Ours:
a representative is the mean of the active members' models by Eq. (11), with sigma_0^2
of the round before, and its variance the same mean of theirs; a cluster never seen is
left out; the sum over k != m in Eqs. (8) and (10) runs over the other clusters; there
is no smoothing, since all clusters enter every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedloom.core import uncertainty
from fedloom.core.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Phase,
    Population,
    SGDState,
)
from fedloom.core.errors import ConfigError
from fedloom.core.records import PerClient
from fedloom.core.settings import Count
from fedloom.core.task import Batch, Task
from fedloom.core.uncertainty import Balance, Normalise, Past, Report, StepScale, Target


class Server(NamedTuple):
    """The shared model, one model per cluster, and scalars about each client."""

    shared: Tensor
    between: Tensor
    """sigma_0^2."""
    models: Tensor
    """(k, d) the representatives."""
    within: Tensor
    """(k,) their variances."""
    has_model: Tensor
    """(k,) whether the cluster was ever active."""
    has_within: Tensor
    """(k,) whether its variance rests on any warm client."""
    reports: Report
    """(M,) each."""
    member: Tensor
    """(M,) cluster of each client."""


class Memory(NamedTuple):
    """On one client, from round to round."""

    personal: Tensor
    past: Past


class Download(NamedTuple):
    """Server to client: the shared model and two scalars."""

    shared: Tensor
    between: Tensor
    others: PerClient


class Work(NamedTuple):
    """During a round."""

    personal: SGDState


class Upload(NamedTuple):
    """Client to server: its model and two scalars; the model is the personal one."""

    personal: Tensor
    report: Report


class ServerLog(NamedTuple):
    """How an aggregation weighed its clients."""

    weight: Tensor
    """Share of this client's model in the new shared one. The rest of the shared model
    comes from clusters that were not active."""
    cluster: Tensor
    """The cluster that this client counted for. With `clusters = "uncertainty"` it may
    change from round to round."""
    between: Tensor
    """Variance of the clusters' representatives (sigma_0^2). It weighs this aggregation
    and goes down with the next round."""


@dataclass(frozen=True, kw_only=True)
class SelfFLCluster(Algorithm[Server, Memory, Download, Work, Upload]):
    """Self-FL that remembers the last model of every cluster of clients."""

    name = "self-fl-cluster"
    group = "clustered"

    clusters: Literal["uncertainty", "teams"] = "uncertainty"
    """Clients of similar reported variance (quantiles), or the federation's teams."""
    cluster_count: Count = 5
    """How many clusters `uncertainty` forms; `teams` are as many as there are."""
    most_steps: Count = 40
    """Cap on the computed number of local steps (l_max)."""
    step_scale: StepScale = "size"
    """Scale of the loss in the step rule: 1/N_m (size), 1 (one) or 1/B_m (batch)."""
    target: Target = "paper"
    """What the steps aim at: theta^(FL) as printed, or the proper posterior mean."""
    normalise: Normalise = "n"
    """Divisor of the empirical variances; sum is no divisor, as section 3.2 prints."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            replace(self.local_phase("step"), length="ordinary"),
            Phase(step="step", steps=self.most_steps, length="computed"),
        )

    def init_server(self, population: Population) -> Server:
        count = self.cluster_count
        if self.clusters == "teams":
            count = population.team_count
            if count == 1:
                raise ConfigError(
                    'self-fl-cluster: clusters = "teams" needs at least 2 teams, and '
                    "the federation has 1. Form teams in [teams], or set "
                    'clusters = "uncertainty".'
                )
        shared = population.theta(0)
        reports = uncertainty.no_reports(population.count, shared.device)
        nothing = torch.zeros(count, dtype=torch.float64, device=shared.device)
        return Server(
            shared=shared,
            between=nothing.sum(),
            models=shared.repeat(count, 1),
            within=nothing,
            has_model=nothing > 0,
            has_within=nothing > 0,
            reports=reports,
            member=self._members(reports, population.teams),
        )

    def download(self, server: Server, cohort: Cohort) -> Download:
        precisions = _precisions(server)
        others = precisions.sum() - precisions[server.member[cohort.clients]]
        return Download(server.shared, server.between, others)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        return self._update(server, uploads, cohort)[0]

    def server_log(self, server: Server, uploads: Upload, cohort: Cohort) -> ServerLog:
        new, shares = self._update(server, uploads, cohort)
        precisions = _precisions(new)
        weight = (precisions / precisions.sum()) @ shares
        return ServerLog(weight, new.member[cohort.clients], new.between)

    def _update(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> tuple[Server, Tensor]:
        """The new server, and (k, n) the clients' shares in each representative."""
        present = cohort.sizes > 0
        reports = uncertainty.file(
            server.reports, cohort.clients, uploads.report, present
        )
        member = self._members(reports, cohort.population.teams)
        warm = uncertainty.is_warm(uploads.report.seen) & present
        precisions = uncertainty.precisions(server.between, uploads.report, present)
        mass = one_hot(member[cohort.clients], len(server.models)).T * precisions
        is_active = mass.sum(1) > 0
        shares = mass / torch.where(is_active, mass.sum(1), 1.0)[:, None]
        fresh = shares.to(uploads.personal.dtype) @ uploads.personal
        models = torch.where(is_active[:, None], fresh, server.models)
        within = shares @ uncertainty.impute(uploads.report.within, warm)
        has_model = server.has_model | is_active
        update = Server(
            shared=server.shared,
            between=uncertainty.between_clients(
                models, has_model, self.normalise, server.between
            ),
            models=models,
            within=torch.where(is_active, within, server.within),
            has_model=has_model,
            has_within=torch.where(is_active, warm.any(), server.has_within),
            reports=reports,
            member=member,
        )
        # Eq. (11), over clusters
        weights = _precisions(update)
        shared = (weights / weights.sum()).to(models.dtype) @ models
        return update._replace(shared=shared), shares

    def _members(self, reports: Report, teams: Tensor) -> Tensor:
        """(M,) the cluster of each client; by variance, the cold ones with the mean."""
        if self.clusters == "teams":
            return teams
        known = uncertainty.is_warm(reports.seen)
        found = reports.within[known]
        if len(found) == 0:
            return torch.zeros_like(teams)
        inner = torch.linspace(0, 1, self.cluster_count + 1, device=found.device)[1:-1]
        edges = torch.quantile(found, inner.double())
        return torch.bucketize(uncertainty.impute(reports.within, known), edges)

    def add_client(self, server: Server, population: Population) -> Server:
        grown = super().add_client(server, population)
        member = self._members(grown.reports, population.teams)
        return grown._replace(member=member)

    def shared(self, server: Server, task: Task) -> Tensor:
        return server.shared

    def team_models(self, server: Server, task: Task) -> Tensor | None:
        if self.clusters != "teams":
            return None
        return torch.where(server.has_model[:, None], server.models, server.shared)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(down.shared, uncertainty.no_past(down.shared))

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        correction = self._balance(down, memory, client).correction
        # Eq. (10), the sum over k != m taken over the other clusters
        beyond = correction.to(down.shared.dtype) * (memory.personal - down.shared)
        return Work(self.sgd_start(down.shared - beyond))

    def ordinary(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """All of the ordinary local work, or none for a client that can compute."""
        return uncertainty.unless(self._balance(down, memory, client).steps)

    def computed(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """The steps of Eq. (8), or none for a client that cannot compute them yet."""
        return self._balance(down, memory, client).steps

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1, LocalTrain: one step of SGD on the client's own loss."""
        gradient = task.grad(work.personal.at, batch)
        return Work(self.sgd_step(work.personal, gradient, batch))

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        personal = work.personal.at
        # Eq. (13)
        past = uncertainty.remember(memory.past, personal, client.round >= 0)
        report = uncertainty.report(past, self.normalise)
        return Memory(personal, past), Upload(personal, report)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> Balance:
        return self._balance(down, memory, client)

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return memory.personal

    def _balance(self, down: Download, memory: Memory, client: Client) -> Balance:
        return uncertainty.balance(self, memory.past, down.between, down.others, client)


def _precisions(server: Server) -> Tensor:
    """(k,) the precision of every cluster seen so far."""
    within = uncertainty.impute(server.within, server.has_within)
    return uncertainty.precision(server.between, within, server.has_model)
