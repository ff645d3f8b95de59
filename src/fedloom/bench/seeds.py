"""Five seeds of a method in the same passes against one run after another.

The embedded digits over 20 clients with five classes each and unequal sizes, a network
with 32 hidden units, whole rounds without evaluation, uncompiled. Both ways train the
same clients from the same starts, by turns, several times; how far they end apart is
measured too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import torch

from fedloom.algorithms import REGISTRY
from fedloom.bench.engine import check_counts, check_names, device_name
from fedloom.clients import LabelSkew, Sampling, Split, divide
from fedloom.core import streams
from fedloom.core.task import Task
from fedloom.data import Digits
from fedloom.engine.choice import EngineSettings, choose
from fedloom.models import MLP
from fedloom.server.simulation import Simulation, SimulationBundle

METHODS = ("fedavg", "ditto", "self-fl", "fedacs", "pfedme")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method."""

    method: str
    seeds: int
    rounds: int
    repeats: int
    """How often both ways were timed, by turns."""
    apart_s: float
    """Seconds of all runs, one after another: the middle of the repetitions."""
    together_s: float
    """Seconds of all runs in one bundle: the middle of the repetitions."""
    ratio: float
    """How many times faster they are together: the middle of the repetitions."""
    ratio_least: float
    """The least ratio of a repetition."""
    ratio_most: float
    """The largest ratio of a repetition."""
    difference: float
    """Largest difference of a personal parameter between the two ways."""
    clients: int
    parameters: int
    device: str
    threads: int
    torch: str


def measure(
    methods: list[str],
    *,
    seeds: int = 5,
    rounds: int = 10,
    repeats: int = 3,
    device: str = "cpu",
) -> Iterator[Row]:
    """Time both ways for every method.

    Args:
        methods: names of methods; `METHODS` if empty.
        seeds: runs of each.
        rounds: how many each run has.
        repeats: how often both ways are timed.
        device: cpu or cuda.
    """
    check_names("method", methods, REGISTRY)
    check_counts(seeds=seeds, rounds=rounds, repeats=repeats)
    for name in methods or METHODS:
        _train(
            _simulations(name, 1, device), 2, is_bundle=False
        )  # the first calls are slow
        times = []
        for _ in range(repeats):
            apart, together = (_simulations(name, seeds, device) for _ in range(2))
            apart_s = _train(apart, rounds, is_bundle=False)
            times.append((apart_s, _train(together, rounds, is_bundle=True)))
        ratios = [apart_s / together_s for apart_s, together_s in times]
        everyone = torch.arange(apart[0].federation.count, device=device)
        gaps = [
            (a.personal(everyone) - b.personal(everyone)).abs().max()
            for a, b in zip(apart, together, strict=True)
        ]
        yield Row(
            method=name,
            seeds=seeds,
            rounds=rounds,
            repeats=repeats,
            apart_s=median(apart_s for apart_s, _ in times),
            together_s=median(together_s for _, together_s in times),
            ratio=median(ratios),
            ratio_least=min(ratios),
            ratio_most=max(ratios),
            difference=float(torch.stack(gaps).max()),
            clients=apart[0].federation.count,
            parameters=apart[0].task.d,
            device=device_name(torch.device(device)),
            threads=torch.get_num_threads(),
            torch=torch.__version__,
        )


def _simulations(name: str, seeds: int, device: str) -> list[Simulation]:
    dataset, algorithm, simulations = Digits().load(None, 0), REGISTRY[name](), []
    for seed in range(seeds):
        partition = LabelSkew(clients=20, classes=5, sizes="random")
        clients = divide(dataset, partition, Split(), seed=seed)
        with streams.seeded(seed, "model"):
            module = MLP(hidden=(32,)).build(dataset.input_shape, dataset.outputs)
        task = Task(module, scale=dataset.scale, device=device)
        engine = EngineSettings(compile="off", device=device)
        choice = choose(
            engine, algorithm, task, clients, Sampling(), rounds=1, bundle_size=seeds
        )
        simulations.append(
            Simulation(algorithm, task, clients, choice.runner, seed=seed)
        )
    return simulations


def _train(simulations: list[Simulation], rounds: int, *, is_bundle: bool) -> float:
    """Seconds of all rounds of all runs."""
    exchanges = rounds * simulations[0].algorithm.exchanges
    started = time.perf_counter()
    if is_bundle:
        bundle = SimulationBundle(simulations, simulations[0].runner)
        for _ in range(exchanges):
            bundle.run_exchange()
    else:
        for simulation in simulations:
            for _ in range(exchanges):
                simulation.run_exchange()
    if simulations[0].task.device.type == "cuda":
        torch.cuda.synchronize(simulations[0].task.device)
    return time.perf_counter() - started
