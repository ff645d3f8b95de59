"""A method and a module of the user's own, elsewhere as in a simulation."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from torch import Tensor, nn

import fedloom
from fedloom.clients import federation
from fedloom.config import RunConfig
from fedloom.core.algorithm import Algorithm, Client, Cohort, SGDState
from fedloom.core.errors import ConfigError
from fedloom.core.records import Empty
from fedloom.core.task import Task
from fedloom.deploy import make_node, only_client, serve, whole_dataset_as_client
from fedloom.engine.choice import EngineSettings
from fedloom.remote import InProcessChannel
from fedloom.server.schedule import Schedule


class Server(NamedTuple):
    shared: Tensor


class Download(NamedTuple):
    shared: Tensor


class Upload(NamedTuple):
    step: Tensor


@dataclass(frozen=True, kw_only=True)
class HalfWay(Algorithm[Server, Empty, Download, SGDState, Upload]):
    """The server goes half of the clients' mean way."""

    name = "half-way"
    group = "global"

    def finish(
        self,
        work: SGDState,
        down: Download,
        memory: Empty,
        client: Client,
        task: Task,
    ) -> tuple[Empty, Upload]:
        return memory, Upload(work.at - down.shared)

    def aggregate(self, server: Server, uploads: Upload, cohort: Cohort) -> Server:
        mean = cohort.weights("equal") @ uploads.step
        return Server(server.shared + 0.5 * mean)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.below, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.below(x).tanh())
        return out


def test_own_method_and_module_come_to_what_the_simulation_comes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no test cuts the power
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 4)).astype(np.float32), draw.integers(0, 3, 60)
    clients = federation(x, y, clients=np.arange(60) % 3, standardise=True)
    engine = EngineSettings(device="cpu", compile="off")
    config = RunConfig(schedule=Schedule(rounds=2), algorithm=HalfWay(), engine=engine)
    nodes = {
        n: make_node(
            config, only_client(clients, n), tmp_path / f"home-{n}", model=Net
        ).answer
        for n in range(3)
    }
    history = serve(
        config,
        InProcessChannel(nodes),
        tmp_path / "run",
        run="own",
        clients=3,
        model=Net,
    )
    result = fedloom.run(HalfWay(), Net, clients, rounds=2, engine=engine)
    shared = history.training.shared()
    expected = result._plan.simulation.shared()
    assert shared is not None
    assert expected is not None
    assert np.allclose(shared, expected, atol=1e-6)
    assert (tmp_path / "run" / "start.safetensors").exists()


def test_a_server_refuses_what_needs_samples(tmp_path: Path) -> None:
    config = RunConfig(finds_lr=True)
    with pytest.raises(ConfigError, match="found from samples"):
        serve(config, InProcessChannel({}), tmp_path, run="auto", clients=1)


def test_a_file_is_one_client(tmp_path: Path) -> None:
    rows = [f"{n},{n % 7},{n % 2}" for n in range(40)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
    source = fedloom.config.parse(
        {"data": {"name": "file", "path": str(tmp_path / "own.csv"), "target": "y"}}
    )
    client = whole_dataset_as_client(source, "clinic", team=2)
    assert client.names == ("clinic",)
    assert client.teams.tolist() == [2]
    assert sum(len(part.indices) for part in client.parts) == 40
    assert len(client.test.indices)
    again = whole_dataset_as_client(
        replace(source, schedule=Schedule(seed=0)), "clinic"
    )
    assert again.train.indices.tolist() == client.train.indices.tolist()
