"""A client who was never there gets a model of its own from a trained run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from fedloom.clients import Federation, Ragged, Split
from fedloom.core.errors import ConfigError, DataError, NumericalError, shown
from fedloom.core.reprs import without_values
from fedloom.core.settings import LARGEST, Count, accepts
from fedloom.core.task import Task
from fedloom.core.wording import counted
from fedloom.data.dataset import Dataset
from fedloom.data.new_samples import Inputs, inputs_like, targets_like
from fedloom.export.alone import alone_like
from fedloom.export.exported_model import ExportedModel, RunInfo, module_of, scores_of
from fedloom.export.folders import export
from fedloom.reports.units import Unit, unit_of
from fedloom.results.scores import Scores
from fedloom.results.statistics import accuracy_error, share_interval
from fedloom.server.simulation import Simulation
from fedloom.server.visit import Visit


@without_values
@dataclass(frozen=True, eq=False)
class Newcomer:
    """A client who joined a trained run; prints as a sentence."""

    name: str
    module: nn.Module
    """Its personal model, an ordinary module."""
    metric: str
    """What the scores are: accuracy, or mse."""
    samples: int
    """Its training samples."""
    tested: int
    """Its test samples, which the scores are taken on."""
    steps: int
    """Gradient steps that its model took."""
    team: int
    """The team that it joined; 0 where there are none."""
    scores: Sequence[Scores]
    """Every kind of model on its test data; empty if it has none."""
    alone: float
    """Score of as many steps of training alone, from the run's first model."""
    alone_throughout: float
    """Score of training alone for as many rounds as the run had."""
    run: RunInfo
    visit: Visit

    @property
    def score(self) -> float:
        """Score of its personal model."""
        return self._score("personal")

    @property
    def shared(self) -> float | None:
        """Score of the run's shared model on its data; None if there is none."""
        has_shared = self.visit.shared() is not None
        return self._score("shared") if has_shared else None

    @property
    def gain(self) -> float:
        """What it gains over as much training alone; positive is better."""
        return self._over(self.alone)

    @property
    def gain_throughout(self) -> float:
        """What it gains over training alone for as many rounds as the run had."""
        return self._over(self.alone_throughout)

    @property
    def gain_over_shared(self) -> float | None:
        """What it gains over the shared model; None if there is none."""
        return None if self.shared is None else self._over(self.shared)

    def predict(self, x: Inputs) -> Tensor:
        """What its model says of new inputs, as `Result.predict`."""
        inputs = inputs_like(self.visit.federation.dataset, x)
        return average_prediction(self.visit.task, self.visit.models(), inputs)

    def sentence(self) -> str:
        """What it gains, in one line."""
        if not self.tested:
            return (
                f"{self.name}: {self.samples} training samples and none to test on, so "
                "there is no score"
            )
        unit = unit_of(self.metric, [self.score, self.alone])
        text = (
            f"{self.name}: {self.metric} {unit.score(self.score)} on "
            f"{counted(self.tested, 'test sample')}{self._interval(unit)} after "
            f"{self.steps} steps; gain over as many steps alone {unit.gap(self.gain)}, "
            f"over training alone throughout {unit.gap(self.gain_throughout)}"
        )
        if self.gain_over_shared is not None:
            text += f", over the shared model {unit.gap(self.gain_over_shared)}"
        return text + self._doubt(unit)

    def _interval(self, unit: Unit) -> str:
        """How sure the score is, by the number of test samples alone."""
        if self.metric != "accuracy":
            return ""
        low, high = share_interval(self.score, self.tested)
        return f" (95 % interval {unit.score(low)} to {unit.score(high)})"

    def _doubt(self, unit: Unit) -> str:
        """How far a gain may be off, by the number of test samples alone."""
        if self.metric != "accuracy":
            return ""
        error = accuracy_error(np.array([self.score]), np.array([float(self.tested)]))
        most = 1.96 * math.sqrt(2) * float(error[0])
        samples = counted(self.tested, "test sample")
        return f"; with {samples} a gain may be off by {unit.number(most)}{unit.points}"

    def exported_model(self) -> ExportedModel:
        """Ready to be written like any other model."""
        return ExportedModel(
            kind="newcomer",
            client=self.name,
            samples=self.samples,
            module=self.module,
            scores=scores_of(self.scores, 0),
            remarks=[f"Gain: {self.sentence()}."] if self.tested else [],
        )

    def export(self, out: str | Path, *, fresh: bool = False) -> Path:
        """Write its model to a new directory, with a card, as `Result.export`."""
        return export(self.run, [self.exported_model()], Path(out), fresh=fresh)

    def __str__(self) -> str:
        return self.sentence()

    def _score(self, kind: str) -> float:
        for scores in self.scores:
            if scores.kind == kind:
                return float(scores.of()[0])
        return math.nan

    def _over(self, other: float) -> float:
        gap = self.score - other
        return -gap if self.metric == "mse" else gap


def personalize(
    host: Simulation,
    run: RunInfo,
    x: Inputs,
    y: ArrayLike | Tensor,
    *,
    name: str = "newcomer",
    test: float = 0.25,
    rounds: int = 1,
    team: int | None = None,
) -> Newcomer:
    """Give a client who was never there a model, on the method's own path.

    It is sent what the server sends a client that was never sampled, trains for a round
    without uploading, and its model is what the method then calls personal, adapted if
    the method adapts. Nobody else's model changes.

    Args:
        host: the trained run.
        run: what is said of it where its models are exported.
        x: its inputs, like those of the run.
        y: its targets, like those of the run.
        name: what to call it.
        test: share of its samples kept for testing.
        rounds: how many rounds it trains.
        team: the team that it joins; if not given, the one whose model fits its
            training data best.
    """
    if not accepts(Count, rounds):
        raise ConfigError(
            f"personalize: rounds must be at least 1 and at most {LARGEST}, "
            f"found {shown(rounds)}."
        )
    federation = _alone(host, x, y, name, test)
    joined = _closest_team(host, federation) if team is None else team
    visit = Visit(host, federation, team=joined)
    steps = sum(visit.train() for _ in range(rounds))
    theta, adaptation_steps = visit.adapt()
    steps += adaptation_steps
    has_test = bool(federation.test.sizes.any())
    return Newcomer(
        name=name,
        module=module_of(visit.task, theta),
        metric=visit.task.metric,
        samples=int(federation.sizes[0]),
        tested=int(federation.test.sizes[0]),
        steps=steps,
        team=joined,
        scores=visit.evaluate() if has_test else (),
        alone=_train_alone(visit, 1, steps=max(steps, 1)),
        alone_throughout=_train_alone(visit, host.state.round),
        run=run,
        visit=visit,
    )


def average_prediction(
    task: Task, thetas: Tensor, inputs: tuple[Tensor, ...]
) -> Tensor:
    """What models, (k, d), say together: probabilities, or numbers for a regression."""
    with torch.no_grad():
        outputs = task.predict_average(thetas, tuple(x.to(task.device) for x in inputs))
    return outputs.exp() if task.metric == "accuracy" else outputs


def _alone(
    host: Simulation, x: Inputs, y: ArrayLike | Tensor, name: str, test: float
) -> Federation:
    """A federation of the newcomer alone, in the terms of the run's data."""
    like = host.federation.dataset
    inputs, targets = inputs_like(like, x), targets_like(like, y)
    if len(inputs[0]) != len(targets):
        raise DataError(
            f"{name}: {len(inputs[0])} samples and {len(targets)} targets. Give as "
            "many."
        )
    dataset = Dataset(
        name=name,
        inputs=inputs,
        targets=targets,
        classes=like.classes,
        shift=like.shift,
        scale=like.scale,
        class_names=like.class_names,
        features=like.features,
    )
    everything = Ragged.of([np.arange(len(dataset), dtype=np.int64)])
    split = Split(test=test)
    train, validation, tested = split.apply(dataset, everything, [name], host.seed)
    return Federation(
        dataset, train, validation, tested, (name,), np.zeros(1, dtype=np.int64)
    )


def _closest_team(host: Simulation, federation: Federation) -> int:
    """The team whose model has the smallest loss on the newcomer's training data."""
    models = host.algorithm.team_models(host.state.server, host.task)
    if models is None:
        return 0
    device, rows = host.task.device, torch.as_tensor(federation.train[0])
    inputs = tuple(part[rows].to(device) for part in federation.dataset.inputs)
    targets = federation.dataset.targets[rows].to(device)
    with torch.no_grad():
        losses = [host.task.measure(m, inputs, targets).loss.mean() for m in models]
    return int(torch.stack(losses).argmin())


def _train_alone(visit: Visit, rounds: int, **changes: int) -> float:
    """Score on test data of local training from the run's first model."""
    federation = visit.federation
    if not federation.test.sizes.any():
        return math.nan
    method = alone_like(visit.algorithm, **changes)
    simulation = Simulation(
        method, visit.task, federation, visit.runner, seed=visit.seed
    )
    try:
        for _ in range(rounds):
            simulation.run_exchange()
    except NumericalError:
        return math.nan
    (personal,) = simulation.evaluate("test").scores
    return float(personal.of()[0])
