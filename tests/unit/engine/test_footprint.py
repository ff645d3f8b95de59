"""What a method takes is foreseen from few made-up clients, and refused in time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom.algorithms import (
    REGISTRY,
    FedACS,
    FedAMP,
    FedFomo,
    HeurFedAMP,
    PFedHN,
)
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
    _refuse_too_large(algorithm, TASK, 1000, Sampling(), 1)
    with pytest.raises(ConfigError, match=figures):
        _refuse_too_large(algorithm, TASK, 100_000, Sampling(rate=0.001), 1)


@pytest.mark.parametrize(
    ("algorithm", "rounds", "figures"),
    [
        (FedACS(), 1, r"would take 641\.\d GB: twice the 320\.\d GB"),
        (FedACS(scope="all"), 1, r"to compare 1,000,000,000,000 pairs of clients"),
        (FedAMP(width=1.0), 1, r"16\.0 GB to compare 1,000,000,000 pairs"),
        (FedAMP(), 100, r"160\.0 GB to compare 10,000,000,000 pairs"),
        (HeurFedAMP(), 1, r"16\.0 GB to compare 1,000,000,000 pairs"),
        (FedFomo(), 1, r"twice the 4\d{3}\.\d GB that the server keeps and"),
        (PFedHN(), 1, r"twice the 1\d{3}\.\d GB that the server keeps and"),
    ],
    ids=["fedacs", "all", "fedamp", "median", "heurfedamp", "fedfomo", "pfedhn"],
)
def test_a_million_clients_of_whom_the_server_keeps_models_are_refused_in_time(
    algorithm, rounds, figures, monkeypatch
):
    """Before the server's record of more than a few clients is made."""
    counts = []
    for_few = type(algorithm).init_server

    def counted(self, population):
        counts.append(population.count)
        return for_few(self, population)

    monkeypatch.setattr(type(algorithm), "init_server", counted)
    monkeypatch.setattr("fedloom.plan.memory_bytes", lambda device: 24_000_000_000)
    task = Task(nn.Linear(800, 100))
    with pytest.raises(ConfigError, match=figures):
        _refuse_too_large(algorithm, task, 1_000_000, Sampling(rate=0.001), rounds)
    assert max(counts) < 100


def test_uploads_of_a_round_count_too(monkeypatch):
    monkeypatch.setattr("fedloom.plan.memory_bytes", lambda device: 100_000)
    method = REGISTRY["fedavg"]()
    _refuse_too_large(method, TASK, 10_000, Sampling(rate=0.01), 1)
    with pytest.raises(ConfigError, match="GB of uploads"):
        _refuse_too_large(method, TASK, 10_000, Sampling(), 1)


def test_the_limit_of_a_container_is_its_memory(tmp_path, monkeypatch):
    cpu, limit = torch.device("cpu"), tmp_path / "memory.max"
    monkeypatch.setattr("fedloom.core.memory._GROUP_LIMITS", (limit,))
    physical = memory_bytes(cpu)
    limit.write_text("max\n")
    assert memory_bytes(cpu) == physical
    limit.write_text("1000000\n")
    assert memory_bytes(cpu) == 1_000_000
