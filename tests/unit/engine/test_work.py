"""The most local work of an exchange, against what a client reports and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedloom.algorithms import REGISTRY
from fedloom.clients import federation
from fedloom.core.phases import Phase
from fedloom.core.task import Task
from fedloom.data.sample_format import SampleFormat
from fedloom.engine.weave import Weave
from fedloom.engine.work import WorkLimits
from fedloom.models import MODELS
from fedloom.server.simulation import Simulation

SIZE = 23


@pytest.mark.parametrize(
    ("name", "settings", "most"),
    [
        # ceil(23 / 10) batches an epoch, each sample once in each.
        ("fedavg", {"epochs": 2}, (6, 46)),
        # Both models take a gradient of every batch.
        ("ditto", {"epochs": 1}, (3, 46)),
        ("fedavg", {"steps": 4}, (4, 40)),
        # A look at all samples for each cluster, without a gradient; then an epoch.
        ("ifca", {"epochs": 1}, (4, 23)),
        ("pfedme", {"steps": 3, "inner_steps": 5}, (3, 150)),
    ],
)
def test_a_client_reports_no_more_than_the_most(
    name: str, settings: dict[str, Any], most: tuple[int, int]
) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(SIZE, 4)).astype(np.float32), np.arange(SIZE) % 3
    clients = federation(x, y, clients=np.zeros(SIZE, dtype=np.int64))
    module = MODELS["mlr"]().build((4,), 3)
    algorithm, task = REGISTRY[name](batch_size=10, **settings), Task(module)
    blank = SampleFormat.of(clients.dataset).blank()
    size = int(clients.sizes[0])
    limits = WorkLimits.of(algorithm, task, blank)
    assert limits.most(SIZE) == most
    simulation = Simulation(algorithm, task, clients, Weave(1))
    cost = simulation.run_exchange()
    assert cost is not None
    steps, gradients = limits.most(size)
    assert 0 < cost.steps <= steps
    assert 0 < cost.gradients <= gradients


def test_the_most_of_several_clients_holds_for_any_sizes_of_them() -> None:
    limits = WorkLimits((Phase(step="step", epochs=1),), (1,), batch_size=10)
    alone = [limits.most(size) for size in (1, 10, 21)]
    together = limits.most(32, clients=3)
    assert sum(most.steps for most in alone) <= together.steps == 5
    assert sum(most.gradients for most in alone) == together.gradients
