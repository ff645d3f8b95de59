"""The contract: an algorithm is written for one client, both halves in one file.

A round, for every method and every runner:

    cohort = clients sampled for (seed, round)
    for exchange in range(algorithm.exchanges):
        down = download(server, cohort)
        on each client of the cohort:
            memory = what it kept, or first(down) if it was never here
            work = begin(down, memory)
            for phase in phases: for batch in phase: work = phase.step(work, batch)
            memory, upload = finish(work, down, memory)
        server = aggregate(server, uploads, cohort)
    server = conclude(server, cohort)

The engine owns the loop over batches, padding, masks, chunks, devices and compilation.
Every method below is about exactly one client, except `start`, `download`,
`aggregate`, `conclude`, `admit` and `shared`, which are the server's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.records import Empty, grow
from fedloom.core.settings import Count, NonNegative, Positive, Rate, Share, check
from fedloom.core.task import Batch, Task


class Client(NamedTuple):
    """What a client knows of itself and of this round; scalars, no identity."""

    size: Tensor
    """Number of training samples, in the run's floating type."""
    round: Tensor
    """The round, from 0."""
    exchange: Tensor
    """The exchange inside the round, from 0."""
    uploads: Tensor
    """Whether its upload will be used; false under train-all for the unsampled."""


@dataclass(frozen=True, eq=False)
class Population:
    """All clients, as the server knows them before the first round."""

    task: Task
    theta: Callable[[int], Tensor]
    """The i-th initial parameter vector; 0 is the one common to all methods."""
    sizes: Tensor
    """(M,) training samples per client."""
    teams: Tensor
    """(M,) team of each client, from 0."""
    rate: float
    """C, the share of clients sampled in a round."""
    seed: int = 0
    """The run's, for what a server draws before the first round."""

    @property
    def count(self) -> int:
        """M, the number of clients."""
        return len(self.sizes)

    @property
    def team_count(self) -> int:
        """How many teams there are; 1 when nobody named any."""
        return int(self.teams.max()) + 1


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients whose messages are on the table, in the order of their rows."""

    clients: Tensor
    """(n,) which clients, as rows of the population."""
    sizes: Tensor
    """(n,) training samples; 0 makes a client invisible to both weightings."""
    teams: Tensor
    """(n,) team of each."""
    round: int
    exchange: int
    population: Population

    def by_size(self) -> Tensor:
        """(n,) weights proportional to training samples; they sum to one."""
        return self.sizes / self.sizes.sum()

    def equally(self) -> Tensor:
        """(n,) equal weights over clients that have data; they sum to one."""
        present = (self.sizes > 0).to(self.sizes.dtype)
        return present / present.sum()

    def only(self, chosen: Tensor) -> Cohort:
        """The rows where `chosen` holds."""
        return replace(
            self,
            clients=self.clients[chosen],
            sizes=self.sizes[chosen],
            teams=self.teams[chosen],
        )


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stretch of local work: one step function over batches of the client's data.

    Exactly one of `epochs`, `steps` and `passes` is given. Lengths may differ between
    clients: by the size of their data, by `length`, or by `until`. A step that takes no
    gradient, a mere look at the data, is not counted among a run's gradient steps.
    """

    step: str
    """Name of the method `(work, down, batch, task) -> work`."""
    epochs: int | None = None
    """Passes over the client's data in batches, reshuffled for each."""
    steps: int | None = None
    """Batches, going on into the next shuffled epoch as needed."""
    passes: int | None = None
    """Steps whose batch is all of the client's data."""
    batches: int = 1
    """Independent batches per step; above 1 the step gets a tuple of them."""
    length: str | None = None
    """Method `(down, memory, client, task) -> whole number`, this client's own number
    of steps, known before it starts; at most what is given above."""
    until: str | None = None
    """Method `(work) -> bool`, asked before each step; true ends the phase."""

    def __post_init__(self) -> None:
        given = [n for n in (self.epochs, self.steps, self.passes) if n is not None]
        if len(given) != 1 or given[0] < 0:
            raise ConfigError(
                f"Phase {self.step!r}: exactly one of epochs, steps and passes must "
                f"be given and be at least 0; found epochs={self.epochs}, "
                f"steps={self.steps}, passes={self.passes}."
            )
        if self.batches < 1:
            raise ConfigError(
                f"Phase {self.step!r}: batches must be at least 1; found "
                f"{self.batches}."
            )


class SGDState(NamedTuple):
    """A parameter vector on its way down, with what its optimiser remembers."""

    at: Tensor
    """(d,) where it is."""
    velocity: Tensor
    """(d,) momentum; empty when there is none."""


Server = TypeVar("Server")
Memory = TypeVar("Memory")
Download = TypeVar("Download")
Work = TypeVar("Work")
Upload = TypeVar("Upload")


@dataclass(frozen=True, kw_only=True)
class Algorithm(Generic[Server, Memory, Download, Work, Upload]):
    """A method: its fields are its hyper-parameters, its type arguments its records.

    The fields here are the ordinary settings of local training, the same for every
    method. `steps`, when given, replaces `epochs`.
    """

    name: ClassVar[str]
    """The published name in lower case, as on the command line."""
    group: ClassVar[str]
    """local, global, personalised, Bayesian, clustered or tiered."""
    records: ClassVar[tuple[type, ...]]
    """The five record types: server, memory, download, work, upload."""

    lr: Positive = 0.05
    """Learning rate of local gradient steps (eta)."""
    batch_size: Count = 10
    """Samples per step; a client with fewer takes all it has in one batch."""
    epochs: Count = 1
    """Local epochs per round (E)."""
    steps: Count | None = None
    """Local steps per round, instead of epochs."""
    momentum: Share = 0.0
    """Momentum of the local steps; starts anew each round and is never sent."""
    weight_decay: NonNegative = 0.0
    """L2 coefficient added to every local gradient."""
    lr_decay: Rate = 1.0
    """The learning rate is multiplied by this after each round."""
    clip: Positive | None = None
    """Largest norm of a local gradient; longer ones are scaled down."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read the record types off the type arguments."""
        super().__init_subclass__(**kwargs)
        cls.records = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]

    def __post_init__(self) -> None:
        check(self)

    # The server's half.

    @property
    def exchanges(self) -> int:
        """How often a round goes down and up; more than one for methods with teams."""
        return 1

    def init_server(self, population: Population) -> Server:
        """What the server keeps before the first round."""
        raise NotImplementedError

    def download(self, server: Server, cohort: Cohort) -> Download:
        """What each client of the cohort is sent."""
        raise NotImplementedError

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        """Take in the uploads; every field of `uploads` has one row per client."""
        raise NotImplementedError

    def end_round(self, server: Server, cohort: Cohort) -> Server:
        """Close the round after its last exchange; nothing to do for most methods."""
        return server

    def add_client(self, server: Server, population: Population) -> Server:
        """The server as if the last client of `population` had been there, unsampled.

        By default whatever has a place per client gets one more, as `start` has it.
        """
        count = population.count - 1
        return grow(
            server, self.init_server(population), count, f"{self.name}: the server"
        )

    def shared(self, server: Server, task: Task) -> Tensor | None:
        """The parameters of the one model for all, or None if the method has none."""
        raise NotImplementedError

    def team_models(self, server: Server, task: Task) -> Tensor | None:
        """(teams, d) the models of the teams, or None if the method has none."""
        return None

    def team_link(self, server: Server) -> tuple[Any, Any] | None:
        """What crosses between team and global server in a round: (down, up).

        Two records for one team; only their types and shapes are read. None when
        clients talk to the global server directly.
        """
        return None

    def server_log(self, server: Server, uploads: Upload, cohort: Cohort) -> Any:
        """What drove an aggregation, as a record for the run's files.

        Called with what `aggregate` is called with. A field (n,) is written to each
        client's row, a scalar to the round's row, anything larger to a file of its
        own. The record's field docstrings are what `fedloom describe` shows.
        """
        return Empty()

    # The client's half.

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The local schedule: by default one phase of `step`."""
        return (self.local_phase("step"),)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        """What a client that was never here before would remember."""
        raise NotImplementedError

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        """Set up the local work of this round."""
        raise NotImplementedError

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        """What stays and what is sent."""
        raise NotImplementedError

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> Any:
        """What drove this client's round, as a record of scalars for the run's files.

        Takes what `finish` takes. Nothing of it is sent: in a deployment it stays
        with the client.
        """
        return Empty()

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """The parameters this client would use, before any adaptation."""
        raise NotImplementedError

    def draws(
        self,
        down: Download,
        memory: Memory,
        client: Client,
        task: Task,
        key: Tensor,
        count: int,
    ) -> Tensor:
        """(count, d) models from this client's posterior, to average predictions over.

        A method that knows one model per client has that one, `count` times.
        """
        return self.personal(down, memory, client, task).expand(count, -1)

    @property
    def adaptation(self) -> tuple[Phase, ...]:
        """Training phases that turn `personal` into the model that is used.

        Their step functions take and return a parameter vector. They see training
        data only, and nothing of them is kept or sent.
        """
        return ()

    # Tools for the methods.

    def local_phase(self, step: str) -> Phase:
        """A phase as long as the settings say: `steps` if given, else `epochs`."""
        if self.steps is not None:
            return Phase(step=step, steps=self.steps)
        return Phase(step=step, epochs=self.epochs)

    def sgd_start(self, theta: Tensor) -> SGDState:
        """A vector at rest, ready to descend from."""
        return SGDState(theta, torch.zeros_like(theta if self.momentum else theta[:0]))

    def sgd_step(
        self,
        point: SGDState,
        gradient: Tensor,
        batch: Batch,
        lr: float | None = None,
        *,
        weight_decay: float | None = None,
    ) -> SGDState:
        """One step of SGD with this method's clip, weight decay, momentum and decay.

        Plain settings give `at - lr * gradient`. Momentum follows PyTorch:
        `velocity = momentum * velocity + gradient; at -= lr * velocity`.
        """
        decay = self.weight_decay if weight_decay is None else weight_decay
        if self.clip is not None:
            norm = torch.linalg.vector_norm(gradient)
            gradient = gradient * torch.clamp(self.clip / (norm + 1e-12), max=1.0)
        if decay:
            gradient = gradient + decay * point.at
        velocity = point.velocity
        if self.momentum:
            gradient = velocity = self.momentum * velocity + gradient
        pace: Tensor | float = self.lr if lr is None else lr
        if self.lr_decay != 1.0:
            pace = pace * self.lr_decay ** batch.round.to(point.at.dtype)
        return SGDState(point.at - pace * gradient, velocity)
