"""The most local work that a method can ask of a client, known without its samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.phases import Phase
from fedloom.core.task import Batch, Task
from fedloom.data.dataset import Dataset
from fedloom.engine.footprint import first_download, made_up_client


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
        down = first_download(algorithm, task).take(0).record
        client = made_up_client(task)
        memory = algorithm.initial_memory(down, client, task)
        zero = torch.zeros((), dtype=torch.int64, device=task.device)
        batch = Batch(
            inputs=tuple(x.to(task.device) for x in sample.inputs),
            targets=sample.targets.to(task.device),
            mask=torch.ones(1, dtype=task.dtype, device=task.device),
            key=zero,
            step=zero,
            ends_epoch=zero > 0,
            round=zero,
        )
        work = algorithm.begin(down, memory, client, task)
        passes = []
        for phase in algorithm.phases:
            watched = task.watched(clip=algorithm.clip)
            step = getattr(algorithm, phase.step)
            batches = (batch,) * phase.batches
            work = step(work, down, batches if phase.batches > 1 else batch, watched)
            passes.append(round(float(watched.met_samples())))
        return cls(algorithm.phases, tuple(passes), algorithm.batch_size)

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
