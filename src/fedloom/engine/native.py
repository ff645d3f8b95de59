"""Plain descent on a CPU, and outputs: each client in one thread, from end to end.

Most methods train at least one model by nothing but SGD on the client's own loss, on a
network that is a row of ordinary layers. A compiled step of a chunk of clients then
meets all their weights several times a step, and clients of unequal size wait for each
other. Here a client's weights stay in the cache of one core until it is done, and a
core that is done takes the next client (`descend.c`). Personal models are scored so
too: what a client's model says of all its samples.
"""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedloom.core.algorithm import Algorithm, has_own
from fedloom.core.layout import Block
from fedloom.core.losses import cross_entropy, squared_error
from fedloom.core.phases import Phase
from fedloom.core.scaling import Scaling
from fedloom.core.task import Task
from fedloom.engine.job import Job, Samples
from fedloom.engine.layers import layers_of
from fedloom.engine.native_library import native_library
from fedloom.engine.steps import Given, Met

_MOST_SAMPLES = 256
"""Of a batch; the products of larger ones are better cut in other ways."""
_SEEN_ROWS = 64
_SEEN_PLANES = 16
"""Samples that a model sees at once where nothing is trained: of plain numbers, and of
pictures. They and what comes of them stay in the cache of a core."""
_RUN = 512
"""Samples of one model that a thread takes at a time, so that no thread is left with a
large client."""
_BITS = {torch.float32: 32, torch.float64: 64}
_INPUTS = {torch.uint8: 0, torch.float32: 1, torch.float64: 2}
_KINDS = {
    name: number
    for number, name in enumerate(
        (
            *("linear", "convolution", "max-pool", "mean-pool", "pad", "flatten"),
            *("relu", "tanh", "sigmoid"),
        )
    )
}
"""Kinds of layers and inputs, by the numbers that `descend.c` gives them."""
_ACTIVATIONS = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_POOLS = {nn.MaxPool2d: "max-pool", nn.AvgPool2d: "mean-pool"}


class _Layer(NamedTuple):
    """A layer as `descend.c` takes it; all numbers are whole."""

    kind: str
    shape: tuple[int, int, int]
    """Of one sample that goes in: channels, height, width."""
    outputs: int = 0
    side: int = 0
    stride: int = 0
    weights: int = -1
    bias: int = -1

    @property
    def numbers(self) -> list[int]:
        """In the order of the fields there."""
        return [_KINDS[self.kind], *self.shape, *self[2:]]


class _Network(NamedTuple):
    layers: list[_Layer]
    outputs: int


class _Work(ctypes.Structure):
    """`Work` of `descend.c`, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("layers",)),
        *((name, ctypes.c_int64) for name in ("count", "loss", "input_kind")),
        *((name, ctypes.c_int64) for name in ("clients", "size", "batch")),
        *((name, ctypes.c_void_p) for name in ("inputs", "targets", "samples")),
        *((name, ctypes.c_int64) for name in ("samples_client", "samples_step")),
        *((name, ctypes.c_void_p) for name in ("sizes",)),
        *((name, ctypes.c_int64) for name in ("sizes_client", "sizes_step")),
        *((name, ctypes.c_void_p) for name in ("steps", "order")),
        *(("theta", ctypes.c_void_p), ("theta_client", ctypes.c_int64)),
        *(("velocity", ctypes.c_void_p), ("velocity_client", ctypes.c_int64)),
        *((name, ctypes.c_void_p) for name in ("new_theta", "new_velocity")),
        *((name, ctypes.c_void_p) for name in ("shift", "scale")),
        *((name, ctypes.c_int64) for name in ("level_client", "level_feature")),
        *((name, ctypes.c_void_p) for name in ("losses", "seen")),
        *((name, ctypes.c_double) for name in ("rate", "clip", "decay", "momentum")),
        *((name, ctypes.c_int64) for name in ("next",)),
        *((name, ctypes.c_void_p) for name in ("outputs", "starts", "models")),
    )


class NativeSteps:
    """All steps of some clients in one call, each at its own pace.

    Args:
        job: whose steps; `has_native_steps` holds of it.
        phase: which of its phases.
    """

    def __init__(self, job: Job, phase: Phase) -> None:
        network, task = _network(job.task, job.train.inputs[0]), job.task
        library = native_library(_BITS[task.dtype])
        assert network is not None
        assert library is not None
        self._task, self._algorithm, self._library = task, job.algorithm, library
        self._has_velocity = job.algorithm.momentum > 0
        rows = [layer.numbers for layer in network.layers]
        self._layers = torch.tensor(rows, dtype=torch.int64)
        self._inputs = job.train.inputs[0].contiguous()
        self._is_classes = task._loss is cross_entropy
        targets = job.train.targets
        self._targets = (
            targets if self._is_classes else task._learned(targets)
        ).contiguous()

    def run(
        self,
        work: list[Tensor],
        met: Met,
        given: Given,
        samples: Tensor,
        mask: Tensor,
        steps: Tensor,
    ) -> tuple[list[Tensor], Met]:
        """All steps of all clients, those with most of them first.

        Args:
            work: (C, d) the parameters and, with momentum, their velocities.
            met: what earlier steps met.
            given: what all steps share.
            samples: (C, S, 1, B) which samples, of all; in each batch they come first.
            mask: (C, S, 1, B) whether there is one.
            steps: (C,) how many each client takes.
        """
        at = _with_rows(work[0])
        velocity = _with_rows(work[1]) if self._has_velocity else None
        new = [torch.empty(leaf.shape, dtype=leaf.dtype) for leaf in work]
        samples = samples.contiguous()
        sizes = mask.sum((-2, -1))
        order = steps.argsort(descending=True, stable=True)
        losses, seen = met.loss.clone(), met.gradients.clone()
        own = Scaling(*given.scaling) if given.scaling else None
        shift, scale = _levels(self._task, self._inputs, own)
        algorithm = self._algorithm
        call = _Work(
            layers=self._layers.data_ptr(),
            count=len(self._layers),
            loss=0 if self._is_classes else 1,
            input_kind=_INPUTS[self._inputs.dtype],
            clients=len(at),
            size=at.shape[-1],
            batch=samples.shape[-1],
            inputs=self._inputs.data_ptr(),
            targets=self._targets.data_ptr(),
            samples=samples.data_ptr(),
            samples_client=samples.stride(0),
            samples_step=samples.stride(1),
            sizes=sizes.data_ptr(),
            sizes_client=sizes.stride(0),
            sizes_step=sizes.stride(1),
            steps=steps.data_ptr(),
            order=order.data_ptr(),
            theta=at.data_ptr(),
            theta_client=at.stride(0),
            velocity=None if velocity is None else velocity.data_ptr(),
            velocity_client=0 if velocity is None else velocity.stride(0),
            new_theta=new[0].data_ptr(),
            new_velocity=None if velocity is None else new[1].data_ptr(),
            shift=shift.data_ptr(),
            scale=scale.data_ptr(),
            level_client=shift.shape[1] if len(shift) > 1 else 0,
            level_feature=int(shift.shape[1] > 1),
            losses=losses.data_ptr(),
            seen=seen.data_ptr(),
            rate=float(algorithm.decayed(algorithm.lr, given.round, at.dtype)),
            clip=algorithm.clip or 0.0,
            decay=algorithm.weight_decay,
            momentum=algorithm.momentum if self._has_velocity else 0.0,
        )
        threads = ctypes.c_int64(torch.get_num_threads())
        if not self._library.descend(ctypes.byref(call), threads):
            raise MemoryError("There is no memory left for the threads that train.")
        return new, Met(losses, met.steps + steps, seen)


class NativeOutputs:
    """What clients' own models say of their own samples, a client to a thread.

    Args:
        task: whose models; `has_native_outputs` holds of it and the samples.
        samples: those of all clients.
    """

    def __init__(self, task: Task, samples: Samples) -> None:
        self._inputs = samples.inputs[0].contiguous()
        network = _network(task, self._inputs)
        library = native_library(_BITS[task.dtype])
        assert network is not None
        assert library is not None
        self._library, self._dtype = library, task.dtype
        rows = [layer.numbers for layer in network.layers]
        self._layers = torch.tensor(rows, dtype=torch.int64)
        self._outputs = network.outputs
        self._batch = _SEEN_PLANES if _has_planes(network.layers) else _SEEN_ROWS
        self._levels = _levels(task, self._inputs, None)

    def __call__(self, thetas: Tensor, samples: Tensor, sizes: Tensor) -> Tensor:
        """(N, outputs) of every sample, in their order.

        Args:
            thetas: (n, d) the models.
            samples: (N,) which samples, of all, one client's after another's.
            sizes: (n,) how many of them are each client's.
        """
        at, samples = _with_rows(thetas.detach()), samples.contiguous()
        models, starts, sizes = _runs(sizes, _RUN)
        order = sizes.argsort(descending=True, stable=True)
        outputs = torch.empty(len(samples), self._outputs, dtype=self._dtype)
        shift, scale = self._levels
        call = _Work(
            layers=self._layers.data_ptr(),
            count=len(self._layers),
            input_kind=_INPUTS[self._inputs.dtype],
            clients=len(models),
            size=at.shape[-1],
            batch=self._batch,
            inputs=self._inputs.data_ptr(),
            samples=samples.data_ptr(),
            sizes=sizes.data_ptr(),
            order=order.data_ptr(),
            theta=at.data_ptr(),
            theta_client=at.stride(0),
            shift=shift.data_ptr(),
            scale=scale.data_ptr(),
            level_feature=int(shift.shape[1] > 1),
            outputs=outputs.data_ptr(),
            starts=starts.data_ptr(),
            models=models.data_ptr(),
        )
        threads = ctypes.c_int64(torch.get_num_threads())
        if not self._library.descend(ctypes.byref(call), threads):
            raise MemoryError("There is no memory left for the threads that score.")
        return outputs


def has_native_outputs(task: Task, samples: Samples) -> bool:
    """Whether `NativeOutputs` knows the task's model and its inputs."""
    return (
        type(task) is Task
        and task.device.type == "cpu"
        and task.dtype in _BITS
        and len(samples.inputs) == 1
        and samples.inputs[0].dtype in _INPUTS
        and _network(task, samples.inputs[0]) is not None
        and native_library(_BITS[task.dtype]) is not None
    )


def has_native_steps(job: Job, phase: Phase) -> bool:
    """Whether `NativeSteps` can take clients through a phase."""
    task = job.task
    return (
        isinstance(job.algorithm, Algorithm)
        and getattr(job.method(phase.step), "is_plain_descent", False)
        and job.algorithm.optimizer == "sgd"
        and job.per_sample is None
        and not has_own(job.algorithm, "sgd_step")
        and not has_own(job.algorithm, "decayed")
        and (phase.batches, phase.until) == (1, None)
        and task.device.type == "cpu"
        and task.dtype in _BITS
        and job.batch_size <= _MOST_SAMPLES
        and phase.passes is None
        and len(job.train.inputs) == 1
        and job.train.inputs[0].dtype in _INPUTS
        and _has_known_loss(job)
        and native_library(_BITS[task.dtype]) is not None
    )


def _has_known_loss(job: Job) -> bool:
    """Whether the network is known and its loss and targets too."""
    network = _network(job.task, job.train.inputs[0])
    targets = job.train.targets
    if network is None:
        return False
    if job.task._loss is cross_entropy:
        if targets.dim() != 1 or targets.dtype != torch.int64:
            return False
        return int(targets.min()) >= 0 and int(targets.max()) < network.outputs
    is_own = job.scaling is not None and job.task.scales_targets
    size = math.prod(targets.shape[1:])
    return job.task._loss is squared_error and size == network.outputs and not is_own


def _network(task: Task, inputs: Tensor) -> _Network | None:
    """The task's model for some inputs; None if it is of another kind."""
    layers = layers_of(task.module)
    if layers is None:
        return None
    names = {parameter: name for name, parameter in task.module.named_parameters()}
    blocks = {block.name: block for block in task.layout}
    shape = tuple(inputs.shape[1:])
    made: list[_Layer] = []
    for layer in layers:
        own = {
            name: blocks.pop(names[parameter], None)
            for name, parameter in layer.named_parameters()
        }
        after = _after(layer, shape, own, made)
        if after is None:
            return None
        shape = after
    is_all = not blocks and len(shape) == 1 and any(m.weights >= 0 for m in made)
    return _Network(made, shape[0]) if is_all else None


def _after(
    layer: nn.Module,
    shape: tuple[int, ...],
    own: dict[str, Block | None],
    made: list[_Layer],
) -> tuple[int, ...] | None:
    """The shape of a sample after one more layer, which is put to those that are made.

    None if the layer is of a kind that is not known.
    """
    kind = type(layer)
    if any(block is None for block in own.values()):
        return None  # frozen, or of another layer too
    places = {name: block.start for name, block in own.items() if block is not None}
    places = {"weights": places.get("weight", -1), "bias": places.get("bias", -1)}
    if isinstance(layer, nn.Linear) and kind is nn.Linear and len(shape) == 1:
        made.append(_Layer("linear", (*shape, 1, 1), layer.out_features, **places))
        return (layer.out_features,)
    if kind in _ACTIVATIONS:
        if made and made[-1].kind in _ACTIVATIONS.values():
            return None  # they work in place: the first one's output would be lost
        whole = shape if len(shape) == 3 else (math.prod(shape), 1, 1)
        made.append(_Layer(_ACTIVATIONS[kind], whole))
        return shape
    if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
        if len(shape) == 3 and _has_planes(made):
            made.append(_Layer("flatten", shape))
        return (math.prod(shape),)
    if len(shape) != 3:
        return None
    return _after_planes(layer, shape, places, made)


def _after_planes(
    layer: nn.Module,
    shape: tuple[int, int, int],
    places: dict[str, int],
    made: list[_Layer],
) -> tuple[int, ...] | None:
    """The same for layers that see pictures: convolutions and pools."""
    channels, height, width = shape
    if isinstance(layer, nn.Conv2d) and type(layer) is nn.Conv2d:
        side, pad = _square(layer.kernel_size), _square(layer.padding)
        usual = (layer.stride, layer.dilation, layer.groups, layer.padding_mode)
        if side is None or pad is None or usual != ((1, 1), (1, 1), 1, "zeros"):
            return None
        if pad:
            made.append(_Layer("pad", shape, side=pad))
            height, width = height + 2 * pad, width + 2 * pad
        shape = (channels, height, width)
        made.append(_Layer("convolution", shape, layer.out_channels, side, 1, **places))
        return (layer.out_channels, height - side + 1, width - side + 1)
    if type(layer) not in _POOLS or not isinstance(layer, nn.MaxPool2d | nn.AvgPool2d):
        return None
    side, stride = _square(layer.kernel_size), _square(layer.stride)
    is_plain = _square(layer.padding) == 0 and not layer.ceil_mode
    if isinstance(layer, nn.MaxPool2d):
        is_plain &= _square(layer.dilation) == 1 and not layer.return_indices
    else:
        is_plain &= layer.divisor_override is None
    if side is None or stride is None or not is_plain:
        return None
    made.append(_Layer(_POOLS[type(layer)], shape, side=side, stride=stride))
    return (channels, (height - side) // stride + 1, (width - side) // stride + 1)


def _has_planes(made: list[_Layer]) -> bool:
    """Whether one of the layers sees pictures."""
    return any(layer.kind in ("pad", "convolution", *_POOLS.values()) for layer in made)


def _square(sides: object) -> int | None:
    """The side of a square that is given by one number or two; None if it is none."""
    pair = sides if isinstance(sides, tuple) else (sides, sides)
    is_square = len(pair) == 2 and pair[0] == pair[1] and isinstance(pair[0], int)
    return int(pair[0]) if is_square else None


def _runs(sizes: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Clients' samples cut into runs: whose each is, where it begins, how long it is.

    Args:
        sizes: (n,) samples of each client, one client's after another's.
        most: the most samples of a run.
    """
    counts = (sizes + most - 1) // most
    owners = torch.repeat_interleave(torch.arange(len(sizes)), counts)
    number = torch.arange(len(owners)) - (counts.cumsum(0) - counts)[owners]
    lengths = (sizes[owners] - most * number).clamp(max=most)
    starts = (sizes.cumsum(0) - sizes)[owners] + most * number
    return owners, starts, lengths


def _with_rows(vectors: Tensor) -> Tensor:
    """(C, d) with the numbers of a row side by side; rows may be one and the same."""
    return vectors if vectors.stride(-1) == 1 else vectors.contiguous()


def _levels(
    task: Task, inputs: Tensor, scaling: Scaling | None
) -> tuple[Tensor, Tensor]:
    """(1 or C, 1 or features) what is taken from inputs, and what divides them.

    Args:
        task: how inputs are scaled.
        inputs: of all samples.
        scaling: that of C clients, where it is not the task's own.
    """
    is_scaled = task.scales_floats or inputs.dtype == torch.uint8
    pair = (scaling or task.scaling)[:2] if is_scaled else (0.0, 1.0)
    is_each = scaling is not None and is_scaled
    levels = [
        torch.as_tensor(level, dtype=task.dtype)[None if not is_each else ...]
        for level in pair
    ]
    if all(level.dim() == 1 for level in levels):
        shift, scale = (level[:, None].contiguous() for level in levels)
        return shift, scale
    shape = inputs.shape[1:]
    shift, scale = (
        _along(level, shape).expand(-1, *shape).reshape(len(level), -1).contiguous()
        for level in levels
    )
    return shift, scale


def _along(level: Tensor, shape: torch.Size) -> Tensor:
    """(rows, channels) as they lie along (rows, channels, ...); others as they are."""
    if level.dim() == 2:
        return level.reshape(*level.shape, *[1] * (len(shape) - 1))
    return level.reshape(
        len(level), *[1] * (len(shape) + 1 - level.dim()), *level.shape[1:]
    )
