"""Experiments are rerun in order, unit by unit; what is stored is not run again."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fedloom.core.errors import FedloomError
from fedloom.core.wording import counted
from fedloom.experiments.catalogue import load_experiment, needed_data
from fedloom.experiments.experiment import Experiment, Unit
from fedloom.experiments.jobs import each
from fedloom.experiments.search import with_found
from fedloom.experiments.stored import StoredUnit, read_stored, write_stored
from fedloom.experiments.training import Trainer
from fedloom.experiments.verdicts import measure, written

Tell = Callable[[str], None]


class Outcome(NamedTuple):
    """What became of several experiments."""

    done: int
    """Units that were trained now."""
    left: tuple[str, ...]
    """Units that are still to be trained, with the names of their experiments."""
    problems: tuple[str, ...]
    """What could not be run, and why."""


def reproduce(
    names: Sequence[str],
    scale: str,
    results: Path,
    trainer: Trainer,
    *,
    jobs: int = 1,
    stop_after: float | None = None,
    tell: Tell = lambda text: None,
) -> Outcome:
    """Run what is not stored yet, and store each unit as soon as it is done.

    Args:
        names: of the experiments, the most important first.
        scale: small or paper.
        results: the folder of all stored results.
        trainer: what trains units.
        jobs: units that are trained at the same time, each in a process of its own.
        stop_after: minutes after which no more is trained; what goes on then is
            secured, and goes on at the next call.
        tell: is told of every unit.
    """
    todo, problems = [], []
    sources = [load_experiment(name).source for name in names]
    for name in dict.fromkeys(sources):
        experiment = with_found(load_experiment(name), results, scale)
        absent = [d for d, place in needed_data(experiment).items() if place is None]
        if absent:
            problems.append(f"{name}: needs {', '.join(absent)} in FEDLOOM_DATA.")
            continue
        units = units_left(experiment, scale, results)
        if not units:
            tell(f"{name}: all is stored")
        todo += _tasks(experiment, units, scale)
    left = list(todo)
    done = 0

    def finish(task: Task, came: Mapping[Unit, StoredUnit] | str) -> None:
        nonlocal done
        left.remove(task)
        if isinstance(came, str):
            problems.append(came)
            tell(came)
            return
        add_stored(task.experiment, scale, results, came)
        done += len(came)
        tell(_line(task.experiment, came))

    with _time_limit(stop_after) as limit:
        try:
            # What starts from another one's model comes when that is there.
            for is_later in (False, True):
                tasks = [task for task in todo if task.is_later == is_later]
                each(tasks, partial(_run, trainer), jobs, finish)
        except KeyboardInterrupt:
            if not limit.is_over:
                raise
            tell(f"{stop_after:g} minutes are over; the same command goes on")
    names_left = [
        f"{task.experiment.name} [{unit}]" for task in left for unit in task.units
    ]
    return Outcome(done, tuple(names_left), tuple(problems))


class Task(NamedTuple):
    """What is trained in one go: a unit, or all of an experiment that is a program."""

    experiment: Experiment
    units: tuple[Unit, ...]
    scale: str

    @property
    def is_later(self) -> bool:
        """Whether it starts from a model of another unit."""
        return any(self.experiment.arms[unit.arm].start for unit in self.units)


def _tasks(experiment: Experiment, units: list[Unit], scale: str) -> list[Task]:
    if experiment.program:
        return [Task(experiment, tuple(units), scale)] if units else []
    return [Task(experiment, (unit,), scale) for unit in units]


def _run(trainer: Trainer, task: Task) -> Mapping[Unit, StoredUnit] | str:
    """What came of a task, or why nothing did."""
    experiment, units, scale = task
    try:
        if experiment.program:
            program = import_module(f"fedloom.experiments.{experiment.program}")
            computed: Mapping[Unit, StoredUnit] = program.compute(experiment, scale)
            return computed
        return {unit: trainer.train(experiment, unit, scale) for unit in units}
    except (FedloomError, RuntimeError) as error:
        # Of PyTorch's own, such as a GPU without room: others may fit.
        return f"{experiment.name} [{units[0]}]: {error}"


def units_left(experiment: Experiment, scale: str, results: Path) -> list[Unit]:
    """The units whose results are not stored, or were stored with other settings."""
    stored = read_stored(results, experiment.source, scale)
    return [
        unit
        for unit in experiment.units(scale)
        if str(unit) not in stored
        or stored[str(unit)].digest != experiment.digest(unit, scale)
    ]


def add_stored(
    experiment: Experiment,
    scale: str,
    results: Path,
    new: Mapping[Unit, StoredUnit],
) -> None:
    """Store units beside those that are stored, in the order of the experiment.

    Args:
        experiment: whose they are.
        scale: small or paper.
        results: the folder of all stored results.
        new: the units; others that the file does not name any more are dropped.
    """
    both = read_stored(results, experiment.name, scale)
    both |= {str(unit): own for unit, own in new.items()}
    order = [str(unit) for unit in experiment.units(scale)]
    kept = {unit: both[unit] for unit in order if unit in both}
    write_stored(results, experiment.name, scale, kept)


class _Limit:
    """Whether the time is over."""

    is_over = False


@contextmanager
def _time_limit(minutes: float | None) -> Iterator[_Limit]:
    """After so many minutes, what Ctrl-C does, once."""
    limit = _Limit()
    if minutes is None:
        yield limit
        return

    def end() -> None:
        limit.is_over = True
        _thread.interrupt_main()

    timer = threading.Timer(max(0.0, 60 * minutes), end)
    timer.daemon = True
    timer.start()
    try:
        yield limit
    finally:
        timer.cancel()


def _line(experiment: Experiment, new: Mapping[Unit, StoredUnit]) -> str:
    """What came of a unit; of many at once, how many they are."""
    clock = time.strftime("%H:%M")
    (unit, stored), *others = new.items()
    if others:
        return f"{clock} {experiment.name}: {counted(len(new), 'line')}"
    numbers = []
    for name in experiment.numbers:
        own = measure(experiment, {str(unit): stored}, unit, name)
        if own is not None and own.seeds:
            numbers.append(f"{name} {written(own.mean, experiment, name)}")
    failed = len(stored.failures)
    diverged = f"; {counted(failed, 'seed')} diverged" if failed else ""
    listed = ", ".join(numbers)
    return (
        f"{clock} {experiment.name} [{unit}]: {listed}{diverged} "
        f"({stored.seconds:.0f} s, {counted(len(stored.seeds), 'seed')})"
    )
