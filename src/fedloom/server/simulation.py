"""A run with its server and all its clients in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import NumericalError
from fedloom.core.task import Task
from fedloom.engine.job import Runner
from fedloom.fleet.attacked import BACKDOOR, AttackedFleet
from fedloom.fleet.bundle import Bundle
from fedloom.fleet.faults import Faults, FaultyFleet
from fedloom.fleet.local import LocalFleet
from fedloom.fleet.protocol import Fleet
from fedloom.robust.attack import Attack
from fedloom.robust.poison import poisoned
from fedloom.server.coordinator import Coordinator, RoundCost
from fedloom.server.training import Training


class Simulation(Training):
    """A server, and all clients in this process.

    Args:
        algorithm: the method.
        task: model and loss.
        federation: the clients and their data.
        runner: `Loop()` or a `Weave`.
        sampling: who takes part in a round; everybody by default.
        seed: seed of everything that is drawn during training.
        faults: how often clients fail to take part; never by default.
        attack: what some clients do to the others; nothing by default. Attackers are
            not scored.
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
        attack: Attack | None = None,
        folder: Path | None = None,
    ) -> None:
        faults = faults if faults is not None else Faults()
        self.attack = attack if attack is not None else Attack()
        drawn = self.attack.draw(federation.count, seed)
        self.attackers = torch.as_tensor(drawn, device=task.device)
        """(f,) the clients that attack, by number, ascending."""
        self.clients = LocalFleet(
            algorithm,
            task,
            poisoned(federation, self.attack, drawn, seed),
            runner,
            seed=seed,
            can_lose=faults.lost > 0 or algorithm.may_be_unusable,
            folder=folder,
        )
        self.faults = faults
        roster = self.clients.roster
        coordinator = Coordinator(algorithm, task, roster, sampling=sampling, seed=seed)
        self.federation = federation
        self.runner = runner
        super().__init__(coordinator, self.clients)
        self.fleet = self._as_in_life(self.clients)
        self.scored = self.scored[~torch.isin(self.scored, self.attackers)]

    @contextmanager
    def trained_by(self, fleet: Fleet) -> Iterator[None]:
        """Have another fleet of the same clients do the work; then they come home.

        What clients keep goes there first, and comes back at the end, so that the run
        is as if they had never been away. An error leaves it with the fleet.

        Args:
            fleet: the clients, without faults and attacks.
        """
        everyone, where = self.coordinator.everyone, "client memory"
        home, kept = self.fleet, self.clients.save()
        if len(kept["seen"]):
            fleet.restore(kept, self.coordinator.model_request(everyone), where)
        self.fleet = self._as_in_life(fleet)
        try:
            yield
            shapes = self.coordinator.model_request(everyone[:1])
            self.clients.restore(fleet.save(), shapes, where)
        finally:
            self.fleet = home

    def receive(self, *, bundle_size: int = 1) -> RoundCost | None:
        """Take in what they came to; a simulation knows who attacked."""
        cost = super().receive(bundle_size=bundle_size)
        if cost is not None and self.attack:
            assert self.last is not None
            called = self.last.called
            cost.attackers = called[torch.isin(called, self.attackers)].tolist()
        return cost

    @property
    def scored_clients(self) -> str:
        """Whom scores are of, if not of everybody: `4 sampled honest clients`."""
        honest = self.federation.count - len(self.attackers)
        if len(self.scored) == self.federation.count:
            return ""
        words = [str(len(self.scored))]
        words += ["sampled"] if len(self.scored) < honest else []
        words += ["honest"] if self.attack else []
        return " ".join([*words, "clients"])

    @property
    def parts(self) -> list[str]:
        """The parts of the data that models are scored on, and marked images."""
        has_mark = self.attack.kind == BACKDOOR and self.coordinator.roster.has("test")
        return [*super().parts, *([BACKDOOR] if has_mark else [])]

    def _as_in_life(self, fleet: Fleet) -> Fleet:
        """Clients some of whom lie, and some of whom do not arrive."""
        if self.attack:
            fleet = AttackedFleet(
                fleet,
                self.attack,
                self.attackers,
                self.federation,
                self.task,
                self.runner,
            )
        return FaultyFleet(fleet, self.faults, seed=self.seed) if self.faults else fleet

    @property
    def constant_loss(self) -> float | None:
        """Mean over clients of what a constant model's loss on training data is."""
        train = self.federation.train
        targets = self.federation.dataset.targets[train.indices]
        losses = self.task.constant_losses(targets)
        if losses is None:
            return None
        client = np.repeat(np.arange(len(train)), train.sizes)
        return float((np.bincount(client, losses.cpu()) / train.sizes).mean())


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
