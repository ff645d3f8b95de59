"""pFedVEM: every client's head is a Gaussian, and the sure ones count more.

Zhu, Ma, Blaschko. Confidence-aware Personalized Federated Learning via Variational
Expectation Maximization. CVPR 2023. arXiv:2305.12557.

    paper      here                lives
    w          Download.head       sent to the cohort: mean of the prior of all heads
    theta      Download.base       sent to the cohort: the layers below the head
    mu_j       Memory.mean         on client j, and sent: mean of its head
    pi_j       Memory.spread       on client j: softplus of it is the head's std
    theta_j    Memory.base         on client j, and sent: the base as j trained it
    tau_j      Upload.confidence   sent: 1 / rho_j^2, the precision of j's prior
    eta, R, K  head_lr, passes, monte_carlo
    n_j        Cohort.sizes        known to the server

Deviations: the head minimises the negative ELBO with the exact KL divergence; the
paper's objective below Eq. (11) has the sign of the KL reversed, and its last bound in
Eq. (10) does not hold. tau_j is computed once, before training, from the posterior of
the client and the w just received, which is how the authors' code reads line 13. A
head whose numbers stop being finite goes back to where the round found it, as in that
code. A client met late starts at the present w, not at w^0. `confidence = "deviation"`
has no confidence while the deviation is exactly 0 and then takes 1 / scale^2. Weight
decay acts on the base only: the head has its prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from fedloom.core import gaussians, streams
from fedloom.core.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Phase,
    Population,
    SGDState,
)
from fedloom.core.errors import ContractError
from fedloom.core.records import Logged, PerClient
from fedloom.core.settings import Count, Interval, Positive, Share
from fedloom.core.task import Batch, Task

_NOISE = 1 << 32
"""Which stream below a batch's key the heads come from; dropout takes 0, 1, 2, ..."""


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
    """During a round."""

    posterior: SGDState
    """(2, h): mean and spread of the head."""
    before: Tensor
    """(2, h): the same, as the round found it."""
    base: SGDState
    confidence: Tensor


class Upload(NamedTuple):
    """Client to server: mean of the head, how sure the client is, and the base."""

    mean: Tensor
    confidence: Tensor
    base: Tensor


class ClientLog(NamedTuple):
    """What one client's head went through."""

    confidence: Tensor
    """tau, the precision of the client's prior, computed before training. It is the
    client's weight in the shared head."""
    uncertainty: Tensor
    """Tr(Sigma), total variance of the head before training. Little data leave it
    large, which lowers tau."""
    deviation: Tensor
    """||mu - w||^2, how far the head was from the shared one before training. A client
    unlike the others has a large one, which lowers tau."""
    divergence: Tensor
    """KL divergence of the head from its prior after training. It is what the client's
    data had to pay to move away from the shared head."""
    restored: Tensor
    """1 if the head's training failed and was undone, else 0. More than a few ones call
    for a smaller `head_lr`."""


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
    scale: Positive = 0.1
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
    bayesian: Literal["head", "all"] = "head"
    """Which parameters have a posterior; with `all` there is no base."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        head = Phase(step="step_head", passes=self.passes)
        if self.bayesian == "all":
            return (head,)
        return head, replace(self.local_phase("step_base"), length="base_length")

    def init_server(self, population: Population) -> Server:
        task, theta = population.task, population.theta(0)
        if self.bayesian == "head" and task.base_d == task.d:
            raise ContractError(
                "pfedvem: the model has no head: it has no nn.Linear and none was "
                "named. Name the module that is the head, or set "
                "algorithm.bayesian = 'all' to give every parameter a posterior."
            )
        if self.head_start == "normal":
            key = torch.tensor(streams.key(population.seed, "head"), device=task.device)
            head = streams.normal(key, (task.d - task.base_d,), task.dtype)
            theta = task.join(task.split(theta)[0], head)
        cut = task.base_d if self.bayesian == "head" else 0
        return Server(theta[:cut], theta[cut:])

    def download(self, server: Server, cohort: Cohort) -> Download:
        return Download(server.base, server.head)

    def aggregate(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> Logged[Server, ServerLog]:
        sure = uploads.confidence * (cohort.sizes > 0)
        log = ServerLog(sure / sure.sum(), cohort.weights("size"))
        keep = self.server_momentum
        # Alg. 1, lines 8 and 10; line 8 is Eq. (9)
        base, head = log.base_weight @ uploads.base, log.head_weight @ uploads.mean
        new = Server(
            base=keep * server.base + (1.0 - keep) * base,
            head=keep * server.head + (1.0 - keep) * head,
        )
        return Logged(new, log)

    def shared(self, server: Server, task: Task) -> Tensor:
        return task.join(server.base, server.head)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        spread = torch.full_like(down.head, gaussians.softplus_inverse(self.scale))
        return Memory(mean=down.head, spread=spread, base=down.base)

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        posterior = torch.stack([memory.mean, memory.spread])
        return Work(
            posterior=self.sgd_start(posterior),
            before=posterior,
            base=self.sgd_start(down.base),
            confidence=self._confidence(down, memory),
        )

    def _confidence(self, down: Download, memory: Memory) -> Tensor:
        """tau_j of what the client holds when w arrives: Alg. 1, line 13; Eq. (8)."""
        d = down.head.numel()
        uncertainty, deviation = _unsure(down, memory)
        if self.confidence == "uncertainty":
            return d / uncertainty
        if self.confidence == "deviation":
            known = torch.clamp(deviation / d, min=self.least_variance)
            return 1.0 / torch.where(deviation > 0, known, self.scale**2)
        return d / (uncertainty + deviation)

    def step_head(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1, line 15: one step on all data, the base held fixed."""
        size = batch.mask.sum().clamp(min=1.0)

        def objective(posterior: Tensor) -> Tensor:
            mean, scale = posterior[0], F.softplus(posterior[1])
            # Eq. (11): mu + softplus(pi) * N(0, I)
            heads = gaussians.draw(mean, scale, _noise(batch), self.monte_carlo)
            losses = vmap(lambda head: task.losses_of(work.base.at, head, batch))(heads)
            prior = torch.rsqrt(work.confidence)
            # Eq. (6), negated: E_q[-log p(D_j | w_j)] + KL[q || N(w, rho^2 I)]
            loss = batch.total(losses.mean(0))
            return (loss + gaussians.kl(mean, scale, down.head, prior)) / size

        # Divided by the samples, so that the loss on record is one per sample.
        gradient = size * task.grad_of(
            objective, work.posterior.at, batch, passes=self.monte_carlo
        )
        moved = self.sgd_step(
            work.posterior, gradient, batch, lr=self.head_lr, weight_decay=0.0
        )
        return work._replace(posterior=moved)

    def step_base(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Alg. 1, line 17: one step on a batch, the head's posterior held fixed."""
        mean, spread = _settled(work)
        scale = F.softplus(spread)
        heads = gaussians.draw(mean, scale, _noise(batch), self.monte_carlo)

        def objective(base: Tensor) -> Tensor:
            losses = vmap(lambda head: task.losses_of(base, head, batch))(heads)
            return batch.mean(losses.mean(0))

        gradient = task.grad_of(objective, work.base.at, batch, passes=self.monte_carlo)
        return work._replace(base=self.sgd_step(work.base, gradient, batch))

    def base_length(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """The whole phase, or none of it when the head is all of the model."""
        most = torch.iinfo(torch.int64).max if down.base.numel() else 0
        return torch.full_like(client.round, most)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        mean, spread = _settled(work)
        base = work.base.at
        return Memory(mean, spread, base), Upload(mean, work.confidence, base)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        uncertainty, deviation = _unsure(down, memory)
        mean, spread = _settled(work)
        prior = torch.rsqrt(work.confidence)
        return ClientLog(
            confidence=work.confidence,
            uncertainty=uncertainty,
            deviation=deviation,
            divergence=gaussians.kl(mean, F.softplus(spread), down.head, prior),
            restored=(~_is_finite(work)).to(mean.dtype),
        )

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return task.join(memory.base, memory.mean)

    @property
    def has_posterior(self) -> bool:
        return True

    def draws(
        self,
        down: Download,
        memory: Memory,
        client: Client,
        task: Task,
        key: Tensor,
        count: int,
    ) -> Tensor:
        heads = gaussians.draw(memory.mean, F.softplus(memory.spread), key, count)
        return task.join(memory.base.expand(count, -1), heads)


def _unsure(down: Download, memory: Memory) -> tuple[Tensor, Tensor]:
    """Tr(Sigma_j) and ||mu_j - w||^2, the two terms of Eq. (8)."""
    variance = F.softplus(memory.spread).square()
    return variance.sum(), (memory.mean - down.head).square().sum()


def _noise(batch: Batch) -> Tensor:
    return streams.fold(batch.key, _NOISE)


def _is_finite(work: Work) -> Tensor:
    """Whether the head's training succeeded; what is not finite never recovers."""
    return torch.isfinite(work.posterior.at).all()


def _settled(work: Work) -> tuple[Tensor, Tensor]:
    """Mean and spread after the head's training, or before it where that failed."""
    kept = torch.where(_is_finite(work), work.posterior.at, work.before)
    return kept[0], kept[1]
