"""Training alone beside a comparison: as long as each client of each method works.

The runs lie in alone/TITLE/seed-N. All clients train in every round, whatever the
cohorts of the methods; a client stops when no method has given it more work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.algorithms import Local
from fedloom.clients import Federation, Sampling
from fedloom.comparison.settings import Comparison, run_directory
from fedloom.config import RunConfig, read_toml
from fedloom.core.algorithm import Algorithm, AnyAlgorithm
from fedloom.export.alone import (
    alone_for,
    alone_like,
    clients_at,
    put_together,
    rounds_for,
    work_per_round,
)
from fedloom.fleet.faults import Faults
from fedloom.results.directory import RunDirectory
from fedloom.results.outcomes import RunOutcomes
from fedloom.results.reader import ALONE

_TIMES = (0.25, 0.5, 1, 2, 4)
"""How long training alone is tried for its own sake, for each round that the average
client of a method takes part in."""


@dataclass(frozen=True)
class AloneRun:
    """One way to train alone, and the methods that it is the yardstick of."""

    title: str
    """Name of its folder."""
    local: Local
    arms: tuple[str, ...]
    """The methods, by their titles."""
    tried: tuple[int, ...] = ()
    """Rounds at which everybody's outcomes are wanted, whatever the methods did."""


def alone_runs(comparison: Comparison, clients: Sequence[Federation]) -> list[AloneRun]:
    """How clients train alone, once for every group of equal settings.

    How long they train for their own sake is tried only where validation data can
    choose.

    Args:
        comparison: whose methods are measured by it.
        clients: those of every seed.
    """
    methods = comparison.algorithms
    base = base_settings(methods)
    can_choose = any(len(federation.validation.indices) for federation in clients)
    groups: dict[Local, list[str]] = {base: []} if can_choose else {}
    for arm, method in methods.items():
        if not isinstance(method, Local):
            groups.setdefault(alone_for(method, base), []).append(arm)
    free = "local" if "local" not in methods else "local, alone"
    own = next((arm for arm, method in methods.items() if method == base), free)
    runs = []
    for local, arms in groups.items():
        is_tried = can_choose and local == base
        tried = tried_rounds(comparison) if is_tried else ()
        title = own if local == base else arms[0]
        runs.append(AloneRun(title, local, tuple(arms), tried))
    return runs


def base_settings(methods: Mapping[str, AnyAlgorithm]) -> Local:
    """How clients of a comparison train alone.

    As its arm of Local does; where it has none, with the settings that were given to
    all methods alike, and with Local's defaults for what was not.

    Args:
        methods: every method by its title; an arm called local comes before others
            that are Local.
    """
    own = {arm: method for arm, method in methods.items() if isinstance(method, Local)}
    if own:
        return own.get("local", next(iter(own.values())))
    settings: dict[str, Any] = {}
    for name in (f.name for f in fields(Algorithm)):
        values = [getattr(method, name) for method in methods.values()]
        is_set = any(
            getattr(method, name) != getattr(type(method), name, None)
            for method in methods.values()
        )
        if is_set and all(value == values[0] for value in values):
            settings[name] = values[0]
    return alone_like(Local(**settings))


def tried_rounds(comparison: Comparison) -> tuple[int, ...]:
    """How long training alone is tried, from the shortest to the longest.

    As long as an arm of Local trains, and around the rounds that the average client of
    a method takes part in, so that it costs no more where cohorts are small.
    """
    config = comparison.config(next(iter(comparison.arms)), comparison.seeds[0])
    rounds, sampling = config.schedule.rounds, config.sampling
    part = sampling.rate if sampling.protocol == "train-selected" else 1.0
    tried = {max(1, round(times * part * rounds)) for times in _TIMES}
    if any(isinstance(method, Local) for method in comparison.algorithms.values()):
        tried.add(rounds)
    return tuple(sorted(tried))


def alone_directory(out: Path, title: str, seed: int) -> Path:
    """Where a run of training alone lies."""
    return out / ALONE / title / f"seed-{seed}"


@dataclass(frozen=True, eq=False)
class AlonePlan:
    """How long each client trains alone, seed by seed."""

    rounds: int
    """The longest."""
    wanted: tuple[Mapping[int, NDArray[np.int64]], ...]
    """By seed, for every round at which outcomes are wanted, whose."""
    last: tuple[NDArray[np.int64], ...]
    """By seed, (M,) the last round of each client."""


def alone_config(config: RunConfig, local: Local, rounds: int) -> RunConfig:
    """A run of training alone: everybody in every round, scored at its end.

    Args:
        config: of any method of the comparison, with the seed of this run.
        local: how clients train.
        rounds: for how long.
    """
    # It may take more rounds than the methods, and nothing of it is sent: a budget of
    # theirs would only stop it after they were trained.
    privacy = config.privacy and replace(config.privacy, budget=None)
    return replace(
        config,
        algorithm=local,
        privacy=privacy,
        schedule=replace(config.schedule, rounds=rounds, evaluate_every=rounds),
        sampling=Sampling(),
        faults=Faults(),
    )


def plan_alone(
    run: AloneRun, comparison: Comparison, out: Path, clients: list[Federation]
) -> AlonePlan:
    """How long everybody has to train alone, from what the methods' clients did.

    Args:
        run: what is planned.
        comparison: whose methods are all trained.
        out: its directory.
        clients: those of every seed.
    """
    wanted, last = [], []
    for seed, federation in zip(comparison.seeds, clients, strict=True):
        everyone = np.arange(federation.count)
        at = dict.fromkeys(run.tried, everyone)
        longest = np.full(federation.count, max(run.tried, default=0))
        for arm in run.arms:
            work = _work(RunDirectory(run_directory(out, arm, seed)))
            if work is None:
                continue
            rounds = rounds_for(run.local, federation.sizes, work)
            longest = np.maximum(longest, rounds)
            for round_, members in clients_at(rounds).items():
                at[round_] = np.union1d(at.get(round_, members), members)
        wanted.append(at)
        last.append(longest)
    most = max(int(rounds.max()) for rounds in last)
    for rounds in last:
        rounds[rounds.argmax()] = most  # A round needs somebody, in every seed.
    return AlonePlan(most, tuple(wanted), tuple(last))


def write_alone(
    run: AloneRun, comparison: Comparison, out: Path, clients: list[Federation]
) -> int:
    """Give every run of some methods the outcomes of training alone as long.

    Args:
        run: training alone, finished or diverged.
        comparison: whose methods they are.
        out: its directory.
        clients: those of every seed.

    Returns:
        For how many runs training alone diverged before it had worked as much.
    """
    failed = 0
    for seed, federation in zip(comparison.seeds, clients, strict=True):
        alone = RunDirectory(alone_directory(out, run.title, seed))
        per_round = work_per_round(run.local, federation.sizes)
        for arm in run.arms:
            directory = RunDirectory(run_directory(out, arm, seed))
            own = directory.read_outcomes()
            if own is None or own.work is None or directory.read_failure() is not None:
                continue
            rounds = rounds_for(run.local, federation.sizes, own.work)
            read = partial(outcomes_alone, alone)
            outcomes = put_together(own, rounds, per_round, read)
            if outcomes is None:
                failed += 1
            else:
                outcomes.write(directory.alone_outcomes, lasting=True)
    return failed


def outcomes_alone(alone: RunDirectory, round_: int) -> RunOutcomes | None:
    """What training alone came to in a round that was wanted; None if it did not.

    If its models are far worse than none at the end, those on the way count neither.
    What was there before numbers stopped being finite does.

    Args:
        alone: the directory of a run of training alone.
        round_: as many rounds.
    """
    failed = alone.failed_at()
    if failed is not None:
        planned = read_toml(alone.config)["rounds"]
        if failed[0] >= planned:
            return None
    return alone.read_outcomes(round_)


def is_alone_done(run: AloneRun, comparison: Comparison, out: Path) -> bool:
    """Whether all that training alone is needed for is there, or cannot be had."""
    for seed in comparison.seeds:
        alone = RunDirectory(alone_directory(out, run.title, seed))
        if alone.read_failure() is not None:
            continue
        if run.tried and run.tried[-1] not in alone.outcome_rounds():
            return False
        for arm in run.arms:
            directory = RunDirectory(run_directory(out, arm, seed))
            has_work = _work(directory) is not None
            if has_work and not directory.alone_outcomes.is_file():
                return False
    return True


def _work(directory: RunDirectory) -> NDArray[np.int64] | None:
    """(M,) what a run's clients did; None if it failed or recorded no outcomes."""
    if directory.read_failure() is not None:
        return None
    outcomes = directory.read_outcomes()
    return outcomes.work if outcomes is not None else None
