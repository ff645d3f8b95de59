"""Experiments are rerun in order, unit by unit; what is stored is not run again."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from fedloom.core.errors import FedloomError
from fedloom.core.wording import counted
from fedloom.experiments.catalogue import load_experiment, needed_data
from fedloom.experiments.experiment import Experiment, Unit
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
    stop_after: float | None = None,
    tell: Tell = lambda text: None,
) -> Outcome:
    """Run what is not stored yet, and store each unit as soon as it is done.

    Args:
        names: of the experiments, the most important first.
        scale: small or paper.
        results: the folder of all stored results.
        trainer: what trains units.
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
        todo += [(experiment, unit) for unit in units]
    done = 0
    with _time_limit(stop_after) as limit:
        try:
            while todo:
                experiment, unit = todo[0]
                try:
                    stored = _run_unit(experiment, unit, scale, trainer)
                except (FedloomError, RuntimeError) as error:
                    # Of PyTorch's own, such as a GPU without room: others may fit.
                    problems.append(f"{experiment.name} [{unit}]: {error}")
                    tell(problems[-1])
                    todo.pop(0)
                    continue
                add_stored(experiment, scale, results, stored)
                done += 1
                tell(_line(experiment, stored))
                todo = [t for t in todo if t[0] is not experiment or t[1] not in stored]
        except KeyboardInterrupt:
            if not limit.is_over:
                raise
            tell(f"{stop_after:g} minutes are over; the same command goes on")
    left = tuple(f"{experiment.name} [{unit}]" for experiment, unit in todo)
    return Outcome(done, left, tuple(problems))


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


def _run_unit(
    experiment: Experiment, unit: Unit, scale: str, trainer: Trainer
) -> Mapping[Unit, StoredUnit]:
    """One unit; or all at once of an experiment that a program computes."""
    if not experiment.program:
        return {unit: trainer.train(experiment, unit, scale)}
    program = import_module(f"fedloom.experiments.{experiment.program}")
    computed: Mapping[Unit, StoredUnit] = program.compute(experiment, scale)
    return computed


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
        if own is not None:
            numbers.append(f"{name} {written(own.mean, experiment)}")
    failed = len(stored.failures)
    diverged = f"; {counted(failed, 'seed')} diverged" if failed else ""
    listed = ", ".join(numbers)
    return (
        f"{clock} {experiment.name} [{unit}]: {listed}{diverged} "
        f"({stored.seconds:.0f} s, {counted(len(stored.seeds), 'seed')})"
    )
