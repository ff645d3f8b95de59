"""One round of FedAvg: a plain PyTorch loop against `loop` and the kinds of weave.

The plain loop is what people write by hand: a module, `torch.optim.SGD`, `backward`,
one client after another, one thread, the data already in floating point on the device.
All modes train the same clients for one epoch and the fastest of some rounds counts;
the first round of a weave, which may compile, is not timed. `native` is what a run does
by itself: kernels of our own where there are some, on a GPU beside compiled steps;
`weave` and `weave-compiled` do without. Evaluations of the same model are timed too
(`fedloom.bench.evaluation`).

Every row says how far it is from the floor (`fedloom.bench.floor`). Training takes the
floating-point operations of all clients' steps and, at every step of every client, one
reading and one writing of its parameters.
"""

from __future__ import annotations

import copy
import platform
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from fedloom.algorithms import FedAvg
from fedloom.bench.evaluation import evaluations
from fedloom.bench.floor import Rates, Work
from fedloom.bench.names import ENGINE_MODES as MODES
from fedloom.clients import Federation, Iid, Sampling, Split, divide
from fedloom.clients.assignment import Assignment, Partition, numbered
from fedloom.clients.batches import steps_per_epoch
from fedloom.clients.counts import apportion
from fedloom.clients.ragged import Ragged
from fedloom.core import streams
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError, unknown
from fedloom.core.task import Task
from fedloom.data import SOURCES, Dataset
from fedloom.engine.choice import EngineSettings, choose
from fedloom.engine.effort import efforts
from fedloom.engine.threads import on_threads
from fedloom.engine.weave import Weave
from fedloom.models import MODELS
from fedloom.server.simulation import Simulation

_CLIENTS = {"mlr": 1000, "mlp": 100, "lenet": 100}
"""How many clients share the data, by model."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Seconds of one round in one mode."""

    model: str
    work: str
    """What is timed: training, or an evaluation of shared or personal models."""
    mode: str
    """One of `MODES`."""
    seconds: float
    """Seconds of the fastest timed round, or of the fastest evaluation."""
    ratio: float
    """How many times faster than `ratio_to` at the same work of the same model."""
    ratio_to: str
    """The mode that the ratio refers to: the first, and plain for evaluations."""
    floor_s: float
    """The least seconds that the operations and bytes of this work can take."""
    times_floor: float
    """How many times longer it took."""
    flops: float
    """Floating-point operations that it takes at least."""
    bytes: float
    """Bytes that it reads and writes at least."""
    flops_s: float
    """Operations a second of a large product on this device, with all threads."""
    bytes_s: float
    """Bytes a second of an update of a chunk's parameters, with all threads."""
    clients: int
    samples: int
    parameters: int
    batch_size: int
    chunk: int
    data: str
    device: str
    threads: int
    torch: str


def measure(
    data: str | Dataset,
    models: list[str],
    *,
    device: str = "cpu",
    repeats: int = 5,
    batch_size: int = 10,
    modes: list[str] | None = None,
    clients: int | None = None,
    unequal: bool = False,
    evaluation: bool = True,
    data_dir: Path | None = None,
) -> Iterator[Row]:
    """Time every mode for every model.

    Args:
        data: images, or a source of them, such as digits or fashion-mnist.
        models: names of built-in models; lenet is left out where images are too small.
        device: cpu or cuda.
        repeats: timed rounds per mode; the fastest counts.
        batch_size: samples per step.
        modes: some of `MODES`; all of them by default. The first is what ratios
            refer to.
        clients: how many share the data; by default 1000 for mlr and 100 otherwise.
        unequal: whether clients are of very different size, the largest with about
            twenty times as many samples as the smallest.
        evaluation: whether evaluations are timed too, plain and native.
        data_dir: where the files of the dataset lie.
    """
    check_names("model", models, _CLIENTS)
    check_names("mode", modes or (), MODES)
    check_counts(repeats=repeats, clients=clients)
    if isinstance(data, str):
        check_names("data source", [data], SOURCES)
        dataset = SOURCES[data]().load(data_dir, 0)
    else:
        dataset = data
    where = EngineSettings(device=device).torch_device()
    for name in models:
        if name == "lenet" and dataset.input_shape[-1] < 16:
            continue
        count = min(clients or _CLIENTS[name], len(dataset) // 2)
        partition = _Unequal(clients=count) if unequal else Iid(clients=count)
        holders = divide(dataset, partition, Split(test=0.0), seed=0)
        with streams.seeded(0, "bench"):
            module = MODELS[name]().build(dataset.input_shape, dataset.outputs)
        task = Task(module, shift=dataset.shift, scale=dataset.scale, device=where)
        chunk = simulate("weave", FedAvg(batch_size=batch_size), task, holders)[1]
        rates = Rates.measure(where, chunk * task.d * task.dtype.itemsize)

        def row(
            work: str,
            mode: str,
            seconds: float,
            ratio_to: str,
            its_s: float,
            least: Work,
            samples: int,
            *,
            name: str = name,
            count: int = count,
            task: Task = task,
            chunk: int = chunk,
            rates: Rates = rates,
        ) -> Row:
            floor_s = rates.floor_s(least)
            return Row(
                model=name,
                work=work,
                mode=mode,
                seconds=seconds,
                ratio=its_s / seconds,
                ratio_to=ratio_to,
                floor_s=floor_s,
                times_floor=seconds / floor_s,
                flops=least.flops,
                bytes=least.bytes,
                flops_s=rates.flops_s,
                bytes_s=rates.bytes_s,
                clients=count,
                samples=samples,
                parameters=task.d,
                batch_size=batch_size,
                chunk=1 if mode in ("plain", "loop") else chunk,
                data=dataset.name,
                device=device_name(where),
                threads=1 if mode == "plain" else torch.get_num_threads(),
                torch=torch.__version__,
            )

        least, first_s = _least(task, holders, batch_size), None
        chosen = modes or MODES
        for mode in chosen:
            round_ = _round(mode, task, holders, batch_size)
            is_slow = mode in ("plain", "loop")
            seconds = best(round_, 0 if is_slow else 1, repeats, where)
            first_s = seconds if first_s is None else first_s
            samples = int(holders.sizes.sum())
            yield row("training", mode, seconds, chosen[0], first_s, least, samples)
        if not evaluation:
            continue
        for kind, both in evaluations(dataset, task, count, chunk).items():
            with on_threads(1):
                plain_s = best(both.plain, 1, repeats, where)
            times = {"plain": plain_s, "native": best(both.ours, 1, repeats, where)}
            for mode, seconds in times.items():
                yield row(
                    kind, mode, seconds, "plain", plain_s, both.least, both.samples
                )


@dataclass(frozen=True, kw_only=True)
class _Unequal(Partition):
    """All samples dealt at random, sizes from about 7 to about 145 parts."""

    clients: int

    def assign(self, dataset: Dataset, seed: int) -> Assignment:
        """Draw sizes, shuffle, and cut."""
        draw = streams.generator(seed, "bench")
        sizes = apportion(len(dataset), draw.uniform(7, 145, self.clients), least=1)
        return numbered(Ragged.cut(draw.permutation(len(dataset)), sizes))


def _least(task: Task, clients: Federation, batch_size: int) -> Work:
    """What one epoch of all clients takes at least."""
    data = clients.dataset
    inputs = tuple(x[:1] for x in data.inputs)
    (step,) = efforts(FedAvg(), task, inputs, data.targets[:1])
    steps = int(steps_per_epoch(torch.as_tensor(clients.sizes), batch_size).sum())
    passes = 2 * steps * task.d * task.dtype.itemsize
    return Work(float(step.flops * clients.sizes.sum()), float(passes))


def _round(
    mode: str, task: Task, clients: Federation, batch_size: int
) -> Callable[[], object]:
    """A function that does one round."""
    if mode == "plain":
        return _plain_loop(task, clients, batch_size)
    algorithm = FedAvg(batch_size=batch_size)
    return simulate(mode, algorithm, task, clients)[0].run_exchange


def simulate(
    mode: str, algorithm: AnyAlgorithm, task: Task, clients: Federation
) -> tuple[Simulation, int]:
    """A run with the engine that a mode names, and its chunk size."""
    is_compiled = mode == "weave-compiled" or (
        mode == "native" and task.device.type == "cuda"
    )
    engine = EngineSettings(
        runner="loop" if mode == "loop" else "weave",
        compile="on" if is_compiled else "off",
        device=str(task.device),
    )
    choice = choose(engine, algorithm, task, clients, Sampling(), rounds=1)
    if isinstance(choice.runner, Weave):
        choice.runner.native = mode == "native"
    return Simulation(algorithm, task, clients, choice.runner), choice.chunk


def random_images(count: int) -> Dataset:
    """Images as large as Fashion-MNIST's, for which nothing need be downloaded."""
    draw = streams.generator(0, "bench")
    pixels = draw.integers(256, size=(count, 1, 28, 28), dtype="uint8")
    return Dataset(
        name="random",
        inputs=(torch.from_numpy(pixels),),
        targets=torch.from_numpy(draw.integers(10, size=count)),
        classes=10,
        scale=255.0,
    )


def check_counts(**counts: int | None) -> None:
    """Refuse a number of things that is not at least one."""
    for name, number in counts.items():
        if number is not None and number < 1:
            raise ConfigError(f"bench: {name} must be at least 1, found {number}.")


def check_names(what: str, names: Iterable[str], known: Collection[str]) -> None:
    """Refuse a name that is not among the known ones."""
    for name in names:
        if name not in known:
            raise ConfigError(unknown(what, name, known))


def _plain_loop(
    task: Task, clients: Federation, batch_size: int, lr: float = 0.05
) -> Callable[[], object]:
    """What one would write by hand, averaging at the end; one thread."""
    x = task.prepare(tuple(t.to(task.device) for t in clients.dataset.inputs))[0]
    y = clients.dataset.targets.to(task.device)
    shared = task.fresh_module().train()
    sets = [
        torch.as_tensor(clients.train[c]).to(task.device) for c in range(clients.count)
    ]
    shares = clients.sizes / clients.sizes.sum()

    def round_() -> None:
        with on_threads(1):
            mean = {k: torch.zeros_like(v) for k, v in shared.state_dict().items()}
            for client, samples in enumerate(sets):
                model = copy.deepcopy(shared)
                optimizer = torch.optim.SGD(model.parameters(), lr=lr)
                shuffled = samples[torch.randperm(len(samples), device=task.device)]
                for batch in torch.split(shuffled, batch_size):
                    optimizer.zero_grad()
                    loss = F.cross_entropy(model(x[batch]), y[batch])
                    torch.autograd.backward(loss)
                    optimizer.step()
                for name, value in model.state_dict().items():
                    mean[name] += float(shares[client]) * value
            shared.load_state_dict(mean)

    return round_


def best(
    round_: Callable[[], object], untimed: int, repeats: int, device: torch.device
) -> float:
    """Seconds of the fastest of some rounds, after some that are not timed."""
    times = []
    for _ in range(untimed + repeats):
        started = time.perf_counter()
        round_()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - started)
    return min(times[untimed:])


def device_name(device: torch.device) -> str:
    """What the rows call a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()})"
