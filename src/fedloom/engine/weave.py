"""The loom: all clients of a chunk move one step in one pass.

Clients are sorted by how many steps they take and cut into chunks that stay in the
cache (or in the GPU's memory). One step of a chunk is one call: samples are gathered by
index, the algorithm's step is vmapped over clients, and a client that is done keeps its
work. The last chunk is padded with ghosts that take no step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.clients.batches import Extents
from fedloom.core.messages import CohortDownload, Report
from fedloom.core.records import leaves, map_record, rebuild, take
from fedloom.core.streams import fold
from fedloom.core.task import Task
from fedloom.engine.dense import DenseSteps, has_dense_steps
from fedloom.engine.features import features_of
from fedloom.engine.job import (
    Job,
    LocalResults,
    Outputs,
    Participants,
    Samples,
    noise_key,
    phase_key,
    plan_phase,
    planned_steps,
)
from fedloom.engine.native import (
    NativeOutputs,
    NativeSteps,
    has_native_outputs,
    has_native_steps,
)
from fedloom.engine.precision import Precision, at_precision
from fedloom.engine.recording import Recording
from fedloom.engine.steps import (
    Columns,
    CompiledSteps,
    Given,
    Met,
    PlainSteps,
    RecordedSteps,
    Steps,
)

_STREAMS = 4
"""Chunks that a GPU works on at the same time."""
_NATIVE_BYTES = 1 << 27
"""Parameters of a chunk whose clients all move on their own, one to a core."""


class _Progress(NamedTuple):
    """How far a chunk of C clients is."""

    work: Any
    loss: Tensor
    """(C,) sum of the losses met."""
    steps: Tensor
    """(C,) how many were taken."""
    gradients: Tensor
    """(C,) how many samples entered a gradient; whole numbers, in the floating type."""


class _Chunk(NamedTuple):
    """Some clients, and ghosts of no steps to make up the number."""

    size: int
    """How many are clients; they come first."""
    places: Tensor
    """Where they are in the cohort."""
    steps: Tensor
    """(phases, C) how many each takes at most."""
    extents: Extents
    """The same on the host."""


@dataclass
class _Latest:
    """The cohort that a job was last done for."""

    alike: tuple[Any, ...]
    """Sizes, lengths and shapes of it."""
    recording: Recording | None = None
    """Of all the work, from the second such cohort on."""


class Weave:
    """Trains clients chunk by chunk.

    Args:
        chunk: clients per chunk.
        compiled: compile the step of a chunk; shapes are then held fixed.
        unroll: steps per compiled call.
        native: take steps by code of our own where it can, compiled or not.
        precision: of products on a GPU.
    """

    def __init__(
        self,
        chunk: int,
        *,
        compiled: bool = False,
        unroll: int = 1,
        native: bool = True,
        precision: Precision = "float32",
    ) -> None:
        self.chunk = chunk
        self.precision = precision
        self.compiled = compiled
        self.unroll = unroll
        self.native = native
        self._made: dict[tuple[int, int, int, int], Steps] = {}
        self._jobs: list[Job] = []  # keeps the ids in the keys above alive
        self._latest: dict[int, _Latest] = {}
        self._native: dict[tuple[int, int], NativeSteps | None] = {}

    def run(
        self, job: Job, sent: CohortDownload, participants: Participants
    ) -> LocalResults:
        """Run the job for all clients, chunk by chunk, those with most steps first."""
        if not job.phases:
            return _without_steps(job, sent, participants)
        if job.task.device.type != "cuda":
            return self._prepared(job, sent, participants)
        with at_precision(self.precision):
            return self._prepared(job, sent, participants)

    def _prepared(
        self, job: Job, sent: CohortDownload, participants: Participants
    ) -> LocalResults:
        # A GPU is waited for just here.
        sizes = job.train.host_sizes[participants.rows.cpu()]
        extents = Extents(sizes, self._lengths(job, sent, participants, sizes))
        if self._can_be_recorded(job):
            return self._recorded(job, sent, participants, extents)
        return self._run(job, sent, participants, self._chunks(job, extents))

    def _recorded(
        self,
        job: Job,
        sent: CohortDownload,
        participants: Participants,
        extents: Extents,
    ) -> LocalResults:
        """The same in one go where the last cohort was as large, client by client."""
        values = [*leaves(sent.record), *leaves(participants)]
        shapes = tuple(value.shape for value in values)
        alike = (*(part.numpy().tobytes() for part in extents), shapes)
        latest = self._latest.get(id(job))
        if latest is None or latest.alike != alike:
            self._latest[id(job)] = _Latest(alike)
            return self._run(job, sent, participants, self._chunks(job, extents))
        if latest.recording is None:
            count, chunks = len(leaves(sent.record)), self._chunks(job, extents)

            def run(values: list[Tensor]) -> LocalResults:
                record = rebuild(sent.record, values[:count])
                download = CohortDownload(record, sent.has_rows)
                return self._run(
                    job, download, rebuild(participants, values[count:]), chunks
                )

            latest.recording = Recording(run, values)
        results: LocalResults = latest.recording(values)
        return results

    def _can_be_recorded(self, job: Job) -> bool:
        """Whether all of the work is known before its numbers are."""
        is_known = all(p.until is None and p.length is None for p in job.phases)
        return is_known and self.compiled and job.task.device.type == "cuda"

    def _chunks(self, job: Job, extents: Extents) -> list[_Chunk]:
        """The clients in chunks, those with most steps first."""
        device, count = job.task.device, len(extents.sizes)
        is_native, width = self._is_native(job), self.chunk
        if is_native:
            size = job.task.d * job.task.dtype.itemsize
            width = max(width, _NATIVE_BYTES // size)
        order = torch.arange(count) if count <= width else _by_length(extents)
        is_padded = self.compiled and not is_native
        chunks = []
        for members in reversed(torch.split(order, width)):
            ghosts = width - len(members) if is_padded else 0
            padded = torch.cat([members, members[:1].expand(ghosts)])
            own = Extents(extents.sizes[padded], extents.steps[:, padded])
            own.steps[:, len(members) :] = 0
            chunks.append(
                _Chunk(len(members), padded.to(device), own.steps.to(device), own)
            )
        return chunks

    def _run(
        self,
        job: Job,
        sent: CohortDownload,
        participants: Participants,
        chunks: list[_Chunk],
    ) -> LocalResults:
        if len(chunks) == 1 and len(chunks[0].places) == chunks[0].size:
            return self._train(job, sent, participants, chunks[0], 0)
        outcomes = []
        streams = _Streams(job.task.device)
        for number, chunk in enumerate(chunks):
            slot = number % _STREAMS
            with streams.at(slot):
                members = take(participants, chunk.places)
                own = sent.take(chunk.places)
                outcome = self._train(job, own, members, chunk, slot)
                outcomes.append(take(outcome, slice(chunk.size)))
        streams.join()
        back = torch.cat([chunk.places[: chunk.size] for chunk in chunks]).argsort()
        joined: LocalResults = map_record(
            lambda *parts: torch.cat(parts)[back], *outcomes
        )
        return joined

    def alone(self) -> Weave:
        """A weave of one client, uncompiled."""
        return Weave(1)

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Apply a function to all rows at once."""
        return vmap(function)

    def outputs_of(self, task: Task, samples: Samples) -> Outputs | None:
        """Code of our own, where it knows the model."""
        if self.native and has_native_outputs(task, samples):
            return NativeOutputs(task, samples)
        return None

    def _lengths(
        self,
        job: Job,
        sent: CohortDownload,
        participants: Participants,
        sizes: Tensor,
    ) -> Tensor:
        """(phases, n) how many steps each client takes at most in each phase."""
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

    def _train(
        self,
        job: Job,
        sent: CohortDownload,
        participants: Participants,
        chunk: _Chunk,
        slot: int,
    ) -> LocalResults:
        begin = sent.over(lambda d, m, c: job.begin(d, m, c, job.task))
        work = begin(participants.memory, participants.client)
        progress = _Progress(
            work=work if self._is_native(job) else map_record(_settled, work),
            loss=participants.client.size * 0,
            steps=torch.zeros_like(participants.rows),
            gradients=participants.client.size * 0,
        )
        for number in range(len(job.phases)):
            steps, own = chunk.steps[number], chunk.extents
            own = own._replace(steps=own.steps[number])
            progress = self._phase(
                job, number, sent, participants, steps, own, progress, slot
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
        extents: Extents,
        progress: _Progress,
        slot: int,
    ) -> _Progress:
        longest = int(extents.steps.max())
        if longest == 0:
            return progress
        phase, (work, *met) = job.phases[number], progress
        sizes = job.train.sizes[participants.rows]
        keys = phase_key(participants.keys, number)
        noise = job.noise_keys(participants, number)
        plan = plan_phase(phase, keys, sizes, lengths, job.batch_size, extents)
        offsets = job.train.offsets[participants.rows][:, None, None, None]
        samples = job.train.indices[offsets + plan.positions]
        scaling = job.scaling_at(participants.rows)
        given = Given(
            inputs=job.train.inputs,
            targets=job.train.targets,
            down=leaves(sent.record),
            scaling=leaves(scaling) if scaling is not None else [],
            round=participants.client.round[0],
        )
        native = self._native_steps(job, number)
        if native is not None:
            flat, now = native.run(
                leaves(work), Met(*met), given, samples, plan.mask, lengths
            )
            return _Progress(rebuild(work, flat), *now)
        index = torch.arange(longest, device=sizes.device)
        columns = Columns(
            samples=samples,
            mask=plan.mask.to(job.task.dtype),
            ends_epoch=plan.ends_epoch,
            keys=fold(noise_key(noise, phase)[:, None], index),
            active=index < lengths[:, None],
        )
        known = features_of(job, phase, work, sent, participants.rows, extents)
        if known is not None:
            job = known.job
            given = given._replace(inputs=(known.features,), targets=known.targets)
            columns = columns._replace(samples=known.rows(plan.positions))
        width = columns.mask.shape[-1]
        steps = self._steps(job, number, work, sent, width, slot)
        flat, now = steps.run(
            leaves(work),
            Met(*met),
            given,
            Columns(*map(_by_step, columns)),
            together=0 if self.compiled else int(extents.steps.min()),
        )
        return _Progress(rebuild(work, flat), *now)

    def _is_native(self, job: Job) -> bool:
        """Whether all phases are taken by `NativeSteps`."""
        numbers = range(len(job.phases))
        return all(self._native_steps(job, number) is not None for number in numbers)

    def _native_steps(self, job: Job, number: int) -> NativeSteps | None:
        """What takes clients through a phase on a CPU, if it can."""
        key = (id(job), number)
        if key not in self._native:
            phase, steps = job.phases[number], None
            if self.native and has_native_steps(job, phase):
                steps = NativeSteps(job, phase)
            self._jobs.append(job)
            self._native[key] = steps
        return self._native[key]

    def _steps(
        self,
        job: Job,
        number: int,
        work: Any,
        sent: CohortDownload,
        width: int,
        slot: int,
    ) -> Steps:
        """What takes a chunk through a phase."""
        is_recorded = self.compiled and job.task.device.type == "cuda"
        key = (id(job), number, width, slot if is_recorded else 0)
        if key not in self._made:
            phase = job.phases[number]
            # Batches of all that a client has are work enough for one call.
            unroll = self.unroll if phase.passes is None else 1
            alike = (made for k, made in self._made.items() if k[:3] == key[:3])
            like = next(alike, None)
            if isinstance(like, RecordedSteps):
                steps: Steps = like.twin()
            elif is_recorded and self.native and has_dense_steps(job, phase, work):
                steps = DenseSteps(job, phase)
            elif is_recorded:
                steps = RecordedSteps(job, phase, work, sent, unroll)
            elif self.compiled:
                steps = CompiledSteps(job, phase, work, sent, unroll)
            else:
                steps = PlainSteps(job, phase, work, sent)
            self._jobs.append(job)
            self._made[key] = steps
        return self._made[key]


def _without_steps(
    job: Job, sent: CohortDownload, participants: Participants
) -> LocalResults:
    """A job that is no more than its ends; what all clients share stays one row."""

    def ends(down: Any, memory: Any, client: Any) -> Any:
        work = job.begin(down, memory, client, job.task)
        return job.finish(work, down, memory, client, job.task)

    none = torch.zeros_like(participants.rows)
    report = Report(participants.client.size * 0, none, none)
    # Memories are rows of their own, also of clients that were never here: what comes
    # out as one row repeated depends on nothing of theirs.
    memory = map_record(_settled, participants.memory)
    result = sent.over(ends)(memory, participants.client)
    return LocalResults(result, report)


class _Streams:
    """Chunks side by side on a GPU; on a CPU one after another.

    Args:
        device: where the work is done.
    """

    _made: ClassVar[dict[torch.device, list[torch.cuda.Stream]]] = {}

    def __init__(self, device: torch.device) -> None:
        self._streams: list[torch.cuda.Stream] = []
        if device.type == "cuda":
            if device not in self._made:
                self._made[device] = [
                    torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                    for _ in range(_STREAMS)
                ]
            self._streams = self._made[device]
            for stream in self._streams:
                stream.wait_stream(torch.cuda.current_stream(device))

    def at(self, slot: int) -> AbstractContextManager[Any]:
        """What is done within goes to one of the streams."""
        if not self._streams:
            return nullcontext()
        return torch.cuda.stream(self._streams[slot])

    def join(self) -> None:
        """What follows waits for all of them."""
        for stream in self._streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)


def _by_length(extents: Extents) -> Tensor:
    """Clients from the fewest steps to the most; among equals, by size."""
    by_size = extents.sizes.argsort(stable=True)
    return by_size[extents.steps.sum(0)[by_size].argsort(stable=True)]


def _settled(tensor: Tensor) -> Tensor:
    """A tensor of its own in the plain layout: compiled code is made for one layout."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _by_step(tensor: Tensor) -> Tensor:
    """(C, S, ...) as (S, C, ...).

    Step by step, so that a few steps are one contiguous block whatever S is: compiled
    code is made for one layout.
    """
    return tensor.transpose(0, 1).contiguous()
