"""Worlds of one shape train together and end as the comparisons that users make.

The seeds of all worlds go through the same passes, method by method. What they leave is
what `fedloom compare` would have left of each world's file, so that `fedloom report`
reads it; what is known beside it is the truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.clients import Federation
from fedloom.comparison import (
    MAIN_JOB,
    Comparison,
    parse_comparison,
    run_directory,
)
from fedloom.comparison.alone import alone_directory, tried_rounds
from fedloom.comparison.yardsticks import constant, finish_yardsticks
from fedloom.config import to_toml
from fedloom.core.errors import NumericalError
from fedloom.core.files import atomic_write, write_text
from fedloom.core.task import Task
from fedloom.engine.evaluate import values_of_own
from fedloom.experiments.worlds.world import Numbers, World
from fedloom.fleet.bundle import Bundle
from fedloom.plan import Plan, make_clients, make_plan, write_run_metadata
from fedloom.results.directory import COMPARISON, RunDirectory
from fedloom.results.observations import CONSTANT, LONGER
from fedloom.results.outcomes import RunOutcomes
from fedloom.server.history import History
from fedloom.server.schedule import train_together
from fedloom.server.simulation import Simulation, SimulationBundle

ALONE = "local"
"""The arm that trains alone."""

ARMS: Mapping[str, Mapping[str, Any]] = {
    ALONE: {"name": "local"},
    "fedavg": {"name": "fedavg", "tuning": 5},
    "ditto": {"name": "ditto"},
    "self-fl": {"name": "self-fl"},
    "fedper": {"name": "fedper"},
    "pfedme": {"name": "pfedme"},
}
"""What is compared in every world, each method with its default settings."""

SEEDS = 5

FRESH = 2000
"""Inputs of each client that a model's true score is averaged over."""


@dataclass(frozen=True, eq=False)
class Truth:
    """What the models of one run are worth on endless data of their clients."""

    score: Numbers
    """(clients,) of the run's personal models; nan if the run diverged."""
    alone: Numbers
    """(clients,) of training alone with as much work, client by client."""
    work: Numbers
    """(clients,) gradient-samples of the run, adaptation before use included."""


Truths = dict[tuple[int, str, int], Truth]
"""By world, method and seed."""


def comparison_of(folder: Path, *, has_groups: bool = False) -> Comparison:
    """The main job, on the file of one world; scored at the end only.

    Args:
        folder: of the comparison.
        has_groups: whether the file says which rows belong together.
    """
    rounds = MAIN_JOB["rounds"]
    groups = {"group": "group"} if has_groups else {}
    return parse_comparison(
        {
            **{k: v for k, v in MAIN_JOB.items() if k != "teams"},
            "evaluate_every": rounds,
            "checkpoint_every": rounds,
            "engine": {"compile": "off"},
            "split": {**MAIN_JOB.get("split", {}), **groups},
            "data": {"name": "file", "path": str(_file(folder)), "client": "client"},
            "methods": {arm: dict(settings) for arm, settings in ARMS.items()},
            "seeds": SEEDS,
        }
    )


def train_worlds(worlds: Sequence[World], folders: Sequence[Path]) -> Truths:
    """Train all methods in some worlds of the same shape.

    Args:
        worlds: with as many features and outputs as one another.
        folders: where each world's comparison goes; new ones.

    Returns:
        The truth behind every run.
    """
    bundle = [
        _Seed(world, folder, comparison_of(folder, has_groups=world.has_groups), seed)
        for world, folder in zip(worlds, folders, strict=True)
        for seed in _begin(world, folder)
    ]
    trained = {arm: _train(bundle, arm) for arm in ARMS}
    alone, tried = _train_alone(bundle, trained)
    preferred = {
        folder: finish_yardsticks(
            comparison_of(folder, has_groups=world.has_groups),
            folder,
            [run.clients for run in bundle if run.folder == folder],
        )
        for world, folder in zip(worlds, folders, strict=True)
    }
    fresh = {world.number: _Fresh(world) for world in worlds}
    truths: Truths = {}
    for n, run in enumerate(bundle):
        own = fresh[run.world.number]
        score, nobody = own.scores, np.full(run.world.clients, np.nan)
        usual = Truth(own.constants(run.clients), nobody, nobody)
        truths[run.world.number, CONSTANT, run.seed] = usual
        rounds = preferred[run.folder].get(run.seed)
        models = tried[rounds][n] if rounds is not None else alone[ALONE][n]
        longer = Truth(score(trained[ALONE][n].task, models), nobody, nobody)
        truths[run.world.number, LONGER, run.seed] = longer
        for arm, runs in trained.items():
            task, models = runs[n].task, runs[n].models
            truths[run.world.number, arm, run.seed] = Truth(
                score(task, models), score(task, alone[arm][n]), runs[n].work
            )
    return truths


def _file(folder: Path) -> Path:
    return folder.with_suffix(".npz")


def _begin(world: World, folder: Path) -> tuple[int, ...]:
    """Write a world's rows and what is compared on them; gives the seeds."""
    folder.mkdir(parents=True)
    rows: dict[str, Any] = dict(world.rows())
    np.savez(_file(folder), **rows)
    comparison = comparison_of(folder, has_groups=world.has_groups)
    with atomic_write(folder / COMPARISON) as part:
        write_text(part, to_toml(comparison.to_tables()))
    return comparison.seeds


class _Seed:
    """One seed of one world: the clients that all methods meet."""

    def __init__(
        self, world: World, folder: Path, comparison: Comparison, seed: int
    ) -> None:
        self.world, self.folder, self.seed = world, folder, seed
        self.comparison = comparison
        self._config, self.clients = make_clients(comparison.config(ALONE, seed))

    def plan(self, arm: str, bundle_size: int) -> Plan:
        """A run of one method."""
        config = self.comparison.config(arm, self.seed)
        config = replace(config, partition=self._config.partition)
        return make_plan(config, self.clients, bundle_size=bundle_size)

    def directory(self, arm: str) -> RunDirectory:
        """Where that run lies."""
        return RunDirectory(run_directory(self.folder, arm, self.seed))

    @cached_property
    def alone(self) -> RunDirectory:
        """Where training alone for its own sake lies."""
        return RunDirectory(alone_directory(self.folder, ALONE, self.seed))


@dataclass(frozen=True, eq=False)
class _Trained:
    """What is kept of one run."""

    task: Task
    models: Tensor
    """(clients, d), nan if the run diverged."""
    outcomes: RunOutcomes | None
    """Of every held-out sample; None if the run diverged."""

    @property
    def work(self) -> Numbers:
        """(clients,) gradient-samples, nan if the run diverged."""
        if self.outcomes is None or self.outcomes.work is None:
            return np.full(len(self.models), np.nan)
        return self.outcomes.work.astype(np.float64)


def _train(bundle: Sequence[_Seed], arm: str) -> list[_Trained]:
    """One method in all worlds and seeds, into run directories."""
    plans = [run.plan(arm, len(bundle)) for run in bundle]
    together = SimulationBundle([p.simulation for p in plans], plans[0].choice.runner)
    with ExitStack() as held:
        histories = []
        for run, plan in zip(bundle, plans, strict=True):
            directory = run.directory(arm)
            held.enter_context(RunDirectory.create(directory.path))
            write_run_metadata(plan, directory)
            histories.append(History(plan.simulation, directory=directory))
        train_together(together, plans[0].schedule, histories)
    trained = []
    for n, plan in enumerate(plans):
        simulation, task = plan.simulation, plan.simulation.task
        everyone = simulation.coordinator.everyone
        models = torch.full((len(everyone), task.d), torch.nan)
        outcomes = None
        if n not in together.failures:
            models = simulation.personal(everyone).cpu()
            outcomes = bundle[n].directory(arm).read_outcomes()
        trained.append(_Trained(task, models, outcomes))
    return trained


def _train_alone(
    bundle: Sequence[_Seed], trained: Mapping[str, Sequence[_Trained]]
) -> tuple[dict[str, list[Tensor]], dict[int, list[Tensor]]]:
    """For every arm and run the models of training alone with as much work.

    Every client goes on alone, in the rounds of the arm that trains alone, until it has
    done as much as the most laborious method; its model is kept whenever it has done as
    much as one of them, to the nearest round. What all clients say after the rounds for
    which training alone is tried for its own sake is written as well; those models come
    second, by rounds.
    """
    plans = [run.plan(ALONE, len(bundle)) for run in bundle]
    simulations = [plan.simulation for plan in plans]
    rounds = plans[0].schedule.rounds
    together = Bundle([s.clients for s in simulations], plans[0].choice.runner)
    # (arms, clients) of every run
    needed = [
        np.stack(
            [
                _rounds(runs[n].work, trained[ALONE][n].work / rounds)
                for runs in trained.values()
            ]
        )
        for n in range(len(bundle))
    ]
    kept = {
        arm: [torch.full_like(run.models, torch.nan) for run in runs]
        for arm, runs in trained.items()
    }
    for run, plan in zip(bundle, plans, strict=True):
        with RunDirectory.create(run.alone.path):
            write_run_metadata(plan, run.alone)
    tried: dict[int, list[Tensor]] = {}
    times = tried_rounds(bundle[0].comparison)
    last = [np.maximum(table.max(0), max(times)) for table in needed]
    for at in range(1, 1 + max(int(rounds.max()) for rounds in last)):
        calls = [np.flatnonzero(rounds >= at) for rounds in last]
        for n in _train_round(together, simulations, calls):
            needed[n][needed[n] >= at] = 0
            last[n][:] = 0
        if at in times:
            tried[at] = _write_tried(bundle, simulations, trained[ALONE], at, rounds)
        for n, simulation in enumerate(simulations):
            for arm, due in zip(kept, needed[n] == at, strict=True):
                clients = torch.from_numpy(np.flatnonzero(due))
                if len(clients):
                    models = simulation.personal(clients.to(simulation.task.device))
                    kept[arm][n][clients] = models.cpu()
    for n, (run, simulation) in enumerate(zip(bundle, simulations, strict=True)):
        per_round = trained[ALONE][n].work / rounds
        for arm, times in zip(kept, needed[n], strict=True):
            own = trained[arm][n].outcomes
            models = kept[arm][n]
            if arm != ALONE and own is not None and torch.isfinite(models).all():
                alone = _outcomes_of(simulation, models, own, times * per_round)
                alone.write(run.directory(arm).alone_outcomes)
    return kept, tried


def _write_tried(
    bundle: Sequence[_Seed],
    simulations: Sequence[Simulation],
    trained: Sequence[_Trained],
    at: int,
    rounds: int,
) -> list[Tensor]:
    """What training alone says after some rounds, where a comparison has it.

    Args:
        bundle: all runs.
        simulations: of training alone.
        trained: the arm that trains alone.
        at: after how many rounds.
        rounds: of that arm.

    Returns:
        The models of every run.
    """
    kept = []
    for run, simulation, arm in zip(bundle, simulations, trained, strict=True):
        models = simulation.personal(simulation.coordinator.everyone)
        if arm.outcomes is not None and torch.isfinite(models).all():
            work = at * arm.work / rounds
            outcomes = _outcomes_of(simulation, models, arm.outcomes, work)
            run.alone.write_outcomes(at, outcomes)
        kept.append(models.cpu())
    return kept


def _outcomes_of(
    simulation: Simulation, models: Tensor, own: RunOutcomes, work: Numbers
) -> RunOutcomes:
    """What other models say of the samples that a run was scored on."""
    fleet, device = simulation.clients, simulation.task.device
    parts = {}
    for part, outcomes in own.parts.items():
        samples = fleet.samples.part(getattr(simulation.federation, part))
        values = values_of_own(
            simulation.task,
            fleet.runner,
            samples,
            lambda at: models[at.cpu()].to(device),
        )
        assert np.array_equal(samples.indices.cpu().numpy(), outcomes.rows)
        parts[part] = outcomes.with_values(values.numpy())
    return RunOutcomes(parts, work.astype(np.int64))


def _rounds(work: Numbers, per_round: Numbers) -> NDArray[np.int64]:
    """(clients,) rounds of training alone that take as much work; 0 if unknown."""
    with np.errstate(invalid="ignore"):
        nearest = np.maximum(np.rint(work / per_round), 1)
    return np.nan_to_num(nearest, nan=0).astype(np.int64)


def _train_round(
    together: Bundle,
    simulations: Sequence[Simulation],
    calls: Sequence[NDArray[np.int64]],
) -> list[int]:
    """One round of those who have not done enough; gives the runs that diverged."""
    orders = {}
    for n, (simulation, numbers) in enumerate(zip(simulations, calls, strict=True)):
        if len(numbers):
            clients = torch.from_numpy(numbers).to(simulation.task.device)
            uploads = torch.ones_like(clients, dtype=torch.bool)
            orders[n] = simulation.coordinator.order(clients, uploads)
            simulation.clients.send(orders[n])
    together.train()
    diverged = []
    for n, order in orders.items():
        try:
            arrivals = simulations[n].clients.receive()
        except NumericalError:
            diverged.append(n)
        else:
            simulations[n].coordinator.apply_results(order, arrivals)
    return diverged


class _Fresh:
    """New inputs of every client of a world, with what is true of them."""

    def __init__(self, world: World) -> None:
        inputs = [
            world.draw_inputs(client, FRESH, "fresh") for client in range(world.clients)
        ]
        self._world = world
        self._laws = [world.law(client, x) for client, x in enumerate(inputs)]
        self._inputs = torch.from_numpy(np.stack(inputs))

    def scores(self, task: Task, models: Tensor) -> Numbers:
        """(clients,) the true score of each client's model."""
        answers = _answers(task, models, self._inputs).double().numpy()
        known = torch.isfinite(models).all(1).numpy()
        scores = np.full(len(models), np.nan)
        for client in np.flatnonzero(known):
            scores[client] = self._world.score(self._laws[client], answers[client])
        return scores

    def constants(self, clients: Federation) -> Numbers:
        """(clients,) the true score if each always says what is usual."""
        scores = []
        for client, law in enumerate(self._laws):
            said = float(constant(clients, client)(np.zeros(1, dtype=np.int64))[0])
            answers = np.full(law.shape, said)
            if not self._world.is_regression:
                answers = np.zeros(law.shape)
                answers[:, int(said)] = 1.0
            scores.append(self._world.score(law, answers))
        return np.array(scores)


def _answers(task: Task, models: Tensor, inputs: Tensor) -> Tensor:
    """(clients, rows, outputs) what models say, in the units of the targets."""
    with torch.no_grad():
        say = torch.func.vmap(lambda model, x: task.predict(model, (x,)))
        outputs: Tensor = say(models.to(task.device), inputs.to(task.device)).cpu()
    return outputs
