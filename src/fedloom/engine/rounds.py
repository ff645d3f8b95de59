"""A round, from sampling to aggregation: the one place that knows the order."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.core import streams
from fedloom.core.algorithm import Algorithm, Client, Cohort, Population
from fedloom.core.errors import NumericalError
from fedloom.core.records import (
    Empty,
    leaves,
    message_bytes,
    take,
)
from fedloom.core.task import Task
from fedloom.engine.job import (
    AnyAlgorithm,
    CohortDownload,
    LocalResults,
    Participants,
    Runner,
    Samples,
    personal_job,
    train_job,
)
from fedloom.engine.loop import Loop
from fedloom.engine.table import Table


@dataclass
class RoundCost:
    """What a round cost and met so far; the exchanges of a round add up."""

    participants: int = 0
    bytes_down: int = 0
    """Server (or team) to clients, all of them."""
    bytes_up: int = 0
    team_bytes_down: int = 0
    """Global server to teams; 0 without team servers."""
    team_bytes_up: int = 0
    steps: int = 0
    loss: float = 0.0
    """Mean training loss over gradient steps, all clients together."""
    seconds: float = 0.0

    def add(self, other: RoundCost) -> None:
        """Take in another exchange of the same round."""
        steps = self.steps + other.steps
        if steps:
            self.loss = (self.loss * self.steps + other.loss * other.steps) / steps
        self.participants = max(self.participants, other.participants)
        self.bytes_down += other.bytes_down
        self.bytes_up += other.bytes_up
        self.team_bytes_down += other.team_bytes_down
        self.team_bytes_up += other.team_bytes_up
        self.steps = steps
        self.seconds += other.seconds


@dataclass(frozen=True, eq=False)
class Exchange:
    """One exchange, seen from the run's files; rows are those of `clients`."""

    clients: Tensor
    """(n,) who trained."""
    loss: Tensor
    """(n,) mean training loss of each."""
    steps: Tensor
    """(n,) gradient steps of each."""
    client_log: Any
    """The clients' notes, n rows."""
    uploaders: Tensor
    """(k,) whose uploads were used."""
    server_log: Any
    """The server's account, k rows where a field has rows."""


@dataclass(frozen=True, eq=False)
class PreparedExchange:
    """One exchange on its way to the clients."""

    cohort: Cohort
    down: CohortDownload
    crew: Participants
    started: float
    """When it was prepared, by the performance counter."""


@dataclass
class State:
    """Everything that changes; with the run's settings it determines what follows."""

    server: Any
    table: Table
    round: int = 0
    exchange: int = 0
    tally: RoundCost = field(default_factory=RoundCost)


class Simulation:
    """An algorithm, a task and a federation, ready to move round by round.

    Args:
        algorithm: the method.
        task: model and loss.
        federation: the clients and their data.
        runner: `Loop()` or a `Weave`.
        sampling: who takes part in a round.
        seed: of everything drawn during training.
        folder: where client memory goes if it does not fit in memory.
    """

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        task: Task,
        federation: Federation,
        runner: Runner,
        *,
        sampling: Sampling | None = None,
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.task = task
        self.federation = federation
        self.runner = runner
        self.sampling = sampling if sampling is not None else Sampling()
        self.seed = seed
        device = task.device
        self.samples = Samples.of(federation, federation.train, device)
        self.population = Population(
            task=task,
            theta=lambda index: task.initial(seed, index),
            sizes=self.samples.sizes.to(task.dtype),
            teams=torch.as_tensor(federation.teams, device=device),
            rate=self.sampling.rate,
            seed=seed,
        )
        self.job = train_job(algorithm, task, self.samples)
        self._personal = personal_job(algorithm, task, self.samples)
        self.last: Exchange | None = None
        count = federation.count
        blank = Table(Empty(), count, device)
        self.state = State(algorithm.init_server(self.population), blank)
        someone = torch.zeros(1, dtype=torch.int64, device=device)
        _, _, crew = self._assemble(someone, someone == 0, "train")
        self.state.table = Table(take(crew.memory, 0), count, device, folder=folder)

    def run_exchange(self) -> RoundCost | None:
        """Do one exchange. Gives the tally when it closes a round, else None."""
        turn = self.prepare()
        return self.apply_results(turn, self.runner.run(self.job, turn.down, turn.crew))

    def prepare(self) -> PreparedExchange:
        """Call up the clients of the next exchange and make what they are sent."""
        started = time.perf_counter()
        rows, uploads = self._take_part()
        cohort, down, crew = self._assemble(rows, uploads, "train")
        return PreparedExchange(cohort, down, crew, started)

    def apply_results(
        self, turn: PreparedExchange, outcome: LocalResults, *, bundle_size: int = 1
    ) -> RoundCost | None:
        """Take in what the clients of an exchange came to; see `advance`.

        Args:
            turn: what `prepare` gave.
            outcome: what the runner made of it.
            bundle_size: how many runs shared the time since then.
        """
        state = self.state
        tally = self._exchange(turn, outcome)
        tally.seconds = (time.perf_counter() - turn.started) / bundle_size
        state.tally.add(tally)
        state.exchange += 1
        if state.exchange < self.algorithm.exchanges:
            return None
        whole = state.tally
        state.round, state.exchange, state.tally = state.round + 1, 0, RoundCost()
        return whole

    def _take_part(self) -> tuple[Tensor, Tensor]:
        """Who trains in this round, and which of them upload."""
        count, device = self.federation.count, self.task.device
        drawn = self.sampling.draw(count, self.seed, self.state.round)
        sampled = torch.as_tensor(drawn, device=device)
        if self.sampling.protocol == "train-selected":
            return sampled, torch.ones_like(sampled, dtype=torch.bool)
        everyone = torch.arange(count, device=device)
        return everyone, torch.isin(everyone, sampled)

    def _exchange(self, turn: PreparedExchange, outcome: LocalResults) -> RoundCost:
        state, algorithm = self.state, self.algorithm
        cohort, down, crew = turn.cohort, turn.down, turn.crew
        rows = crew.rows
        kept, sent, notes = outcome.result
        self._refuse_diverged(down, crew, (kept, sent))
        chosen = crew.client.uploads.nonzero()[:, 0]
        sent, senders = take(sent, chosen), cohort.only(chosen)
        server = algorithm.aggregate(state.server, sent, senders)
        account = algorithm.server_log(state.server, sent, senders)
        is_last = state.exchange == algorithm.exchanges - 1
        state.server = algorithm.end_round(server, senders) if is_last else server
        state.table.write(rows, kept)
        self.last = Exchange(
            rows, outcome.loss, outcome.steps, notes, senders.clients, account
        )
        steps = int(outcome.steps.sum())
        tally = RoundCost(
            participants=len(rows),
            bytes_down=len(rows) * down.bytes,
            bytes_up=len(chosen) * message_bytes(sent),
            steps=steps,
            # A method may undo a failed step; its loss then counts for nothing.
            loss=float((outcome.loss * outcome.steps).nansum()) / max(steps, 1),
        )
        link = algorithm.team_link(state.server) if is_last else None
        if link is not None:
            one, teams = [False], len(torch.unique(senders.teams))
            down_up = [
                teams * message_bytes(r, has_rows=one * len(leaves(r))) for r in link
            ]
            tally.team_bytes_down, tally.team_bytes_up = down_up
        return tally

    def personal(self, rows: Tensor) -> Tensor:
        """(n, d) the personal models of some clients, adapted if the method adapts."""
        everyone = torch.ones_like(rows, dtype=torch.bool)
        _, down, crew = self._assemble(rows, everyone, "personal")
        thetas: Tensor = self.runner.run(self._personal, down, crew).result
        return thetas

    @property
    def has_posterior(self) -> bool:
        """Whether a client has a distribution of models, not just one."""
        return type(self.algorithm).draws is not Algorithm.draws

    def draws(self, rows: Tensor, count: int = 16) -> Tensor:
        """(n, count, d) models from the posteriors of some clients."""
        everyone = torch.ones_like(rows, dtype=torch.bool)
        _, down, crew = self._assemble(rows, everyone, "draws")
        draw = down.over(
            lambda d, m, c, key: self.algorithm.draws(d, m, c, self.task, key, count)
        )
        drawn: Tensor = draw(crew.memory, crew.client, crew.keys)
        return drawn

    def shared(self) -> Tensor | None:
        """The shared model, or None."""
        return self.algorithm.shared(self.state.server, self.task)

    def _cohort(self, rows: Tensor) -> Cohort:
        return Cohort(
            clients=rows,
            sizes=self.population.sizes[rows],
            teams=self.population.teams[rows],
            round=self.state.round,
            exchange=self.state.exchange,
            population=self.population,
        )

    def _assemble(
        self, rows: Tensor, uploads: Tensor, purpose: str
    ) -> tuple[Cohort, CohortDownload, Participants]:
        """Some clients with what they are sent, remember and draw from."""
        cohort = self._cohort(rows)
        sent = CohortDownload.of(self.algorithm.download(self.state.server, cohort))
        client = self._clients(cohort, uploads)
        first = sent.over(lambda d, c: self.algorithm.initial_memory(d, c, self.task))
        memory = self.state.table.read(rows, first(client))
        return (
            cohort,
            sent,
            Participants(rows, self._keys(rows, purpose), client, memory),
        )

    def _clients(self, cohort: Cohort, uploads: Tensor) -> Client:
        like = torch.ones_like(cohort.clients)
        return Client(
            size=cohort.sizes,
            round=like * cohort.round,
            exchange=like * cohort.exchange,
            uploads=uploads,
        )

    def _keys(self, rows: Tensor, purpose: str) -> Tensor:
        state = self.state
        root = streams.key(self.seed, purpose, state.round, state.exchange)
        return streams.fold(torch.tensor(root, device=rows.device), rows)

    def _refuse_diverged(
        self, down: CohortDownload, crew: Participants, result: Any
    ) -> None:
        """Before anything is kept: name the first client whose numbers went wrong."""
        bad = torch.zeros(len(crew.rows), dtype=torch.bool, device=crew.rows.device)
        for leaf in leaves(result):
            if leaf.is_floating_point():
                bad |= ~torch.isfinite(leaf.reshape(len(leaf), -1)).all(1)
        if not bool(bad.any()):
            return
        n = int(bad.nonzero()[0, 0])
        one = slice(n, n + 1)
        # The slow runner replays this client and names phase and step.
        Loop(checks=True).run(self.job, down.take(one), take(crew, one))
        raise NumericalError(
            f"round {self.state.round}, client {int(crew.rows[n])}: its result is not "
            "finite, though every loss on the way was."
        )
