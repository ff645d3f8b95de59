"""Two teams of two clients: a SuperLink for each team, and one on top; all with TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import SecuredLink, accuracies

from fedloom.config import parse, to_toml
from fedloom.flower.app import write_app
from fedloom.flower.certificates import make_server_certificate
from fedloom.flower.processes import FlowerProcess
from fedloom.results.directory import RunDirectory
from fedloom.runs import run_config

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]

TEAMS = {"north": (0, 1), "south": (2, 3)}
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "evaluate_every": 10,
    "algorithm": {"name": "pfedmt", "steps": 5, "team_iterations": 2},
    "data": {"name": "synthetic", "clients": 4, "features": 8, "classes": 4},
    "model": {"name": "mlr"},
    "teams": {"name": "given", "members": [0, 0, 1, 1]},
    "engine": {"device": "cpu", "compile": "off", "threads": 1},
}
CALM = {"deadline-s": 600.0, "retry-s": 300.0, "patience-s": 800.0, "quorum": 1.0}


def test_team_servers_come_to_what_the_simulation_comes_to(tmp_path: Path) -> None:
    app = write_app(tmp_path / "app")
    certificates = tmp_path / "certificates"
    make_server_certificate(certificates, ["localhost", "127.0.0.1"])
    processes: list[FlowerProcess] = []
    runs: dict[str, int] = {}

    def link(name: str) -> SecuredLink:
        made = SecuredLink(tmp_path / f"link-{name}", certificates)
        processes.append(made.process)
        return made

    def submit(name: str, **settings: Any) -> int:
        out, config = str(tmp_path / name), to_toml(SETTINGS)
        run = {"config": config, "clients": 2, "out": out, "run": "tiers", **CALM}
        return links[name].flwr.submit(app, run | settings)

    def start_node(above: str, name: str, **config: Any) -> None:
        processes.append(links[above].node(tmp_path / f"node-{name}", name, config))

    try:
        links = {name: link(name) for name in ("top", *TEAMS)}
        for made in links.values():
            made.process.wait_until_ready()
        for name, members in TEAMS.items():
            home = str(tmp_path / f"home-{name}")
            start_node("top", name, **{"team-home": home})
            for n in members:
                start_node(name, str(n), client=n, home=str(tmp_path / f"home-{n}"))
            tier = {"tier": "team", "team": name, "team-home": home}
            runs[name] = submit(name, **tier)
        runs["top"] = submit("top", tier="global")
        for name in ("top", *TEAMS):  # they end when the run does
            links[name].flwr.wait(runs[name], 600)
    finally:
        for process in reversed(processes):
            process.end()
    expected = run_config(parse(SETTINGS))
    found = np.concatenate([accuracies(tmp_path / name) for name in TEAMS])
    assert np.abs(found - expected.scores()).max() <= 1e-4
    rows = RunDirectory(tmp_path / "top").read_rounds()
    assert [row.participants for row in rows[1:]] == [2, 2]
    assert not any(row.refusals for row in rows)
