"""A unit of an experiment is trained: one arm in one setting, all seeds in one pass.

Its runs are ordinary run directories, so that one that was stopped goes on where it
was. A unit whose settings were changed since gets folders of its own.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedloom.comparison.seeds import Clients, Job, Run, plan_run, train_seeds
from fedloom.comparison.settings import Comparison
from fedloom.config import RunConfig
from fedloom.core.errors import DataError
from fedloom.core.files import remove
from fedloom.data.dataset import Dataset
from fedloom.experiments.catalogue import family
from fedloom.experiments.collect import collect
from fedloom.experiments.experiment import Experiment, Unit
from fedloom.experiments.stored import StoredUnit, environment, now
from fedloom.plan import make_clients
from fedloom.results.directory import RunDirectory, checkpoint_before
from fedloom.server.schedule import Progress

_log = logging.getLogger(__name__)


class Trainer:
    """Trains units, and loads data once for all that have the same clients.

    Args:
        out: below it lie the runs.
        device: what computes; None is what the settings say.
        data_dir: where the files of named datasets lie.
        progress: is told of every round.
    """

    def __init__(
        self,
        out: Path,
        device: str | None = None,
        data_dir: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._out, self._device, self._data_dir = out, device, data_dir
        self._progress = progress
        self._data: tuple[str, Dataset] | None = None
        self._clients: tuple[str, Clients] | None = None

    def train(self, experiment: Experiment, unit: Unit, scale: str) -> StoredUnit:
        """Train all seeds of a unit, or what is left of them.

        Args:
            experiment: whose it is.
            unit: which arm, in which setting.
            scale: small or paper.

        Returns:
            What is stored of it.
        """
        began = time.monotonic()
        seeds = experiment.seeds_at(scale)
        configs = [self._config(experiment, unit, scale, seed) for seed in seeds]
        clients = self._load(configs)
        job = Job(Comparison(arms={}, seeds=seeds, common={}), self._out, None, "", 1)
        folder = self.folder(experiment, unit, scale)

        def plan(n: int) -> Run:
            path = folder / f"seed-{seeds[n]}"
            return plan_run(job, configs[n], path, clients, n)

        histories = train_seeds(plan, len(seeds), "", self._progress)
        directories = [RunDirectory(folder / f"seed-{seed}") for seed in seeds]
        if not any(arm.start for arm in experiment.arms.values()):
            for directory in directories:
                # They are by far the largest files, and nobody goes on from them.
                remove(directory.checkpoint)
                remove(checkpoint_before(directory.checkpoint))
        collected = collect(family(experiment.name), unit, directories, clients)
        return StoredUnit(
            digest=experiment.digest(unit, scale),
            seeds=seeds,
            seconds=round(time.monotonic() - began, 1),
            created=now(),
            environment=environment(histories[0].training.task.device),
            **collected,
        )

    def folder(self, experiment: Experiment, unit: Unit, scale: str) -> Path:
        """Where the runs of a unit lie."""
        own = f"{unit.arm}-{experiment.digest(unit, scale)}"
        return self._out / experiment.name / scale / unit.setting / own

    def _config(
        self, experiment: Experiment, unit: Unit, scale: str, seed: int
    ) -> RunConfig:
        config = experiment.config(unit, scale, seed)
        if self._device is not None:
            engine = replace(config.engine, device=self._device)
            config = replace(config, engine=engine)
        start = experiment.arms[unit.arm].start
        if not start:
            return config
        setting, _, arm = start.rpartition(":")
        before = Unit(setting or unit.setting, arm)
        path = self.folder(experiment, before, scale) / f"seed-{seed}"
        if not RunDirectory(path).manifest.is_file():
            raise DataError(
                f"{experiment.name} [{unit}]: starts from the model of {before}, and "
                f"{path} holds no run. Train that one first, on this machine."
            )
        return replace(config, schedule=replace(config.schedule, warm_start=str(path)))

    def _load(self, configs: list[RunConfig]) -> Clients:
        """The clients of every seed; those of the unit before, if they are the same."""
        parts = ("data", "partition", "split", "transform", "teams")
        asked = [[repr(getattr(config, part)) for part in parts] for config in configs]
        key = json.dumps([asked, [config.schedule.seed for config in configs]])
        if self._clients is None or self._clients[0] != key:
            self._clients = None  # room for the others
            self._clients = key, [self._divide(config) for config in configs]
        return self._clients[1]

    def _divide(self, config: RunConfig) -> Any:
        key = repr(config.data)
        is_same = self._data is not None and self._data[0] == key
        dataset = self._data[1] if self._data is not None and is_same else None
        if config.data.depends_on_seed:
            dataset = None
        divided = make_clients(config, self._data_dir, dataset=dataset)
        self._data = key, divided[1].dataset
        return divided
