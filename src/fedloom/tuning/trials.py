"""A trial: runs of one method with some settings, scored on validation data alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedloom.clients import Federation
from fedloom.clients.ragged import Ragged
from fedloom.comparison import Comparison
from fedloom.config import RunConfig
from fedloom.core.errors import DataError, NumericalError
from fedloom.engine.threads import on_threads
from fedloom.plan import Plan, make_clients, make_module, make_plan, plan_for
from fedloom.progress import Part
from fedloom.reports.units import unit_of
from fedloom.server.history import History
from fedloom.server.schedule import train
from fedloom.tuning.space import Range

Clients = Sequence[tuple[RunConfig, Federation]]
"""For each seed the config with its partition chosen, and the clients."""


class TrialResult(NamedTuple):
    """What came of a trial."""

    score: float | None
    """Mean over clients and seeds of the personal models' scores; None if it failed."""
    why: str = ""
    """Why it failed."""

    def written(self, metric: str) -> str:
        """The score as a reader wants it, or why there is none."""
        if self.score is None:
            return f"failed: {self.why}"
        return unit_of(metric, [self.score]).score(self.score)


@dataclass(frozen=True, eq=False)
class Trials:
    """One method's part of a search."""

    comparison: Comparison
    arm: str
    space: tuple[Range, ...]
    clients: Clients
    data_dir: Path | None
    start: Callable[..., Future[TrialResult]] | None = None
    """What calls a function in a worker of a cluster, where seeds train at once."""
    progress: Part | None = None
    """Is told of every round that is trained in this process, and of every trial."""

    @property
    def metric(self) -> str:
        """What is scored."""
        is_regression = self.clients[0][1].dataset.classes is None
        return "mse" if is_regression else "accuracy"

    @property
    def rounds(self) -> int:
        """Rounds of a trial, over all its seeds."""
        config = self.comparison.config(self.arm, self.comparison.seeds[0])
        return config.schedule.rounds * len(self.comparison.seeds)

    def configs(self, settings: Mapping[str, Any]) -> list[RunConfig]:
        """A config per seed.

        Raises:
            ConfigError: the method refuses these values together.
        """
        arms = {**self.comparison.arms}
        arms[self.arm] = {**arms[self.arm], **settings}
        changed = replace(self.comparison, arms=arms)
        if changed.own is not None:
            method = replace(changed.own.algorithms[self.arm], **settings)
            algorithms = {**changed.own.algorithms, self.arm: method}
            changed = replace(changed, own=replace(changed.own, algorithms=algorithms))
        configs = []
        for seed, (divided, _) in zip(changed.seeds, self.clients, strict=True):
            config = changed.config(self.arm, seed)
            last = replace(config.schedule, evaluate_every=config.schedule.rounds)
            configs.append(replace(config, schedule=last, partition=divided.partition))
        return configs

    def run(self, configs: Sequence[RunConfig]) -> TrialResult:
        """Train, and score the last round; a run that diverges is a failed trial."""
        scores = []
        for result in self._by_seed(configs):
            if result.score is None:
                return result
            scores.append(result.score)
        score = sum(scores) / len(scores)
        if not math.isfinite(score):
            return TrialResult(None, f"the score on validation data is {score}.")
        return TrialResult(score)

    def _by_seed(self, configs: Sequence[RunConfig]) -> Iterator[TrialResult]:
        if self.start is None:
            yield from (self.run_seed(config, n) for n, config in enumerate(configs))
            return
        started = [self.start(_work, config, n) for n, config in enumerate(configs)]
        yield from (future.result() for future in started)

    def run_seed(self, config: RunConfig, n: int) -> TrialResult:
        """Train and score with the n-th seed alone."""
        federation = self.clients[n][1]
        assert not federation.test.sizes.any()
        try:
            with on_threads(config.engine.threads):
                plan = self._plan(config, federation)
                history = History(plan.simulation)
                train(plan.schedule, history, self.progress)
        except NumericalError as error:
            return TrialResult(None, str(error))
        numbers = history.rounds[-1].scores["personal"]["validation"]
        return TrialResult(numbers[self.metric])

    def _plan(self, config: RunConfig, federation: Federation) -> Plan:
        own = self.comparison.own
        if own is None:
            return make_plan(config, federation, self.data_dir)
        module = make_module(own.model, federation, config.schedule.seed)
        return plan_for(
            config, module, federation, loss=own.loss, head=own.head, is_own=True
        )


_here: list[Trials] = []
"""In a worker of a cluster: what all trials are made of."""


def begin_worker(trials: Trials) -> None:
    """In a worker of a cluster, before the first trial."""
    _here[:] = [trials]


def _work(config: RunConfig, n: int) -> TrialResult:
    """One seed of a trial, in a worker of a cluster."""
    return _here[0].run_seed(config, n)


def make_clients_to_tune_on(
    comparison: Comparison, seed: int, data_dir: Path | None
) -> tuple[RunConfig, Federation]:
    """The clients of one seed without their test samples.

    Raises:
        DataError: nobody has a validation sample.
    """
    arm = next(iter(comparison.arms))
    config, own = comparison.config(arm, seed), comparison.own
    if own is None:
        config, federation = make_clients(config, data_dir)
    else:
        federation = own.clients
    if not federation.validation.sizes.any():
        raise DataError(
            f"{federation.dataset.name}: no client has a validation sample. Raise "
            "split.validation, in Python split=Split(validation=0.2), or give clients "
            "more samples."
        )
    nothing = Ragged.of([np.arange(0)] * federation.count)
    return config, replace(federation, test=nothing)
