"""Made-up classes, a small network, and its gradients by plain autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.clients.batches import plan_batches
from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import Client
from fedloom.core.records import named, rebuild
from fedloom.core.streams import fold, key, seeded
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.loop import Loop
from fedloom.server.simulation import Simulation

TRAIN = (7, 2, 11)
TEST = (3, 4, 2)
EVERYONE = torch.arange(len(TRAIN))
Indices = np.ndarray[Any, Any]


def made_up(*, other_tests: bool = False) -> Federation:
    """Three clients with five numbers per sample and three classes.

    Args:
        other_tests: give the test samples, and no others, new inputs and labels.
    """
    draw = np.random.default_rng(2)
    cuts = np.cumsum([*TRAIN, *TEST])
    inputs = draw.normal(size=(cuts[-1], 5))
    labels = draw.integers(0, 3, cuts[-1])
    if other_tests:
        inputs[sum(TRAIN) :] += 7.0
        labels[sum(TRAIN) :] = (labels[sum(TRAIN) :] + 1) % 3
    parts = np.split(np.arange(cuts[-1]), cuts[:-1])
    return Federation(
        dataset=Dataset(
            name="made-up",
            inputs=(torch.from_numpy(inputs),),
            targets=torch.from_numpy(labels),
            classes=3,
        ),
        train=Ragged.of(parts[: len(TRAIN)]),
        validation=Ragged.of([np.arange(0)] * len(TRAIN)),
        test=Ragged.of(parts[len(TRAIN) :]),
        names=tuple("abc"),
        teams=np.zeros(len(TRAIN), dtype=np.int64),
    )


def network() -> nn.Module:
    with seeded(5, "model"):
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def simulation_of(
    algorithm: Any, runner: Any = None, federation: Federation | None = None, **how: Any
) -> Simulation:
    """A run on the made-up classes, before its first round."""
    return Simulation(
        algorithm,
        Task(network(), dtype=torch.float64),
        federation if federation is not None else made_up(),
        runner if runner is not None else Loop(),
        sampling=Sampling(**how),
    )


def batches(
    client: int,
    batch_size: int,
    steps: int,
    *,
    round_: int = 0,
    phase: int = 0,
    stream: int = 0,
) -> list[Indices]:
    """The training samples of each step as the engine draws them, from streams alone.

    (seed 0, round, exchange 0) -> client -> phase -> which of the step's batches.
    """
    root = torch.tensor(key(0, "train", round_, 0))
    keys = fold(fold(fold(root, torch.tensor([client])), phase), stream)
    own = made_up().train[client]
    size = torch.tensor([len(own)])
    plan = plan_batches(keys, size, torch.tensor([steps]), batch_size)
    return [own[plan.positions[0, s][plan.mask[0, s]].numpy()] for s in range(steps)]


def loss(theta: Tensor, rows: Indices) -> Tensor:
    """The mean loss of the network with parameters theta, by hand."""
    data = made_up().dataset
    x, y = data.inputs[0][rows], data.targets[rows]
    w1, b1, w2, b2 = theta.split([20, 4, 12, 3])
    hidden = torch.tanh(x @ w1.view(4, 5).T + b1)
    outputs = hidden @ w2.view(3, 4).T + b2
    return nn.functional.cross_entropy(outputs, y)


def gradient(theta: Tensor, rows: Indices) -> Tensor:
    theta = theta.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(theta, rows), theta)[0]


def initial() -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in network().parameters()])


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def memories(simulation: Simulation) -> Any:
    """What every client keeps, as one record with a row for each."""
    row = simulation.clients.initial_memory(
        simulation.coordinator.model_request(simulation.coordinator.everyone)
    )
    table = simulation.clients.memory
    columns = table.columns or {
        name: start.expand(table.count, *start.shape)
        for name, start in named(row).items()
    }
    return rebuild(row, [columns[name] for name in named(row)])


def client(size: float = 10.0, round_: int = 0) -> Client:
    """What a client knows of itself in the first exchange of a round."""
    zero = torch.zeros((), dtype=torch.int64)
    return Client(
        size=torch.tensor(size, dtype=torch.float64),
        round=torch.tensor(round_),
        exchange=zero,
        uploads=torch.tensor(True),
        key=zero,
        secret=zero,
    )
