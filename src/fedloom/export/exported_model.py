"""A model that is taken out of a run, and all that can be said of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedloom.clients.federation import Federation
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.reprs import without_values
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.results.scores import Scores
from fedloom.server.simulation import Simulation


@without_values
@dataclass(frozen=True, eq=False)
class RunInfo:
    """The run that a model comes from."""

    task: Task
    algorithm: AnyAlgorithm
    federation: Federation
    """The clients whose data are at hand."""
    clients: int
    """How many clients trained together."""
    seed: int
    round: int
    """The last round."""
    config: Mapping[str, Any]
    """The resolved settings; without [data] and [model] if these came from Python."""
    manifest: Mapping[str, Any]
    """Versions, seed, hardware; empty for a run without a directory."""

    @property
    def dataset(self) -> Dataset:
        """What the models were trained on."""
        return self.federation.dataset

    @classmethod
    def of(
        cls,
        simulation: Simulation,
        config: Mapping[str, Any],
        manifest: Mapping[str, Any],
    ) -> RunInfo:
        """Of a simulation, which has all clients."""
        return cls(
            task=simulation.task,
            algorithm=simulation.algorithm,
            federation=simulation.federation,
            clients=simulation.federation.count,
            seed=simulation.seed,
            round=simulation.state.round,
            config=config,
            manifest=manifest,
        )

    @property
    def data_name(self) -> str:
        """What a card calls the data: of a file its name, not where it lay."""
        is_file = self.config.get("data", {}).get("name") == "file"
        return Path(self.dataset.name).name if is_file else self.dataset.name


@dataclass(frozen=True)
class Score:
    """How a model did on one part of the data."""

    kind: str
    part: str
    samples: int
    numbers: Mapping[str, float]


@without_values
@dataclass(frozen=True, eq=False)
class ExportedModel:
    """One model, ready to be written down."""

    kind: str
    """What it is: personal, shared or newcomer."""
    client: str | None
    """The client whose model it is; None for the shared one."""
    samples: int
    """Training samples of that client, or of all of them."""
    module: nn.Module
    scores: Sequence[Score]
    number: int | None = None
    """The client's number in the run; None for the shared model and for newcomers."""
    remarks: Sequence[str] = ()
    """What else is known of it, a sentence each, such as its gain."""

    @property
    def title(self) -> str:
        """What a card is headed by."""
        if self.client is None:
            return "The model that all clients share"
        newcomer = ", who joined later" if self.kind == "newcomer" else ""
        return f"The model of client {self.client}{newcomer}"


def module_of(task: Task, theta: Tensor) -> nn.Module:
    """An ordinary module of the user's own class, with these parameters."""
    return task.ordinary_module(theta)


def scores_of(scores: Sequence[Scores], row: int) -> list[Score]:
    """One client's scores; parts in which it has no sample are left out."""
    kept = []
    for s in scores:
        if s.samples[row]:
            names = dict.fromkeys([s.metric, *s.values])  # the task's metric first
            values = {name: float(s.values[name][row]) for name in names}
            kept.append(Score(s.kind, s.part, int(s.samples[row]), values))
    return kept
