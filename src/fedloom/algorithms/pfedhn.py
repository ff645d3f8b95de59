"""pFedHN: a network on the server writes the model of every client.

Shamsian, Navon, Fetaya, Chechik. Personalized Federated Learning using Hypernetworks.
ICML 2021. arXiv:2103.04628.

    paper          here                  lives
    phi            Server.network        on the server, never sent
    v_i            Server.embeddings     on the server, never sent: a row per client
    theta_i        Download.personal     sent to client i alone: h(v_i; phi)
    delta theta_i  Upload.change         sent: what local training made of theta_i
    alpha          server_lr             configuration
    eta, K         lr, steps             configuration

Deviations: all clients of a cohort answer the same phi, which moves by the mean of
their updates, while each embedding moves by its own client's; with a cohort of one
this is the paper's step. The server's steps are plain SGD, without the authors'
momentum, weight decay and clip. The hypernetwork is an MLP with one linear layer for
all of theta_i, where the authors have one for each tensor, which is the same function.
At the start its last bias is the common initial model and the rest deviates from that
by a standard deviation of `spread`, so that first models are sensible ones; the
authors leave all of it to PyTorch's initialisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch.func import vjp

from fedloom.core import streams
from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.phases import plain_descent
from fedloom.core.records import Empty, PerClient, map_record
from fedloom.core.settings import Count, Interval, NonNegative, Positive, Weighting
from fedloom.core.task import Batch, Task


class Layer(NamedTuple):
    """A linear map."""

    weight: Tensor
    """(outputs, inputs)."""
    bias: Tensor


class Network(NamedTuple):
    """The hypernetwork: from an embedding to a model."""

    hidden: tuple[Layer, ...]
    """Each followed by a ReLU."""
    output: Layer
    """To all d parameters."""


class Server(NamedTuple):
    """Everything that is learnt."""

    network: Network
    embeddings: PerClient[Tensor]
    """(M, e), drawn at the start for every client, met or not."""


class Download(NamedTuple):
    """Server to client: the model that the hypernetwork has for this one client."""

    personal: PerClient[Tensor]


Work = SGDState
"""During a round: the personal model, as it is trained."""


class Upload(NamedTuple):
    """Client to server: what local training added to the model it was sent."""

    change: Tensor


class ClientLog(NamedTuple):
    """What one client's data had to say."""

    moved: Tensor
    """||delta theta_i||, how far local training went. It falls as the hypernetwork
    learns to write models that fit."""


@dataclass(frozen=True, kw_only=True)
class PFedHN(Algorithm[Server, Empty, Download, Work, Upload]):
    """A hypernetwork with an embedding per client, trained by clients' updates."""

    name = "pfedhn"
    group = "personalised"
    why_sgd = "its server takes what a client moved for a gradient"
    why_single = (
        "it pulls each client's `change` back through the network that wrote its "
        "model, by that client's own embedding, before anything is added"
    )

    steps: Count | None = 50
    """Local steps per round (K)."""
    server_lr: Positive = 0.01
    """Learning rate of the hypernetwork (alpha). At first a model follows its client's
    update by about `server_lr` * (1 + `hidden`) of it; 2 would be far too much."""
    embedding_lr: Positive | None = None
    """Learning rate of the embeddings; that of the hypernetwork if absent."""
    embedding: Count | None = None
    """Numbers in an embedding; if absent, 1 plus a quarter of the number of clients."""
    hidden: Count = 100
    """Width of a hidden layer."""
    layers: Annotated[int, Interval(least=0, most=1000)] = 1
    """Hidden layers; with 0 a model is a linear function of its client's embedding."""
    spread: NonNegative = 0.01
    """Standard deviation of the clients' first models around the common start."""
    weights: Weighting = "equal"
    """Clients count by training samples or equally."""

    def init_server(self, population: Population) -> Server:
        theta = population.theta(0)
        root = streams.key(population.seed, "hypernetwork")
        key = torch.tensor(root, device=theta.device)
        width = self.embedding or 1 + population.count // 4
        count = population.count
        embeddings = streams.normal(streams.fold(key, 0), (count, width), theta.dtype)
        hidden = []
        for number in range(self.layers):
            shape = (self.hidden, width)
            noise = streams.normal(streams.fold(key, 2 + number), shape, theta.dtype)
            # Keeps the mean square of every layer's outputs at 1, through ReLUs.
            weight = noise * math.sqrt(2.0 / width)
            hidden.append(Layer(weight, theta.new_zeros(self.hidden)))
            width = self.hidden
        noise = streams.normal(streams.fold(key, 1), (len(theta), width), theta.dtype)
        output = Layer(noise * (self.spread / math.sqrt(width)), theta)
        return Server(Network(tuple(hidden), output), embeddings)

    def download(self, server: Server, cohort: Cohort) -> Download:
        # theta_i = h(v_i; phi)
        return Download(_write(server.network, server.embeddings[cohort.clients]))

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        real = cohort.sizes > 0
        shares = cohort.weights(self.weights)
        rows, shares = cohort.clients[real], shares[real]
        back = vjp(_write, server.network, server.embeddings[rows])[1]
        # (d theta_i / d phi)^T and (d theta_i / d v_i)^T, applied to delta theta_i
        of_network, _ = back(shares[:, None] * uploads.change[real])
        _, of_rows = back(uploads.change[real])
        pace = self.server_lr if self.embedding_lr is None else self.embedding_lr
        return Server(
            network=map_record(
                lambda old, change: old + self.server_lr * change,
                server.network,
                of_network,
            ),
            embeddings=server.embeddings.index_add(0, rows, pace * of_rows),
        )

    def add_client(self, server: Server, population: Population) -> Server:
        # The embeddings keep their width, which may depend on the number of clients.
        fixed = replace(self, embedding=server.embeddings.shape[1])
        return Algorithm.add_client(fixed, server, population)

    def begin(self, down: Download, memory: Empty, client: Client, task: Task) -> Work:
        return self.sgd_start(down.personal)

    @plain_descent
    def step(self, work: Work, down: Download, batch: Batch, task: Task) -> Work:
        """Local training: theta <- theta - eta grad L_i(theta), K times."""
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> tuple[Empty, Upload]:
        return memory, Upload(work.at - down.personal)

    def client_log(
        self, work: Work, down: Download, memory: Empty, client: Client, task: Task
    ) -> ClientLog:
        return ClientLog(torch.linalg.vector_norm(work.at - down.personal))

    def personal(
        self, down: Download, memory: Empty, client: Client, task: Task
    ) -> Tensor:
        return down.personal


def _write(network: Network, embeddings: Tensor) -> Tensor:
    """(n, d) the models of some clients, from their embeddings (n, e)."""
    x = embeddings
    for layer in network.hidden:
        x = torch.relu(x @ layer.weight.T + layer.bias)
    return x @ network.output.weight.T + network.output.bias
