"""What one local step of a method takes, counted by taking one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from fedloom.clients.batches import steps_per_epoch
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.task import Batch, Task
from fedloom.core.watched import watch
from fedloom.engine.footprint import first_download, made_up_client
from fedloom.engine.job import planned_steps


class Effort(NamedTuple):
    """What one step of one phase takes of one client, on a batch of one sample."""

    calls: int
    """Operations that are called, whatever their size."""
    flops: int
    """Floating-point operations of its products and convolutions."""
    widest: int
    """Bytes of the largest tensor that it makes."""
    passes: int
    """How often it takes the sample into a gradient."""
    gradients: int
    """How many gradients it takes the sample into, each once or as a mean of draws."""


def efforts(
    algorithm: AnyAlgorithm,
    task: Task,
    inputs: tuple[Tensor, ...],
    targets: Tensor,
) -> tuple[Effort, ...]:
    """By phase, what a step takes.

    Args:
        algorithm: the method.
        task: model and loss.
        inputs: one sample, whatever it says.
        targets: its target.
    """
    down = first_download(algorithm, task).take(0).record
    client = made_up_client(task)
    memory = algorithm.initial_memory(down, client, task)
    zero = torch.zeros((), dtype=torch.int64, device=task.device)
    batch = Batch(
        inputs=tuple(x.to(task.device) for x in inputs),
        targets=targets.to(task.device),
        mask=torch.ones(1, dtype=task.dtype, device=task.device),
        key=zero,
        step=zero,
        ends_epoch=zero > 0,
        round=zero,
    )
    work = algorithm.begin(down, memory, client, task)
    found = []
    for phase in algorithm.phases:
        watched = watch(task, clip=algorithm.clip, per_sample=algorithm.per_sample)
        step = getattr(algorithm, phase.step)
        batches = batch if phase.batches == 1 else (batch,) * phase.batches
        work, counted = count(step, work, down, batches, watched)
        passes = round(float(watched.met_samples()))
        taken = counted.calls, counted.flops, counted.widest, passes
        found.append(Effort(*taken, gradients=watched.met_gradients))
    return tuple(found)


def gradients_of_a_sample(
    algorithm: AnyAlgorithm,
    task: Task,
    inputs: tuple[Tensor, ...],
    targets: Tensor,
    sizes: Tensor,
) -> float:
    """In how many gradients of a round a sample enters at most.

    In each pass over its client's data it enters those of one step.

    Args:
        algorithm: the method.
        task: model and loss.
        inputs: one sample, whatever it says.
        targets: its target.
        sizes: (M,) training samples of every client.
    """
    taken = efforts(algorithm, task, inputs, targets)
    total = torch.zeros_like(sizes)
    for phase, effort in zip(algorithm.phases, taken, strict=True):
        steps = planned_steps(phase, sizes, algorithm.batch_size)
        a_pass = steps_per_epoch(sizes, algorithm.batch_size).clamp(min=1)
        passes = steps if phase.passes is not None else -(-steps // a_pass)
        total += passes * effort.gradients
    return float(algorithm.exchanges * int(total.max()))


def count(function: Callable[..., Any], *args: Any) -> tuple[Any, Counter]:
    """What a function gives, and what it took."""
    with Counter() as counter:  # type: ignore[no-untyped-call]
        made = function(*args)
    return made, counter


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that are called, and what they compute."""

    calls = 0
    flops = 0
    widest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Do the operation and count it."""
        made = func(*args, **(kwargs or {}))
        self.calls += 1
        if func._overloadpacket in flop_registry:
            formula = flop_registry[func._overloadpacket]
            self.flops += formula(*args, **(kwargs or {}), out_val=made)
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                own = tensor.numel() * tensor.element_size()
                self.widest = max(self.widest, own)
        return made
