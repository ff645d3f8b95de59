"""Steps of a chunk of clients: plain, compiled, or compiled and recorded for a GPU.

What a step computes is written once, in `chunk_steps`. `PlainSteps` calls it;
`CompiledSteps` compiles it over pieces of the vectors, updated in place; and
`RecordedSteps` records some compiled steps as one CUDA graph and replays it, so that a
GPU need not wait for Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core.algorithm import Phase
from fedloom.core.layout import ParameterLayout
from fedloom.core.messages import CohortDownload
from fedloom.core.records import leaves, rebuild, skeleton
from fedloom.core.reprs import without_values
from fedloom.core.scaling import Scaling
from fedloom.core.task import Batch
from fedloom.engine import pieces as _pieces
from fedloom.engine.job import Job

_CHECKED = 8
"""Steps between two looks at who is done, where a phase may end early."""
_CAPACITY = 256
"""Steps whose batches a recording has room for, about; longer phases are taken in
parts."""


class Columns(NamedTuple):
    """What each step of a chunk of C clients needs; every tensor is (S, C, ...)."""

    samples: Tensor
    """(S, C, k, B) which samples, of all."""
    mask: Tensor
    ends_epoch: Tensor
    keys: Tensor
    active: Tensor
    """Whether the client takes this step."""


@without_values
class Given(NamedTuple):
    """What all steps of a phase share."""

    inputs: tuple[Tensor, ...]
    targets: Tensor
    """Of all samples."""
    down: list[Tensor]
    scaling: list[Tensor]
    round: Tensor


class Met(NamedTuple):
    """What the steps of C clients met so far."""

    loss: Tensor
    """(C,) sum of the losses."""
    steps: Tensor
    """(C,) how many were taken."""
    gradients: Tensor
    """(C,) how many samples entered a gradient; whole numbers, in the floating type."""


class Steps(Protocol):
    """Takes a chunk through a phase."""

    def run(
        self,
        work: list[Tensor],
        met: Met,
        given: Given,
        columns: Columns,
        together: int,
    ) -> tuple[list[Tensor], Met]:
        """All steps; in the first `together` of them every client moves."""


class PlainSteps:
    """Steps one after another, as PyTorch runs them."""

    def __init__(self, job: Job, phase: Phase, work: Any, sent: CohortDownload) -> None:
        self._steps = chunk_steps(job, phase, work, sent)
        self._is_done = is_done(job, phase, work)

    def run(
        self,
        work: list[Tensor],
        met: Met,
        given: Given,
        columns: Columns,
        together: int,
    ) -> tuple[list[Tensor], Met]:
        """All steps, in parts where the phase may end early."""
        total = len(columns.samples)
        stride = total if self._is_done is None else _CHECKED
        if self._is_done is not None:
            together = 0
        for start in range(0, total, stride):
            now = Columns(*(column[start : start + stride] for column in columns))
            at = torch.full_like(met.steps[0], start)
            work, met = self._steps(together, work, met, given, now, at)
            together = 0
            if _all_done(self._is_done, work, columns, start + stride):
                break
        return work, met


class CompiledSteps:
    """Compiled steps on the pieces of the vectors.

    Args:
        job: whose steps.
        phase: which of its phases.
        work: records of a chunk of clients, for their shapes.
        sent: what they were sent, for its shape.
        unroll: steps per call.
    """

    def __init__(
        self, job: Job, phase: Phase, work: Any, sent: CohortDownload, unroll: int
    ) -> None:
        self._layout = job.task
        self._is_done = is_done(job, phase, work)
        self._unroll, self._phase = unroll, phase
        self._steps = chunk_steps(job, phase, work, sent)
        self._call = _compiled(_in_place(self._steps), phase)
        self._is_in_place = True

    def run(
        self,
        work: list[Tensor],
        met: Met,
        given: Given,
        columns: Columns,
        together: int,
    ) -> tuple[list[Tensor], Met]:
        """All steps, some to a call; who is done keeps its work at no cost."""
        total = len(columns.samples)
        columns = Columns(*(_padded(c, -total % self._unroll) for c in columns))
        pieces = [_pieces.cut(leaf, self._layout) for leaf in work]
        met = Met(*(value.clone() for value in met))
        for start in range(0, total, self._unroll):
            now = Columns(*(c[start : start + self._unroll] for c in columns))
            at = torch.full_like(met.steps[0], start)
            pieces, met = self._advance(pieces, met, given, now, at)
            is_check = (start + self._unroll) % _CHECKED == 0 or self._unroll > _CHECKED
            if is_check and self._is_done is not None:
                now_work = [_pieces.joined(parts) for parts in pieces]
                if _all_done(self._is_done, now_work, columns, start + self._unroll):
                    break
        return [_pieces.joined(parts) for parts in pieces], met

    def _advance(
        self,
        pieces: list[list[Tensor]],
        met: Met,
        given: Given,
        columns: Columns,
        start: Tensor,
    ) -> tuple[list[list[Tensor]], Met]:
        """Some steps, in place if the compiler can."""
        from torch._inductor.exc import InductorError  # slow to import

        if self._is_in_place:
            try:
                self._call(pieces, met, given, columns, start)
                return pieces, met
            except InductorError:
                # On a CPU it takes some tensors that are written to for ones that are
                # read, and gives up (torch 2.13). Nothing was written yet.
                self._is_in_place = False
                self._call = _compiled(_anew(self._steps, self._layout), self._phase)
        moved: tuple[list[list[Tensor]], Met] = self._call(
            pieces, met, given, columns, start
        )
        return moved


class _Buffers(NamedTuple):
    """What a recording reads and writes: tensors that keep their places."""

    pieces: list[list[Tensor]]
    met: Met
    given: Given
    columns: Columns
    """Of as many steps as there is room for."""
    first: Tensor
    """The step of the phase that the first of `columns` is."""
    row: Tensor
    """The next step to take, from `first` on."""


class RecordedSteps:
    """Some compiled steps as one CUDA graph, which is replayed until all are taken.

    A replay takes its steps from the place that a counter on the device says, so one
    recording serves phases of any length.

    Args:
        job: as for `CompiledSteps`.
        phase: as there.
        work: as there.
        sent: as there.
        unroll: steps per compiled call.
        calls: compiled calls per recording.
    """

    def __init__(
        self,
        job: Job,
        phase: Phase,
        work: Any,
        sent: CohortDownload,
        unroll: int,
        calls: int = 2,
    ) -> None:
        in_place = _in_place(chunk_steps(job, phase, work, sent))

        def at_row(buffers: _Buffers) -> None:
            rows = buffers.row + torch.arange(unroll, device=buffers.row.device)
            now = Columns(*(column[rows] for column in buffers.columns))
            start = buffers.first + buffers.row
            in_place(buffers.pieces, buffers.met, buffers.given, now, start)
            buffers.row.add_(unroll)

        self._layout = job.task
        self._is_done = is_done(job, phase, work)
        self._calls, self._stride = calls, unroll * calls
        # Whole replays, so that none looks beyond the last of them.
        self._room = self._stride * math.ceil(_CAPACITY / self._stride)
        self._call = _compiled(at_row, phase)
        self._buffers: _Buffers | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def twin(self) -> RecordedSteps:
        """The same compiled steps for another stream, to be recorded anew."""
        other = copy(self)
        other._buffers = other._graph = None
        return other

    def run(
        self,
        work: list[Tensor],
        met: Met,
        given: Given,
        columns: Columns,
        together: int,
    ) -> tuple[list[Tensor], Met]:
        """All steps, by as many replays as they need."""
        if self._buffers is None:
            self._record(work, met, given, columns)
        buffers, graph = self._buffers, self._graph
        assert buffers is not None
        assert graph is not None
        self._load(buffers, work, met, given)
        stride, room = self._stride, self._room
        total = len(columns.samples)
        for first in range(0, total, room):
            part = Columns(*(column[first : first + room] for column in columns))
            count = len(part.samples)
            for held, column in zip(buffers.columns, part, strict=True):
                held[:count].copy_(column)
            buffers.columns.active[count:].zero_()
            buffers.first.fill_(first)
            buffers.row.zero_()
            # A recording of all the work takes the steps one by one.
            is_part = torch.cuda.is_current_stream_capturing()
            for start in range(0, count, stride):
                if is_part:
                    self._advance(buffers)
                else:
                    graph.replay()
                if self._is_done is not None:
                    now = [_pieces.joined(parts) for parts in buffers.pieces]
                    if _all_done(self._is_done, now, columns, first + start + stride):
                        return self._results(buffers)
        return self._results(buffers)

    def _record(
        self, work: list[Tensor], met: Met, given: Given, columns: Columns
    ) -> None:
        buffers = _Buffers(
            pieces=[_pieces.cut(leaf, self._layout) for leaf in work],
            met=Met(*(value.clone() for value in met)),
            given=given._replace(
                down=[leaf.clone() for leaf in given.down],
                scaling=[level.clone() for level in given.scaling],
                round=given.round.clone(),
            ),
            columns=Columns(
                *(c.new_zeros((self._room, *c.shape[1:])) for c in columns)
            ),
            first=torch.zeros_like(met.steps[0]),
            row=torch.zeros_like(met.steps[0]),
        )
        self._call(buffers)  # compiles
        buffers.row.zero_()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance(buffers)
        self._buffers, self._graph = buffers, graph

    def _advance(self, buffers: _Buffers) -> None:
        """The steps of one recording."""
        for _ in range(self._calls):
            self._call(buffers)

    def _load(
        self, buffers: _Buffers, work: list[Tensor], met: Met, given: Given
    ) -> None:
        for vectors, parts in zip(work, buffers.pieces, strict=True):
            _pieces.write(vectors, parts)
        small = [*given.down, *given.scaling, given.round, *met]
        held = buffers.given
        places = [*held.down, *held.scaling, held.round, *buffers.met]
        for place, value in zip(places, small, strict=True):
            place.copy_(value)
        # Samples keep their places, unless they are features, computed for the phase.
        samples = [*given.inputs, given.targets]
        places = [*held.inputs, held.targets]
        for place, value in zip(places, samples, strict=True):
            if place is not value:
                place.copy_(value)

    def _results(self, buffers: _Buffers) -> tuple[list[Tensor], Met]:
        work = [_pieces.joined(parts) for parts in buffers.pieces]
        alone = [len(parts) == 1 for parts in buffers.pieces]
        work = [w.clone() if one else w for w, one in zip(work, alone, strict=True)]
        return work, Met(*(value.clone() for value in buffers.met))


def _in_place(steps: Callable[..., tuple[list[Tensor], Met]]) -> Callable[..., None]:
    """Some steps that leave what they come to where they found it."""

    def in_place(
        pieces: list[list[Tensor]],
        met: Met,
        given: Given,
        columns: Columns,
        start: Tensor,
    ) -> None:
        old = [_pieces.joined(parts) for parts in pieces]
        new, now = steps(0, old, met, given, columns, start)
        for parts, vectors in zip(pieces, new, strict=True):
            _pieces.write(vectors, parts)
        for total, value in zip(met, now, strict=True):
            total.copy_(value)

    return in_place


def _anew(
    steps: Callable[..., tuple[list[Tensor], Met]], layout: ParameterLayout
) -> Callable[..., tuple[list[list[Tensor]], Met]]:
    """Some steps that give what they come to as new pieces."""

    def anew(
        pieces: list[list[Tensor]],
        met: Met,
        given: Given,
        columns: Columns,
        start: Tensor,
    ) -> tuple[list[list[Tensor]], Met]:
        old = [_pieces.joined(parts) for parts in pieces]
        new, now = steps(0, old, met, given, columns, start)
        return [_pieces.cut(vectors, layout) for vectors in new], now

    return anew


def _compiled(function: Callable[..., Any], phase: Phase) -> Callable[..., Any]:
    from fedloom.engine.rewrite import StepPass  # inductor is slow to import

    # Compiled code is cached per code object, for 8 shapes at most; each phase and each
    # width of a batch gets its own.
    function.__code__ = function.__code__.replace(co_name=phase.step)
    options: Any = {
        "post_grad_custom_pre_pass": StepPass(),
        # Inputs of a product that is written out are computed once, not once a term.
        "realize_reads_threshold": 1,
    }
    return torch.compile(function, dynamic=False, fullgraph=True, options=options)


def _padded(column: Tensor, spare: int) -> Tensor:
    """More steps, in which nobody moves."""
    if not spare:
        return column
    return torch.cat(
        [column, torch.zeros_like(column[:1]).expand(spare, *column.shape[1:])]
    )


def is_done(
    job: Job, phase: Phase, work: Any
) -> Callable[[list[Tensor]], Tensor] | None:
    """Which clients have converged, by the leaves of their work; None if none may."""
    if phase.until is None:
        return None
    until, like = vmap(job.method(phase.until)), skeleton(work)
    return lambda flat: until(rebuild(like, flat))


def _all_done(
    done: Callable[[list[Tensor]], Tensor] | None,
    work: list[Tensor],
    columns: Columns,
    step: int,
) -> bool:
    """Whether nobody has a step to take from this one on."""
    if done is None or step >= len(columns.active):
        return False
    return not bool((columns.active[step] & ~done(work)).any())


def chunk_steps(
    job: Job, phase: Phase, work: Any, sent: CohortDownload
) -> Callable[..., tuple[list[Tensor], Met]]:
    """The function that moves a chunk by some steps."""
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
        task = job.watched(scaling)
        new = step(work, down, batches if phase.batches > 1 else batches[0], task)
        if until is not None:
            active = active & ~until(work)
        kept = leaves(new)
        if not all_move:
            kept = [
                n if n is o else torch.where(active, n, o)
                for n, o in zip(kept, work_leaves, strict=True)
            ]
        loss = torch.where(active, task.met_loss(), 0.0)
        samples = torch.where(active, task.met_samples(), 0.0)
        return kept, loss, active & task.has_met_loss, samples

    in_dims = (None, 0, sent.in_dims, 0, 0, 0, 0, 0, 0, 0, None, None)

    def some_steps(
        together: int,
        work_leaves: list[Tensor],
        met: Met,
        given: Given,
        columns: Columns,
        start: Tensor,
    ) -> tuple[list[Tensor], Met]:
        """Some steps of a chunk; all clients move in the first `together` of them."""
        loss, count, gradients = met
        for s in range(len(columns.samples)):
            chosen = columns.samples[s]
            work_leaves, met_loss, moved, used = vmap(client_step, in_dims=in_dims)(
                s < together,
                work_leaves,
                given.down,
                given.scaling,
                tuple(x[chosen] for x in given.inputs),
                given.targets[chosen],
                columns.mask[s],
                columns.ends_epoch[s],
                columns.keys[s],
                columns.active[s],
                start + s,
                given.round,
            )
            loss, count, gradients = loss + met_loss, count + moved, gradients + used
        return work_leaves, Met(loss, count, gradients)

    return some_steps
