"""Clients on the workers of a Ray cluster, each with the data of its own clients alone.

A client's random streams belong to its number, and answers are put together by numbers:
how many workers there are changes the last bits at most, for sums over clients that
train together may be added up in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.cluster import Cluster, RayWorker
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.measures import PersonalOutcomes
from fedloom.core.messages import Arrivals, Order, Roster, ScoreRequest
from fedloom.core.records import take
from fedloom.engine.choice import trained_clients
from fedloom.engine.job import Runner
from fedloom.engine.weave import Weave
from fedloom.fleet.local import LocalFleet
from fedloom.fleet.sharded import ShardedFleet
from fedloom.fleet.worker import Worker, WorkerFleet


class Shard(LocalFleet):
    """In a worker: some of the clients, on a dataset of their samples alone.

    Args:
        samples: (N,) the number of each of those samples in the whole dataset.
        arguments: as for `LocalFleet`.
    """

    def __init__(self, samples: Tensor, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._samples_here = samples

    def exchange(self, order: Order) -> tuple[Arrivals, Any]:
        """Do an order: what the clients came to, and their logs."""
        self.send(order)
        arrivals = self.receive()
        return arrivals, self.client_log(arrivals.clients)

    def outcomes(self, request: ScoreRequest) -> PersonalOutcomes:
        """As for any fleet, with the samples' numbers in the whole dataset."""
        outcomes = super().outcomes(request)
        return outcomes._replace(rows=self._samples_here[outcomes.rows])


class RayFleet(ShardedFleet):
    """The clients of a fleet, on the workers of a cluster.

    A worker that is lost is replaced, and what it did since its last snapshot is
    repeated, to the same result.

    Args:
        fleet: the clients as they are here; their memory stays as it is.
        cluster: where they go.
        sampling: who takes part in a round, for the size of chunks.
        threads: CPU threads of each worker; a fair share by default.

    Raises:
        ConfigError: there are fewer clients than workers, or a worker cannot be used.
        FedloomError: there is no room for the workers.
    """

    def __init__(
        self,
        fleet: LocalFleet,
        cluster: Cluster,
        *,
        sampling: Sampling,
        threads: int | None = None,
    ) -> None:
        count = fleet.federation.count
        on_gpu = fleet.task.device.type == "cuda"
        workers = cluster.worker_count(count, "clients", on_gpu=on_gpu)
        self.threads = threads if threads is not None else cluster.threads(workers)
        placed: list[RayWorker] = []

        def place(*make_and_values: Any) -> RayWorker:
            worker = cluster.place(
                *make_and_values,
                count=workers,
                threads=self.threads,
                on_gpu=on_gpu,
                is_another=len(placed) >= workers,
            )
            placed.append(worker)
            return worker

        shards, numbers = shards_of(fleet, workers, sampling, place)
        cluster.expect(placed)
        super().__init__(shards, numbers, hashes=fleet.hashes)
        self.workers = shards

    def close(self) -> None:
        """End the workers, with all that clients keep there."""
        for worker in self.workers:
            worker.end()


def shards_of(
    fleet: LocalFleet,
    workers: int,
    sampling: Sampling,
    place: Callable[..., Worker],
) -> tuple[list[WorkerFleet], list[Tensor]]:
    """The clients of a fleet, cut into one shard for each worker.

    Args:
        fleet: the clients as they are here.
        workers: how many.
        sampling: who takes part in a round, for the size of chunks.
        place: starts a worker; it is given what makes the thing that the worker holds,
            and what that is given.

    Returns:
        The shards, and by shard the numbers of its clients.
    """
    clients = trained_clients(fleet.algorithm, sampling, fleet.federation.count)
    runner = _runner_for(fleet.runner, math.ceil(clients / workers))
    numbers = deal(fleet.federation.sizes, workers)

    def place_shard(own: Tensor) -> Worker:
        return place(_make_shard, *_values_of(fleet, runner, own))

    shards = [
        WorkerFleet(partial(place_shard, own), _roster_of(fleet.roster, own))
        for own in numbers
    ]
    return shards, numbers


def deal(sizes: NDArray[np.int64], workers: int) -> list[Tensor]:
    """Clients for each worker, so that all have about as many and as much to do.

    Args:
        sizes: (M,) training samples of each client.
        workers: how many.

    Returns:
        By worker, the numbers of its clients, ascending.
    """
    by_size = np.argsort(-sizes, kind="stable")
    turn, seat = np.divmod(np.arange(len(sizes)), workers)
    # There and back, so that nobody is always the first to take.
    seat = np.where(turn % 2, workers - 1 - seat, seat)
    return [
        torch.as_tensor(np.sort(by_size[seat == worker])) for worker in range(workers)
    ]


def own_samples(federation: Federation) -> tuple[Federation, NDArray[np.int64]]:
    """The same clients on a dataset without the samples of others.

    Returns:
        The clients, and (N,) the number that each of their samples had.
    """
    used = np.unique(np.concatenate([part.indices for part in federation.parts]))
    whole = federation.dataset
    rows = torch.from_numpy(used)

    def some(values: Any) -> Any:
        return None if values is None else values[used]

    dataset = replace(
        whole,
        inputs=tuple(values[rows] for values in whole.inputs),
        targets=whole.targets[rows],
        owner=some(whole.owner),
        fixed_test=some(whole.fixed_test),
        subclass=some(whole.subclass),
        groups={name: values[used] for name, values in whole.groups.items()},
    )
    train, validation, test = (
        Ragged(np.searchsorted(used, part.indices), part.offsets)
        for part in federation.parts
    )
    own = replace(
        federation,
        dataset=dataset,
        train=train,
        validation=validation,
        test=test,
        groups=some(federation.groups),
    )
    return own, used


def _values_of(fleet: LocalFleet, runner: Runner, numbers: Tensor) -> Sequence[Any]:
    """What a worker needs to make a shard of some of the clients."""
    federation, samples = own_samples(fleet.federation.only(numbers.tolist()))
    parts = fleet.algorithm, fleet.task, federation, runner
    options = {"seed": fleet.seed, "numbers": numbers, "can_lose": fleet.can_lose}
    return torch.from_numpy(samples), parts, options


def _make_shard(
    samples: Tensor,
    parts: tuple[AnyAlgorithm, Any, Federation, Runner],
    options: dict[str, Any],
) -> Shard:
    return Shard(samples, *parts, **options)


def _roster_of(roster: Roster, numbers: Tensor) -> Roster:
    names = tuple(roster.names[number] for number in numbers.tolist())
    enrolments = take(roster.enrolments, numbers.to(roster.enrolments.team.device))
    return Roster(names, enrolments)


def _runner_for(runner: Runner, cohort: int) -> Runner:
    """The runner with chunks of nearly equal size for so many clients at a time."""
    if not isinstance(runner, Weave):
        return runner
    chunk = math.ceil(cohort / math.ceil(cohort / runner.chunk))
    return Weave(chunk, compiled=runner.compiled, unroll=runner.unroll)
