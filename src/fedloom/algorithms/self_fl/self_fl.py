"""Self-FL: how far a client trains on its own follows from measured uncertainty.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang. NeurIPS 2022. Algorithm 1.

    paper      here               lives
    theta^t    Server.shared      sent to the cohort
    theta_m^t  Memory.personal    on client m, sent after training
    sigma_m^2  Memory.past        on client m, the scalar is sent
    sigma_0^2  Server.between     sent to the cohort
    S_m        Download.others    sum of 1 / (sigma_0^2 + sigma_k^2) over k != m
    l_m        computed           Eq. (8), from the above
    l_max      most_steps         configuration

Deviations: the recursion of Eq. (19) is corrected (uncertainty.py). Variances are
divided by n, as in Eq. (18), and the step rule is scaled for a mean loss; `normalise`
and `step_scale` have the printed forms. Smoothing by C (section 4.1) is off by default.
w_m / S_m in Eq. (10) is held at 1, and in rounds with so few clients that the start
would be unstable it is off (stale_start.py; `stale_init`). The computed steps are at
least the ordinary local work, since small variances and few steps make each other
otherwise; with that floor Eq. (8) takes eta / (1 - momentum) for eta. `least_steps = 1`
is the paper's rule. The paper does not say what a client does before its
variance exists: until it has trained twice, and when it is alone in a round, it starts
at the shared model and does the ordinary local work, `steps` or `epochs` as in every
method; a cold client counts with the mean variance of the warm ones. Alg. 1 cites Eq.
(7) for the start, which needs unknown optima; Eq. (10) is what section 3.1 uses. The
server sends each client its S_m, so that nobody learns another's variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.algorithms.self_fl import lagged, stale_start, step_rule, uncertainty
from fedloom.algorithms.self_fl.lagged import Summand, WeighBy
from fedloom.algorithms.self_fl.step_rule import (
    Download,
    ModelDownload,
    Scope,
    StepRule,
)
from fedloom.algorithms.self_fl.uncertainty import Normalise, Past, Report, is_warm
from fedloom.core import client_models
from fedloom.core.algorithm import Client, Cohort, Phase, Population, SGDState
from fedloom.core.phases import plain_descent
from fedloom.core.records import Logged, PerClient
from fedloom.core.settings import Rate, Whole
from fedloom.core.sums import Needs
from fedloom.core.task import Batch, Task

if TYPE_CHECKING:
    from fedloom.algorithms.self_fl.augmented import SelfFLAugmented

Smoothing = Rate | Literal["activity"]
"""Weight of the new estimate of the shared model, or the sampling rate."""


class Server(NamedTuple):
    """The shared model, and three scalars about each client of the population."""

    shared: Tensor
    between: Tensor
    """sigma_0^2."""
    reports: PerClient[Report]
    """(M,) each."""
    last: PerClient[Tensor]
    """(M,) the round in which each client's model was last taken in; -1 for never."""


class Memory(NamedTuple):
    """On one client, from round to round."""

    personal: Tensor
    past: Past


Work = SGDState
"""During a round: the personal model."""


class Upload(NamedTuple):
    """Client to server: its model and two scalars; the model is the personal one."""

    personal: Tensor
    report: Report


class ServerLog(NamedTuple):
    """How an aggregation weighed its clients."""

    weight: PerClient[Tensor]
    """Share of this client's model in the new estimate of the shared one. Proportional
    to 1 / (sigma_0^2 + sigma_m^2), or to training samples where these are switched off.
    """
    between: Tensor
    """Variance of the models that arrived (sigma_0^2). It weighs this aggregation and
    goes down with the next round."""


def begun(population: Population) -> Server:
    """The server before the first round."""
    shared = population.theta(0)
    reports = uncertainty.no_reports(population.count, shared.device)
    last = stale_start.no_rounds(population.count, shared.device)
    return Server(shared, reports.within.sum(), reports, last)


def advanced(
    algorithm: SelfFL | SelfFLAugmented,
    server: Server,
    made: lagged.Estimate,
    cohort: Cohort,
) -> Server:
    """The server after a round that it knows the sums of."""
    fresh = freshness(algorithm.smoothing, cohort, algorithm.warm_rounds)
    has_warm = (made.within > 0) | is_warm(server.reports.seen).any()
    return Server(
        # Section 4.1: theta^t = (1 - C) theta^{t-1} + C theta_hat
        shared=server.shared + fresh * made.change,
        between=made.between,
        reports=lagged.pooled(server.reports, made.within, has_warm),
        last=stale_start.with_round(server.last, cohort),
    )


def freshness(smoothing: Smoothing, cohort: Cohort, warm_rounds: int) -> float:
    """C of section 4.1, the weight of a new estimate; 1 in the rounds of FedAvg."""
    if cohort.round < warm_rounds:
        return 1.0
    return cohort.population.rate if smoothing == "activity" else smoothing


def weigh(
    models: Tensor, reports: Report, cohort: Cohort, before: Tensor, by: Normalise
) -> ServerLog:
    """Weights by uncertainty: w_m / sum_k w_k of Eqs. (11) and (23).

    Args:
        models: (n, d) whose variance is sigma_0^2, Eqs. (14) and (22).
        reports: (n,) each.
        cohort: who they are from.
        before: sigma_0^2 of the round before.
        by: divisor of the variance.
    """
    present = cohort.sizes > 0
    between = uncertainty.between_clients(models, present, by, before)
    precisions = uncertainty.precisions(between, reports, present)
    return ServerLog(precisions / precisions.sum(), between)


@dataclass(frozen=True, kw_only=True)
class SelfFL(StepRule[Server, Memory, Download, Work, Upload]):
    """Start, steps and weight of every client follow from its uncertainty."""

    name = "self-fl"
    group = "personalised"
    why_sgd = "its step rule says how many steps of SGD a client takes"
    why_single = (
        "the variance of the clients' `personal` in a round weighs that same round "
        '(weigh_by = "last" goes by sums)'
    )

    scope: Scope = "active"
    """Whose precisions make S_m: the clients of the round, or of the population."""
    smoothing: Smoothing = 1.0
    """Weight of the new estimate of the shared model; activity is the sampling rate."""
    use_init: bool = True
    """Start beyond the shared model, Eq. (10); off starts at it."""
    use_steps: bool = True
    """Compute the steps, Eq. (8); off does the ordinary work, `steps` or `epochs`."""
    use_weights: bool = True
    """Weigh clients by uncertainty, Eq. (11); off weighs by training samples."""
    warm_rounds: Whole = 0
    """Rounds of plain FedAvg before Self-FL begins; no variance is taken from them."""
    weigh_by: WeighBy = "round"
    """Whose sigma_0^2 weighs the models of a round: its own, as in the paper, or that
    of the `last` round. Then the server needs sums alone, as for privacy; see
    lagged.py."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lagged.refuse_other_divisors(self.name, self.weigh_by, self.normalise)

    @property
    def needs(self) -> Needs:
        return "sums" if self.weigh_by == "last" else "single models"

    @property
    def phases(self) -> tuple[Phase, ...]:
        return super().phases if self.use_steps else (self.local_phase("step"),)

    def init_server(self, population: Population) -> Server:
        return begun(population)

    def download(self, server: Server, cohort: Cohort) -> Download:
        by_sums = self.weigh_by == "last"
        rule = step_rule.foreseen_summands if by_sums else step_rule.summands
        others, terms = rule(server.between, server.reports, cohort, self.scope)
        corrects = stale_start.corrects(
            self.stale_init, server.last, cohort, terms, is_foreseen=by_sums
        )
        within = others[:0]
        if by_sums:
            within = lagged.mean_within(server.reports)[None]
        return Download(server.shared, server.between, others, corrects, within)

    def model_download(self, server: Server, cohort: Cohort) -> ModelDownload:
        return ModelDownload(server.shared)

    def aggregate(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> Logged[Server, ServerLog]:
        models, reports = uploads
        if self.weigh_by == "last":
            within = lagged.mean_within(server.reports)
            own = self._own_weight(server.between, within, reports, cohort.sizes)
            weight = cohort.sizes if cohort.round < self.warm_rounds else own
            before = server.shared, server.between, within
            made = lagged.from_uploads(models, reports, *before, weight.double())
            new = advanced(self, server, made, cohort)
            return Logged(new, ServerLog(weight / weight.sum(), made.between))
        log = weigh(models, reports, cohort, server.between, self.normalise)
        if cohort.round < self.warm_rounds or not self.use_weights:
            log = log._replace(weight=cohort.weights("size"))
        # Eq. (11): theta = sum_m w_m theta_m / sum_m w_m
        estimate = log.weight.to(models.dtype) @ models
        fresh = freshness(self.smoothing, cohort, self.warm_rounds)
        new = Server(
            # Section 4.1: theta^t = (1 - C) theta^{t-1} + C theta_hat
            shared=(1.0 - fresh) * server.shared + fresh * estimate,
            between=log.between,
            reports=client_models.with_rows(server.reports, reports, cohort),
            last=stale_start.with_round(server.last, cohort),
        )
        return Logged(new, log)

    def summand(
        self, upload: Upload, down: Download, client: Client, task: Task
    ) -> Summand:
        model, report = upload
        within = down.within.sum()
        own = self._own_weight(down.between, within, report, client.size)
        weight = torch.where(client.round < self.warm_rounds, client.size.double(), own)
        return lagged.summand(model, report, down.shared, down.between, weight)

    def _own_weight(
        self, between: Tensor, within: Tensor, report: Report, size: Tensor
    ) -> Tensor:
        """What a client weighs itself by; 0 without training samples."""
        if not self.use_weights:
            return size.double()
        own = lagged.weights(between, within, report)
        return torch.where(size > 0, own, 0.0)

    def from_sum(self, server: Server, total: Summand, cohort: Cohort) -> Server:
        return self.from_noisy_sum(server, total, cohort, None)

    def from_noisy_sum(
        self, server: Server, total: Summand, cohort: Cohort, noise: Summand | None
    ) -> Server:
        within, count = (
            lagged.mean_within(server.reports),
            int((cohort.sizes > 0).sum()),
        )
        made = lagged.from_sum(total, server.between, within, count, noise)
        return advanced(self, server, made, cohort)

    def initial_memory(
        self, down: Download | ModelDownload, client: Client, task: Task
    ) -> Memory:
        return Memory(down.shared, uncertainty.no_past(down.shared))

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        if not self.use_init:
            return self.sgd_start(down.shared)
        correction = self.balance(down, memory, client).correction
        # Eq. (10): theta - (w_m / S_m) (theta_m - theta)
        beyond = correction.to(down.shared.dtype) * (memory.personal - down.shared)
        return self.sgd_start(down.shared - beyond)

    @plain_descent
    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1, LocalTrain: one step of SGD on the client's own loss."""
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        counts = client.round >= self.warm_rounds
        # Eq. (13)
        past = uncertainty.remember(memory.past, work.at, counts)
        report = uncertainty.report(past, self.normalise)
        return Memory(work.at, past), Upload(work.at, report)
