"""pFedBayes: every parameter is a Gaussian, held near a shared one.

Zhang, Li, Li, Guo, Shao. Personalized Federated Learning via Variational Bayesian
Inference. ICML 2022. arXiv:2206.07977.

    paper        here                    lives
    v_i          Memory.mean, .spread    on client i, never sent: its posterior q
    w, server    Download.mean, .spread  sent to the cohort: the prior of all clients
    w, client i  Upload.mean, .spread    sent: the prior, moved toward the client's q
    mu, rho      mean, spread            the std of a parameter is softplus(rho)
    zeta         prior_weight            configuration
    K, R, beta   monte_carlo, steps, mixing

Deviations: the prior moves after each step of the posterior, toward where that now is.
Means over clients are those of mu and of rho. Both halves of Adam's memory start anew
each round and are never sent, as momentum is elsewhere in this library; the paper does
not say. A client met late starts its posterior at the present prior. Momentum and
weight decay are refused: Adam has a momentum of its own, and the prior is what holds
parameters back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

from fedloom.core import gaussians, streams
from fedloom.core.algorithm import Algorithm, Client, Cohort, Population
from fedloom.core.errors import ConfigError
from fedloom.core.optimizers import adam_move
from fedloom.core.settings import Count, Interval, NonNegative, Positive, Weighting
from fedloom.core.task import Batch, Task


class Server(NamedTuple):
    """The prior that all clients share."""

    mean: Tensor
    spread: Tensor


class Memory(NamedTuple):
    """On one client, from round to round. Never sent: its posterior."""

    mean: Tensor
    spread: Tensor


class Download(NamedTuple):
    """Server to client: the shared prior."""

    mean: Tensor
    spread: Tensor


class Adam(NamedTuple):
    """A Gaussian on its way down, with what Adam remembers of its gradients."""

    at: Tensor
    """(2, d): mean and spread."""
    first: Tensor
    """(2, d) running mean of the gradients."""
    second: Tensor
    """(2, d) running mean of their squares."""


class Work(NamedTuple):
    """During a round: the posterior descends, the prior follows it."""

    posterior: Adam
    prior: Adam
    size: Tensor
    """Training samples of the client."""


class Upload(NamedTuple):
    """Client to server: the prior as this client would have it, nothing personal."""

    mean: Tensor
    spread: Tensor


class ClientLog(NamedTuple):
    """What one client's posterior went through."""

    divergence: Tensor
    """KL divergence of the posterior from the shared prior after training. It is what
    the client's data had to pay to move away."""
    uncertainty: Tensor
    """Mean standard deviation of the client's parameters after training."""


@dataclass(frozen=True, kw_only=True)
class PFedBayes(Algorithm[Server, Memory, Download, Work, Upload]):
    """A Gaussian for every parameter of every client, around a shared one."""

    name = "pfedbayes"
    group = "Bayesian"
    why_sgd = "its steps are Adam's already, on a Gaussian for every parameter"
    averages = ("mean", "spread")
    auto_rates = ()  # Adam's rates do not depend on the size of a gradient.

    clip: Positive | None = None
    """Largest norm of a gradient per sample. Adam moves every number by about `lr`
    however long the gradient is, so there is nothing to guard against by default."""
    lr: Positive = 0.001
    """Adam's learning rate for the posterior (eta)."""
    batch_size: Count = 100
    """Samples per step; a client with fewer takes all it has in one batch."""
    steps: Count | None = 20
    """Local steps per round (R)."""
    shared_lr: Positive | None = None
    """Adam's learning rate for the prior; that of the posterior if absent."""
    prior_weight: NonNegative = 10.0
    """Weight of the divergence from the prior (zeta); 1 is the ELBO, 0 leaves only the
    client's own data."""
    personal_steps: Count = 1
    """Steps of the posterior on each batch, before the prior follows by one."""
    monte_carlo: Count = 5
    """Models drawn from the posterior for each step (K)."""
    scale: Annotated[float, Interval(above=0.0, most=1e9)] = 0.05
    """Standard deviation that every parameter starts with; softplus(-3) = 0.049."""
    mixing: Positive = 1.0
    """Share of the clients' mean in the new prior (beta)."""
    weights: Weighting = "equal"
    """Clients count by training samples or equally."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("momentum", "weight_decay"):
            if getattr(self, name):
                raise ConfigError(
                    f"pfedbayes: {name} must be 0, found {getattr(self, name):g}. "
                    "Training is by Adam, which has a momentum of its own, and the "
                    "prior decays parameters: use lr and prior_weight."
                )

    def init_server(self, population: Population) -> Server:
        mean = population.theta(0)
        return Server(mean, gaussians.spreads(mean, self.scale))

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        shares = cohort.weights(self.weights)
        # w <- (1 - beta) w + beta / S sum_i w_i, for mu and rho
        return Server(
            mean=torch.lerp(server.mean, shares @ uploads.mean, self.mixing),
            spread=torch.lerp(server.spread, shares @ uploads.spread, self.mixing),
        )

    def shared(self, server: Server, task: Task) -> Tensor:
        return server.mean

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        return Memory(down.mean, down.spread)

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        return Work(
            posterior=_at_rest(memory.mean, memory.spread),
            prior=_at_rest(down.mean, down.spread),
            size=client.size,
        )

    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """The posterior descends on the batch, then the prior follows it."""
        for again in range(self.personal_steps):
            key = streams.fold(gaussians.noise_key(batch), again)
            gradient = self._gradient(work, key, batch, task)
            count = batch.step * self.personal_steps + again + 1
            moved = self._move(work.posterior, gradient, count, self.lr, batch)
            work = work._replace(posterior=moved)
        pace = self.lr if self.shared_lr is None else self.shared_lr
        # KL(q || w), q fixed
        slope = grad(lambda prior: _kl(work.posterior.at, prior))(work.prior.at)
        moved = self._move(work.prior, slope, batch.step + 1, pace, batch)
        return work._replace(prior=moved)

    def _gradient(self, work: Work, key: Tensor, batch: Batch, task: Task) -> Tensor:
        """That of the posterior's objective, w fixed."""
        size = work.size.clamp(min=1.0)

        def objective(posterior: Tensor) -> Tensor:
            # theta_k = mu + softplus(rho) * N(0, I), K times
            q = gaussians.moments(posterior)
            models = gaussians.draw(*q, key, self.monte_carlo)
            losses = vmap(lambda theta: task.losses(theta, batch))(models).mean(0)
            # n / b sum_j 1 / K sum_k -log p(D_j | theta_k) + zeta KL(q || w)
            loss = size * batch.mean(losses)
            prior = gaussians.kl(*q, *gaussians.moments(work.prior.at))
            return (loss + self.prior_weight * prior) / size

        # Divided by the samples, so that the loss on record is one per sample.
        return size * task.grad_of(
            objective, work.posterior.at, batch, passes=self.monte_carlo
        )

    def _move(
        self, state: Adam, gradient: Tensor, count: Tensor, lr: float, batch: Batch
    ) -> Adam:
        """The `count`-th step of Adam, with this method's decaying rate."""
        pace = self.decayed(lr, batch.round, gradient.dtype)
        move, *memory = adam_move(gradient, state.first, state.second, count, pace)
        return Adam(state.at - move, *memory)

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        return Memory(*work.posterior.at), Upload(*work.prior.at)

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> ClientLog:
        q = work.posterior.at
        return ClientLog(_kl(q, down), gaussians.moments(q)[1].mean())

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return memory.mean

    def draws(
        self, down: Any, memory: Memory, client: Any, task: Any, key: Tensor, count: int
    ) -> Tensor:
        return gaussians.sample(memory, key, count)


def _at_rest(mean: Tensor, spread: Tensor) -> Adam:
    at = torch.stack([mean, spread])
    return Adam(at, torch.zeros_like(at), torch.zeros_like(at))


def _kl(q: Tensor, prior: Tensor | Download) -> Tensor:
    return gaussians.kl(*gaussians.moments(q), *gaussians.moments(prior))
