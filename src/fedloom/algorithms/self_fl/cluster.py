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
is no smoothing, since all clusters enter every round. Teams can go by sums
(`weigh_by = "last"`); see team_sums.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedloom.algorithms.self_fl import stale_start, team_sums, uncertainty
from fedloom.algorithms.self_fl.lagged import WeighBy
from fedloom.algorithms.self_fl.self_fl import Memory, Upload, Work
from fedloom.algorithms.self_fl.step_rule import Download, ModelDownload, StepRule
from fedloom.algorithms.self_fl.team_sums import Representatives, Server, Summand
from fedloom.algorithms.self_fl.uncertainty import Report
from fedloom.core import client_models
from fedloom.core.algorithm import Client, Cohort, Population
from fedloom.core.errors import ConfigError
from fedloom.core.phases import plain_descent
from fedloom.core.records import Logged, PerClient
from fedloom.core.settings import SmallCount
from fedloom.core.sums import Needs
from fedloom.core.task import Batch, Task


class ServerLog(NamedTuple):
    """How an aggregation weighed its clients."""

    weight: PerClient[Tensor]
    """Share of this client's model in the new shared one. The rest of the shared model
    comes from clusters that were not active."""
    cluster: PerClient[Tensor]
    """The cluster that this client counted for. With `clusters = "uncertainty"` it may
    change from round to round."""
    between: Tensor
    """Variance of the clusters' representatives (sigma_0^2). It weighs this aggregation
    and goes down with the next round."""


@dataclass(frozen=True, kw_only=True)
class SelfFLCluster(StepRule[Server, Memory, Download, Work, Upload]):
    """Self-FL that remembers the last model of every cluster of clients."""

    name = "self-fl-cluster"
    group = "clustered"
    why_sgd = "its step rule says how many steps of SGD a client takes"
    why_single = (
        "clusters are formed by each client's `report`, and those beside each other "
        'weigh their models (clusters = "teams" with weigh_by = "last" goes by sums '
        "per team)"
    )

    clusters: Literal["uncertainty", "teams"] = "uncertainty"
    """Clients of similar reported variance (quantiles), or the federation's teams."""
    cluster_count: SmallCount = 5
    """How many clusters `uncertainty` forms; `teams` are as many as there are."""
    weigh_by: WeighBy = "round"
    """What weighs a team's clients: their variances beside each other, or, each by
    itself, beside the mean of the `last` round. Then the server needs sums per team
    alone, as for privacy; see team_sums.py. Clusters by uncertainty need `round`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weigh_by == "last" and self.clusters != "teams":
            raise ConfigError(
                f'{self.name}: weigh_by = "last" goes by sums per team, and clusters '
                f"= {self.clusters!r} are formed by the reports of single clients. Set "
                'clusters = "teams", or leave weigh_by out.'
            )

    @property
    def needs(self) -> Needs:
        return "sums per team" if self.weigh_by == "last" else "single models"

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
            noise=nothing,
            reports=reports,
            member=self._members(reports, population.teams),
            last=stale_start.no_rounds(population.count, shared.device),
        )

    def download(self, server: Server, cohort: Cohort) -> Download:
        precisions = team_sums.precisions(server)
        others = precisions.sum() - precisions[server.member[cohort.clients]]
        terms = server.has_model.sum()
        by_sums = self.weigh_by == "last"
        corrects = stale_start.corrects(
            self.stale_init, server.last, cohort, terms, is_foreseen=by_sums
        )
        within = others[:0]
        if by_sums:
            within = team_sums.mean_within(server)[None]
        return Download(server.shared, server.between, others, corrects, within)

    def model_download(self, server: Server, cohort: Cohort) -> ModelDownload:
        return ModelDownload(server.shared)

    def aggregate(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> Logged[Server, ServerLog]:
        if self.weigh_by == "last":
            made, shares = team_sums.from_uploads(server, *uploads, cohort)
            new = self._with(server, made, cohort)
            log = ServerLog(team_sums.shares(new) @ shares, cohort.teams, new.between)
            return Logged(new, log)
        present = cohort.sizes > 0
        reports = client_models.with_rows(server.reports, uploads.report, cohort)
        member = self._members(reports, cohort.population.teams)
        warm = uncertainty.is_warm(uploads.report.seen) & present
        precisions = uncertainty.precisions(server.between, uploads.report, present)
        clusters = member[cohort.clients]
        mass = one_hot(clusters, len(server.models)).T * precisions
        is_active = mass.sum(1) > 0
        # (k, n) the clients' shares in each representative
        shares = mass / torch.where(is_active, mass.sum(1), 1.0)[:, None]
        made = Representatives(
            models=shares.to(uploads.personal.dtype) @ uploads.personal,
            within=shares @ uncertainty.impute(uploads.report.within, warm),
            has_within=torch.where(is_active, warm.any(), server.has_within),
            noise=torch.zeros_like(server.noise),
            is_active=is_active,
        )
        new = self._with(server._replace(reports=reports, member=member), made, cohort)
        log = ServerLog(team_sums.shares(new) @ shares, clusters, new.between)
        return Logged(new, log)

    def _with(self, server: Server, made: Representatives, cohort: Cohort) -> Server:
        """The server with the representatives of the clusters that were active."""
        active = made.is_active
        models = torch.where(active[:, None], made.models, server.models)
        noise = torch.where(active, made.noise, server.noise)
        has_model = server.has_model | active
        new = server._replace(
            between=uncertainty.between_clients(
                models, has_model, self.normalise, server.between, noise
            ),
            models=models,
            within=torch.where(active, made.within, server.within),
            has_model=has_model,
            has_within=made.has_within,
            noise=noise,
            last=stale_start.with_round(server.last, cohort),
        )
        # Eq. (11), over clusters; there may be none before one is beyond its noise
        shared = team_sums.shares(new).to(models.dtype) @ models
        return new._replace(shared=torch.where(has_model.any(), shared, server.shared))

    def summand(
        self, upload: Upload, down: Download, client: Client, task: Task
    ) -> Summand:
        model, report = upload
        within = down.within.sum()
        return team_sums.summand(
            model, report, down.shared, down.between, within, client.size > 0
        )

    def from_sum(self, server: Server, total: Summand, cohort: Cohort) -> Server:
        return self.from_noisy_sum(server, total, cohort, None)

    def from_noisy_sum(
        self, server: Server, total: Summand, cohort: Cohort, noise: Summand | None
    ) -> Server:
        return self._with(server, team_sums.from_sum(server, total, noise), cohort)

    def _members(self, reports: Report, teams: Tensor) -> Tensor:
        """(M,) the cluster of each client; by variance, the cold ones with the mean."""
        if self.clusters == "teams":
            return teams
        known = uncertainty.is_warm(reports.seen)
        within = reports.within[known]
        if len(within) == 0:
            return torch.zeros_like(teams)
        inner = torch.linspace(0, 1, self.cluster_count + 1, device=within.device)[1:-1]
        edges = torch.quantile(within, inner.double())
        return torch.bucketize(uncertainty.impute(reports.within, known), edges)

    def add_client(self, server: Server, population: Population) -> Server:
        grown = super().add_client(server, population)
        member = self._members(grown.reports, population.teams)
        return grown._replace(member=member)

    def team_models(self, server: Server, task: Task) -> Tensor | None:
        if self.clusters != "teams":
            return None
        return torch.where(server.has_model[:, None], server.models, server.shared)

    def initial_memory(
        self, down: Download | ModelDownload, client: Client, task: Task
    ) -> Memory:
        return Memory(down.shared, uncertainty.no_past(down.shared))

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        correction = self.balance(down, memory, client).correction
        # Eq. (10), the sum over k != m taken over the other clusters
        beyond = correction.to(down.shared.dtype) * (memory.personal - down.shared)
        return self.sgd_start(down.shared - beyond)

    @plain_descent
    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1, LocalTrain: one step of SGD on the client's own loss."""
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        # Eq. (13)
        past = uncertainty.remember(memory.past, work.at, client.round >= 0)
        report = uncertainty.report(past, self.normalise)
        return Memory(work.at, past), Upload(work.at, report)
