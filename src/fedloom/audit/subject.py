"""The run that is audited: its plan, its models, and runs like it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedloom.clients import Federation
from fedloom.core import streams
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError, DataError, NumericalError
from fedloom.core.losses import Loss
from fedloom.core.task import Task
from fedloom.engine.choice import choose
from fedloom.engine.footprint import footprint, memory_bytes
from fedloom.plan import OwnModel, Plan, make_task, plan_from_directory
from fedloom.results.directory import RunDirectory
from fedloom.server import checkpoint
from fedloom.server.simulation import Simulation, SimulationBundle

_log = logging.getLogger(__name__)

_MEMORY_SHARE = 0.25
"""Of the memory, for what clients and servers of runs that train together keep."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A finished run, as it stands."""

    directory: RunDirectory
    plan: Plan
    loss: str | Loss | None
    """The loss, where the caller gave it."""

    @property
    def simulation(self) -> Simulation:
        """The run at its last round."""
        return self.plan.simulation

    @property
    def federation(self) -> Federation:
        """Its clients."""
        return self.simulation.federation

    @property
    def rounds(self) -> int:
        """How many rounds it trained."""
        return self.plan.schedule.rounds

    @property
    def seconds(self) -> float:
        """How long its clients trained."""
        return sum(row.seconds for row in self.directory.read_rounds())

    def again(
        self, clients: Sequence[Federation], seed: int, purpose: str
    ) -> Iterator[SimulationBundle]:
        """Runs of the same settings and the same first model, before their first round.

        As many are in one bundle as memory allows; their seeds differ.

        Args:
            clients: of each run.
            seed: seed of the audit.
            purpose: what they are for; another purpose has other seeds.
        """
        width = self._width(clients[0])
        for start in range(0, len(clients), width):
            some = clients[start : start + width]
            simulations = [
                self._like(federation, streams.key(seed, purpose, start + n) % 2**31)
                for n, federation in enumerate(some)
            ]
            runner = choose(
                self.plan.engine,
                self.simulation.algorithm,
                simulations[0].task,
                some[0],
                self.simulation.coordinator.sampling,
                self.rounds,
                bundle_size=len(some),
            ).runner
            yield SimulationBundle(simulations, runner)

    def task_for(self, federation: Federation) -> Task:
        """The same model, at its start, and loss for other clients."""
        task = self.simulation.task
        return make_task(
            task.fresh_module(),
            federation,
            self.plan.engine,
            loss=self.loss,
            head=task.head_name,
        )

    def _like(self, federation: Federation, seed: int) -> Simulation:
        own = self.simulation
        return Simulation(
            own.algorithm,
            self.task_for(federation),
            federation,
            own.runner,
            sampling=own.coordinator.sampling,
            seed=seed,
            faults=own.faults,
        )

    def _width(self, federation: Federation) -> int:
        """How many such runs fit into memory at once."""
        own = self.simulation
        size = footprint(own.algorithm, own.task, clients=federation.count)
        needed = federation.count * (size.kept + size.down + size.up) + size.server
        room = int(memory_bytes(own.task.device) * _MEMORY_SHARE)
        return max(1, room // max(needed, 1))


def train_bundle(
    bundle: SimulationBundle,
    rounds: int,
    after_round: Callable[[int], None] | None = None,
) -> None:
    """Train all runs of a bundle to the end.

    Args:
        bundle: runs before their first round.
        rounds: how many rounds they train.
        after_round: is told of every round that is over.

    Raises:
        NumericalError: one of them diverged.
    """
    first = bundle.simulations[0]
    while first.state.round < rounds:
        closed = bundle.run_exchange()
        if bundle.failures:
            why = next(iter(bundle.failures.values()))
            raise NumericalError(
                f"audit: a run with the settings of this one diverged. {why}"
            )
        if closed and after_round is not None:
            after_round(first.state.round)


def open_subject(
    path: Path,
    model: OwnModel | None = None,
    clients: Federation | None = None,
    *,
    algorithm: AnyAlgorithm | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    data_dir: Path | None = None,
    device: str | None = None,
) -> Subject:
    """A finished run from its directory; arguments as for `fedloom.load`.

    Raises:
        ConfigError: its clients are elsewhere, or something of the caller's is missing.
        DataError: there is no run, it is not finished, or its data are others now.
        MessageError: its files were damaged or exchanged.
        NumericalError: it diverged.
    """
    directory = RunDirectory.open(path)
    if directory.federation.is_file():
        raise ConfigError(
            f"{path}: the clients of this run are elsewhere, and so are their samples. "
            "An audit trains on them: audit a simulation with the same settings and "
            "data like theirs."
        )
    why = directory.read_failure()
    if why is not None:
        raise NumericalError(f"{path}: this run diverged. {why}")
    plan = plan_from_directory(
        directory,
        model,
        clients,
        algorithm=algorithm,
        loss=loss,
        head=head,
        data_dir=data_dir,
        device=device,
    )
    reached = 0
    if checkpoint.exists(directory.checkpoint):
        remark = checkpoint.restore(plan.simulation, directory.checkpoint)
        if remark:
            _log.warning("%s", remark)
        reached = plan.simulation.state.round
    if reached < plan.schedule.rounds:
        raise DataError(
            f"{path}: the run is not finished: it is at round {reached} of "
            f"{plan.schedule.rounds}. Wait for it, or go on with it: `fedloom resume "
            f"{path}`."
        )
    return Subject(directory, plan, loss)


def standardised_like(federation: Federation, other: Federation) -> Federation:
    """The same clients with the constants of another federation.

    Args:
        federation: whose samples enter the model.
        other: whose mean and deviation they are standardised by.
    """
    constants = target_constants = None
    if other.dataset.standardise:
        shift, scale = other.scaling()
        constants = torch.stack([torch.as_tensor(shift), torch.as_tensor(scale)])
    if other.standardises_targets:
        shift, scale = other.target_scaling()
        target_constants = torch.stack([torch.as_tensor(shift), torch.as_tensor(scale)])
    return replace(federation, constants=constants, target_constants=target_constants)
