"""The contract: an algorithm is written for one client, both halves in one file.

A round, for every method, every runner and every fleet:

    cohort = clients sampled for (seed, round)
    for exchange in range(algorithm.exchanges):
        down = download(server, cohort)
        on each client of the cohort:
            memory = what it kept, or initial_memory(down) if it was never here
            work = begin(down, memory)
            for phase in phases: for batch in phase: work = phase.step(work, batch)
            memory, upload = finish(work, down, memory)
        server = aggregate(server, uploads, cohort), the cohort being those who arrived
    server = end_round(server, cohort)

The engine owns the loop over batches, padding, masks, chunks, devices and compilation;
the fleet knows where the clients are. Every method below is about exactly one client,
except `init_server`, `download`, `model_download`, `aggregate`, `from_sum`,
`end_round`, `add_client`, `with_shared`, `aggregate_teams` and `shared`, which are the
server's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, get_args

import torch
from torch import Tensor

from fedloom.core import sums
from fedloom.core.clip import PerSample
from fedloom.core.describe import returned
from fedloom.core.errors import ConfigError, ContractError, shown, unknown
from fedloom.core.optimizers import SGD, Optimizer, adam_move
from fedloom.core.phases import Phase as Phase
from fedloom.core.records import Empty, Logged, add_place, without_log
from fedloom.core.remarks import LogColumns, Remark
from fedloom.core.settings import (
    Count,
    Interval,
    NonNegative,
    Positive,
    Rate,
    Share,
    Weighting,
    check,
)
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
    """Whether its upload is used. False under train-all for the unsampled, and for an
    upload that got lost on its way."""
    key: Tensor
    """A random stream for what is drawn outside of a step, below the run's seed."""
    secret: Tensor
    """A random stream that the server cannot redraw: noise that protects the client
    comes from here, for the server knows the seed of everything else."""


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
    """Seed of what a server draws."""

    def counts(self, by: Weighting) -> Tensor:
        """(M,) how much every client counts, sampled or not."""
        return counts_of(self.sizes, by)

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
    """(n,) the clients, by the number that each was given when it enrolled."""
    sizes: Tensor
    """(n,) training samples; 0 makes a client invisible to both weightings."""
    teams: Tensor
    """(n,) the team of each client."""
    round: int
    exchange: int
    population: Population

    def weights(self, by: Weighting) -> Tensor:
        """(n,) weights that sum to one: by training samples, or equal.

        A client without samples counts for nothing in both.
        """
        counts = self.counts(by)
        return counts / counts.sum()

    def counts(self, by: Weighting) -> Tensor:
        """(n,) the same before they are divided by their sum."""
        return counts_of(self.sizes, by)

    @property
    def of_everyone(self) -> Cohort:
        """That of all clients, in the same round."""
        everyone = self.population
        clients = torch.arange(everyone.count, device=everyone.sizes.device)
        return replace(
            self, clients=clients, sizes=everyone.sizes, teams=everyone.teams
        )

    def only(self, chosen: Tensor) -> Cohort:
        """The rows where `chosen` holds."""
        return replace(
            self,
            clients=self.clients[chosen],
            sizes=self.sizes[chosen],
            teams=self.teams[chosen],
        )


def counts_of(sizes: Tensor, by: Weighting) -> Tensor:
    """How much clients count: their training samples, or one for each with any."""
    return sizes if by == "size" else (sizes > 0).to(sizes.dtype)


class SGDState(NamedTuple):
    """A parameter vector that is being trained, with what its optimiser remembers."""

    at: Tensor
    """(d,) the parameters."""
    velocity: Tensor
    """(d,) momentum; empty when there is none. Of Adam (2, d): the running means of
    the gradients and of their squares."""


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
    """Kind of method: local, global, personalised, Bayesian, clustered or tiered."""
    trains_everyone: ClassVar[bool] = False
    """Whether all clients train in every round, whoever is sampled to upload; for
    methods in which clients need nothing from the server."""
    records: ClassVar[tuple[type[Any], ...]]
    """The five record types: server, memory, download, work, upload."""

    auto_rates: ClassVar[tuple[str, ...]] = ("lr",)
    """The settings that `lr = "auto"` sets: learning rates by which a step multiplies
    the gradient of a batch's mean loss. A method whose steps are others has none."""
    optimizers: ClassVar[tuple[str, ...]] = SGD
    """Which `optimizer` a method allows: `fedloom.core.optimizers.ANY` if all its local
    training is `sgd_step`, and nothing else that it computes takes a step for the rate
    times a gradient."""
    why_sgd: ClassVar[str] = "its steps are those of its paper"
    """Why a method allows SGD alone, as the end of a sentence."""
    averages: ClassVar[tuple[str | tuple[str, str], ...]] = ()
    """Fields of the upload, where all that `aggregate` takes of uploads is their means,
    weighted by the setting `weights`; `summand` and `from_sum` need then not be
    written. Each was trained from the field of the download of its name, or is a pair
    with that field's name."""
    why_single: ClassVar[str] = "its file does not say what a client adds to a sum"
    """Why a server must see every client's upload by itself, as the end of a sentence
    that begins with the method's name; of methods that need `single models`."""

    why_not_robust: ClassVar[str] = ""
    """Why no robust rule can take the place of its sums, as the end of a sentence;
    empty where one can."""
    releases_always: ClassVar[bool] = False
    """Whether the server takes in a round in which nobody was there: what it then makes
    is noise, and who was there stays hidden."""
    may_be_unusable: ClassVar[bool] = False
    """Whether `why_unusable` may say of what clients sent that it cannot be used: they
    then keep what they would have without it until they are told."""
    per_sample: ClassVar[PerSample | None] = None
    """How gradients of local steps hide single samples; none hides none."""

    lr: Positive = 0.05
    """Learning rate of local gradient steps (eta); `"auto"`, in a run's file or as an
    argument of `fedloom.run` and `fedloom.compare`, finds it by a range test."""
    batch_size: Count = 10
    """Number of samples per step; a client with fewer takes all it has in one batch."""
    epochs: Count = 1
    """Number of local epochs per round (E)."""
    steps: Count | None = None
    """Number of local steps per round, instead of epochs."""
    optimizer: Optimizer = "sgd"
    """How local steps follow a gradient: by SGD, or by Adam or AdamW with PyTorch's
    defaults but for `lr` and `weight_decay`, where a method is not about SGD alone.
    What they remember starts anew at each visit of a client and is never sent. Adam's
    usual rates are far lower, such as 0.001."""
    momentum: Share = 0.0
    """Momentum of the local steps; starts anew each round and is never sent."""
    weight_decay: NonNegative = 0.0
    """L2 coefficient added to every local gradient."""
    lr_decay: Rate = 1.0
    """Factor that the learning rate is multiplied by after each round."""
    clip: Positive | None = 10.0
    """Largest norm of the gradient of a batch's mean loss; longer ones are scaled down
    to it. Ordinary gradients are shorter and keep their bits; none clips nothing."""

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        """Refuse settings that the method does not have, with those that it has."""
        if "__dataclass_fields__" in vars(cls):
            _check_settings(cls, values, settings)
        return super().__new__(cls)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read the record types off the type arguments."""
        super().__init_subclass__(**kwargs)
        own = vars(cls)
        if "__orig_bases__" in own and "records" not in own:
            cls.records = get_args(own["__orig_bases__"][0])

    def __post_init__(self) -> None:
        rate: Any = self.lr
        if isinstance(rate, str) and rate == "auto":
            raise ConfigError(
                f"{self.name}: lr = 'auto' is found from model and data, which a "
                "method by itself does not have. Give it beside the method: "
                "fedloom.run(..., lr='auto'), or fedloom.compare(..., lr='auto')."
            )
        check(self)
        if self.optimizer != "sgd":
            self._check_optimizer()

    def _check_optimizer(self) -> None:
        """Refuse an optimiser that the method, or a setting of it, has no use for."""
        found = f"{self.name}: optimizer must be 'sgd', found {self.optimizer!r}"
        if self.optimizer not in self.optimizers:
            raise ConfigError(
                f"{found}: {self.why_sgd}. Leave it out, or take a method that allows "
                "others, such as fedavg, fedprox, ditto, fedper or local."
            )
        if self.momentum:
            raise ConfigError(
                f"{self.name}: momentum must be 0 with {self.optimizer}, which has one "
                f"of its own; found {self.momentum:g}. Leave it out."
            )
        if getattr(self, "tuning", 0):
            raise ConfigError(
                f"{found}: with tuning, a model is tuned before use by steps that "
                "remember nothing, as SGD's do. Set tuning to 0, or leave optimizer "
                "out."
            )

    @property
    def takes_auto_rate(self) -> bool:
        """Whether a range test of SGD tells a learning rate of this method."""
        return bool(self.auto_rates) and self.optimizer == "sgd"

    # The server's half.

    @property
    def exchanges(self) -> int:
        """How often a round goes down and up; more than one for methods with teams."""
        return 1

    def compared_pairs(self, cohort: int, known: int, clients: int) -> int:
        """Most pairs of clients that the server compares at a time, 0 by default.

        A run whose pairs would not fit in memory is refused before it begins.

        Args:
            cohort: how many clients a round has.
            known: how many will have uploaded by the last round, at most.
            clients: how many there are.
        """
        return 0

    def init_server(self, population: Population) -> Server:
        """What the server keeps before the first round.

        By default the common start, for a server that keeps `shared` and nothing else.
        """
        server: Server = self._only("shared", 0)(population.theta(0))
        return server

    def download(
        self, server: Server, cohort: Cohort
    ) -> Download | Logged[Download, Any]:
        """What each client of the cohort is sent to train with.

        By default the server's fields of the same names as those of the download.
        """
        record = self.records[2]
        down: Download = record(*(getattr(server, name) for name in record._fields))
        return down

    def model_download(self, server: Server, cohort: Cohort) -> Any:
        """What each client is sent so that it can use its model, in an evaluation too.

        A record with what `personal` and `initial_memory` read, made for each client
        by itself: it must not depend on who else is in the cohort. By default that is
        the download of training.
        """
        return without_log(self.download(server, cohort))[0]

    def aggregate(
        self, server: Server, uploads: Upload, cohort: Cohort
    ) -> Server | Logged[Server, Any]:
        """Take in the uploads; every field of `uploads` has one row per client.

        The cohort are those whose uploads arrived, who may be fewer than those who
        were sent a download.
        """
        raise NotImplementedError

    # The same by sums, for methods that need no more of the uploads than sums.

    @property
    def needs(self) -> sums.Needs:
        """What the server needs of uploads; see `fedloom.core.sums`.

        By default sums where the method says what a client adds to them, nothing where
        nothing is sent, else single models.
        """
        if self.records[4] is Empty:
            return "nothing"
        own = type(self).summand is not Algorithm.summand
        return "sums" if own or self.averages else "single models"

    @property
    def summand_record(self) -> type[Any]:
        """The record type of a summand, whose fields say how they are bounded.

        Raises:
            ContractError: The method needs more than sums.
        """
        if self.needs == "single models":
            raise ContractError(
                f"{self.name}: its server needs single models, for {self.why_single}."
            )
        if self.needs == "nothing":
            return Empty
        if self.averages:
            return sums.average_record(tuple(name for name, _ in self._averaged))
        return returned(type(self).summand)

    def summand(
        self, upload: Upload, down: Download, client: Client, task: Task
    ) -> Any:
        """What one client adds to the sums that `from_sum` takes.

        A client without training samples adds zeros. `client.size` is how much it
        counts by its samples: their number, or a share of a cap on it. By default the
        changes of what the method `averages`, times the client's weight.
        """
        kind = self.summand_record
        weight = counts_of(client.size, self.weighting)
        changes = [
            weight * (getattr(upload, name) - getattr(down, source))
            for name, source in self._averaged
        ]
        return kind(*changes, weight) if self.averages else kind()

    def from_sum(self, server: Server, total: Any, cohort: Cohort) -> Server:
        """The server after the summands of a cohort, added up: what `aggregate` gives.

        By default the method is shown one client that came with the mean of all.

        Args:
            server: as it was when the cohort got its download.
            total: the sum; for `sums per team` with a first dimension of all teams,
                zeros for those of which nobody was there.
            cohort: who is in it. Their `sizes` are what they were weighed by.
        """
        if self.needs == "nothing":
            return server
        sent, _ = without_log(self.download(server, cohort))
        means = [
            getattr(sent, source) + sums.over(getattr(total, name), total.weight)
            for name, source in self._averaged
        ]
        one = torch.ones_like(cohort.population.sizes[:1])
        first = torch.zeros_like(cohort.population.teams[:1])
        mean = replace(cohort, clients=first, sizes=one, teams=first)
        upload: Any = self.records[4](*(value[None] for value in means))
        return without_log(self.aggregate(server, upload, mean))[0]

    def from_noisy_sum(
        self, server: Server, total: Any, cohort: Cohort, noise: Any
    ) -> Server:
        """The same after a total to which noise was added.

        By default `from_sum`. A method that squares a total, or asks whether it is
        zero, has to know.

        Args:
            server: as for `from_sum`.
            total: as for `from_sum`.
            cohort: as for `from_sum`.
            noise: a record as `total`, of the standard deviation of the noise in each
                of its numbers, which may be a scalar for a field; None for no noise.
        """
        return self.from_sum(server, total, cohort)

    def correct_memory(
        self, memory: Memory, before: Memory, summand: Any, sent: Any, client: Client
    ) -> Memory:
        """What a client keeps if not all of its summand was sent.

        By default what it would have kept; of use to a method whose server adds up what
        clients keep.

        Args:
            memory: what `finish` made of it.
            before: what it kept before the round.
            summand: what it would have added.
            sent: what it added, as it was bounded and before any noise.
            client: who it is.
        """
        return memory

    @property
    def _averaged(self) -> tuple[tuple[str, str], ...]:
        """By name, the fields that are averaged and what they were trained from."""
        pairs = (f if isinstance(f, tuple) else (f, f) for f in self.averages)
        return tuple(pairs)

    @property
    def weighting(self) -> Weighting:
        """How clients count in the means that a method `averages`."""
        by: Weighting = getattr(self, "weights", "size")
        return by

    def spent(self, rounds: int) -> float | None:
        """Epsilon after so many rounds; None for a method that hides nobody."""
        return None

    def why_unusable(self, uploads: Any, cohort: Cohort) -> str:
        """Why what a cohort sent cannot be used, so that it counts as if nobody came.

        As the end of a sentence that begins with a client's name; empty if it can, as
        for most methods.

        Args:
            uploads: as for `aggregate`.
            cohort: who sent them.
        """
        return ""

    def end_round(self, server: Server, cohort: Cohort) -> Server:
        """Close the round after its last exchange; nothing to do for most methods."""
        return server

    def add_client(self, server: Server, population: Population) -> Server:
        """The server as if the last client of `population` had been there, unsampled.

        By default whatever is marked `PerClient` or `PerPair` gets one more place, as
        `init_server` has it.
        """
        larger = self.init_server(population)
        return add_place(server, larger, f"{self.name}: the server")

    def shared(self, server: Server, task: Task) -> Tensor | None:
        """The parameters of the one model for all, or None if the method has none.

        By default the server's field `shared`, if it has one.
        """
        return getattr(server, "shared", None)

    def team_models(self, server: Server, task: Task) -> Tensor | None:
        """(teams, d) the models of the teams, or None if the method has none."""
        return None

    # The halves of a server in two tiers. A team's server runs `download` and
    # `aggregate` for its own clients, the global one `aggregate_teams`.

    @property
    def has_team_servers(self) -> bool:
        """Whether teams may have servers of their own: there is `aggregate_teams`."""
        return type(self).aggregate_teams is not Algorithm.aggregate_teams

    def with_shared(self, server: Server, shared: Tensor) -> Server:
        """A team's server when a round begins, with the model of the global one.

        By default it takes the place of the server's field `shared`.
        """
        record: Any = server
        return record._replace(shared=shared)  # type: ignore[no-any-return]

    def aggregate_teams(self, server: Server, models: Tensor, counts: Tensor) -> Server:
        """Take in the teams' models at the end of a round.

        A method that has this calls it in `end_round`, so that a server of all clients
        and a global server of teams do the same.

        Args:
            server: as it is.
            models: (teams, d) where the teams are.
            counts: (teams,) training samples of the clients that took part; 0 for a
                team that is not there.
        """
        raise NotImplementedError

    # The client's half.

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The local schedule: by default one phase of `step`."""
        return (self.local_phase("step"),)

    def initial_memory(self, down: Download, client: Client, task: Task) -> Memory:
        """What a client that was never here before would remember.

        By default nothing, for methods whose memory is `Empty`; for a memory that is
        `personal` and nothing else, the shared model as it came down, or the common
        start where none does. Where the method has a `model_download` of its own,
        `down` may be that record too.
        """
        if self.records[1] is Empty:
            return Empty()  # type: ignore[return-value]
        kind = self._only("personal", 1)
        memory: Memory = kind(getattr(down, "shared", task.start))
        return memory

    def begin(self, down: Download, memory: Memory, client: Client, task: Task) -> Work:
        """Set up the local work of this round.

        By default SGD from `down.shared`, for methods whose work is an `SGDState`.
        """
        if self.records[3] is not SGDState:
            raise NotImplementedError
        sent: Any = down
        return self.sgd_start(sent.shared)  # type: ignore[return-value]

    def step(self, work: Work, down: Download, batch: Any, task: Task) -> Work:
        """The work after one more batch, or a tuple of batches if the phase says so.

        By default one step of SGD on the client's own loss, for methods whose work is
        an `SGDState`.
        """
        if not isinstance(work, SGDState):
            raise NotImplementedError
        moved = self.sgd_step(work, task.grad(work.at, batch), batch)
        return moved  # type: ignore[return-value]

    def finish(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Upload]:
        """What stays and what is sent."""
        raise NotImplementedError

    def client_log(
        self, work: Work, down: Download, memory: Memory, client: Client, task: Task
    ) -> Any:
        """What drove this client's round, as a record of scalars for the run's files.

        Takes what `finish` takes. Nothing of it is sent: it stays with the client, and
        only a simulation collects it.
        """
        return Empty()

    def remarks(self, log: LogColumns) -> Iterable[Remark]:
        """What the user of a run should know, once it is over, from its client log.

        By default nothing. Asked of a run in a simulation only, and only if it has a
        log; `log` has the fields of `client_log` as columns, with `round` and `client`.
        """
        return ()

    def personal(
        self, down: Download, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """The parameters this client would use, before any adaptation.

        `down` is what `model_download` made. By default `memory.personal` where the
        memory has that field, else `down.shared`.
        """
        kept: Any = memory
        sent: Any = down
        model: Tensor = kept.personal if hasattr(kept, "personal") else sent.shared
        return model

    @property
    def has_posterior(self) -> bool:
        """Whether a client has a distribution of models, not just one: has `draws`."""
        return type(self).draws is not Algorithm.draws

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

        Only asked of a method that says `has_posterior`.
        """
        raise NotImplementedError

    @property
    def adaptation(self) -> tuple[Phase, ...]:
        """Training phases that turn `personal` into the model that is used.

        Their step functions take and return a parameter vector. They see training
        data only, and nothing of them is kept or sent. By default `tuning` epochs of
        SGD, for methods that have that setting.
        """
        tuning: int = getattr(self, "tuning", 0)
        return (Phase(step="tune", epochs=tuning),) if tuning else ()

    def tune(self, theta: Tensor, down: Any, batch: Batch, task: Task) -> Tensor:
        """One step of fine-tuning a model on the client's own data."""
        gradient = task.grad(theta, batch)
        return self.sgd_step(self.sgd_start(theta), gradient, batch).at

    # Tools for the methods.

    def limit(self, product: str, otherwise: str, **bounds: float) -> None:
        """Refuse settings whose product, as in "lr * pull", is too large.

        Args:
            product: names of settings, with " * " between them.
            otherwise: what would go wrong.
            **bounds: those of an `Interval`: `most=1` or `below=1`.
        """
        factors = [getattr(self, name) for name in product.split(" * ")]
        value, allowed = math.prod(factors), Interval(**bounds)
        if value not in allowed:
            spelled = " * ".join(f"{factor:g}" for factor in factors)
            raise ConfigError(
                f"{self.name}: {product} must be {allowed}, or {otherwise}; found "
                f"{spelled} = {value:g}. Lower one of them."
            )

    def _only(self, field: str, place: int) -> type[Any]:
        """The record type at a place of `records`, if `field` is all that it has."""
        record = self.records[place]
        if record._fields != (field,):
            raise NotImplementedError
        return record

    def local_phase(self, step: str) -> Phase:
        """A phase as long as the settings say: `steps` if given, else `epochs`."""
        if self.steps is not None:
            return Phase(step=step, steps=self.steps)
        return Phase(step=step, epochs=self.epochs)

    def received_base(self, work: Any, down: Any) -> Tensor:
        """The base as it was sent, for a `Phase` in which it stays `frozen` there."""
        base: Tensor = down.base
        return base

    def sgd_start(self, theta: Tensor) -> SGDState:
        """A vector at rest, ready for the first step."""
        if self.optimizer != "sgd":
            return SGDState(theta, torch.zeros_like(torch.stack([theta, theta])))
        return SGDState(theta, torch.zeros_like(theta if self.momentum else theta[:0]))

    def sgd_step(
        self,
        state: SGDState,
        gradient: Tensor,
        batch: Batch,
        lr: float | Tensor | None = None,
        *,
        weight_decay: float | None = None,
    ) -> SGDState:
        """One step of SGD with this method's weight decay, momentum and decaying rate.

        Plain settings give `at - lr * gradient`. Momentum follows PyTorch:
        `velocity = momentum * velocity + gradient; at -= lr * velocity`. So do Adam
        and AdamW, if the method's `optimizer` says so; the steps of a vector are then
        those of one phase.
        """
        decay = self.weight_decay if weight_decay is None else weight_decay
        pace = self.decayed(self.lr if lr is None else lr, batch.round, state.at.dtype)
        at, velocity = state
        if decay and self.optimizer == "adamw":
            at = at - pace * decay * at
        elif decay:
            gradient = gradient + decay * at
        if self.optimizer != "sgd":
            first, second = velocity.unbind()
            count = batch.step + 1
            move, *means = adam_move(gradient, first, second, count, pace)
            return SGDState(at - move, torch.stack(means))
        if self.momentum:
            gradient = velocity = self.momentum * velocity + gradient
        return SGDState(at - pace * gradient, velocity)

    def decayed(
        self, lr: float | Tensor, round_: Tensor, dtype: torch.dtype
    ) -> Tensor | float:
        """A learning rate as it is in a round, after `lr_decay`."""
        if self.lr_decay == 1.0:
            return lr
        return lr * self.lr_decay ** round_.to(dtype)


def _check_settings(
    kind: type[Algorithm[Any, Any, Any, Any, Any]],
    values: tuple[Any, ...],
    settings: dict[str, Any],
) -> None:
    """Refuse what a method cannot be made with."""
    known = [part.name for part in fields(kind) if part.init]
    if values:
        raise ConfigError(
            f"{kind.__name__}: settings are given by name, found {shown(values[0])} "
            f"without one. Write {kind.__name__}({known[0]}=...). Known: "
            f"{', '.join(known)}."
        )
    for name in settings:
        if name not in known:
            raise ConfigError(f"{kind.__name__}: {unknown('setting', name, known)}")


AnyAlgorithm = Algorithm[Any, Any, Any, Any, Any]
"""A method, whatever its records are."""


def has_own(algorithm: AnyAlgorithm, name: str) -> bool:
    """Whether a method, or the one that it is wrapped around, defines a call itself."""
    return getattr(algorithm, name).__func__ is not vars(Algorithm)[name]
