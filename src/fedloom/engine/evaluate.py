"""Evaluation at the clients, once for all methods: what each model says of its data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.measures import Outcome, Sums
from fedloom.core.metrics import METRICS, Statistic, metrics_for, statistics
from fedloom.core.task import Task
from fedloom.engine.job import Outputs, Runner, Samples

_MODELS_BYTES = 1 << 26
"""Models of several clients that are held at once, unless it is said how many."""
_DRAWN = 16
"""Models of one client whose predictions are averaged, about."""
_INPUT_BYTES = 1 << 28
"""Inputs that are shown at once at most."""


class _Calls(NamedTuple):
    """How many samples, padding included, make up one call."""

    width: int
    """Of one client among several."""
    rows: int
    """Of several clients together, each with its own model."""
    at_once: int
    """Of one model."""

    @classmethod
    def of(cls, samples: Samples) -> _Calls:
        """What a device does well, and its memory allows for large samples."""
        item = 4 * sum(math.prod(x.shape[1:]) for x in samples.inputs)
        most = max(64, _INPUT_BYTES // max(item, 1))
        known = _CALLS.get(samples.targets.device.type, _CALLS["cpu"])
        return cls(*(min(size, most) for size in known))


_CALLS = {
    # A CPU's cache ends here; a GPU has to be kept busy.
    "cpu": _Calls(width=1024, rows=2048, at_once=1024),
    "cuda": _Calls(width=8192, rows=32768, at_once=32768),
}
_GATHERED = 1 << 20
"""Samples of all clients whose numbers are put beside each other at a time."""


_SAID = 1 << 16
"""Samples of several clients whose outputs are held at once."""


def sums_of_shared(
    task: Task, theta: Tensor, samples: Samples, runner: Runner | None = None
) -> Sums:
    """What each client sends of one model on its own samples.

    A sample that several clients have is looked at once.

    Args:
        task: what the model does.
        theta: (d,) the model.
        samples: the part that is scored, of all clients.
        runner: may have code of its own for what the model puts out; PyTorch says it
            by default.
    """
    totals = _Totals(task, samples)
    place = samples.distinct[1]
    of_all = _of_distinct(task, theta, samples, runner, totals.measure)
    for statistic, of_distinct in zip(totals.statistics, of_all, strict=False):
        everything = torch.arange(len(place), device=place.device)
        for some in torch.split(everything, _GATHERED):
            values = of_distinct[place[some]]
            totals.add(statistic, some, values)
    return totals.sums()


def sums_of_own(
    task: Task,
    runner: Runner,
    samples: Samples,
    models: Callable[[Tensor], Tensor],
    *,
    is_average: bool = False,
    shared: tuple[Tensor, Sums] | None = None,
    block: int | None = None,
) -> Sums:
    """What each client sends of its own model or models, on its own samples.

    Args:
        task: what the models do.
        runner: what applies a function to many clients.
        samples: the part that is scored, of all clients.
        models: gives the parameters of clients by their rows, (n, d), or (n, k, d) for
            an average.
        is_average: whether the average prediction of a client's k models is scored.
        shared: the shared model, and what the clients send of it: not computed again
            for a personal model that is the same.
        block: how many clients' models are held at once; by default as many as take
            little memory.
    """
    if not is_average and len(samples.sizes):
        theta = _only_one(models, samples)
        if theta is not None:
            if shared is not None and torch.equal(theta, shared[0]):
                return shared[1]
            return sums_of_shared(task, theta, samples, runner)
    totals = _Totals(task, samples)
    block = block or _held_at_once(task, _DRAWN if is_average else 1)
    outputs_of = runner.outputs_of(task, samples)
    if outputs_of is not None:
        for places, outcome in _outcomes(task, samples, models, outputs_of, block):
            for statistic, values in zip(
                totals.statistics, totals.measure(outcome), strict=True
            ):
                totals.add(statistic, places, values)
        return totals.sums()
    outcome_of = task.measure_average if is_average else task.measure
    each = runner.each(lambda *one: totals.measure(outcome_of(*one)))
    for block_of in _blocks(samples, models, each, block):
        rows, mask = block_of.rows, block_of.mask
        for statistic, values in zip(totals.statistics, block_of.measured, strict=True):
            if statistic.reduce is None:
                real = mask.view(*mask.shape, *[1] * (values.dim() - 2))
                total = torch.where(real, values, 0.0).sum(1)
                totals.of[statistic].index_add_(0, rows, total.double())
            else:
                totals.keep(statistic, block_of.places[mask], values[mask])
    return totals.sums()


def values_of_own(
    task: Task,
    runner: Runner,
    samples: Samples,
    models: Callable[[Tensor], Tensor],
    *,
    block: int | None = None,
) -> Tensor:
    """(N,) the task's metric of every single sample, by its client's own model.

    Whether it is right for accuracy, the squared error for mse; in the order of
    `samples.indices`, in float64, on the host.

    Args:
        task: as for `sums_of_own`.
        runner: as for `sums_of_own`.
        samples: as for `sums_of_own`.
        models: as for `sums_of_own`, (n, d).
        block: as for `sums_of_own`.
    """
    (statistic,) = METRICS[task.metric].sent
    if len(samples.indices) == 0:
        return torch.zeros(0, dtype=torch.float64)
    theta = _only_one(models, samples)
    if theta is not None:
        (of_distinct,) = _of_distinct(
            *(task, theta, samples, runner),
            lambda outcome: (statistic.measure(outcome),),
        )
        return of_distinct[samples.distinct[1]].cpu()
    kept = _zeros(samples, len(samples.indices))
    block = block or _held_at_once(task, 1)
    outputs_of = runner.outputs_of(task, samples)
    if outputs_of is not None:
        for places, outcome in _outcomes(task, samples, models, outputs_of, block):
            kept[places] = statistic.measure(outcome).double()
        return kept
    each = runner.each(lambda *one: (statistic.measure(task.measure(*one)),))
    for block_of in _blocks(samples, models, each, block):
        (values,) = block_of.measured
        kept[block_of.places[block_of.mask]] = values[block_of.mask].detach().double()
    return kept.cpu()


def _of_distinct(
    task: Task,
    theta: Tensor,
    samples: Samples,
    runner: Runner | None,
    measure: Callable[[Outcome], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """What is measured of one model on every distinct sample; () if there is none."""
    distinct, at_once = samples.distinct[0], _Calls.of(samples).at_once
    outputs_of = runner.outputs_of(task, samples) if runner is not None else None
    parts = []
    for chosen in torch.split(distinct, at_once) if len(distinct) else ():
        targets = samples.targets[chosen]
        if outputs_of is None:
            inputs = tuple(x[chosen] for x in samples.inputs)
            outcome = task.measure(theta, inputs, targets)
        else:
            count = torch.tensor([len(chosen)])
            outcome = task.compare(outputs_of(theta[None], chosen, count), targets)
        parts.append([values.detach().double() for values in measure(outcome)])
    return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))


def _outcomes(
    task: Task,
    samples: Samples,
    models: Callable[[Tensor], Tensor],
    outputs_of: Outputs,
    block: int,
) -> Iterator[tuple[slice, Outcome]]:
    """What clients' own models say of their samples, and where these stand."""
    clients = samples.sizes.nonzero()[:, 0]
    at_once = _Calls.of(samples).at_once
    for group in _neighbours(samples.sizes[clients].numpy(), block, _SAID):
        rows = clients[group]
        sizes, first = samples.sizes[rows], int(samples.offsets[rows[0]])
        chosen = samples.indices[first : first + int(sizes.sum())]
        thetas = models(rows)
        if thetas.dim() == 2:
            outputs = outputs_of(thetas, chosen, sizes)
        else:
            drawn = (outputs_of(theta, chosen, sizes) for theta in thetas.unbind(1))
            outputs = task.average(list(drawn))
        for start in range(0, len(chosen), at_once):
            some = slice(start, start + at_once)
            outcome = task.compare(outputs[some], samples.targets[chosen[some]])
            yield slice(first + start, first + start + len(outcome.loss)), outcome


class _Block(NamedTuple):
    """Some samples of some clients, and what was measured of them."""

    rows: Tensor
    """(n,) the clients."""
    places: Tensor
    """(n, width) where each sample stands in `Samples.indices`."""
    mask: Tensor
    """(n, width) whether there is a sample."""
    measured: tuple[Tensor, ...]
    """(n, width, ...) each."""


def _blocks(
    samples: Samples,
    models: Callable[[Tensor], Tensor],
    each: Callable[..., tuple[Tensor, ...]],
    block: int,
) -> Iterator[_Block]:
    """Every client's model on its own samples, clients of about equal size together."""
    order = samples.sizes.argsort(stable=True)
    order = order[samples.sizes[order] > 0]
    on_host = samples.sizes[order].cpu().numpy()
    calls = _Calls.of(samples)
    for group in _groups(on_host, block, calls.rows):
        rows, longest = order[group], int(on_host[group.stop - 1])
        thetas, sizes = models(rows), samples.sizes[rows]
        for start in range(0, longest, calls.width):
            width = min(calls.width, longest - start)
            place = start + torch.arange(width, device=thetas.device)
            mask = place < sizes[:, None]
            places = torch.where(mask, samples.offsets[rows][:, None] + place, 0)
            chosen = samples.indices[places]
            inputs = tuple(x[chosen] for x in samples.inputs)
            measured = each(thetas, inputs, samples.targets[chosen])
            yield _Block(rows, places, mask, measured)


def _held_at_once(task: Task, each: int) -> int:
    """How many clients' models, so many of each, take little memory."""
    return max(1, _MODELS_BYTES // (each * task.d * task.dtype.itemsize))


def _groups(sizes: NDArray[np.int64], block: int, rows: int) -> Iterator[slice]:
    """Neighbours whose samples, padded to the largest, are about one call's worth.

    Args:
        sizes: (n,) samples of each client, ascending.
        block: the most clients of a group.
        rows: the most samples of a group, padding included.
    """
    start = 0
    while start < len(sizes):
        near = sizes[start : start + block]
        padded = near * np.arange(1, len(near) + 1)
        count = max(1, int(np.searchsorted(padded, rows, side="right")))
        yield slice(start, start + count)
        start += count


def _neighbours(sizes: NDArray[np.int64], block: int, rows: int) -> Iterator[slice]:
    """Neighbours that have about so many samples together.

    Args:
        sizes: (n,) samples of each client.
        block: the most clients of a group.
        rows: the most samples of a group of several.
    """
    ends, start = sizes.cumsum(), 0
    while start < len(sizes):
        before = ends[start] - sizes[start]
        stop = int(np.searchsorted(ends, before + rows, side="right"))
        stop = min(max(stop, start + 1), start + block)
        yield slice(start, stop)
        start = stop


def _only_one(models: Callable[[Tensor], Tensor], samples: Samples) -> Tensor | None:
    """The model that all clients have, if it depends on nothing of theirs.

    `vmap` says so by a tensor that repeats one row. Two clients are asked, since the
    rows of one look the same either way.
    """
    rows = torch.zeros(2, dtype=torch.int64, device=samples.sizes.device)
    thetas = models(rows)
    return thetas[0] if thetas.stride(0) == 0 else None


class _Totals:
    """Sums of all clients in the making, where the samples are."""

    def __init__(self, task: Task, samples: Samples) -> None:
        # One sample of the data, of whatever part, shows the shapes of everything.
        first = task.measure(
            task.start, tuple(x[:1] for x in samples.inputs), samples.targets[:1]
        )
        classes = first.outputs.shape[-1]
        self.statistics = statistics(metrics_for(task.metric, classes))
        """What is sent."""
        self.sizes = samples.sizes
        clients = torch.arange(len(self.sizes), device=self.sizes.device)
        self.owner = torch.repeat_interleave(clients, self.sizes)
        """(N,) the client of each sample."""
        self.of: dict[Statistic, Tensor] = {}
        """(M,) or (M, k) sums, to add to."""
        self._kept: dict[Statistic, Tensor] = {}
        """(N, k) what cannot be summed, sample by sample."""
        for statistic, values in zip(self.statistics, self.measure(first), strict=True):
            if statistic.reduce is None:
                shape = len(self.sizes), *values.shape[1:]
                self.of[statistic] = _zeros(samples, *shape)
            else:
                shape = len(self.owner), values[0].numel()
                self._kept[statistic] = _zeros(samples, *shape)

    def measure(self, outcome: Outcome) -> tuple[Tensor, ...]:
        """The numbers of each sample for every statistic."""
        return tuple(statistic.measure(outcome) for statistic in self.statistics)

    def add(self, statistic: Statistic, places: Tensor | slice, values: Tensor) -> None:
        """Count the numbers of some samples."""
        if statistic.reduce is None:
            numbers = values.detach().double()
            self.of[statistic].index_add_(0, self.owner[places], numbers)
        else:
            self.keep(statistic, places, values)

    def keep(
        self, statistic: Statistic, places: Tensor | slice, values: Tensor
    ) -> None:
        """Put by the numbers of some samples, until there are those of all."""
        rows = values.detach().double().reshape(len(values), -1)
        self._kept[statistic][places] = rows

    def sums(self) -> Sums:
        """What is sent, on the host."""
        sizes = self.sizes.cpu()
        sent = {statistic: total.cpu() for statistic, total in self.of.items()}
        for statistic, kept in self._kept.items():
            assert statistic.reduce is not None
            numbers, owner = kept.cpu().numpy(), self.owner.cpu().numpy()
            reduced = statistic.reduce(numbers, owner, len(sizes))
            sent[statistic] = torch.from_numpy(reduced)
            sent[statistic][sizes == 0] = 0.0
        absent = torch.zeros(len(sizes), 0, dtype=torch.float64)
        return Sums(sizes, tuple(sent.get(s, absent) for s in statistics()))


def _zeros(samples: Samples, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64, device=samples.sizes.device)
