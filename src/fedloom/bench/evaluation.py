"""One evaluation of all clients: a plain PyTorch loop against ours.

Every client scores on test images of its own, drawn from one pool, so that several have
the same image. A shared model is FedAvg's; personal models are those of training alone.
The plain loop is what people write by hand: for one client after another a module with
its parameters, all of its images in one call, loss and accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from fedloom.algorithms import FedAvg, Local
from fedloom.bench.floor import Work
from fedloom.clients import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.streams import generator
from fedloom.core.task import Task
from fedloom.data import Dataset
from fedloom.engine.effort import count
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

IMAGES = 1000
"""Test images of a client, as far as the data go."""
_POOL_SHARE = 1 / 7
"""Of the data, where test images are drawn from: Fashion-MNIST's 10 000."""


class Evaluation(NamedTuple):
    """Both ways to do the same, and what it takes at least."""

    plain: Callable[[], object]
    ours: Callable[[], object]
    samples: int
    """Of all clients together."""
    least: Work


def evaluations(
    dataset: Dataset, task: Task, clients: int, chunk: int
) -> dict[str, Evaluation]:
    """By what is scored: the shared model of all clients, or the model of each.

    Args:
        dataset: what is dealt to the clients.
        task: model and loss.
        clients: how many there are.
        chunk: how many are trained at a time.
    """
    holders = _holders(dataset, clients)
    one = tuple(x[:1].to(task.device) for x in dataset.inputs)
    with torch.no_grad():
        flops = count(task.predict, task.start, one)[1].flops
    image = sum(x[0].numel() * x.element_size() for x in dataset.inputs)
    found = {}
    for kind, algorithm in (("shared", FedAvg()), ("personal", Local())):
        simulation = Simulation(algorithm, task, holders, Weave(chunk))
        simulation.run_exchange()
        thetas = simulation.personal(torch.arange(clients, device=task.device))
        test, is_shared = holders.test.indices, kind == "shared"
        seen = len(np.unique(test)) if is_shared else len(test)
        models = 1 if is_shared else clients
        parameters = models * task.d * task.dtype.itemsize
        found[kind] = Evaluation(
            plain=_plain_loop(task, holders, thetas.clone()),
            ours=partial(simulation.evaluate, "test"),
            samples=len(test),
            least=Work(seen * flops, seen * image + parameters),
        )
    return found


def _holders(dataset: Dataset, clients: int) -> Federation:
    """Clients with a batch to train on and many images to test on."""
    draw = generator(0, "bench")
    order = draw.permutation(len(dataset))
    pool = np.sort(order[: int(len(dataset) * _POOL_SHARE)])
    train = np.array_split(order[len(pool) :], clients)
    size = min(IMAGES, len(pool))
    test = [np.sort(draw.permutation(pool)[:size]) for _ in range(clients)]
    return Federation(
        dataset,
        train=Ragged.of([own[:10] for own in train]),
        validation=Ragged.of([own[:0] for own in train]),
        test=Ragged.of(test),
        names=tuple(map(str, range(clients))),
        teams=np.zeros(clients, dtype=np.int64),
        shares_test=True,
    )


def _plain_loop(
    task: Task, clients: Federation, thetas: torch.Tensor
) -> Callable[[], object]:
    """What one would write by hand; data already in floating point on the device."""
    x = task.prepare(tuple(t.to(task.device) for t in clients.dataset.inputs))[0]
    y = clients.dataset.targets.to(task.device)
    tests = [torch.as_tensor(own).to(task.device) for own in clients.test]
    modules = [task.ordinary_module(theta).eval() for theta in thetas]

    def evaluate() -> list[tuple[float, float]]:
        scores = []
        with torch.no_grad():
            for module, own in zip(modules, tests, strict=True):
                outputs = module(x[own])
                right = (outputs.argmax(1) == y[own]).float().mean()
                loss = F.cross_entropy(outputs, y[own])
                scores.append((float(loss), float(right)))
        return scores

    return evaluate
