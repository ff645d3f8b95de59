"""Which runner, how many clients per chunk, compiled or not, and why.

The choice depends on settings, sizes and hardware alone, never on a stopwatch, so that
two runs of one file on one machine take the same path and give the same bits.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, Interval, check
from fedloom.core.task import Task
from fedloom.engine.job import Runner, planned_steps
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave

_CACHE_BYTES = 3_600_000
"""Parameters of a chunk that still stay in a CPU's cache (docs/performance.md)."""
_GPU_SHARE = 0.25
"""Of the GPU's memory, for the parameters and activations of a chunk."""
_GPU_CHUNKS = 4
"""Chunks that a GPU works on side by side where clients are of very unequal size."""
_UNEVEN = 1.5
"""The largest client beside the mean one, from which on chunks of a GPU pay."""
_COPIES = 12
"""Vectors of length d per client alive in a step: work, gradient, download, memory."""
_FEATURES = 64
"""Activations per input number, a generous guess for small networks."""
_SMALL = 20_000
"""Parameters below which calling compiled code costs about as much as running it."""
_CALL_S = 3e-3
"""Cost of one uncompiled step of a chunk, however small (docs/performance.md)."""
_FLOP_S = 4e-11
"""Cost of one floating-point operation of a client's step, on two cores."""
_COMPILE_S = 15.0
"""What compiling a phase costs; `auto` compiles when it saves more than that."""
_OPERATIONS = 40
"""Of a small network's forward pass. What has more, such as a recurrence, costs more
in proportion, to call and to compile."""
_SAVED = 0.4
"""Share of the uncompiled time that compiling saves, at least."""


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
    chunk: Count | None = None
    """Number of clients per chunk; chosen from cache or GPU memory if not given."""
    threads: Annotated[int, Interval(least=1, most=1024)] | None = None
    """Number of CPU threads of the run; as many as the process has if not given."""

    def __post_init__(self) -> None:
        check(self)

    def torch_device(self) -> torch.device:
        """The device, refused with a reason if it is not there."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError as error:
            raise ConfigError(
                f"EngineSettings: device must be auto, cpu or cuda, found "
                f"{self.device!r}."
            ) from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError(
                f"EngineSettings: device is {self.device!r}, but PyTorch sees no GPU. "
                "Use device=cpu."
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
    features = sum(math.prod(x.shape[1:]) for x in federation.dataset.inputs)
    batch_size = min(algorithm.batch_size, int(federation.sizes.max()))
    chunk = settings.chunk or _chunk(
        task, batch_size, features, math.ceil(cohort), _is_uneven(federation)
    )
    chunks = math.ceil(cohort / chunk)
    effort = _forward_effort(task, federation)
    seconds = rounds * _round_seconds(algorithm, effort, federation, cohort, chunks)
    pays = seconds * _SAVED > _COMPILE_S * effort.length * len(algorithm.phases)
    compiled, reason = _compiles(settings.compile, task.device, pays, seconds)
    unroll = 4 if task.d < _SMALL or task.device.type == "cuda" else 1
    return Choice(
        Weave(chunk, compiled=compiled, unroll=unroll), chunk, compiled, reason
    )


def trained_clients(algorithm: AnyAlgorithm, sampling: Sampling, count: int) -> float:
    """How many of `count` clients train in a round, in the mean."""
    trains_all = sampling.protocol == "train-all" or algorithm.trains_everyone
    return count * (1.0 if trains_all else sampling.rate)


def _is_uneven(federation: Federation) -> bool:
    """Whether the largest client has much more to do than most."""
    sizes = federation.sizes
    return int(sizes.max()) > _UNEVEN * float(sizes.mean())


def _chunk(
    task: Task, batch_size: int, features: int, cohort: int, is_uneven: bool
) -> int:
    """Clients whose parameters fit the cache, in chunks of nearly equal size."""
    item = torch.finfo(task.dtype).bits // 8
    if task.device.type == "cuda":
        total = torch.cuda.get_device_properties(task.device).total_memory
        per_client = item * (task.d * _COPIES + batch_size * features * _FEATURES)
        most = int(total * _GPU_SHARE) // per_client
        if is_uneven:
            most = min(most, math.ceil(cohort / _GPU_CHUNKS))
    else:
        most = _CACHE_BYTES // (item * task.d)
    most = max(1, min(most, cohort))
    return math.ceil(cohort / math.ceil(cohort / most))


class _Effort(NamedTuple):
    """What the forward pass of one sample takes."""

    flops: float
    """Floating-point operations."""
    length: float
    """Calls, as a multiple of a small network's; at least 1."""


def _round_seconds(
    algorithm: AnyAlgorithm,
    effort: _Effort,
    federation: Federation,
    cohort: float,
    chunks: int,
) -> float:
    """A rough, deterministic estimate of a round's uncompiled training time."""
    sizes = torch.as_tensor(federation.sizes)
    planned = [
        planned_steps(phase, sizes, algorithm.batch_size).double()
        for phase in algorithm.phases
    ]
    # A single chunk goes on as long as its longest client.
    steps = sum(float(p.max() if chunks == 1 else p.mean()) for p in planned)
    batch = min(algorithm.batch_size, float(sizes.double().mean()))
    # Forward and backward: about three times the forward pass.
    work = cohort * 3.0 * batch * effort.flops * _FLOP_S
    return algorithm.exchanges * steps * (chunks * _CALL_S * effort.length + work)


class _CallCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that are called."""

    calls = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def _forward_effort(task: Task, federation: Federation) -> _Effort:
    """What the model takes for one sample, counted on one."""
    inputs = tuple(x[:1].to(task.device) for x in federation.dataset.inputs)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        task.predict(task.start, inputs)
    with _CallCounter() as counted, torch.no_grad():  # type: ignore[no-untyped-call]
        task.predict(task.start, inputs)
    length = max(1.0, counted.calls / _OPERATIONS)
    return _Effort(float(counter.get_total_flops()), length)


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
