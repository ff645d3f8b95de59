"""What a method sends and keeps for a given model, read off its records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from fedloom.core.algorithm import AnyAlgorithm, Client, Cohort, Population
from fedloom.core.memory import host_memory
from fedloom.core.messages import CohortDownload
from fedloom.core.records import leaves, message_bytes, without_log
from fedloom.core.task import Task

_FEW = (8, 16, 24)
"""How many clients are made up to ask a method: what a server keeps may grow with
their number and its square, which three numbers tell."""
_SIZE = 100
"""Training samples of each; no size matters."""


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes; a message or a memory is that of one client."""

    down: int
    """Down to one client in a round, all exchanges together."""
    up: int
    """Up from one client in a round, all exchanges together."""
    kept: int
    """On one client from round to round."""
    server: int
    """On the server from round to round."""


def footprint(algorithm: AnyAlgorithm, task: Task, *, clients: int = 100) -> Footprint:
    """Ask a method for its records without training anything.

    Args:
        algorithm: the method with its settings.
        task: its model.
        clients: how many there are, for methods whose server keeps something of each.
            Few are made up, and it is foreseen what more would take.
    """
    servers = [algorithm.init_server(_population(task, count)) for count in _FEW]
    sent = first_download(algorithm, task)
    kept, upload = untrained_result(algorithm, task, sent.take(0).record)
    return Footprint(
        down=algorithm.exchanges * sent.bytes,
        up=algorithm.exchanges * _bytes(upload),
        kept=_bytes(kept),
        server=_foreseen([_bytes(server) for server in servers], clients),
    )


def first_download(algorithm: AnyAlgorithm, task: Task) -> CohortDownload:
    """What a method sends first to two of a few clients that are made up."""
    population = _population(task, _FEW[0])
    cohort = Cohort(
        clients=torch.arange(2, device=task.device),
        sizes=population.sizes[:2],
        teams=population.teams[:2],
        round=0,
        exchange=0,
        population=population,
    )
    server = algorithm.init_server(population)
    return CohortDownload.of(without_log(algorithm.download(server, cohort))[0])


def made_up_client(task: Task) -> Client:
    """A client like any other, for methods that ask who they are at."""
    zero = torch.zeros((), dtype=torch.int64, device=task.device)
    size = torch.tensor(_SIZE, dtype=task.dtype, device=task.device)
    return Client(size, zero, zero, zero == 0, zero, zero)


def untrained_result(algorithm: AnyAlgorithm, task: Task, down: Any) -> tuple[Any, Any]:
    """What one client would keep and send without a single step: memory and upload.

    Their fields, types and shapes are those of every client's.

    Args:
        algorithm: the method.
        task: its model.
        down: the download of one client.
    """
    client = made_up_client(task)
    memory = algorithm.initial_memory(down, client, task)
    work = algorithm.begin(down, memory, client, task)
    kept, upload = algorithm.finish(work, down, memory, client, task)
    return kept, upload


def _population(task: Task, count: int) -> Population:
    everyone = torch.arange(count, device=task.device)
    return Population(
        task=task,
        theta=lambda index: task.initial(0, index),
        sizes=torch.full_like(everyone, _SIZE, dtype=task.dtype),
        teams=everyone % 2,
        rate=1.0,
    )


def _foreseen(sizes: list[int], clients: int) -> int:
    """The parabola through what `_FEW` clients take, at another number of them."""
    total = Fraction(0)
    for count, size in zip(_FEW, sizes, strict=True):
        others = [other for other in _FEW if other != count]
        share = [Fraction(clients - other, count - other) for other in others]
        total += size * math.prod(share)
    return int(total)


def _bytes(record: object) -> int:
    return message_bytes(record, has_rows=[False] * len(leaves(record)))


def memory_bytes(device: torch.device) -> int:
    """How much memory a device has, or a container that limits it."""
    if device.type == "cuda":
        total: int = torch.cuda.get_device_properties(device).total_memory
        return total
    return host_memory()
