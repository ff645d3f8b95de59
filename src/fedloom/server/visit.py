"""A client that was never there, at a run that is trained: it takes, and gives nothing.

To the server it is one more client of the population that was never sampled. It joins
the cohort that the run's next round would have drawn, is sent what the method sends
such a client, and trains for a round. Its upload is thrown away, so that nobody else's
model changes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedloom.clients.federation import Federation
from fedloom.core.errors import DataError
from fedloom.core.messages import Enrolment
from fedloom.fleet.local import LocalFleet
from fedloom.results.scores import Scores
from fedloom.server.simulation import Simulation
from fedloom.server.training import evaluate


class Visit:
    """One newcomer at a trained run: a fleet of one client, and a server with room.

    Args:
        host: the run; it is read, never changed.
        federation: the newcomer and its data, with no other client.
        team: the team of the run that it joins.

    Raises:
        ContractError: The method's server cannot take in another client.
        DataError: There is not one client, or no such team.
    """

    def __init__(
        self, host: Simulation, federation: Federation, *, team: int = 0
    ) -> None:
        if federation.count != 1:
            raise DataError(f"a newcomer is one client, found {federation.count}.")
        teams = host.coordinator.population.team_count
        if not 0 <= team < teams:
            raise DataError(
                f"there is no team {team}: the run has teams 0 to {teams - 1}."
            )
        self.algorithm, self.task, self.seed = host.algorithm, host.task, host.seed
        self.runner = host.runner.alone()
        self.federation = replace(federation, teams=np.array([team]))
        self.number = torch.tensor([host.federation.count], device=host.task.device)
        self.clients = LocalFleet(
            self.algorithm,
            self.task,
            self.federation,
            self.runner,
            seed=self.seed,
            numbers=self.number,
        )
        enrolment = Enrolment(*(column[0] for column in self.clients.roster.enrolments))
        self.coordinator = host.coordinator.with_client(federation.names[0], enrolment)

    def train(self) -> int:
        """Train for one round; nothing is uploaded.

        Returns:
            How many gradient steps it took.
        """
        coordinator, steps = self.coordinator, 0
        others = coordinator.roster.count - 1
        drawn = coordinator.sampling.draw(others, self.seed, coordinator.state.round)
        cohort = torch.cat(
            [torch.as_tensor(drawn, device=self.task.device), self.number]
        )
        for exchange in range(self.algorithm.exchanges):
            coordinator.state.exchange = exchange
            order = coordinator.order(
                cohort, torch.zeros_like(cohort, dtype=torch.bool)
            )
            self.clients.send(order.only(cohort == self.number))
            steps += int(self.clients.receive().reports.steps.sum())
        coordinator.state.round, coordinator.state.exchange = (
            coordinator.state.round + 1,
            0,
        )
        return steps

    def adapt(self) -> tuple[Tensor, int]:
        """Its personal model, (d,), and how many steps the method's adaptation took."""
        results = self.clients.adapt(self.coordinator.model_request(self.number))
        return results.result[0], int(results.report.steps.sum())

    def models(self) -> Tensor:
        """(k, d) the models that its predictions are averaged over; one for most."""
        request = self.coordinator.model_request(self.number)
        if self.algorithm.has_posterior:
            return self.clients.draws(request)[0]
        return self.clients.personal(request)

    def evaluate(self) -> tuple[Scores, ...]:
        """Score every kind of model on its test data."""
        return evaluate(self.coordinator, self.clients, "test", self.number).scores

    def shared(self) -> Tensor | None:
        """The run's shared model, or None."""
        return self.algorithm.shared(self.coordinator.state.server, self.task)
