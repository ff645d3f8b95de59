"""A run with its server and all its clients in one process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.core.errors import NumericalError
from fedloom.core.messages import Order
from fedloom.core.task import Task
from fedloom.engine.job import AnyAlgorithm, Runner
from fedloom.fleet.bundle import Bundle
from fedloom.fleet.faults import Faults, FaultyFleet
from fedloom.fleet.local import LocalFleet
from fedloom.fleet.protocol import Fleet
from fedloom.results.scores import Scores
from fedloom.server.coordinator import Coordinator, ExchangeLog, RoundCost, ServerState


class Simulation:
    """A coordinator and a fleet, ready to move round by round.

    Args:
        algorithm: the method.
        task: model and loss.
        federation: the clients and their data.
        runner: `Loop()` or a `Weave`.
        sampling: who takes part in a round; everybody by default.
        seed: seed of everything that is drawn during training.
        faults: how often clients fail to take part; never by default.
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
        faults: Faults | None = None,
        folder: Path | None = None,
    ) -> None:
        faults = faults if faults is not None else Faults()
        self.clients = LocalFleet(
            algorithm,
            task,
            federation,
            runner,
            seed=seed,
            can_lose=faults.lost > 0,
            folder=folder,
        )
        self.fleet: Fleet = self.clients
        if faults:
            self.fleet = FaultyFleet(self.clients, faults, seed=seed)
        self.coordinator = Coordinator(
            algorithm, task, self.clients.roster, sampling=sampling, seed=seed
        )
        self.algorithm = algorithm
        self.task = task
        self.federation = federation
        self.runner = runner
        self.faults = faults
        self.seed = seed
        self.last: ExchangeLog | None = None
        """The exchange that was finished last, with the clients' logs."""
        self._order: Order | None = None
        self._started = 0.0

    @property
    def state(self) -> ServerState:
        """All that changes on the server."""
        return self.coordinator.state

    def run_exchange(self) -> RoundCost | None:
        """Do one exchange. Gives the cost of the round when it closes one."""
        self.send()
        return self.receive()

    def send(self) -> None:
        """Give the next order to the clients."""
        self._started = time.perf_counter()
        self._order = self.coordinator.next_order()
        self.fleet.send(self._order)

    def receive(self, *, bundle_size: int = 1) -> RoundCost | None:
        """Take in what they came to; see `run_exchange`.

        Args:
            bundle_size: how many runs shared the time since the order was given.

        Raises:
            NumericalError: A client's numbers stopped being finite; the run is as it
                was before.
        """
        assert self._order is not None, "receive before send"
        arrivals = self.fleet.receive()
        seconds = (time.perf_counter() - self._started) / bundle_size
        cost = self.coordinator.apply_results(self._order, arrivals, seconds)
        log = self.fleet.client_log(arrivals.clients)
        self.last = replace(self.coordinator.log, client_log=log)
        return cost

    def evaluate(self, part: str) -> list[Scores]:
        """Score every kind of model that there is, client by client.

        Args:
            part: validation or test.
        """
        return scores_of(self.coordinator, self.fleet, part)

    def models(self, client: Tensor) -> Tensor:
        """(k, d) the models that a client's predictions are averaged over."""
        if self.algorithm.has_posterior:
            return self.draws(client)[0]
        return self.personal(client)

    def personal(self, clients: Tensor) -> Tensor:
        """(n, d) the personal models of some clients, adapted if the method adapts."""
        return self.fleet.personal(self.coordinator.model_request(), clients)

    def draws(self, clients: Tensor) -> Tensor:
        """(n, k, d) models from the posteriors of some clients."""
        return self.fleet.draws(self.coordinator.model_request(), clients)

    def shared(self) -> Tensor | None:
        """The shared model, or None."""
        return self.algorithm.shared(self.state.server, self.task)


class SimulationBundle:
    """Runs of one method and model that go on together, exchange by exchange.

    Args:
        simulations: the runs, all at the same round.
        runner: what trains the clients of all of them.
    """

    def __init__(self, simulations: Sequence[Simulation], runner: Runner) -> None:
        self.simulations = tuple(simulations)
        self.failures: dict[int, NumericalError] = {}
        """Why the runs that diverged did, by their place in `simulations`."""
        self._bundle = Bundle([s.clients for s in self.simulations], runner)

    @property
    def going(self) -> list[int]:
        """The places of the runs that have not diverged."""
        return [n for n in range(len(self.simulations)) if n not in self.failures]

    def run_exchange(self) -> dict[int, RoundCost]:
        """Do one exchange of every run that still goes.

        A run that diverges is left as it was before, and goes no further.

        Returns:
            By place, the cost of the round of each run that closed one.
        """
        going = self.going
        for n in going:
            self.simulations[n].send()
        self._bundle.train()
        closed = {}
        for n in going:
            try:
                cost = self.simulations[n].receive(bundle_size=len(going))
            except NumericalError as error:
                self.failures[n] = error
                continue
            if cost is not None:
                closed[n] = cost
        return closed


def scores_of(coordinator: Coordinator, fleet: Fleet, part: str) -> list[Scores]:
    """What a fleet scores on one part of its data, and the server makes of the sums."""
    by_kind = fleet.score(coordinator.score_request(part))
    metric = coordinator.task.metric
    return [
        Scores.from_sums(kind, part, metric, sums) for kind, sums in by_kind.items()
    ]
