"""Which runner, how many clients per chunk, compiled or not, and why.

The choice depends on settings, sizes and hardware alone, never on a stopwatch, so that
two runs of one file on one machine take the same path and give the same bits.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, Interval, check
from fedloom.core.task import Task
from fedloom.engine.compile_cache import keep_compiled_code
from fedloom.engine.effort import Effort, efforts
from fedloom.engine.job import Runner, Samples, planned_steps, train_job
from fedloom.engine.loop import Loop
from fedloom.engine.native import has_native_steps
from fedloom.engine.precision import Precision
from fedloom.engine.weave import Weave

_CACHE_BYTES = 3_600_000
"""Parameters of a chunk that still stay in a CPU's cache (docs/performance.md)."""
_WIDE_BYTES = 24_000_000
"""The largest tensor of an uncompiled step of a chunk on a CPU, such as the noise of
several models: pFedBayes is fastest at 13 to 25 MB. Compiled, it is never stored."""
_GPU_SHARE = 0.25
"""Of the GPU's memory, for the parameters and activations of a chunk."""
_GPU_CHUNKS = 4
"""Chunks that a GPU works on side by side where clients are of very unequal size."""
_UNEVEN = 1.5
"""The largest client beside the mean one, from which on chunks of a GPU pay."""
_COPIES = 10
"""Vectors of length d per client alive in a step: work, gradient, download, memory."""
_WIDEST = 2
"""Tensors as large as the largest of a step that are alive beside them."""
_FEATURES = 64
"""Activations per input number, a generous guess for small networks."""
_SMALL = 20_000
"""Parameters below which calling compiled code costs about as much as running it."""
_LONG = 500
"""Calls of a step from which on several steps are not compiled as one: a recurrence has
thousands, and compiling takes as much longer as there are more."""


class _Costs(NamedTuple):
    """What things take on a kind of device, in seconds (docs/performance.md)."""

    call: float
    """Calling one uncompiled operation for a chunk, however small."""
    flop: float
    """One floating-point operation of an uncompiled step."""
    compile: float
    """Compiling a phase, whatever it does."""
    compile_call: float
    """Compiling one call of a step."""
    saved: float
    """Share of the uncompiled time that compiling saves, at least."""


_COSTS = {
    # Two cores: an uncompiled step of ten clients of the MLP takes 3.0 ms and has 62
    # calls, one of twenty of LeNet 17 ms and 113 calls.
    "cpu": _Costs(call=3e-5, flop=4e-11, compile=10.0, compile_call=0.1, saved=0.4),
    # An H200: a step of a hundred clients of the MLP takes 4.5 ms, of LeNet 7.2 ms.
    "cuda": _Costs(call=6e-5, flop=3e-13, compile=10.0, compile_call=0.1, saved=0.6),
}


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How the work is done. None of this changes what is computed."""

    runner: Literal["weave", "loop"] = "weave"
    """How clients are trained: all at once (weave), or one after another (loop)."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether the step of a chunk is compiled; auto does if the run pays for it."""
    device: str = "auto"
    """Device that trains: cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating type of parameters and inputs."""
    precision: Precision = "float32"
    """Precision of products on a GPU: tf32 keeps ten bits of each factor, and is faster
    and less exact (docs/performance.md)."""
    chunk: Count | None = None
    """Number of clients per chunk; chosen from cache or GPU memory if not given."""
    threads: Annotated[int, Interval(least=1, most=1024)] | None = None
    """Number of CPU threads of the run; as many as the process has if not given."""

    def __post_init__(self) -> None:
        check(self)

    def torch_device(self) -> torch.device:
        """The device, refused with a reason if it is not there."""
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise ConfigError(
                f"EngineSettings: device must be auto, cpu or cuda, found "
                f"{self.device!r}."
            ) from error
        if device.type not in ("cpu", "cuda"):
            raise ConfigError(
                f"EngineSettings: device must be auto, cpu or cuda, found "
                f"{self.device!r}. Other devices are not supported, Apple's GPUs "
                "included; use device=cpu."
            )
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(
                f"EngineSettings: device is {self.device!r}, but PyTorch sees no GPU. "
                "Use device=cpu."
            )
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise ConfigError(
                f"EngineSettings: device is {self.device!r}, but there are "
                f"{torch.cuda.device_count()} GPUs, from cuda:0 on."
            )
        if self.precision == "tf32" and (device.type, self.dtype) != (
            "cuda",
            "float32",
        ):
            raise ConfigError(
                f"EngineSettings: precision is 'tf32', which is for float32 on a GPU; "
                f"found device {device.type!r} and dtype {self.dtype!r}. Leave "
                "precision out."
            )
        return device

    def torch_dtype(self) -> torch.dtype:
        """The floating type."""
        return torch.float64 if self.dtype == "float64" else torch.float32


@dataclass(frozen=True)
class Choice:
    """A runner and why it is this one."""

    runner: Runner
    chunk: int
    is_compiled: bool
    reason: str
    """One line for the user; empty when there is nothing to say."""


def choose(
    settings: EngineSettings,
    algorithm: AnyAlgorithm,
    task: Task,
    federation: Federation,
    sampling: Sampling,
    rounds: int,
    *,
    bundle_size: int = 1,
) -> Choice:
    """Pick the runner for `bundle_size` runs of `rounds` rounds in the same passes."""
    if settings.runner == "loop":
        return Choice(Loop(), 1, False, "one client after another (runner = loop)")
    cohort = bundle_size * trained_clients(algorithm, sampling, federation.count)
    data = federation.dataset
    taken = efforts(
        algorithm, task, tuple(x[:1] for x in data.inputs), data.targets[:1]
    )
    most = _most_per_chunk(task, algorithm, federation, taken, math.ceil(cohort))
    chunk = settings.chunk or _even(most.uncompiled, cohort)
    seconds = rounds * _round_seconds(
        algorithm,
        taken,
        torch.as_tensor(federation.sizes),
        cohort,
        math.ceil(cohort / chunk),
        task.device,
    )
    unroll = _unroll(task, taken)
    costs = _costs(task.device)
    compile_s = sum(
        costs.compile + unroll * effort.calls * costs.compile_call for effort in taken
    )
    pays = seconds * costs.saved > compile_s
    compiled, reason = _compiles(settings.compile, task.device, pays, seconds)
    if _is_native(algorithm, task, federation):
        compiled = settings.compile == "on"
        reason = "C code takes the steps: nothing is compiled" if compiled else ""
    if compiled:
        keep_compiled_code()
        chunk = settings.chunk or _even(most.compiled, cohort)
    runner = Weave(
        chunk, compiled=compiled, unroll=unroll, precision=settings.precision
    )
    return Choice(runner, chunk, compiled, reason)


def _is_native(algorithm: AnyAlgorithm, task: Task, federation: Federation) -> bool:
    """Whether training is plain descent that C code does without `torch.compile`."""
    if task.device.type != "cpu":
        return False
    train = Samples.of(federation, federation.train, task.device)
    job = train_job(algorithm, task, train)
    return all(has_native_steps(job, phase) for phase in algorithm.phases)


def trained_clients(algorithm: AnyAlgorithm, sampling: Sampling, count: int) -> float:
    """How many of `count` clients train in a round, in the mean."""
    trains_all = sampling.protocol == "train-all" or algorithm.trains_everyone
    return count * (1.0 if trains_all else sampling.rate)


def _is_uneven(federation: Federation) -> bool:
    """Whether the largest client has much more to do than most."""
    sizes = federation.sizes
    return int(sizes.max()) > _UNEVEN * float(sizes.mean())


class _Most(NamedTuple):
    """The most clients of a chunk."""

    uncompiled: int
    compiled: int


def _most_per_chunk(
    task: Task,
    algorithm: AnyAlgorithm,
    federation: Federation,
    taken: Sequence[Effort],
    cohort: int,
) -> _Most:
    """Clients whose parameters fit the cache, or all that they take a GPU's memory."""
    item = task.dtype.itemsize
    widest = max((effort.widest for effort in taken), default=item * task.d)
    if task.device.type != "cuda":
        most = _CACHE_BYTES // (item * task.d)
        return _Most(min(most, _WIDE_BYTES // widest), most)
    features = sum(math.prod(x.shape[1:]) for x in federation.dataset.inputs)
    batch_size = min(algorithm.batch_size, int(federation.sizes.max()))
    activations = item * batch_size * features * _FEATURES
    per_client = item * task.d * _COPIES + widest * _WIDEST + activations
    total = torch.cuda.get_device_properties(task.device).total_memory
    most = int(total * _GPU_SHARE) // per_client
    if _is_uneven(federation):
        most = min(most, math.ceil(cohort / _GPU_CHUNKS))
    return _Most(most, most)


def _even(most: int, cohort: float) -> int:
    """Clients of a chunk where all chunks are of nearly equal size."""
    count = math.ceil(cohort)
    most = max(1, min(most, count))
    return math.ceil(count / math.ceil(count / most))


def _unroll(task: Task, taken: Sequence[Effort]) -> int:
    """Steps that are compiled as one."""
    is_short = max((effort.calls for effort in taken), default=0) < _LONG
    is_cheap = task.d < _SMALL or task.device.type == "cuda"
    return 4 if is_short and is_cheap else 1


def _costs(device: torch.device) -> _Costs:
    return _COSTS.get(device.type, _COSTS["cpu"])


def _round_seconds(
    algorithm: AnyAlgorithm,
    taken: Sequence[Effort],
    sizes: Tensor,
    cohort: float,
    chunks: int,
    device: torch.device,
) -> float:
    """A rough, deterministic estimate of a round's uncompiled training time."""
    costs, total = _costs(device), 0.0
    for phase, effort in zip(algorithm.phases, taken, strict=True):
        planned = planned_steps(phase, sizes, algorithm.batch_size).double()
        # A single chunk goes on as long as its longest client.
        steps = float(planned.max() if chunks == 1 else planned.mean())
        batch = float(sizes.double().mean())
        if phase.passes is None:
            batch = min(algorithm.batch_size, batch)
        arithmetic = cohort * batch * effort.flops * costs.flop
        total += steps * (chunks * effort.calls * costs.call + arithmetic)
    return algorithm.exchanges * total


def _compiles(
    asked: str, device: torch.device, pays: bool, seconds: float
) -> tuple[bool, str]:
    if asked == "off" or (asked == "auto" and not pays):
        return False, ""
    has_compiler = device.type == "cuda" or any(
        shutil.which(name) for name in ("g++", "clang++", "c++")
    )
    if not has_compiler:
        if asked == "on":
            raise ConfigError(
                "EngineSettings: compile is on, but there is no C++ compiler on the "
                "PATH. Install g++ or clang++, or use compile=auto."
            )
        return False, "not compiled: there is no C++ compiler on the PATH"
    if asked == "on":
        return True, "compiled, as asked; the first round takes longer"
    return True, f"compiled: about {seconds:.0f} s of training pay for it"
