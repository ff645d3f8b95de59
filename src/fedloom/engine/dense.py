"""Plain descent of a small dense network on a GPU: one kernel takes all steps.

Most methods train at least one model by nothing but SGD on the client's own loss, and a
network of one or two layers is what they are mostly compared with. Its weights are then
met twice a step however well a compiler fuses, and a hundred clients of unequal size
wait for each other. Here each client has a program of its own, which runs through all
its steps (`fedloom.engine.dense_kernel`).
"""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedloom.core.algorithm import SGDState
from fedloom.core.losses import cross_entropy
from fedloom.core.phases import Phase
from fedloom.core.scaling import Scaling
from fedloom.core.task import Task
from fedloom.engine.job import Job
from fedloom.engine.layers import layers_of
from fedloom.engine.precision import EXACT, own_precision
from fedloom.engine.steps import Columns, Given, Met

_MOST_UNITS = 256
_MOST_OUTPUTS = 64
_MOST_SAMPLES = 64
"""What still fits the registers of a program."""
_TILING = {False: {"TILE": 32, "num_warps": 4}, True: {"TILE": 64, "num_warps": 8}}
"""Features that a program takes at a time, and its warps, for few and many units."""
_LEAST = 16
"""Smallest side of a product on tensor cores."""


class _Dense(NamedTuple):
    """A network of one or two linear layers, with ReLU in between."""

    features: int
    hidden: int
    """0 if there is no hidden layer."""
    outputs: int


class DenseSteps:
    """All steps of a chunk in one kernel.

    Args:
        job: whose steps; `has_dense_steps` holds of it.
        phase: which of its phases.
    """

    def __init__(self, job: Job, phase: Phase) -> None:
        network = _network(job.task)
        assert network is not None
        self._task, self._algorithm, self._network = job.task, job.algorithm, network
        is_bytes = job.train.inputs[0].dtype == torch.uint8
        self._is_whole = is_bytes and job.scaling is None and job.task.shift == 0.0

    def run(
        self,
        work: list[Tensor],
        met: Met,
        given: Given,
        columns: Columns,
        together: int,
    ) -> tuple[list[Tensor], Met]:
        """All steps of all clients, each at its own pace."""
        from fedloom.engine.dense_kernel import descend  # needs Triton

        features, hidden, outputs = self._network
        at, *rest = work
        clients, batch_size = len(at), columns.samples.shape[-1]
        blocks = self._task.layout
        parts = [at[:, b.start : b.stop].contiguous() for b in blocks]
        steps = columns.active.sum(0)
        losses, samples = met.loss.clone(), met.gradients.clone()
        algorithm = self._algorithm
        rate = algorithm.decayed(algorithm.lr, given.round, at.dtype)
        scaling = Scaling(*given.scaling) if given.scaling else self._task.scaling
        shift, scale = (
            _numbers(level, at).expand(clients).contiguous() for level in scaling[:2]
        )
        width = _padded(hidden or outputs)
        descend[(clients,)](
            *parts,
            *([] if hidden else parts),
            given.inputs[0],
            given.targets,
            columns.samples,
            columns.mask,
            steps,
            shift,
            scale,
            _numbers(rate, at),
            losses,
            samples,
            clients,
            algorithm.clip or 0.0,
            algorithm.weight_decay,
            FEATURES=features,
            HIDDEN=hidden,
            OUTPUTS=outputs,
            BATCH=batch_size,
            WIDTH=width,
            ENDS=_padded(outputs),
            ROWS=_padded(batch_size),
            **_TILING[width > 64],
            CLIPS=algorithm.clip is not None,
            DECAYS=algorithm.weight_decay > 0,
            WHOLE=self._is_whole and own_precision() == EXACT,
            PRECISION=own_precision(),
        )
        moved = torch.cat(parts, dim=1)
        return [moved, *rest], Met(losses, met.steps + steps, samples)


def has_dense_steps(job: Job, phase: Phase, work: object) -> bool:
    """Whether `DenseSteps` can take a chunk through a phase."""
    task, algorithm = job.task, job.algorithm
    levels = (job.scaling or task.scaling)[:2]
    is_own = job.scaling is not None
    return (
        getattr(job.method(phase.step), "is_plain_descent", False)
        and (phase.batches, phase.until) == (1, None)
        and isinstance(work, SGDState)
        and algorithm.optimizer == "sgd"
        and job.per_sample is None
        and not algorithm.momentum
        and task.device.type == "cuda"
        and task.dtype == torch.float32
        and task._loss is cross_entropy
        and _network(task) is not None
        and len(job.train.inputs) == 1
        and all(torch.as_tensor(level).dim() == is_own for level in levels)
        and job.train.inputs[0].dtype in (torch.uint8, torch.float32)
        and job.train.targets.dim() == 1
        and job.batch_size <= _MOST_SAMPLES
        and importlib.util.find_spec("triton") is not None
    )


def _network(task: Task) -> _Dense | None:
    """The layers of a task's model; None if it is of another kind."""
    blocks, found = task.layout, layers_of(task.module)
    if found is None:
        return None
    layers = [layer for layer in found if type(layer) is not nn.Flatten]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    kinds = [type(layer) for layer in layers]
    if kinds not in ([nn.Linear], [nn.Linear, nn.ReLU, nn.Linear]):
        return None
    shapes = [tuple(p.shape) for layer in linear for p in layer.parameters()]
    if any(layer.bias is None for layer in linear) or shapes != [
        b.shape for b in blocks
    ]:
        return None
    outputs, hidden = linear[-1].out_features, linear[0].out_features
    if len(linear) == 1:
        hidden = 0
    if outputs > _MOST_OUTPUTS or hidden > _MOST_UNITS:
        return None
    return _Dense(linear[0].in_features, hidden, outputs)


def _padded(side: int) -> int:
    """The next power of two that a kernel can work with."""
    return max(_LEAST, 1 << (side - 1).bit_length())


def _numbers(level: float | Tensor, like: Tensor) -> Tensor:
    """A number or a row of them where `like` is, without a copy from the host."""
    if isinstance(level, Tensor):
        return level.to(like.dtype).reshape(-1)
    return like.new_full((1,), level)
