"""The slow, obvious runner: one client after another, no padding, no masks.

It stays for ever as the specification that `weave` is tested against, and replays a
round that went wrong to name the first culprit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import NumericalError
from fedloom.core.messages import CohortDownload, Report
from fedloom.core.records import leaves, stack, take
from fedloom.core.remarks import LOWER_RATE
from fedloom.core.streams import fold
from fedloom.core.task import Batch, Task
from fedloom.engine.job import (
    Job,
    LocalResults,
    Participants,
    Samples,
    noise_key,
    phase_key,
    plan_phase,
    planned_steps,
)


class Loop:
    """Trains clients one by participant.

    Args:
        culprit: stop with a `NumericalError` at the first loss or parameter that is
            not finite, and call the client so. Costs a look at every step.
    """

    def __init__(self, *, culprit: str | None = None) -> None:
        self.culprit = culprit

    def run(
        self, job: Job, sent: CohortDownload, participants: Participants
    ) -> LocalResults:
        """Run the job for each client in turn."""
        outcomes = [
            self._client(job, sent.take(n).record, take(participants, slice(n, n + 1)))
            for n in range(len(participants.rows))
        ]
        return stack(outcomes)

    def outputs_of(self, task: Task, samples: Samples) -> None:
        """Nothing but one row after another."""

    def alone(self) -> Loop:
        """The loop itself."""
        return self

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Apply a function to one row after another."""

        def rows(*records: Any) -> Any:
            count = len(leaves(records)[0])
            return stack([function(*take(records, n)) for n in range(count)])

        return rows

    def _client(self, job: Job, down: Any, participant: Participants) -> LocalResults:
        client, memory = take(participant.client, 0), take(participant.memory, 0)
        row = participant.rows[0]
        size = job.train.sizes[row]
        work = job.begin(down, memory, client, job.task)
        losses: list[Tensor] = []
        gradients = torch.zeros_like(size)
        for number, phase in enumerate(job.phases):
            step = job.method(phase.step)
            steps = planned_steps(phase, size[None], job.batch_size)
            if phase.length is not None:
                own = job.method(phase.length)(down, memory, client, job.task)
                steps = torch.minimum(steps, own[None].to(steps)).clamp(min=0)
            keys = phase_key(participant.keys, number)
            plan = plan_phase(phase, keys, size[None], steps, job.batch_size)
            noise = noise_key(job.noise_keys(participant, number), phase)
            for index in range(int(steps)):
                if phase.until is not None and bool(job.method(phase.until)(work)):
                    break
                batches = tuple(
                    self._batch(job, row, plan, index, which, client.round)
                    for which in range(phase.batches)
                )
                key = fold(noise[0], index)
                batches = tuple(b._replace(key=key) for b in batches)
                task = job.watched(job.scaling_at(row))
                batch = batches if phase.batches > 1 else batches[0]
                work = step(work, down, batch, task)
                if self.culprit is not None:
                    self._check(job, losses, task.met_loss(), work, number, index)
                if task.has_met_loss:
                    losses.append(task.met_loss())
                    gradients += task.met_samples().to(gradients)
        count = torch.tensor(len(losses), device=size.device)
        loss = torch.stack(losses).mean() if losses else client.size * 0
        result = job.finish(work, down, memory, client, job.task)
        return LocalResults(result, Report(loss, count, gradients))

    def _batch(
        self, job: Job, row: Tensor, plan: Any, index: int, which: int, round_: Tensor
    ) -> Batch:
        train = job.train
        mask = plan.mask[0, index, which]
        positions = plan.positions[0, index, which][mask]
        samples = train.indices[train.offsets[row] + positions]
        return Batch(
            inputs=tuple(x[samples] for x in train.inputs),
            targets=train.targets[samples],
            mask=torch.ones(len(samples), dtype=job.task.dtype, device=samples.device),
            key=samples.new_zeros(()),
            step=torch.tensor(index, device=samples.device),
            ends_epoch=plan.ends_epoch[0, index],
            round=round_,
        )

    def _check(
        self,
        job: Job,
        losses: list[Tensor],
        loss: Tensor,
        work: Any,
        phase: int,
        step: int,
    ) -> None:
        is_loss_finite = bool(torch.isfinite(loss))
        if is_loss_finite and all(bool(torch.isfinite(t).all()) for t in leaves(work)):
            return
        what = (
            "the parameters are not finite" if is_loss_finite else f"loss is {loss:g}"
        )
        last = "It was the first step"
        if losses:
            last = f"Last finite loss {losses[-1]:.4g}"
        raise NumericalError(
            f"{self.culprit}, phase {phase + 1}, step {step + 1}: {what}. {last}; "
            f"lr is {job.algorithm.lr:g}. {LOWER_RATE}"
        )
