"""Two workers of a Ray cluster against two processes that do the same work.

Images over 100 clients with five labels each and unequal sizes, a network with 100
hidden units, batches of 10, one epoch, everybody in every round: whole rounds without
evaluation, aggregation included, uncompiled, one thread for each worker. Processes get
what they are sent through shared memory and pipes. Both ways cut the clients alike and
take turns; the best turn of each counts.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from fedloom.algorithms import REGISTRY
from fedloom.bench.engine import check_counts, check_names, random_images
from fedloom.clients import LabelSkew, Sampling, Split, divide
from fedloom.cluster import LOCAL, RaySettings, connected
from fedloom.core import streams
from fedloom.core.task import Task
from fedloom.data import SOURCES
from fedloom.engine.weave import Weave
from fedloom.fleet.local import LocalFleet
from fedloom.fleet.ray import RayFleet, shards_of
from fedloom.fleet.sharded import ShardedFleet
from fedloom.models import MLP
from fedloom.server.simulation import Simulation

_IMAGES = 60_000

METHODS = ("fedavg", "ditto")
_WARM_ROUNDS = 2
"""Rounds before the clock is started: the first calls are slow."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method, trained both ways."""

    method: str
    workers: int
    rounds: int
    processes_s: float
    """Seconds of a round on local processes, the best of all turns."""
    ray_s: float
    """Seconds of a round on workers of a Ray cluster, the best of all turns."""
    ratio: float
    """How many times longer a round takes on the cluster."""
    difference: float
    """Largest difference of a personal parameter between the two ways."""
    clients: int
    parameters: int
    torch: str
    ray: str


def measure(
    data: str,
    methods: list[str],
    *,
    workers: int = 2,
    rounds: int = 5,
    repeats: int = 3,
    clients: int = 100,
    data_dir: Path | None = None,
) -> Iterator[Row]:
    """Time both ways for every method.

    Args:
        data: name of a source of images, or random for some that look like
            Fashion-MNIST's.
        methods: names of methods; fedavg and ditto if empty.
        workers: how many, each way.
        rounds: how many are timed in one turn.
        repeats: how many turns each way has.
        clients: how many there are.
        data_dir: where the files of named datasets lie.
    """
    check_names("method", methods, REGISTRY)
    check_counts(workers=workers, rounds=rounds, repeats=repeats, clients=clients)
    check_names("data", [data], ["random", *SOURCES])
    with connected(RaySettings(address=LOCAL, workers=workers)) as cluster:
        assert cluster is not None
        for name in methods or METHODS:
            ways = [_simulation(name, data, clients, data_dir) for _ in range(2)]
            on_ray = RayFleet(ways[0].clients, cluster, sampling=Sampling(), threads=1)
            with (
                closing(on_ray),
                _processes(ways[1].clients, workers) as in_processes,
                ways[0].trained_by(on_ray),
                ways[1].trained_by(in_processes),
            ):
                ray_s, processes_s = _take_turns(ways, rounds, repeats)
                everyone = ways[0].coordinator.everyone
                gap = ways[0].personal(everyone) - ways[1].personal(everyone)
            yield Row(
                method=name,
                workers=workers,
                rounds=rounds,
                processes_s=processes_s,
                ray_s=ray_s,
                ratio=ray_s / processes_s,
                difference=float(gap.abs().max()),
                clients=clients,
                parameters=ways[0].task.d,
                torch=torch.__version__,
                ray=cluster.version,
            )


def _simulation(
    name: str, data: str, clients: int, data_dir: Path | None
) -> Simulation:
    if data == "random":
        dataset = random_images(_IMAGES)
    else:
        dataset = SOURCES[data]().load(data_dir, 0)
    partition = LabelSkew(clients=clients, classes=5, sizes="random")
    federation = divide(dataset, partition, Split(), seed=0)
    with streams.seeded(0, "model"):
        module = MLP(hidden=(100,)).build(dataset.input_shape, dataset.outputs)
    task = Task(module, shift=dataset.shift, scale=dataset.scale)
    algorithm = REGISTRY[name](batch_size=10, epochs=1)
    return Simulation(algorithm, task, federation, Weave(10))


def _take_turns(
    ways: Sequence[Simulation], rounds: int, repeats: int
) -> tuple[float, ...]:
    """Seconds of a round of each, in its best turn."""
    turns: list[list[float]] = [[] for _ in ways]
    for simulation in ways:
        _train(simulation, _WARM_ROUNDS)
    for _ in range(repeats):
        for simulation, seconds in zip(ways, turns, strict=True):
            started = time.perf_counter()
            _train(simulation, rounds)
            seconds.append((time.perf_counter() - started) / rounds)
    return tuple(min(seconds) for seconds in turns)


def _train(simulation: Simulation, rounds: int) -> None:
    for _ in range(rounds * simulation.algorithm.exchanges):
        simulation.run_exchange()


@contextmanager
def _processes(fleet: LocalFleet, count: int) -> Iterator[ShardedFleet]:
    """The clients of a fleet, in processes of this machine."""
    started: list[_ProcessWorker] = []

    def place(*make_and_values: Any) -> _ProcessWorker:
        started.append(_ProcessWorker(*make_and_values))
        return started[-1]

    try:
        shards, numbers = shards_of(fleet, count, Sampling(), place)
        yield ShardedFleet(shards, numbers, hashes=fleet.hashes)
    finally:
        for worker in started:
            worker.end()


class _ProcessWorker:
    """A process that holds one thing and is called by name, through a pipe.

    Args:
        make: makes the thing, there.
        values: what that is given.
    """

    place = "this machine"

    def __init__(self, make: Callable[..., Any], *values: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        self._called = 0
        self._answers: list[Any] = []
        self._pipe.send((make, values))

    def call(self, name: str, *values: Any) -> Callable[[], Any]:
        """Have it set about a call; gives what waits for the answer."""
        self._pipe.send((name, values))
        self._called += 1
        return partial(self._wait, self._called)

    def _wait(self, number: int) -> Any:
        while len(self._answers) < number:
            self._answers.append(self._pipe.recv())
        answer, self._answers[number - 1] = self._answers[number - 1], None
        return answer

    def end(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection) -> None:
    """In a process: make a thing, then do what is asked of it."""
    torch.set_num_threads(1)
    make, values = pipe.recv()
    thing = make(*values)
    while True:
        name, values = pipe.recv()
        pipe.send(getattr(thing, name)(*values))
