"""Clients in this process: their data, their memory and the runner that trains them.

Any number of them, one included. A simulation is one such fleet of everybody, a
worker of a cluster has a shard, a process of a deployment has one client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core import streams
from fedloom.core.algorithm import AnyAlgorithm, Client
from fedloom.core.errors import MessageError, NumericalError
from fedloom.core.measures import PersonalOutcomes, Sums
from fedloom.core.messages import (
    Arrivals,
    CohortDownload,
    Enrolment,
    ModelRequest,
    Order,
    Roster,
    ScoreRequest,
)
from fedloom.core.records import Empty, leaves, map_record, take
from fedloom.core.task import Task
from fedloom.engine.evaluate import sums_of_own, sums_of_shared, values_of_own
from fedloom.engine.job import (
    LocalResults,
    Participants,
    Runner,
    Samples,
    TrainingResult,
    personal_job,
    train_job,
)
from fedloom.engine.loop import Loop
from fedloom.engine.memory import MemoryTable

TRAIN_SCORED = 256
"""Training samples of a client that its models are scored on at most: the same ones in
every round and for every method, drawn by the seed."""

_KEPT_BYTES = 1 << 28
"""Most that is kept of adapted models between two parts of an evaluation."""

_OF_CLIENT = ("client", "secret")
"""What a client's own two random streams are for."""

_DRAWS = 16
"""Models of a posterior that predictions are averaged over."""


@dataclass(frozen=True, eq=False)
class PreparedExchange:
    """An order, and the clients as they set about it."""

    order: Order
    participants: Participants


class LocalFleet:
    """Clients whose data lie in this process.

    Args:
        algorithm: the method.
        task: model and loss.
        federation: these clients and their data.
        runner: `Loop()` or a `Weave`.
        seed: seed of batches and of the noise in local steps.
        numbers: the number of each client in the whole federation, ascending; by
            default they are all there is. A client's random streams belong to its
            number, whatever row of a federation it is.
        can_lose: whether an upload may get lost on its way, so that clients keep what
            they would have without it until they are told.
        secret: what noise that protects these clients is drawn from, known to nobody
            else; by default it follows from the seed, which is good for simulations
            only.
        folder: where client memory goes if it does not fit in memory.
    """

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        task: Task,
        federation: Federation,
        runner: Runner,
        *,
        seed: int = 0,
        numbers: Tensor | None = None,
        can_lose: bool = False,
        secret: int | None = None,
        folder: Path | None = None,
    ) -> None:
        device = task.device
        self.algorithm = algorithm
        self.task = task
        self.federation = federation
        self.runner = runner
        self.seed = seed
        self.can_lose = can_lose
        self.numbers = (
            torch.arange(federation.count, device=device)
            if numbers is None
            else numbers.to(device)
        )
        if len(self.numbers) != federation.count or bool(
            (self.numbers.diff() <= 0).any()
        ):
            raise ValueError(
                f"a fleet of {federation.count} clients needs as many numbers, "
                f"ascending; found {self.numbers.tolist()[:20]}"
            )
        self.samples = Samples.of(federation, federation.train, device)
        teams = torch.as_tensor(federation.teams, device=device)
        parts = (federation.validation.sizes, federation.test.sizes)
        held = (torch.as_tensor(sizes, device=device) for sizes in parts)
        self.roster = Roster(
            federation.names, Enrolment(self.samples.sizes, teams, *held)
        )
        self.job = train_job(algorithm, task, self.samples, can_lose=can_lose)
        self.memory = MemoryTable(federation.count, device, folder=folder)
        self.prepared: PreparedExchange | None = None
        """The exchange that was sent and not yet received."""
        self._secret = seed if secret is None else secret
        self._personal_job = personal_job(algorithm, task, self.samples)
        self._results: LocalResults | None = None
        self._parts: dict[str, Samples] = {}
        self._adapted: tuple[ModelRequest, LocalResults] | None = None
        self._log: Any = Empty()
        self._logged = self.numbers[:0]

    @property
    def hashes(self) -> Mapping[str, str]:
        """Of these clients' data and how it is divided."""
        return {"split": self.federation.hash, "data": self.federation.dataset.hash}

    def send(self, order: Order) -> None:
        """Set the clients about an exchange."""
        rows = self._rows(order.clients)
        self.memory.settle(rows, order.taken)
        at = order.round, order.exchange
        keys, *own = self._keys(("train", *_OF_CLIENT), rows, *at)
        client = self._clients(rows, *at, order.uploads, own)
        memory = self._recall(rows, order.download, client)
        participants = Participants(rows, keys, client, memory)
        self.prepared = PreparedExchange(order, participants)
        self._results = self._adapted = None

    def train(self, results: LocalResults | None = None) -> None:
        """Do the local work of the exchange that was sent.

        Args:
            results: what came of it, if it was done elsewhere, with other fleets'.
        """
        assert self.prepared is not None, "train before send"
        order, participants = self.prepared.order, self.prepared.participants
        if results is None:
            results = self.runner.run(self.job, order.download, participants)
        self._results = results

    def receive(self) -> Arrivals:
        """What the clients came to; everybody who is called arrives."""
        if self._results is None:
            self.train()
        assert self.prepared is not None
        assert self._results is not None
        order, participants = self.prepared.order, self.prepared.participants
        result: TrainingResult = self._results.result
        report = self._results.report
        self.prepared = self._results = None
        self._refuse_diverged(order, participants, (result.memory, result.upload))
        self.memory.write(
            participants.rows, result.memory, result.if_lost, order.number
        )
        self._log, self._logged = result.client_log, order.clients
        uploaders, uploads = order.clients, result.upload
        if not bool(order.uploads.all()):
            uploaders = order.clients[order.uploads]
            uploads = take(uploads, order.uploads) if len(uploaders) else None
        return Arrivals(order.clients, report, uploaders, uploads)

    def client_log(self, clients: Tensor) -> Any:
        """What drove the last exchange of some of those who took part in it."""
        return take(self._log, torch.searchsorted(self._logged, clients))

    def score(self, request: ScoreRequest) -> dict[str, Sums]:
        """The sums of the clients asked, by every kind of model that there is."""
        task, rows = self.task, self._settle(request)
        samples = self._part(request.part).only(rows)
        by_kind: dict[str, Sums] = {}
        shared = None
        if request.shared is not None:
            by_kind["shared"] = sums_of_shared(
                task, request.shared, samples, self.runner
            )
            shared = request.shared, by_kind["shared"]
        if request.teams is not None:
            by_kind["team"] = self._sums_of_teams(request.teams, rows, samples)
        adapted = self._adapted_models(request)
        by_kind["personal"] = sums_of_own(
            task, self.runner, samples, lambda at: adapted(at).result, shared=shared
        )
        if self.algorithm.has_posterior:
            by_kind["averaged"] = sums_of_own(
                task,
                self.runner,
                samples,
                lambda at: self.draws(request.only(at)),
                is_average=True,
            )
        return by_kind

    def _sums_of_teams(self, models: Tensor, rows: Tensor, samples: Samples) -> Sums:
        """What each client sends of its team's model; models are (teams, d)."""
        team_of = self.roster.enrolments.team[rows]
        by_team, members = [], []
        for team in torch.unique(team_of).tolist():
            own = (team_of == team).nonzero()[:, 0]
            by_team.append(
                sums_of_shared(self.task, models[team], samples.only(own), self.runner)
            )
            members.append(own.cpu())
        back = torch.cat(members).argsort()
        sums: Sums = map_record(lambda *parts: torch.cat(parts)[back], *by_team)
        return sums

    def outcomes(self, request: ScoreRequest) -> PersonalOutcomes:
        """What the personal models of the clients asked say of every sample."""
        rows = self._settle(request)
        samples = self._part(request.part).only(rows)
        work = torch.zeros(len(rows), dtype=torch.int64)
        adapted = self._adapted_models(request)

        def models(at: Tensor) -> Tensor:
            results = adapted(at)
            work[at.cpu()] = results.report.gradients.cpu()
            thetas: Tensor = results.result
            return thetas

        values = values_of_own(self.task, self.runner, samples, models)
        owners = torch.repeat_interleave(request.clients, samples.sizes)
        return PersonalOutcomes(samples.indices.cpu(), owners.cpu(), values, work)

    def personal(self, request: ModelRequest) -> Tensor:
        """(n, d) the models that some clients use."""
        thetas: Tensor = self.adapt(request).result
        return thetas

    def adapt(self, request: ModelRequest) -> LocalResults:
        """The same models, and a report on what the method's adaptation took."""
        rows, client, keys = self._at_hand(request, "personal")
        memory = self._recall(rows, request.download, client)
        participants = Participants(rows, keys, client, memory)
        return self.runner.run(self._personal_job, request.download, participants)

    def _adapted_models(
        self, request: ModelRequest
    ) -> Callable[[Tensor], LocalResults]:
        """The models of those who are asked, by their places in the request.

        Where adapting them takes training, they are kept until the next exchange, since
        an evaluation asks for the same models once for every part of the data.
        """
        size = len(request.clients) * self.task.d * self.task.dtype.itemsize
        if not self._personal_job.phases or size > _KEPT_BYTES:
            return lambda at: self.adapt(request.only(at))
        if self._adapted is None or not _are_alike(self._adapted[0], request):
            self._adapted = request, self.adapt(request)
        results = self._adapted[1]
        return lambda at: take(results, at)

    def draws(self, request: ModelRequest) -> Tensor:
        """(n, k, d) models from the posteriors of some clients."""
        rows, client, keys = self._at_hand(request, "draws")
        draw: Callable[..., Tensor] = request.download.over(
            lambda d, m, c, key: self.algorithm.draws(d, m, c, self.task, key, _DRAWS)
        )
        return draw(self._recall(rows, request.download, client), client, keys)

    def save(self) -> dict[str, Tensor]:
        """All that these clients keep."""
        return self.memory.save()

    def restore(
        self, tensors: dict[str, Tensor], request: ModelRequest, where: str
    ) -> None:
        """Take back what `save` gave."""
        self._adapted = None
        self.memory.restore(tensors, self.initial_memory(request), where)

    def initial_memory(self, request: ModelRequest) -> Any:
        """What the first client that is asked would remember had it never been here."""
        first = request.only(torch.zeros_like(request.clients[:1]))
        rows = self._rows(first.clients)
        keys = self._keys(_OF_CLIENT, rows, first.round, 0)
        uploads = torch.ones_like(rows, dtype=torch.bool)
        client = self._clients(rows, first.round, 0, uploads, tuple(keys))
        return take(self._fresh(first.download, client), 0)

    def _part(self, part: str) -> Samples:
        """The samples that models are scored on; of the training data some of many."""
        if part not in self._parts:
            ragged: Ragged = getattr(self.federation, part)
            if part == "train":
                ragged = self._few(ragged)
            self._parts[part] = self.samples.part(ragged)
        return self._parts[part]

    def _few(self, train: Ragged) -> Ragged:
        """At most `TRAIN_SCORED` training samples of each client, by its number."""
        if len(train.indices) == 0 or int(train.sizes.max()) <= TRAIN_SCORED:
            return train
        is_kept = np.ones(len(train.indices), dtype=bool)
        for row in np.flatnonzero(train.sizes > TRAIN_SCORED).tolist():
            draw = streams.generator(self.seed, "scored", int(self.numbers[row]))
            order = draw.permutation(int(train.sizes[row]))
            is_kept[train.offsets[row] + order[TRAIN_SCORED:]] = False
        return train.only_where(is_kept).ascending()

    def _rows(self, clients: Tensor) -> Tensor:
        """Where clients are held, by their numbers.

        Raises:
            MessageError: One of them is not here.
        """
        if torch.equal(clients, self.numbers):
            return torch.arange(len(clients), device=clients.device)
        rows = torch.searchsorted(self.numbers, clients)
        here = self.numbers[rows.clamp(max=len(self.numbers) - 1)] == clients
        if not bool(here.all()):
            raise MessageError(
                f"clients {clients[~here].tolist()[:20]} were called and are not here."
            )
        return rows

    def _keys(
        self, purposes: Sequence[str], rows: Tensor, round_: int, exchange: int
    ) -> Tensor:
        """By purpose, each client's random stream, by its number.

        A GPU would be called a dozen times for a few numbers: they are drawn here.
        """
        seeds = [self._secret if p == "secret" else self.seed for p in purposes]
        roots = [
            streams.key(seed, purpose, round_, exchange)
            for seed, purpose in zip(seeds, purposes, strict=True)
        ]
        numbers = self.numbers[rows].cpu()
        return streams.fold(torch.tensor(roots)[:, None], numbers).to(rows.device)

    def _clients(
        self,
        rows: Tensor,
        round_: int,
        exchange: int,
        uploads: Tensor,
        keys: Sequence[Tensor],
    ) -> Client:
        """What clients know of themselves; `keys` by `_OF_CLIENT`."""
        key, secret = keys
        return Client(
            size=self.samples.sizes[rows].to(self.task.dtype),
            round=torch.full_like(rows, round_),
            exchange=torch.full_like(rows, exchange),
            uploads=uploads,
            key=key,
            secret=secret,
        )

    def _fresh(self, download: CohortDownload, client: Client) -> Any:
        """What clients that were never here would remember, one row each."""
        first = download.over(
            lambda d, c: self.algorithm.initial_memory(d, c, self.task)
        )
        return first(client)

    def _recall(self, rows: Tensor, download: CohortDownload, client: Client) -> Any:
        if self.algorithm.records[1] is Empty:
            return Empty()
        return self.memory.read(rows, self._fresh(download, client))

    def _settle(self, request: ModelRequest) -> Tensor:
        """Where the clients asked are held; each knows now which memory holds.

        All of them, whoever's models are looked at: what is saved must not depend on
        how clients are dealt out.
        """
        rows = self._rows(request.clients)
        self.memory.settle(rows, request.taken)
        return rows

    def _at_hand(
        self, request: ModelRequest, purpose: str
    ) -> tuple[Tensor, Client, Tensor]:
        """Where clients are held and what they know when their models are asked for.

        Last a random stream of each for the purpose.
        """
        rows = self._settle(request)
        uploads = torch.ones_like(rows, dtype=torch.bool)
        keys, *own = self._keys((purpose, *_OF_CLIENT), rows, request.round, 0)
        return rows, self._clients(rows, request.round, 0, uploads, own), keys

    def _refuse_diverged(
        self, order: Order, participants: Participants, result: Any
    ) -> None:
        """Before anything is kept: name the first client whose numbers went wrong."""
        rows = participants.rows
        numbers = {
            id(leaf): leaf for leaf in leaves(result) if leaf.is_floating_point()
        }
        # What is not finite makes a sum that is not, which is quick to see. So may
        # large numbers; then each is looked at.
        if math.isfinite(float(sum(leaf.sum() for leaf in numbers.values()))):
            return
        bad = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        for leaf in numbers.values():
            bad |= ~torch.isfinite(leaf.reshape(len(leaf), -1)).all(1)
        if not bool(bad.any()):
            return
        n = int(bad.nonzero()[0, 0])
        name = self.federation.names[int(rows[n])]
        where = f"round {order.round + 1}, client {name}"
        # The slow runner replays this client and names phase and step.
        culprit = slice(n, n + 1)
        Loop(culprit=where).run(
            self.job, order.download.take(culprit), take(participants, culprit)
        )
        raise NumericalError(
            f"{where}: its result is not finite, though every loss on the way was."
        )


def _are_alike(first: ModelRequest, second: ModelRequest) -> bool:
    """Whether two requests ask for the same models."""
    mine, theirs = (
        [r.clients, r.taken, *leaves(r.download.record)] for r in (first, second)
    )
    return (first.round, len(mine)) == (second.round, len(theirs)) and all(
        torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)
    )
