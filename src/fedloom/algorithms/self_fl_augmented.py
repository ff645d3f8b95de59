"""Augmented Self-FL: Self-FL that also trains to convergence, and measures there.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang. NeurIPS 2022. Algorithm 2, section F.

    paper         here               lives
    theta^t       Server.shared      sent to the cohort
    theta_m^t     Memory.personal    on client m, sent after training
    theta_{m,t}   Memory.optimum     on client m, sent after training
    sigma_m^2     Memory.past        variance of past theta_{m,t}; the scalar is sent
    sigma_0^2     Server.between     variance of the theta_{m,t} of a round
    S_m           Download.others    sum of 1 / (sigma_0^2 + sigma_k^2) over k != m
    l_m           computed           Algorithm 2, from the above

Deviations: as in self_fl.py, and the loss is the mean over a batch, not the sum. The
paper does not say when a client has converged. Here: when an epoch has lowered the
training loss, as its steps meet it, by no more than the share `tolerance`, or after
`extra_epochs`. How many models sigma_m^2 rests on is sent with it. The server is sent
theta_m^t, as printed, and makes no use of it. Smoothing is as in Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
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
from fedloom.core.settings import Count, NonNegative, Rate, Whole
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
    optimum: Tensor
    past: Past
    """Of the optima."""


class Download(NamedTuple):
    """Server to client: the shared model and two scalars."""

    shared: Tensor
    between: Tensor
    others: PerClient


class Descent(NamedTuple):
    """How the training loss goes down from one extra epoch to the next."""

    last: Tensor
    """Summed loss of the last whole epoch."""
    total: Tensor
    """Summed loss of this epoch so far."""
    epochs: Tensor
    """Whole epochs so far."""
    is_over: Tensor


class Work(NamedTuple):
    """During a round: the personal model, then on from there to the optimum."""

    personal: SGDState
    optimum: SGDState
    descent: Descent


class Upload(NamedTuple):
    """Client to server: both models, and the variance as it was before this round."""

    personal: Tensor
    optimum: Tensor
    report: Report


@dataclass(frozen=True, kw_only=True)
class SelfFLAugmented(Algorithm[Server, Memory, Download, Work, Upload]):
    """Self-FL whose uncertainty, start and average are those of local optima."""

    name = "self-fl-augmented"
    group = "personalised"

    tolerance: NonNegative = 1e-3
    """Relative drop of the training loss over an epoch that counts as converged."""
    extra_epochs: Whole = 10
    """Most epochs from the personal model on to the local optimum."""
    most_steps: Count = 40
    """Cap on the computed number of local steps."""
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
    """Start beyond the shared model, Eq. (21); off starts at it."""
    use_steps: bool = True
    """Compute the steps; off does the ordinary work, `steps` or `epochs`."""
    use_weights: bool = True
    """Weigh clients by uncertainty, Eq. (23); off weighs by training samples."""
    warm_rounds: Whole = 0
    """Rounds of plain FedAvg before Self-FL begins; no variance is taken from them."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        settle = Phase(step="settle", epochs=self.extra_epochs, until="has_settled")
        if not self.use_steps:
            return (self.local_phase("step"), settle)
        return (
            replace(self.local_phase("step"), length="ordinary"),
            Phase(step="step", steps=self.most_steps, length="computed"),
            settle,
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
        # Eq. (23)
        estimate = shares.to(uploads.optimum.dtype) @ uploads.optimum
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
        # Eq. (22)
        between = uncertainty.between_clients(
            uploads.optimum, present, self.normalise, server.between
        )
        if cohort.round < self.warm_rounds or not self.use_weights:
            return uncertainty.ServerLog(cohort.by_size(), between)
        precisions = uncertainty.precisions(between, uploads.report, present)
        return uncertainty.ServerLog(precisions / precisions.sum(), between)

    def shared(self, server: Server, task: Task) -> Tensor:
        return server.shared

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(down.shared, down.shared, uncertainty.no_past(down.shared))

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        start = down.shared
        if self.use_init:
            correction = self._balance(down, memory, client).correction.to(start.dtype)
            # Eq. (21): theta - (w_m / S_m) (theta_{m,t-1} - theta)
            start = start - correction * (memory.optimum - start)
        none = torch.zeros_like(client.size)
        is_warm_up = client.round < self.warm_rounds
        descent = Descent(none, none, torch.zeros_like(client.round), is_warm_up)
        return Work(self.sgd_start(start), self.sgd_start(start), descent)

    def ordinary(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """All of the ordinary local work, or none for a client that can compute."""
        return uncertainty.unless(self._balance(down, memory, client).steps)

    def computed(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """The steps of Alg. 2, or none for a client that cannot compute them yet."""
        return self._balance(down, memory, client).steps

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 2, first loop; then theta_{m,t} <- theta_m^t."""
        gradient = task.grad(work.personal.at, batch)
        point = self.sgd_step(work.personal, gradient, batch)
        return Work(point, point, work.descent)

    def settle(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 2, second loop: theta_{m,t} descends until it converges."""
        gradient = task.grad(work.optimum.at, batch)
        point = self.sgd_step(work.optimum, gradient, batch)
        last, total, epochs, _ = work.descent
        total = total + batch.total(task.losses(work.optimum.at, batch))
        is_flat = (epochs > 0) & (last - total <= self.tolerance * last)
        ends = batch.ends_epoch
        descent = Descent(
            last=torch.where(ends, total, last),
            total=torch.where(ends, 0.0, total),
            epochs=epochs + ends,
            is_over=ends & is_flat,
        )
        return Work(work.personal, point, descent)

    def has_settled(self, work: Work) -> Tensor:
        """Whether the training loss has stopped falling."""
        return work.descent.is_over

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        personal, optimum = work.personal.at, work.optimum.at
        # Eq. (20): the variance of theta_{m,1} to theta_{m,t-1} is what is sent
        report = uncertainty.report(memory.past, self.normalise)
        counts = client.round >= self.warm_rounds
        past = uncertainty.remember(memory.past, optimum, counts)
        return Memory(personal, optimum, past), Upload(personal, optimum, report)

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
