"""The most local work that a method can ask of a client, known without its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.phases import Phase
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.effort import efforts


class MostWork(NamedTuple):
    """What a report on the local work of an exchange can say at most."""

    steps: int
    gradients: int


@dataclass(frozen=True)
class WorkLimits:
    """What one exchange of a method takes at most."""

    phases: tuple[Phase, ...]
    passes: tuple[int, ...]
    """By phase, how often a step takes a sample of its batch into a gradient."""
    batch_size: int

    @classmethod
    def of(cls, algorithm: AnyAlgorithm, task: Task, sample: Dataset) -> WorkLimits:
        """Take one step of every phase.

        Args:
            algorithm: the method.
            task: model and loss.
            sample: one sample, whatever it says.
        """
        taken = efforts(algorithm, task, sample.inputs, sample.targets)
        passes = tuple(effort.passes for effort in taken)
        return cls(algorithm.phases, passes, algorithm.batch_size)

    def most(self, samples: int, clients: int = 1) -> MostWork:
        """What clients with so many training samples together can have done.

        Args:
            samples: of all of them.
            clients: how many there are.
        """
        steps = gradients = 0
        for phase, passes in zip(self.phases, self.passes, strict=True):
            if phase.epochs is not None:
                room = self.batch_size - 1
                steps += phase.epochs * ((samples + clients * room) // self.batch_size)
                gradients += passes * phase.epochs * samples
            elif phase.steps is not None:
                steps += phase.steps * clients
                width = min(self.batch_size, samples)
                gradients += passes * phase.steps * clients * width
            else:
                steps += (phase.passes or 0) * clients
                gradients += passes * (phase.passes or 0) * samples
        return MostWork(steps, gradients)
