"""Methods over Flower, on this machine, with TLS and a key for every client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import COUNT, SETTINGS, Federation, accuracies, simulated

from fedloom.config import to_toml
from fedloom.flower.app import write_app
from fedloom.flower.processes import FlowerCommands, SuperLink

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1200)]

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "ditto": {},
    "self-fl": {"most_steps": 10},
    "pfedvem": {"epochs": 1, "passes": 1, "monte_carlo": 2},
    "fedacs": {},
    "pfedmt": {"steps": 5, "team_iterations": 2},
    "scaffold": {},
}
CALM = {"deadline_s": 600.0, "retry_s": 300.0, "patience_s": 900.0, "quorum": 1.0}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"))
    yield made
    made.end()


def changes(name: str) -> dict[str, Any]:
    return {"algorithm": {"name": name, **METHODS[name]}}


def test_methods_come_to_what_the_simulation_comes_to(federation: Federation) -> None:
    """All at once, so that the waiting of one is the work of another."""
    runs = {name: federation.submit(name, changes(name), **CALM) for name in METHODS}
    for name, run in runs.items():
        federation.flwr.wait(run, 900)
        found, expected = accuracies(federation.out(name)), simulated(changes(name))
        assert np.abs(found - expected).max() <= 1e-4, name
        rows = federation.rounds(name)
        assert [row.participants for row in rows[1:]] == [COUNT] * 3
        assert not any(row.refusals for row in rows)


def test_the_same_app_runs_in_flowers_own_simulation(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    asked = changes("ditto") | {"rounds": 1}
    link = SuperLink(tmp_path / "server", simulates=True)
    try:
        link.wait_until_ready()
        flwr = FlowerCommands(link.link, tmp_path / "flwr", simulated=COUNT)
        run_config = {
            "config": to_toml(SETTINGS | asked),
            "clients": COUNT,
            "out": str(tmp_path / "run"),
            "homes": str(tmp_path / "homes"),
        }
        flwr.wait(flwr.submit(write_app(tmp_path / "app"), run_config), 600)
    finally:
        link.end()
    found = accuracies(tmp_path / "run")
    assert np.abs(found - simulated(asked)).max() <= 1e-4
