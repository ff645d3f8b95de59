"""A client that was never there, at a run that is trained: it takes, and gives nothing.

To the server it is one more client of the population that was never sampled. It joins
the cohort that the run's next round would have drawn, is sent what the method sends
such a client, and trains for a round. Its upload is thrown away, so that nobody else's
model changes.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedloom.clients.federation import Federation
from fedloom.core.algorithm import Cohort
from fedloom.core.errors import DataError
from fedloom.core.records import Empty, take
from fedloom.engine.job import (
    CohortDownload,
    LocalResults,
    Participants,
    Samples,
    personal_job,
    train_job,
)
from fedloom.engine.loop import Loop
from fedloom.engine.rounds import Simulation, State
from fedloom.engine.table import Table
from fedloom.engine.weave import Weave


class Guest(Simulation):
    """One newcomer at a trained run.

    Args:
        host: the run; it is read, never changed.
        federation: the newcomer and its data, with no other client.
        team: the team of the run that it joins.

    Raises:
        ContractError: the method's server cannot take in another client.
    """

    def __init__(
        self, host: Simulation, federation: Federation, *, team: int = 0
    ) -> None:
        if federation.count != 1:
            raise DataError(f"a guest is one client, found {federation.count}.")
        if not 0 <= team < host.population.team_count:
            raise DataError(
                f"there is no team {team}: the run has teams 0 to "
                f"{host.population.team_count - 1}."
            )
        self.algorithm, self.task = host.algorithm, host.task
        self.sampling, self.seed = host.sampling, host.seed
        self.runner = Loop() if isinstance(host.runner, Loop) else Weave(1)
        self.federation = federation
        device = host.task.device
        self.samples = Samples.of(federation, federation.train, device)
        self.job = train_job(self.algorithm, self.task, self.samples)
        self._personal = personal_job(self.algorithm, self.task, self.samples)
        self.last = None
        sizes = self.samples.sizes.to(self.task.dtype)
        teams = torch.tensor([team], device=device)
        self.population = replace(host.population, sizes=sizes, teams=teams)
        self._everyone = replace(
            host.population,
            sizes=torch.cat([host.population.sizes, sizes]),
            teams=torch.cat([host.population.teams, teams]),
        )
        server = self.algorithm.add_client(host.state.server, self._everyone)
        blank = Table(Empty(), 1, device)
        self.state = State(server, blank, round=host.state.round)
        rows = torch.zeros(1, dtype=torch.int64, device=device)
        _, _, crew = self._assemble(rows, rows > 0, "train")
        self.state.table = Table(take(crew.memory, 0), 1, device)

    def visit(self) -> int:
        """Train for one round; nothing is uploaded.

        Returns:
            How many gradient steps it took.
        """
        steps = 0
        for exchange in range(self.algorithm.exchanges):
            self.state.exchange = exchange
            turn = self.prepare()
            outcome = self.runner.run(self.job, turn.down, turn.crew)
            kept, sent, _ = outcome.result
            self._refuse_diverged(turn.down, turn.crew, (kept, sent))
            self.state.table.write(turn.crew.rows, kept)
            steps += int(outcome.steps.sum())
        self.state.round, self.state.exchange = self.state.round + 1, 0
        return steps

    def adapt(self) -> LocalResults:
        """Its personal model, with the steps that the method's adaptation took."""
        rows, uploads = self._take_part()
        _, down, crew = self._assemble(rows, uploads, "personal")
        return self.runner.run(self._personal, down, crew)

    def _take_part(self) -> tuple[Tensor, Tensor]:
        rows = torch.zeros(1, dtype=torch.int64, device=self.task.device)
        return rows, rows > 0

    def _keys(self, rows: Tensor, purpose: str) -> Tensor:
        """Its streams are those of the client after the last."""
        return super()._keys(rows + self._everyone.count - 1, purpose)

    def _assemble(
        self, rows: Tensor, uploads: Tensor, purpose: str
    ) -> tuple[Cohort, CohortDownload, Participants]:
        """The same as for a client of the run, seen from the guest alone."""
        others = self._everyone.count - 1
        drawn = self.sampling.draw(others, self.seed, self.state.round)
        clients = torch.tensor([*drawn.tolist(), others], device=rows.device)
        cohort = Cohort(
            clients=clients,
            sizes=self._everyone.sizes[clients],
            teams=self._everyone.teams[clients],
            round=self.state.round,
            exchange=self.state.exchange,
            population=self._everyone,
        )
        down = self.algorithm.download(self.state.server, cohort)
        sent = CohortDownload.of(down).take(slice(-1, None))
        itself = cohort.only(clients == others)
        client = self._clients(itself, uploads)
        first = sent.over(lambda d, c: self.algorithm.initial_memory(d, c, self.task))
        memory = self.state.table.read(rows, first(client))
        return (
            itself,
            sent,
            Participants(rows, self._keys(rows, purpose), client, memory),
        )
