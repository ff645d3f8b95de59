"""What a method takes is foreseen from few made-up clients, and refused in time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom.algorithms import REGISTRY, FedFomo, PFedHN
from fedloom.clients import Sampling
from fedloom.core.algorithm import Population
from fedloom.core.errors import ConfigError
from fedloom.core.records import leaves
from fedloom.core.task import Task
from fedloom.engine.footprint import footprint, memory_bytes
from fedloom.plan import _refuse_too_large

TASK = Task(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 2)))


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("clients", [4, 200])
def test_what_the_server_keeps_is_foreseen_to_the_byte(name, clients):
    algorithm = REGISTRY[name]()
    everyone = torch.arange(clients)
    population = Population(
        task=TASK,
        theta=lambda index: TASK.initial(0, index),
        sizes=torch.full((clients,), 9.0),
        teams=everyone % 2,
        rate=1.0,
    )
    kept = sum(leaf.nbytes for leaf in leaves(algorithm.init_server(population)))
    assert footprint(algorithm, TASK, clients=clients).server == kept


@pytest.mark.parametrize(
    ("algorithm", "figures"),
    [
        (FedFomo(), r"would take 80\.0 GB: twice the 40\.0 GB .* 16\.0 GB of memory"),
        (PFedHN(), r"would take 20\.0 GB: twice the 10\.0 GB .* 16\.0 GB of memory"),
    ],
    ids=["fedfomo", "pfedhn"],
)
def test_a_hundred_thousand_clients_of_a_pairwise_method_are_refused(
    algorithm, figures, monkeypatch
):
    monkeypatch.setattr("fedloom.plan.memory_bytes", lambda device: 16_000_000_000)
    _refuse_too_large(algorithm, TASK, 1000, Sampling())
    with pytest.raises(ConfigError, match=figures):
        _refuse_too_large(algorithm, TASK, 100_000, Sampling(rate=0.001))


def test_uploads_of_a_round_count_too(monkeypatch):
    monkeypatch.setattr("fedloom.plan.memory_bytes", lambda device: 100_000)
    method = REGISTRY["fedavg"]()
    _refuse_too_large(method, TASK, 10_000, Sampling(rate=0.01))
    with pytest.raises(ConfigError, match="GB of uploads"):
        _refuse_too_large(method, TASK, 10_000, Sampling())


def test_the_limit_of_a_container_is_its_memory(tmp_path, monkeypatch):
    cpu, limit = torch.device("cpu"), tmp_path / "memory.max"
    monkeypatch.setattr("fedloom.core.memory._GROUP_LIMITS", (limit,))
    physical = memory_bytes(cpu)
    limit.write_text("max\n")
    assert memory_bytes(cpu) == physical
    limit.write_text("1000000\n")
    assert memory_bytes(cpu) == 1_000_000
