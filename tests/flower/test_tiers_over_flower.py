"""Two teams of two clients: a SuperLink for each team, and one on top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import accuracies

from fedloom.config import parse, to_toml
from fedloom.flower.app import write_app
from fedloom.flower.processes import (
    FlowerCommands,
    FlowerProcess,
    SuperLink,
    SuperNode,
)
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
    processes: list[FlowerProcess] = []
    runs: dict[str, int] = {}

    def link(name: str) -> tuple[SuperLink, FlowerCommands]:
        made = SuperLink(tmp_path / f"link-{name}")
        processes.append(made)
        return made, FlowerCommands(made.link, tmp_path / f"flwr-{name}")

    def submit(flwr: FlowerCommands, name: str, **settings: Any) -> int:
        out, config = str(tmp_path / name), to_toml(SETTINGS)
        run = {"config": config, "clients": 2, "out": out, "run": "tiers", **CALM}
        return flwr.submit(app, run | settings)

    try:
        links = {name: link(name) for name in ("top", *TEAMS)}
        for made, _ in links.values():
            made.wait_until_ready()
        for name, members in TEAMS.items():
            home = str(tmp_path / f"home-{name}")
            top, folder = links["top"][0].link, tmp_path / f"node-{name}"
            processes.append(SuperNode(top, folder, {"team-home": home}))
            for n in members:
                config = {"client": n, "home": str(tmp_path / f"home-{n}")}
                own, folder = links[name][0].link, tmp_path / f"node-{n}"
                processes.append(SuperNode(own, folder, config))
            tier = {"tier": "team", "team": name, "team-home": home}
            runs[name] = submit(links[name][1], name, **tier)
        runs["top"] = submit(links["top"][1], "top", tier="global")
        for name in ("top", *TEAMS):  # they end when the run does
            links[name][1].wait(runs[name], 600)
    finally:
        for process in reversed(processes):
            process.end()
    expected = run_config(parse(SETTINGS))
    found = np.concatenate([accuracies(tmp_path / name) for name in TEAMS])
    assert np.abs(found - expected.scores()).max() <= 1e-4
    rows = RunDirectory(tmp_path / "top").read_rounds()
    assert [row.participants for row in rows[1:]] == [2, 2]
    assert not any(row.refusals for row in rows)
