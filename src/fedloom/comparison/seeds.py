"""The runs of all seeds of one method: planned alike, trained in the same passes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.clients import Federation
from fedloom.comparison.settings import Comparison
from fedloom.config import RunConfig, parse, refuse_changes, to_tables
from fedloom.core.errors import FedloomError, NumericalError
from fedloom.core.files import remove
from fedloom.engine.footprint import footprint, memory_bytes
from fedloom.engine.range_test import LIKE, FoundRate
from fedloom.plan import (
    Plan,
    expect_secret,
    make_clients,
    make_module,
    make_plan,
    plan_for,
    read_secret,
    start_of,
    write_run_metadata,
)
from fedloom.results.directory import COMPARISON, RunDirectory
from fedloom.server import checkpoint
from fedloom.server.checkpoint import START, Position
from fedloom.server.history import History
from fedloom.server.resume import refuse_other_data, truncate_after
from fedloom.server.schedule import Progress, train_together
from fedloom.server.simulation import Simulation, SimulationBundle
from fedloom.trackers import follow, make_trackers

_log = logging.getLogger(__name__)

_MEMORY_SHARE = 0.25
"""Of the memory, for what the clients and servers of runs in one bundle keep."""


Clients = list[tuple[RunConfig, Federation]]
"""Who holds what, for every seed, with the config that says so."""


def load_clients(comparison: Comparison, data_dir: Path | None) -> Clients:
    """The clients of every seed, the same for every method; data are loaded once."""
    arm = next(iter(comparison.arms))
    clients: Clients = []
    for seed in comparison.seeds:
        config = comparison.config(arm, seed)
        if comparison.own is not None:
            clients.append((config, comparison.own_clients(seed)))
            continue
        again = clients and not config.data.depends_on_seed
        loaded = clients[0][1].dataset if again else None
        clients.append(make_clients(config, data_dir, dataset=loaded))
    return clients


@dataclass(frozen=True, eq=False)
class Job:
    """What every method of a comparison is trained with."""

    comparison: Comparison
    out: Path
    data_dir: Path | None
    track: str
    threads: int
    rates: dict[tuple[Any, ...], FoundRate] = field(default_factory=dict)
    """Range tests by the settings that they were made with: methods share them."""
    progress: Progress | None = None
    """Is told of every round that is trained in this process."""


class Run(NamedTuple):
    """One run that is to be trained."""

    plan: Plan
    directory: RunDirectory
    wanted: Mapping[int, NDArray[np.int64]] = MappingProxyType({})
    """By round, the clients whose outcomes are recorded before the last round."""


def plan_run(
    job: Job,
    config: RunConfig,
    path: Path,
    clients: Clients,
    n: int,
    rate: FoundRate | None = None,
) -> Run:
    """One run of the n-th seed, and where it lies."""
    comparison, directory = job.comparison, RunDirectory(path)
    has_begun = comparison.own is None and directory.manifest.is_file()
    start = start_of(directory, directory.read_manifest()) if has_begun else None
    plan = _plan(comparison, config, job.data_dir, clients, n, start=start, rate=rate)
    return Run(plan, directory)


def refuse_unfit(
    comparison: Comparison, out: Path, data_dir: Path | None, clients: Clients
) -> None:
    """Build every run of a comparison that is yet to begin, and train none.

    Args:
        comparison: what would be trained.
        out: where it would lie; nothing is read or written there.
        data_dir: where the files of named datasets lie.
        clients: those of every seed.

    Raises:
        FedloomError: A method cannot be trained with these settings, or the secret of
            its noise cannot be had.
    """
    methods = []
    for arm in comparison.arms:
        for n, seed in enumerate(comparison.seeds):
            # A rate that is yet to be found is no reason to refuse anything.
            config = replace(comparison.config(arm, seed), finds_lr=False)
            try:
                plan = _plan(comparison, config, data_dir, clients, n)
            except FedloomError as error:
                error.add_note(
                    f"This is about the method {arm}, with seed {seed}. Nothing of the "
                    "comparison was trained or written."
                )
                raise
            methods.append(plan.simulation.algorithm)
    for method in methods:
        read_secret(method, out)


def _plan(
    comparison: Comparison,
    config: RunConfig,
    data_dir: Path | None,
    clients: Clients,
    n: int,
    *,
    start: Path | None = None,
    rate: FoundRate | None = None,
) -> Plan:
    """What one run of the n-th seed is made of."""
    divided, federation = clients[n]
    config = replace(config, partition=divided.partition)
    own, size = comparison.own, len(clients)
    if own is None:
        return make_plan(
            config,
            federation,
            data_dir,
            bundle_size=size,
            start=start,
            found_rate=rate,
        )
    return plan_for(
        config,
        make_module(own.model, federation, comparison.seeds[n]),
        federation,
        loss=own.loss,
        head=own.head,
        is_own=True,
        bundle_size=size,
        found_rate=rate,
    )


def common_rate(
    job: Job, configs: Sequence[RunConfig], clients: Clients
) -> FoundRate | None:
    """What `lr = "auto"` comes to for all seeds: the lowest, as all must be stable."""
    method = configs[0].algorithm
    if not (configs[0].finds_lr and method.takes_auto_rate):
        return None
    test = tuple(getattr(method, name) for name in LIKE)
    if test not in job.rates:
        plans = [
            plan_run(job, config, job.out, clients, n).plan
            for n, config in enumerate(configs)
        ]
        rates = [plan.found_rate for plan in plans if plan.found_rate is not None]
        job.rates[test] = min(rates, key=lambda found: found.rate)
    return job.rates[test]


def train_seeds(
    plan: Callable[[int], Run], count: int, track: str, progress: Progress | None = None
) -> list[History]:
    """Runs of all seeds, as many in one bundle as memory allows."""
    histories: list[History] = []
    while len(histories) < count:
        left = range(len(histories), count)
        first = plan(left[0])
        width = _width(first.plan.simulation, len(left))
        for runs in bundles([first, *(plan(n) for n in left[1:width])]):
            histories += _train_some(runs, track, progress)
    return histories


def bundles(runs: Sequence[Run]) -> list[Sequence[Run]]:
    """Runs that can train in the same passes: all, unless their constants differ."""
    tasks = [run.plan.simulation.task for run in runs]
    if all(task.has_constants_of(tasks[0]) for task in tasks):
        return [runs]
    return [[run] for run in runs]


def _width(simulation: Simulation, most: int) -> int:
    """How many runs like this one go into one bundle, before any other is built."""
    clients = simulation.federation.count
    size = footprint(simulation.algorithm, simulation.task, clients=clients)
    needed = clients * (size.kept + size.down + size.up) + size.server
    room = int(memory_bytes(simulation.task.device) * _MEMORY_SHARE)
    return max(1, min(most, room // max(needed, 1)))


def _train_some(
    runs: Sequence[Run], track: str, progress: Progress | None
) -> list[History]:
    """Train runs in one bundle, from where all of them have a checkpoint."""
    schedule, runner = runs[0].plan.schedule, runs[0].plan.choice.runner
    if all(is_finished(run.directory, schedule.rounds) for run in runs):
        return [
            History(run.plan.simulation, run.directory.read_rounds(), run.directory)
            for run in runs
        ]
    with ExitStack() as held:
        for plan, directory, _ in runs:
            _begin(plan, directory, held)
        at = _common_position([directory for _, directory, _ in runs])
        bundle = SimulationBundle([run.plan.simulation for run in runs], runner)
        histories = []
        for n, (plan, directory, wanted) in enumerate(runs):
            failed = directory.failed_at()
            if failed is not None and failed < at:
                bundle.failures[n] = NumericalError(directory.read_failure())
                rows = directory.read_rounds()
            else:
                remove(directory.failure)
                if at != START:
                    checkpoint.restore(plan.simulation, directory.checkpoint, at=at)
                rows = truncate_after(directory, at)
            history = History(plan.simulation, rows, directory)
            history.wanted = wanted
            histories.append(history)
        for run, history in zip(runs, histories, strict=True):
            held.enter_context(follow(history, run.plan.tables, make_trackers(track)))
        train_together(bundle, schedule, histories, progress)
    return histories


def _begin(plan: Plan, directory: RunDirectory, held: ExitStack) -> None:
    """Hold a run's directory; what lies there must have begun as this plan says."""
    algorithm = plan.simulation.algorithm
    if not directory.manifest.is_file():
        read_secret(algorithm, directory.path)
        held.enter_context(RunDirectory.create(directory.path))
        write_run_metadata(plan, directory)
        return
    held.enter_context(directory.hold())
    manifest, where = directory.read_manifest(), directory.path
    began = manifest["config"]
    if not plan.is_own:
        began = to_tables(parse(began, str(where)))
    refuse_changes(f"{where} (in {COMPARISON})", began, plan.tables)
    refuse_other_data(where, manifest, plan.simulation.federation)
    directory.check_file(directory.split)
    expect_secret(algorithm, manifest)
    read_secret(algorithm, where)


def _common_position(directories: Sequence[RunDirectory]) -> Position:
    """The latest moment of which every run that still went has a checkpoint."""
    held = []
    for directory in directories:
        held.append(set(checkpoint.whole_positions(directory.checkpoint)))
        if len(held[-1]) < checkpoint.count(directory.checkpoint):
            _log.warning(
                "%s: not a whole checkpoint, or the one beside it is none. The other "
                "is used, or the start.",
                directory.checkpoint,
            )
    failed = [directory.failed_at() for directory in directories]

    def is_common(at: Position) -> bool:
        return all(
            at in own or (end is not None and end < at)
            for own, end in zip(held, failed, strict=True)
        )

    return max(filter(is_common, set().union(*held)), default=START)


def is_finished(directory: RunDirectory, rounds: int) -> bool:
    """Whether a run is at its last round, or failed on the way."""
    if directory.read_failure() is not None:
        return True
    return checkpoint.newest_position(directory.checkpoint) == Position(rounds, 0)
