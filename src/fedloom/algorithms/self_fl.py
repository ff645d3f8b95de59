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

Deviations: the recursion of Eq. (19) is corrected (core/uncertainty.py). Variances are
divided by n, as in Eq. (18), and the step rule is scaled for a mean loss; `normalise`
and `step_scale` have the printed forms. Smoothing by C (section 4.1) is off by default.
w_m / S_m in Eq. (10) is held at 1. The paper does not say what a client does before its
variance exists: until it has trained twice, and when it is alone in a round, it starts
at the shared model and does the ordinary local work, `steps` or `epochs` as in every
method; a cold client counts with the mean variance of the warm ones. Alg. 1 cites Eq.
(7) for the start, which needs unknown optima; Eq. (10) is what section 3.1 uses. The
server sends each client its S_m, so that nobody learns another's variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from torch import Tensor

from fedloom.core import uncertainty
from fedloom.core.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Phase,
    Population,
    SGDState,
)
from fedloom.core.records import PerClient, take
from fedloom.core.settings import Count, Rate, Whole
from fedloom.core.task import Batch, Task
from fedloom.core.uncertainty import Balance, Normalise, Past, Report, StepScale, Target


class Server(NamedTuple):
    """The shared model, and two scalars about each client of the population."""

    shared: Tensor
    between: Tensor
    """sigma_0^2."""
    reports: Report
    """(M,) each."""


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


@dataclass(frozen=True, kw_only=True)
class SelfFL(Algorithm[Server, Memory, Download, Work, Upload]):
    """Start, steps and weight of every client follow from its uncertainty."""

    name = "self-fl"
    group = "personalised"

    most_steps: Count = 40
    """Cap on the computed number of local steps (l_max)."""
    step_scale: StepScale = "size"
    """Scale of the loss in the step rule: 1/N_m (size), 1 (one) or 1/B_m (batch)."""
    target: Target = "paper"
    """What the steps aim at: theta^(FL) as printed, or the proper posterior mean."""
    normalise: Normalise = "n"
    """Divisor of the empirical variances; sum is no divisor, as section 3.2 prints."""
    scope: Literal["active", "all"] = "active"
    """Whose precisions make S_m: the clients of the round, or of the population."""
    smoothing: Rate | Literal["activity"] = 1.0
    """Weight of the new estimate of the shared model; activity is the sampling rate."""
    use_init: bool = True
    """Start beyond the shared model, Eq. (10); off starts at it."""
    use_steps: bool = True
    """Compute the steps, Eq. (8); off does the ordinary work, `steps` or `epochs`."""
    use_weights: bool = True
    """Weigh clients by uncertainty, Eq. (11); off weighs by training samples."""
    warm_rounds: Whole = 0
    """Rounds of plain FedAvg before Self-FL begins; no variance is taken from them."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        if not self.use_steps:
            return (self.local_phase("step"),)
        return (
            replace(self.local_phase("step"), length="ordinary"),
            Phase(step="step", steps=self.most_steps, length="computed"),
        )

    def init_server(self, population: Population) -> Server:
        shared = population.theta(0)
        reports = uncertainty.no_reports(population.count, shared.device)
        return Server(shared, reports.within.sum(), reports)

    def download(self, server: Server, cohort: Cohort) -> Download:
        reports, present = server.reports, cohort.population.sizes > 0
        if self.scope == "active":
            reports, present = take(reports, cohort.clients), cohort.sizes > 0
        precisions = uncertainty.precisions(server.between, reports, present)
        others = precisions.sum() - precisions
        if self.scope == "all":
            others = others[cohort.clients]
        return Download(server.shared, server.between, others)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        shares, between = self.server_log(server, uploads, cohort)
        # Eq. (11)
        estimate = shares.to(uploads.personal.dtype) @ uploads.personal
        fresh = self.smoothing
        if fresh == "activity":
            fresh = cohort.population.rate
        if cohort.round < self.warm_rounds:
            fresh = 1.0
        return Server(
            # Section 4.1: theta^t = (1 - C) theta^{t-1} + C theta_hat
            shared=(1.0 - fresh) * server.shared + fresh * estimate,
            between=between,
            reports=uncertainty.file(
                server.reports, cohort.clients, uploads.report, cohort.sizes > 0
            ),
        )

    def server_log(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> uncertainty.ServerLog:
        present = cohort.sizes > 0
        # Eq. (14)
        between = uncertainty.between_clients(
            uploads.personal, present, self.normalise, server.between
        )
        if cohort.round < self.warm_rounds or not self.use_weights:
            return uncertainty.ServerLog(cohort.by_size(), between)
        precisions = uncertainty.precisions(between, uploads.report, present)
        return uncertainty.ServerLog(precisions / precisions.sum(), between)

    def shared(self, server: Server, task: Task) -> Tensor:
        return server.shared

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(down.shared, uncertainty.no_past(down.shared))

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        if not self.use_init:
            return Work(self.sgd_start(down.shared))
        correction = self._balance(down, memory, client).correction
        # Eq. (10): theta - (w_m / S_m) (theta_m - theta)
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
        counts = client.round >= self.warm_rounds
        past = uncertainty.remember(memory.past, personal, counts)
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
