"""FedAdam, FedYogi and FedAdagrad: FedAvg with an adaptive optimiser on the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive Federated
Optimization. ICLR 2021. arXiv:2003.00295.

    paper    here              lives
    x_t      Download.shared   sent to the cohort
    x_i,K    Upload.shared     sent back after local training
    m_t      Server.mean       on the server
    v_t      Server.square     on the server
    eta_l    lr                configuration
    eta      server_lr         configuration
    beta_1   server_momentum   configuration
    beta_2   square_decay      configuration
    tau      adaptivity        configuration

Deviations: v starts at tau^2, the least that the paper allows. There is no correction
of bias, as in the paper's algorithm and unlike in PyTorch's Adam. Clients count by
training samples; the algorithm is written with equal weights, which are an option. The
paper has no personal model: a client uses the shared one, tuned for `tuning` epochs
without momentum if asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.optimizers import ANY
from fedloom.core.records import Empty
from fedloom.core.settings import Interval, Positive, Weighting, Whole
from fedloom.core.sums import over
from fedloom.core.task import Task

Decay = Annotated[float, Interval(least=0.0, below=1.0)]


class Server(NamedTuple):
    """The shared model and what its optimiser remembers."""

    shared: Tensor
    mean: Tensor
    """Running mean of the rounds' changes."""
    square: Tensor
    """Running mean, or with adagrad the sum, of their squares."""


class Download(NamedTuple):
    """Server to client: the shared model."""

    shared: Tensor


Work = SGDState
"""During a round: the shared model, as it is trained."""


class Upload(NamedTuple):
    """Client to server: the shared model after local training."""

    shared: Tensor


@dataclass(frozen=True, kw_only=True)
class FedAdam(Algorithm[Server, Empty, Download, Work, Upload]):
    """One shared model; the server's step is scaled parameter by parameter."""

    name = "fedadam"
    group = "global"
    optimizers = ANY
    averages = ("shared",)

    server_lr: Positive = 0.03
    """Learning rate of the server (eta), about the most that a parameter moves in a
    round, whatever `lr` is."""
    second_moment: Literal["adam", "yogi", "adagrad"] = "adam"
    """Rule of the second moment, and so which of the three methods this is."""
    server_momentum: Decay = 0.9
    """Share of the last mean change that is kept (beta_1); the paper has 0.9, and 0
    with adagrad."""
    square_decay: Decay = 0.99
    """Share of the second moment that is kept (beta_2); adagrad keeps it all."""
    adaptivity: Annotated[float, Interval(above=0.0, most=1e9)] = 0.001
    """Added to the root of the second moment (tau): where changes are much smaller
    than this, steps shrink with them; a smaller one is more adaptive."""
    weights: Weighting = "size"
    """Clients count by training samples or equally."""
    tuning: Whole = 0
    """Epochs of local training that turn the shared model into the personal one."""

    def init_server(self, population: Population) -> Server:
        theta = population.theta(0)
        least = torch.full_like(theta, self.adaptivity**2)
        return Server(theta, mean=torch.zeros_like(theta), square=least)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        shares = cohort.weights(self.weights)
        # Delta_t = mean of x_i,K - x_t
        change = shares @ uploads.shared - server.shared
        return self._moved(server, change, change.square())

    def from_noisy_sum(
        self, server: Server, total: Any, cohort: Cohort, noise: Any
    ) -> Server:
        change = over(total.shared, total.weight)
        square = change.square()
        if noise is not None:
            # Its mean is the square without noise and the variance of the noise.
            square = (square - over(noise.shared, total.weight).square()).clamp(min=0.0)
        return self._moved(server, change, square)

    def _moved(self, server: Server, change: Tensor, square: Tensor) -> Server:
        """The server after Delta_t, given also by its square."""
        # m_t = beta_1 m_(t-1) + (1 - beta_1) Delta_t
        mean = torch.lerp(change, server.mean, self.server_momentum)
        square = self._square(server.square, square)
        # x_(t+1) = x_t + eta m_t / (sqrt(v_t) + tau)
        step = self.server_lr * mean / (square.sqrt() + self.adaptivity)
        return Server(server.shared + step, mean, square)

    def _square(self, old: Tensor, new: Tensor) -> Tensor:
        """v_t from v_(t-1) and the square of Delta_t."""
        if self.second_moment == "adagrad":
            # v_t = v_(t-1) + Delta_t^2
            return old + new
        if self.second_moment == "yogi":
            # v_t = v_(t-1) - (1 - beta_2) Delta_t^2 sign(v_(t-1) - Delta_t^2)
            return old - (1.0 - self.square_decay) * new * torch.sign(old - new)
        # v_t = beta_2 v_(t-1) + (1 - beta_2) Delta_t^2
        return torch.lerp(new, old, self.square_decay)

    def finish(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> tuple[Empty, Upload]:
        return memory, Upload(work.at)
