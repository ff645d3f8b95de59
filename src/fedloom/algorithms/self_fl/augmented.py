"""Augmented Self-FL: Self-FL that also trains to convergence, and measures there.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang. NeurIPS 2022. Algorithm 2, section F.

    paper         here               lives
    theta^t       Server.shared      sent to the cohort
    theta_m^t     Memory.personal    on client m, never sent
    theta_{m,t}   Memory.optimum     on client m, sent after training
    sigma_m^2     Memory.past        variance of past theta_{m,t}; the scalar is sent
    sigma_0^2     Server.between     variance of the theta_{m,t} of a round
    S_m           Download.others    sum of 1 / (sigma_0^2 + sigma_k^2) over k != m
    l_m           computed           Algorithm 2, from the above

Deviations: as in self_fl.py, and the loss is the mean over a batch, not the sum. The
paper does not say when a client has converged. Here: when an epoch has lowered the
training loss, as its steps meet it, by no more than the share `tolerance`, or after
`extra_epochs`. How many models sigma_m^2 rests on is sent with it. Algorithm 2
also sends theta_m^t, of which the server makes no use: here it stays on the client.
Smoothing is as in Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.algorithms.self_fl import lagged, stale_start, step_rule, uncertainty
from fedloom.algorithms.self_fl.lagged import Summand, WeighBy
from fedloom.algorithms.self_fl.self_fl import (
    Server,
    ServerLog,
    Smoothing,
    advanced,
    begun,
    freshness,
    weigh,
)
from fedloom.algorithms.self_fl.step_rule import (
    Download,
    ModelDownload,
    Scope,
    StepRule,
)
from fedloom.algorithms.self_fl.uncertainty import Past, Report
from fedloom.core import client_models
from fedloom.core.algorithm import Client, Cohort, Phase, Population, SGDState
from fedloom.core.records import Logged
from fedloom.core.settings import NonNegative, Whole
from fedloom.core.sums import Needs
from fedloom.core.task import Batch, Task


class Memory(NamedTuple):
    """On one client, from round to round."""

    personal: Tensor
    optimum: Tensor
    past: Past
    """Of the optima."""


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
    """Client to server: the optimum, and the variance as it was before this round."""

    optimum: Tensor
    report: Report


@dataclass(frozen=True, kw_only=True)
class SelfFLAugmented(StepRule[Server, Memory, Download, Work, Upload]):
    """Self-FL whose uncertainty, start and average are those of local optima."""

    name = "self-fl-augmented"
    group = "personalised"
    why_sgd = "its step rule says how many steps of SGD a client takes"
    why_single = (
        "the variance of the clients' `optimum` in a round weighs that same round "
        '(weigh_by = "last" goes by sums)'
    )

    tolerance: NonNegative = 1e-3
    """Relative drop of the training loss over an epoch that counts as converged."""
    extra_epochs: Whole = 10
    """Most epochs from the personal model on to the local optimum."""
    scope: Scope = "active"
    """Whose precisions make S_m: the clients of the round, or of the population."""
    smoothing: Smoothing = 1.0
    """Weight of the new estimate of the shared model; activity is the sampling rate."""
    use_init: bool = True
    """Start beyond the shared model, Eq. (21); off starts at it."""
    use_steps: bool = True
    """Compute the steps; off does the ordinary work, `steps` or `epochs`."""
    use_weights: bool = True
    """Weigh clients by uncertainty, Eq. (23); off weighs by training samples."""
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
        settle = Phase(step="settle", epochs=self.extra_epochs, until="has_settled")
        local = super().phases if self.use_steps else (self.local_phase("step"),)
        return (*local, settle)

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
        # Eq. (23): theta = sum_m w_m theta_{m,t} / sum_m w_m
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
        return Memory(down.shared, down.shared, uncertainty.no_past(down.shared))

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        start = down.shared
        if self.use_init:
            correction = self.balance(down, memory, client).correction.to(start.dtype)
            # Eq. (21): theta - (w_m / S_m) (theta_{m,t-1} - theta)
            start = start - correction * (memory.optimum - start)
        none = torch.zeros_like(client.size)
        is_warm_up = client.round < self.warm_rounds
        descent = Descent(none, none, torch.zeros_like(client.round), is_warm_up)
        return Work(self.sgd_start(start), self.sgd_start(start), descent)

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 2, first loop; then theta_{m,t} <- theta_m^t."""
        gradient = task.grad(work.personal.at, batch)
        state = self.sgd_step(work.personal, gradient, batch)
        return Work(state, state, work.descent)

    def settle(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 2, second loop: theta_{m,t} descends until it converges."""
        gradient = task.grad(work.optimum.at, batch)
        state = self.sgd_step(work.optimum, gradient, batch)
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
        return Work(work.personal, state, descent)

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
        return Memory(personal, optimum, past), Upload(optimum, report)
