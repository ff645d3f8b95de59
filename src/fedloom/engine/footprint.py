"""What a method sends and keeps for a given model, read off its records."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedloom.core.algorithm import AnyAlgorithm, Client, Cohort, Population
from fedloom.core.memory import host_memory
from fedloom.core.messages import CohortDownload
from fedloom.core.records import client_dims, leaves, message_bytes, without_log
from fedloom.core.task import Task

_FEW = 50
"""Clients that are made up to ask a method."""
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
            Few are made up; what has a place per client is multiplied.
    """
    device = task.device
    everyone = torch.arange(min(clients, _FEW), device=device)
    population = Population(
        task=task,
        theta=lambda index: task.initial(0, index),
        sizes=torch.full_like(everyone, _SIZE, dtype=task.dtype),
        teams=everyone % 2,
        rate=1.0,
    )
    server = algorithm.init_server(population)
    cohort = Cohort(
        clients=everyone[:2],
        sizes=population.sizes[:2],
        teams=population.teams[:2],
        round=0,
        exchange=0,
        population=population,
    )
    sent = CohortDownload.of(without_log(algorithm.download(server, cohort))[0])
    zero = torch.zeros((), dtype=torch.int64, device=device)
    client = Client(population.sizes[0], zero, zero, zero == 0, zero, zero)
    down = sent.take(0).record
    memory = algorithm.initial_memory(down, client, task)
    work = algorithm.begin(down, memory, client, task)
    kept, upload = algorithm.finish(work, down, memory, client, task)
    return Footprint(
        down=algorithm.exchanges * sent.bytes,
        up=algorithm.exchanges * _bytes(upload),
        kept=_bytes(kept),
        server=sum(
            int(leaf.nbytes * (clients / len(everyone)) ** dims)
            for leaf, dims in zip(leaves(server), client_dims(server), strict=True)
        ),
    )


def _bytes(record: object) -> int:
    return message_bytes(record, has_rows=[False] * len(leaves(record)))


def memory_bytes(device: torch.device) -> int:
    """How much memory a device has."""
    if device.type == "cuda":
        total: int = torch.cuda.get_device_properties(device).total_memory
        return total
    return host_memory()
