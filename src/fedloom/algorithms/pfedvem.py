"""pFedVEM: every client's head is a Gaussian, and the sure ones count more.

Zhu, Ma, Blaschko. Confidence-aware Personalized Federated Learning via Variational
Expectation Maximization. CVPR 2023. arXiv:2305.12557.

    paper      here                lives
    w, theta   Download            sent: mean of the prior of all heads, layers below it
    mu_j, pi_j Memory.mean, spread on client j, only mu_j is sent; softplus(pi_j) is std
    theta_j    Memory.base         on client j, and sent: the base as j trained it
    tau_j      Upload.confidence   sent: 1 / rho_j^2, the precision of j's prior
    eta, R, K, n_j                 head_lr, passes, monte_carlo, Cohort.sizes

Deviations: the head minimises the negative ELBO with the exact KL, whose sign is wrong
below Eq. (11); the last bound in Eq. (10) does not hold. As in the authors' code, tau_j
is computed once, from posterior and w just received (line 13), and a head that stops
being finite goes back to where the round found it. A client met late starts at the
present w. `deviation` takes 1 / scale^2 while it is 0. Weight decay spares the head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.core import gaussians, streams
from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.errors import ContractError
from fedloom.core.phases import Phase
from fedloom.core.records import Logged, PerClient, map_record
from fedloom.core.settings import Count, Interval, Positive, Share
from fedloom.core.sums import Bound, Vector, Weight, over
from fedloom.core.task import Batch, Models, Task


class Server(NamedTuple):
    """The shared model in two parts."""

    base: Tensor
    head: Tensor


class Memory(NamedTuple):
    """On one client, from round to round. Never sent as it is: `spread` stays."""

    mean: Tensor
    spread: Tensor
    base: Tensor


class Download(NamedTuple):
    """Server to client: the shared model in two parts."""

    base: Tensor
    head: Tensor


class Work(NamedTuple):
    """During a round: mean and spread of the head (2, h), now and before; the base."""

    posterior: SGDState
    before: Tensor
    base: SGDState
    confidence: Tensor


class Upload(NamedTuple):
    """Client to server: mean of the head, how sure the client is, and the base."""

    mean: Tensor
    confidence: Tensor
    base: Tensor


class Summand(NamedTuple):
    """What one client adds: how far head and base went, times how much each counts."""

    mean: Vector[Tensor]
    confidence: Annotated[Tensor, Bound("share", setting="most_confidence")]
    """Over `most_confidence` where there is one: a share of it."""
    base: Vector[Tensor]
    weight: Weight[Tensor]


class ClientLog(NamedTuple):
    """What one client's head went through."""

    confidence: Tensor
    """tau before training: precision of the prior, and weight in the shared head."""
    uncertainty: Tensor
    """Tr(Sigma) of the head before training. Few data leave it large, tau low."""
    deviation: Tensor
    """||mu - w||^2 before training. For a client unlike the others large, tau low."""
    divergence: Tensor
    """KL of the head from its prior after training: the price of leaving the prior."""
    restored: Tensor
    """1 if training failed and was undone, else 0. If it is often, lower `head_lr`."""


class ServerLog(NamedTuple):
    """How much each upload counted."""

    head_weight: PerClient[Tensor]
    """Share of the client in the shared head. Proportional to its confidence."""
    base_weight: PerClient[Tensor]
    """Share of the client in the shared base. Proportional to its training samples."""


@dataclass(frozen=True, kw_only=True)
class PFedVEM(Algorithm[Server, Memory, Download, Work, Upload]):
    """A Gaussian head per client around a shared one; the base is averaged."""

    name = "pfedvem"
    group = "Bayesian"

    lr: Positive = 0.01
    """Learning rate of the base."""
    batch_size: Count = 50
    """Samples per step of the base; the head's steps see all of a client's data."""
    epochs: Count = 5
    """Local epochs of the base per round (E)."""
    momentum: Share = 0.9
    """Momentum of head and base; starts anew each round and is never sent."""
    head_lr: Positive = 0.0001
    """Learning rate of the head (eta); its loss is a sum over the client's samples."""
    passes: Count = 10
    """Steps of the head per round, each on all of the client's data (R)."""
    monte_carlo: Count = 5
    """Heads drawn from the posterior for each step (K)."""
    scale: Annotated[float, Interval(above=0.0, most=1e9)] = 0.1
    """Standard deviation that every head starts with (rho)."""
    head_start: Literal["normal", "model"] = "normal"
    """The shared head starts at standard normal numbers, or as the model has it."""
    server_momentum: Annotated[float, Interval(least=0.0, below=1.0)] = 0.0
    """Share of the old shared model that stays in the new one (beta)."""
    confidence: Literal["both", "uncertainty", "deviation"] = "both"
    """What makes a client unsure: the variance of its head, its distance, or both."""
    least_variance: Positive = 1e-8
    """Smallest rho^2 that `confidence = "deviation"` may find. Steps of the head are
    stable while head_lr / rho^2 is below 2 (1 + momentum)."""
    most_confidence: Positive | None = None
    """Largest tau that counts; a client that is surer counts with this one. For
    privacy, which needs a bound on it; no bound if absent."""
    bayesian: Literal["head", "all"] = "head"
    """Which parameters have a posterior; with `all` there is no base."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        head = Phase(step="step_head", passes=self.passes, frozen="received_base")
        base = replace(self.local_phase("step_base"), length="base_length")
        return (head,) if self.bayesian == "all" else (head, base)

    def init_server(self, population: Population) -> Server:
        task, theta = population.task, population.theta(0)
        cut = task.base_d if self.bayesian == "head" else 0
        if cut == task.d:
            raise ContractError(
                "pfedvem: the model has no head: it has no nn.Linear and none was "
                "named. Name the module that is the head, or set "
                "algorithm.bayesian = 'all' to give every parameter a posterior."
            )
        if self.head_start == "normal":
            key = torch.tensor(streams.key(population.seed, "head"), device=task.device)
            head = streams.normal(key, (task.d - task.base_d,), task.dtype)
            theta = task.join(task.split(theta)[0], head)
        return Server(theta[:cut], theta[cut:])

    def aggregate(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> Logged[Server, ServerLog]:
        sure = self._counted(uploads.confidence) * (cohort.sizes > 0)
        log = ServerLog(sure / sure.sum(), cohort.weights("size"))
        # Alg. 1, lines 8 and 10; line 8 is Eq. (9)
        mean = Server(log.base_weight @ uploads.base, log.head_weight @ uploads.mean)
        return Logged(self._toward(server, mean), log)

    def _toward(self, server: Server, mean: Server) -> Server:
        keep = self.server_momentum
        return map_record(
            lambda old, now: keep * old + (1.0 - keep) * now, server, mean
        )

    def summand(
        self, upload: Upload, down: Download, client: Client, task: Task
    ) -> Summand:
        sure = self._counted(upload.confidence) * (client.size > 0)
        sure = sure / (self.most_confidence or 1.0)
        head, base = upload.mean - down.head, upload.base - down.base
        return Summand(sure * head, sure, client.size * base, client.size)

    def from_sum(self, server: Server, total: Summand, cohort: Cohort) -> Server:
        base = server.base + over(total.base, total.weight)
        head = server.head + over(total.mean, total.confidence)
        return self._toward(server, Server(base, head))

    def _counted(self, confidence: Tensor) -> Tensor:
        return confidence.clamp(max=self.most_confidence or math.inf)

    def shared(self, server: Server, task: Task) -> Tensor:
        return task.join(server.base, server.head)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(down.head, gaussians.spreads(down.head, self.scale), down.base)

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        posterior = torch.stack([memory.mean, memory.spread])
        head, base = self.sgd_start(posterior), self.sgd_start(down.base)
        return Work(head, posterior, base, self._confidence(down, memory))

    def _confidence(self, down: Download, memory: Memory) -> Tensor:
        """tau_j of what the client holds when w arrives: Alg. 1, line 13; Eq. (8)."""
        d = down.head.numel()
        uncertainty, deviation = gaussians.variance_and_shift(memory[:2], down.head)
        if self.confidence == "uncertainty":
            return d / uncertainty
        if self.confidence == "deviation":
            known = torch.clamp(deviation / d, min=self.least_variance)
            return 1.0 / torch.where(deviation > 0, known, self.scale**2)
        return d / (uncertainty + deviation)

    def step_head(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1, line 15: one step on all data, the base held fixed."""
        size, rho = batch.mask.sum().clamp(min=1.0), torch.rsqrt(work.confidence)
        head, key = work.posterior, gaussians.noise_key(batch)

        def models(posterior: Tensor) -> Models:
            q = gaussians.moments(posterior)
            # Eq. (11): mu + softplus(pi) * N(0, I)
            heads = gaussians.draw(*q, key, self.monte_carlo)
            # Eq. (6), negated: E_q[-log p(D_j | w_j)] + KL[q || N(w, rho^2 I)]
            divergence = gaussians.kl(*q, down.head, rho)
            return Models(work.base.at, heads, penalty=divergence / size)

        # Divided by the samples, so that the loss on record is one per sample.
        gradient = size * task.grad_through(
            models, head.at, batch, passes=self.monte_carlo
        )
        head = self.sgd_step(head, gradient, batch, lr=self.head_lr, weight_decay=0.0)
        return work._replace(posterior=head)

    def step_base(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1, line 17: one step on a batch, the head's posterior held fixed."""
        head, _ = gaussians.settled(work.posterior.at, work.before)
        heads = gaussians.sample(head, gaussians.noise_key(batch), self.monte_carlo)

        def models(base: Tensor) -> Models:
            return Models(base, heads)

        gradient = task.grad_through(
            models, work.base.at, batch, passes=self.monte_carlo
        )
        return work._replace(base=self.sgd_step(work.base, gradient, batch))

    def base_length(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """The whole phase, or none of it when the head is all of the model."""
        return torch.full_like(client.round, 1 << 62 if down.base.numel() else 0)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        (mean, spread), _ = gaussians.settled(work.posterior.at, work.before)
        base = work.base.at
        return Memory(mean, spread, base), Upload(mean, work.confidence, base)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        tau = work.confidence
        unsure = gaussians.variance_and_shift(memory[:2], down.head)
        head, failed = gaussians.settled(work.posterior.at, work.before)
        kl = gaussians.kl(*gaussians.moments(head), down.head, torch.rsqrt(tau))
        return ClientLog(tau, *unsure, kl, restored=failed.to(kl.dtype))

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return task.join(memory.base, memory.mean)

    def draws(
        self, down: Any, memory: Any, client: Any, task: Task, key: Tensor, count: int
    ) -> Tensor:
        heads = gaussians.sample(memory[:2], key, count)
        return task.join(memory.base.expand(count, -1), heads)
