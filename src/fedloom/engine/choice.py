"""Which runner, how many clients per chunk, compiled or not, and why.

The choice depends on settings, sizes and hardware alone, never on a stopwatch, so that
two runs of one file on one machine take the same path and give the same bits.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from typing import Literal

import torch

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, check
from fedloom.core.task import Task
from fedloom.engine.job import AnyAlgorithm, Runner, planned_steps
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.federation.cohorts import Sampling
from fedloom.federation.federation import Federation

_CACHE_BYTES = 4 << 20
"""Parameters of a chunk that still stay in a CPU's cache (docs/performance.md)."""
_GPU_SHARE = 0.25
"""Of the GPU's memory, for the parameters and activations of a chunk."""
_COPIES = 12
"""Vectors of length d per client alive in a step: work, gradient, download, memory."""
_FEATURES = 64
"""Activations per input number, a generous guess for small networks."""
_STEP_S = 1.5e-4
"""Rough cost of one uncompiled client step on a CPU, and per megaflop beyond."""
_FLOP_S = 1.5e-10
_COMPILE_S = 30.0
"""What compiling costs at most; `auto` compiles when it saves more than that."""
_SAVED = 0.6
"""Share of the uncompiled time that compiling saves."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """How the work is done. None of this changes what is computed."""

    runner: Literal["weave", "loop"] = "weave"
    """All clients at once, or one after another."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Compile the step of a chunk; auto does when the whole run pays for it."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating type of parameters and inputs."""
    chunk: Count | None = None
    """Clients per chunk; chosen from cache or GPU memory if not given."""
    threads: Count | None = None
    """CPU threads; PyTorch's own choice if not given."""

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
) -> Choice:
    """Pick the runner for a run of `rounds` rounds."""
    if settings.runner == "loop":
        return Choice(Loop(), 1, False, "one client after another (runner = loop)")
    trains_all = sampling.protocol == "train-all"
    cohort = federation.count * (1.0 if trains_all else sampling.rate)
    features = sum(math.prod(x.shape[1:]) for x in federation.dataset.inputs)
    chunk = settings.chunk or _chunk(
        task, algorithm.batch_size, features, math.ceil(cohort)
    )
    seconds = rounds * _round_seconds(algorithm, task, federation, cohort)
    pays = seconds * _SAVED > _COMPILE_S
    compiled, reason = _compiles(settings.compile, task.device, pays, seconds)
    unroll = 1 if task.d > 200_000 else 4
    return Choice(
        Weave(chunk, compiled=compiled, unroll=unroll), chunk, compiled, reason
    )


def _chunk(task: Task, batch_size: int, features: int, cohort: int) -> int:
    """Clients whose parameters fit the cache, in chunks of nearly equal size."""
    item = torch.finfo(task.dtype).bits // 8
    if task.device.type == "cuda":
        total = torch.cuda.get_device_properties(task.device).total_memory
        per_client = item * (task.d * _COPIES + batch_size * features * _FEATURES)
        most = int(total * _GPU_SHARE) // per_client
    else:
        most = _CACHE_BYTES // (item * task.d)
    most = max(1, min(most, cohort))
    return math.ceil(cohort / math.ceil(cohort / most))


def _round_seconds(
    algorithm: AnyAlgorithm, task: Task, federation: Federation, cohort: float
) -> float:
    """A rough, deterministic estimate of a round's uncompiled training time."""
    sizes = torch.as_tensor(federation.sizes)
    steps = sum(
        float(planned_steps(phase, sizes, algorithm.batch_size).double().mean())
        for phase in algorithm.phases
    )
    flops = 6.0 * task.d * min(algorithm.batch_size, float(sizes.double().mean()))
    return algorithm.exchanges * cohort * steps * (_STEP_S + flops * _FLOP_S)


def _compiles(
    asked: str, device: torch.device, pays: bool, seconds: float
) -> tuple[bool, str]:
    if asked == "off":
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
    if pays:
        return True, f"compiled: about {seconds:.0f} s of training would pay for it"
    return False, ""
