"""One round of every method on the 784-100-10 network: loop against weave.

Every method trains the same clients with its default settings, but for the length of
local training, which is one epoch. The fastest of some rounds counts; the first round
of a weave, which may compile, is not timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedloom.algorithms import REGISTRY
from fedloom.bench.engine import best, check_counts, check_names, device_name, simulate
from fedloom.bench.names import METHOD_MODES as MODES
from fedloom.clients import Federation, Iid, Split, divide
from fedloom.core import streams
from fedloom.core.task import Task
from fedloom.data import SOURCES, Dataset
from fedloom.models import MLP


@dataclass(frozen=True, kw_only=True)
class Row:
    """Seconds of one round of one method in one mode."""

    method: str
    mode: str
    """One of `MODES`."""
    seconds: float
    """Seconds of the fastest timed round."""
    ratio: float
    """How many times faster than `ratio_to` at the same method."""
    ratio_to: str
    """The mode that the ratio refers to: the first."""
    clients: int
    samples: int
    parameters: int
    chunk: int
    data: str
    device: str
    threads: int
    torch: str


def measure(
    data: str,
    methods: list[str],
    *,
    device: str = "cpu",
    repeats: int = 2,
    modes: list[str] | None = None,
    clients: int = 100,
    samples: int = 100,
    data_dir: Path | None = None,
) -> Iterator[Row]:
    """Time every mode for every method.

    Args:
        data: a source of images, such as digits or fashion-mnist.
        methods: names of methods; all of them if empty.
        device: cpu or cuda.
        repeats: timed rounds per mode; the fastest counts.
        modes: some of `MODES`; all of them by default. The first is what ratios
            refer to.
        clients: how many share the data.
        samples: training samples of a client, as far as the data go.
        data_dir: where the files of the dataset lie.
    """
    check_names("method", methods, REGISTRY)
    check_counts(repeats=repeats, clients=clients)
    check_names("mode", modes or (), MODES)
    check_names("data source", [data], SOURCES)
    dataset = _first(SOURCES[data]().load(data_dir, 0), clients * samples)
    holders = divide(dataset, Iid(clients=clients), Split(test=0.0), seed=0)
    for name in methods or REGISTRY:
        first_s: float | None = None
        chosen = modes or MODES
        for mode in chosen:
            task, algorithm = _task(name, holders, device), REGISTRY[name](epochs=1)
            simulation, chunk = simulate(mode, algorithm, task, holders)
            untimed = 0 if mode == "loop" else algorithm.exchanges
            rounds = repeats * algorithm.exchanges
            seconds = best(simulation.run_exchange, untimed, rounds, task.device)
            first_s = seconds if first_s is None else first_s
            yield Row(
                method=name,
                mode=mode,
                seconds=seconds * algorithm.exchanges,
                ratio=first_s / seconds,
                ratio_to=chosen[0],
                clients=clients,
                samples=int(holders.sizes.sum()),
                parameters=task.d,
                chunk=chunk,
                data=data,
                device=device_name(task.device),
                threads=torch.get_num_threads(),
                torch=torch.__version__,
            )


def _first(dataset: Dataset, count: int) -> Dataset:
    """The first samples only, so that a round is short."""
    fixed = dataset.fixed_test
    return replace(
        dataset,
        inputs=tuple(x[:count] for x in dataset.inputs),
        targets=dataset.targets[:count],
        fixed_test=None if fixed is None else np.zeros_like(fixed[:count]),
    )


def _task(name: str, clients: Federation, device: str) -> Task:
    data = clients.dataset
    with streams.seeded(0, "bench"):
        # fedbn is about normalisation layers; the others are timed without.
        model = MLP(normalised=name == "fedbn")
        module = model.build(data.input_shape, data.outputs)
    return Task(module, shift=data.shift, scale=data.scale, device=device)
