"""Local: every client trains alone, from a common start. The yardstick of gain.

    symbol  here               lives
    w^0     Task.start         in the model that every client is given beforehand
    v_k     Memory.personal    on client k, never sent

Deviations: none known. Every client trains in every round, whoever is sampled: nobody
needs a server to train alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Population, SGDState
from fedloom.core.optimizers import ANY
from fedloom.core.phases import plain_descent
from fedloom.core.records import Empty
from fedloom.core.task import Batch, Task


class Memory(NamedTuple):
    """On one client, from round to round. Never sent."""

    personal: Tensor


Work = SGDState
"""During a round: the personal model, as it is trained."""


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm[Empty, Memory, Empty, Work, Empty]):
    """Every client trains alone; nothing is ever sent, either way."""

    name = "local"
    group = "local"
    optimizers = ANY
    trains_everyone = True

    def init_server(self, population: Population) -> Empty:
        return Empty()

    def download(self, server: Empty, cohort: Cohort) -> Empty:
        return Empty()

    def aggregate(self, server: Empty, uploads: Empty, cohort: Cohort) -> Empty:
        return server

    def initial_memory(self, down: Empty, client: Client, task: Task) -> Memory:
        return Memory(task.start)

    def begin(self, down: Empty, memory: Memory, client: Client, task: Task) -> Work:
        return self.sgd_start(memory.personal)

    @plain_descent
    def step(self, work: Work, down: Empty, batch: Batch, task: Task) -> Work:
        """v_k <- v_k - eta grad F_k(v_k)."""
        return self.sgd_step(work, task.grad(work.at, batch), batch)

    def finish(
        self, work: Work, down: Empty, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Empty]:
        return Memory(work.at), Empty()

    def personal(
        self, down: Empty, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return memory.personal
