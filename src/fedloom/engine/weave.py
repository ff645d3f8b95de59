"""The loom: all clients of a chunk move one step in one pass.

Clients are sorted by how many steps they take and cut into chunks that stay in the
cache (or in the GPU's memory). One step of a chunk is one call: samples are gathered by
index, the algorithm's step is vmapped over clients, and a client that is done keeps its
work. The last chunk is padded with ghosts that take no step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core.algorithm import Phase
from fedloom.core.messages import CohortDownload, Report
from fedloom.core.records import leaves, map_record, rebuild, skeleton, take
from fedloom.core.scaling import Scaling
from fedloom.core.streams import fold
from fedloom.core.task import Batch
from fedloom.engine.job import (
    Job,
    LocalResults,
    Participants,
    noise_key,
    phase_key,
    plan_phase,
    planned_steps,
)

ChunkSteps = Callable[..., tuple[list[Tensor], Tensor, Tensor, Tensor]]


class _Progress(NamedTuple):
    """How far a chunk of C clients is."""

    work: Any
    loss: Tensor
    """(C,) sum of the losses met."""
    steps: Tensor
    """(C,) how many were taken."""
    gradients: Tensor
    """(C,) how many samples entered a gradient; whole numbers, in the floating type."""


class Weave:
    """Trains clients chunk by chunk.

    Args:
        chunk: clients per chunk.
        compiled: compile the step of a chunk; shapes are then held fixed.
        unroll: steps per compiled call.
    """

    def __init__(self, chunk: int, *, compiled: bool = False, unroll: int = 1) -> None:
        self.chunk = chunk
        self.compiled = compiled
        self.unroll = unroll
        self._compiled_steps: dict[tuple[int, int, int], ChunkSteps] = {}
        self._jobs: list[Job] = []  # keeps the ids in the keys above alive

    def run(
        self, job: Job, sent: CohortDownload, participants: Participants
    ) -> LocalResults:
        """Run the job for all clients, longest first within sorted chunks."""
        lengths = self._lengths(job, sent, participants)
        order = _by_length(lengths, job.train.sizes[participants.rows])
        width = self.chunk if self.compiled else min(self.chunk, len(order))
        outcomes = []
        for members in torch.split(order, width):
            ghosts = width - len(members) if self.compiled else 0
            padded = torch.cat([members, members[:1].expand(ghosts)])
            chunk_lengths = lengths[:, padded]
            chunk_lengths[:, len(members) :] = 0
            outcome = self._chunk(
                job, sent.take(padded), take(participants, padded), chunk_lengths
            )
            outcomes.append(take(outcome, slice(len(members))))
        back = order.argsort()
        return map_record(lambda *parts: torch.cat(parts)[back], *outcomes)

    def alone(self) -> Weave:
        """A weave of one client, uncompiled."""
        return Weave(1)

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Apply a function to all rows at once."""
        return vmap(function)

    def _lengths(
        self, job: Job, sent: CohortDownload, participants: Participants
    ) -> Tensor:
        """(phases, n) how many steps each client takes at most in each phase."""
        sizes = job.train.sizes[participants.rows]
        lengths = [sizes.new_zeros((0, len(sizes)))]
        for phase in job.phases:
            steps = planned_steps(phase, sizes, job.batch_size)
            if phase.length is not None:
                method = job.method(phase.length)
                length = sent.over(lambda d, m, c, f=method: f(d, m, c, job.task))
                own = length(participants.memory, participants.client)
                steps = torch.minimum(steps, own.to(steps)).clamp(min=0)
            lengths.append(steps[None])
        return torch.cat(lengths)

    def _chunk(
        self,
        job: Job,
        sent: CohortDownload,
        participants: Participants,
        lengths: Tensor,
    ) -> LocalResults:
        begin = sent.over(lambda d, m, c: job.begin(d, m, c, job.task))
        progress = _Progress(
            work=map_record(_settled, begin(participants.memory, participants.client)),
            loss=participants.client.size * 0,
            steps=torch.zeros_like(participants.rows),
            gradients=participants.client.size * 0,
        )
        for number in range(len(job.phases)):
            progress = self._phase(
                job, number, sent, participants, lengths[number], progress
            )
        finish = sent.over(lambda d, w, m, c: job.finish(w, d, m, c, job.task))
        result = finish(progress.work, participants.memory, participants.client)
        mean = progress.loss / progress.steps.clamp(min=1)
        report = Report(mean, progress.steps, progress.gradients.to(torch.int64))
        return LocalResults(result, report)

    def _phase(
        self,
        job: Job,
        number: int,
        sent: CohortDownload,
        participants: Participants,
        lengths: Tensor,
        progress: _Progress,
    ) -> _Progress:
        longest = int(lengths.max())
        if longest == 0:
            return progress
        phase, (work, loss, count, gradients) = job.phases[number], progress
        sizes = job.train.sizes[participants.rows]
        keys = phase_key(participants.keys, number)
        plan = plan_phase(phase, keys, sizes, lengths, job.batch_size)
        offsets = job.train.offsets[participants.rows][:, None, None, None]
        samples = job.train.indices[offsets + plan.positions]
        mask = plan.mask.to(job.task.dtype)
        index = torch.arange(longest, device=sizes.device)
        active = index < lengths[:, None]
        noise = fold(noise_key(keys, phase)[:, None], index)
        stride = self.unroll if self.compiled else longest
        if phase.until is not None:
            stride = min(stride, 8)
        spare = -longest % stride
        columns = [
            _by_step(t, spare) for t in (samples, mask, plan.ends_epoch, noise, active)
        ]
        chunk_steps = self._chunk_steps(job, number, work, sent, mask.shape[-1])
        scaling = job.scaling_at(participants.rows)
        flat, still = leaves(work), active[:, 0]
        # Steps in which nobody is done. In compiled code keeping the work of those who
        # are costs nothing, and one number holds for all chunks.
        is_uncertain = self.compiled or phase.until is not None
        together = 0 if is_uncertain else int(lengths.min())
        for start in range(0, longest, stride):
            if phase.until is not None and start and not bool(still.any()):
                break
            now = [c[start : start + stride] for c in columns]
            flat, loss, count, gradients = chunk_steps(
                together,
                flat,
                leaves(sent.record),
                leaves(scaling) if scaling is not None else [],
                job.train.inputs,
                job.train.targets,
                *now,
                index.new_tensor(start),
                participants.client.round[0],
                loss,
                count,
                gradients,
            )
            if phase.until is not None:
                is_done = vmap(job.method(phase.until))(rebuild(work, flat))
                still = (index[start] + stride < lengths) & ~is_done
        return _Progress(rebuild(work, flat), loss, count, gradients)

    def _chunk_steps(
        self, job: Job, number: int, work: Any, sent: CohortDownload, width: int
    ) -> ChunkSteps:
        """The function that moves a chunk by some steps, compiled if we compile."""
        key = (id(job), number, width)
        if key not in self._compiled_steps:
            phase = job.phases[number]
            function = _chunk_steps(job, phase, work, sent)
            if self.compiled:
                # Compiled code is cached per code object, for 8 shapes at most; each
                # phase and each width of a batch gets its own.
                function.__code__ = function.__code__.replace(co_name=phase.step)
                function = torch.compile(function, dynamic=False, fullgraph=True)
            self._jobs.append(job)
            self._compiled_steps[key] = function
        return self._compiled_steps[key]


def _chunk_steps(job: Job, phase: Phase, work: Any, sent: CohortDownload) -> ChunkSteps:
    step = job.method(phase.step)
    until = job.method(phase.until) if phase.until is not None else None
    work_like, down_like = skeleton(work), skeleton(sent.record)

    def client_step(
        all_move: bool,
        work_leaves: list[Tensor],
        down_leaves: list[Tensor],
        levels: list[Tensor],
        inputs: tuple[Tensor, ...],
        targets: Tensor,
        mask: Tensor,
        ends: Tensor,
        key: Tensor,
        active: Tensor,
        index: Tensor,
        round_: Tensor,
    ) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
        """One step of one client."""
        work = rebuild(work_like, work_leaves)
        down = rebuild(down_like, down_leaves)
        batches = tuple(
            Batch(
                tuple(x[which] for x in inputs),
                targets[which],
                mask[which],
                key,
                index,
                ends,
                round_,
            )
            for which in range(phase.batches)
        )
        scaling = Scaling(*levels) if levels else None
        task = job.task.watched(scaling, job.algorithm.clip)
        new = step(work, down, batches if phase.batches > 1 else batches[0], task)
        if until is not None:
            active = active & ~until(work)
        kept = leaves(new)
        if not all_move:
            kept = [
                torch.where(active, n, o)
                for n, o in zip(kept, work_leaves, strict=True)
            ]
        loss = torch.where(active, task.met_loss(), 0.0)
        samples = torch.where(active, task.met_samples(), 0.0)
        return kept, loss, active & task.has_met_loss, samples

    in_dims = (None, 0, sent.in_dims, 0, 0, 0, 0, 0, 0, 0, None, None)

    def chunk_steps(
        together: int,
        work_leaves: list[Tensor],
        down_leaves: list[Tensor],
        levels: list[Tensor],
        inputs: tuple[Tensor, ...],
        targets: Tensor,
        samples: Tensor,
        mask: Tensor,
        ends: Tensor,
        keys: Tensor,
        active: Tensor,
        start: Tensor,
        round_: Tensor,
        loss: Tensor,
        count: Tensor,
        gradients: Tensor,
    ) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
        """Some steps of a chunk; all clients move in the first `together` of them."""
        for s in range(len(samples)):
            chosen = samples[s]
            work_leaves, met, moved, used = vmap(client_step, in_dims=in_dims)(
                s < together,
                work_leaves,
                down_leaves,
                levels,
                tuple(x[chosen] for x in inputs),
                targets[chosen],
                mask[s],
                ends[s],
                keys[s],
                active[s],
                start + s,
                round_,
            )
            loss, count, gradients = loss + met, count + moved, gradients + used
        return work_leaves, loss, count, gradients

    return chunk_steps


def _by_length(lengths: Tensor, sizes: Tensor) -> Tensor:
    """Clients from the fewest steps to the most; among equals, by size."""
    by_size = sizes.argsort(stable=True)
    return by_size[lengths.sum(0)[by_size].argsort(stable=True)]


def _settled(tensor: Tensor) -> Tensor:
    """A tensor of its own in the plain layout: compiled code is made for one layout."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _by_step(tensor: Tensor, spare: int) -> Tensor:
    """(C, S, ...) as (S + spare, C, ...); in the spare steps nobody moves.

    Step by step, so that a few steps are one contiguous block whatever S is: compiled
    code is made for one layout.
    """
    steps = tensor.transpose(0, 1)
    idle = torch.zeros_like(steps[:1]).expand(spare, *steps.shape[1:])
    return torch.cat([steps, idle]).contiguous()
