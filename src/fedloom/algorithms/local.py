"""Local: every client trains alone, from a common start. The yardstick of gain.

    symbol  here               lives
    w^0     Task.start         in the model that every client is given beforehand
    v_k     Memory.personal    on client k, never sent

Deviations: none known. A client that was never sampled has the common start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from fedloom.core.algorithm import Algorithm, Client, Cohort, Point, Population
from fedloom.core.records import Nothing
from fedloom.core.task import Batch, Task


class Memory(NamedTuple):
    """On one client, from round to round. Never sent."""

    personal: Tensor


class Work(NamedTuple):
    """During a round."""

    personal: Point


@dataclass(frozen=True, kw_only=True)
class Local(Algorithm[Nothing, Memory, Nothing, Work, Nothing]):
    """Every client trains alone; nothing is ever sent, either way."""

    name = "local"
    group = "local"

    def start(self, population: Population) -> Nothing:
        return Nothing()

    def download(self, server: Nothing, cohort: Cohort) -> Nothing:
        return Nothing()

    def aggregate(self, server: Nothing, uploads: Nothing, cohort: Cohort) -> Nothing:
        return server

    def shared(self, server: Nothing, task: Task) -> None:
        return None

    def first(self, down: Nothing, client: Client, task: Task) -> Memory:
        return Memory(task.start)

    def begin(self, down: Nothing, memory: Memory, client: Client, task: Task) -> Work:
        return Work(self.depart(memory.personal))

    def step(self, work: Work, down: Nothing, batch: Batch, task: Task) -> Work:
        """v_k <- v_k - eta grad F_k(v_k)."""
        gradient = task.grad(work.personal.at, batch)
        return Work(self.descend(work.personal, gradient, batch))

    def finish(
        self, work: Work, down: Nothing, memory: Memory, client: Client, task: Task
    ) -> tuple[Memory, Nothing]:
        return Memory(work.personal.at), Nothing()

    def personal(
        self, down: Nothing, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        return memory.personal
