"""`fedloom serve` and `join` as two people would give them, on this machine."""

from __future__ import annotations

import csv
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.core.errors import ConfigError
from fedloom.flower.certificates import make_client_key, make_server_certificate
from fedloom.flower.processes import _marked, free_port, mark_for
from fedloom.reports.watch import Watch
from fedloom.results.directory import RunDirectory
from fedloom.runs import load

pytestmark = [pytest.mark.flower, pytest.mark.timeout(900)]

CONFIG = """\
rounds = 3
algorithm = { name = "ditto" }
data = { name = "file", path = "each client's own", target = "ill" }
model = { name = "mlr" }
engine = { device = "cpu", compile = "off", threads = 1 }
"""
NAMES = ("north", "south")


class Commands:
    """The commands of a server and two clients, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.keys = folder / "keys"
        make_server_certificate(self.keys, ["127.0.0.1"])
        (folder / "run.toml").write_text(CONFIG)
        draw = np.random.default_rng(0)
        for name in NAMES:
            make_client_key(self.keys, name)
            x = draw.normal(size=(60, 3))
            with (folder / f"{name}.csv").open("w", newline="") as file:
                lines = csv.writer(file)
                lines.writerow(["age", "weight", "pressure", "ill"])
                lines.writerows([*row, int(row[0] > 0)] for row in x)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, log: str, *arguments: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedloom", *map(str, arguments)]
        with (self.folder / f"{log}.log").open("ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file)
        self.started.append(process)
        return process

    def said(self, log: str) -> str:
        return (self.folder / f"{log}.log").read_text()

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def serve(self) -> subprocess.Popen[bytes]:
        return self.start(
            "serve",
            *("serve", self.folder / "run.toml", "--clients", 2, "--out", self.out),
            *("--tls", self.keys, "--port", self.port, "--retry-s", 20),
            *("--quorum", 1),
        )

    def join(self, name: str, **changes: Any) -> subprocess.Popen[bytes]:
        return self.start(
            name,
            *("join", f"127.0.0.1:{self.port}", "--ca", self.keys / "ca.pem"),
            *("--client-key", self.keys / name, "--name", name),
            *("--data", changes.get("data", self.folder / f"{name}.csv")),
            *("--home", self.folder / f"home-{name}"),
        )

    def wait_for(self, what: Callable[[], bool], timeout_s: float = 240.0) -> None:
        end = time.monotonic() + timeout_s
        while not what():
            assert time.monotonic() < end, self.said("serve")
            time.sleep(0.3)

    def reached(self) -> int:
        rows = RunDirectory(self.out).read_rounds() if self.out.exists() else []
        return max((row.round for row in rows), default=-1)

    def is_free(self) -> bool:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return listener.connect_ex(("127.0.0.1", self.port)) != 0

    def marks(self) -> list[str]:
        homes = [self.folder / f"home-{name}" for name in NAMES]
        return [mark_for(path) for path in (self.folder / "run.server", *homes)]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    made = Commands(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.terminate()
    for process in made.started:
        process.wait(60)


def test_a_federation_from_the_command_line_through_stops_and_kills(
    commands: Commands,
) -> None:
    """Ctrl-C of the server, `kill -9` of a client; at the end everybody has its own."""
    server = commands.serve()
    south = commands.join("south")
    commands.wait_for(lambda: "south has enrolled" in commands.said("serve"))
    # A file whose columns are others is refused by name; put right, it is taken in.
    odd = commands.folder / "odd.csv"
    odd.write_text("age,ill\n" + "1.5,0\n2.5,1\n" * 20)
    assert commands.join("north", data=odd).wait(240) == 6
    assert "features: found 'age', expected" in commands.said("north")
    north = commands.join("north")
    watch = Watch([commands.out])
    assert watch.state()["problems"] == []
    commands.wait_for(lambda: commands.reached() >= 1)
    (state,) = watch.state()["runs"]
    assert (state["planned"], state["state"]) == (3, "going on")
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 130
    assert "The same command goes on." in commands.said("serve")
    assert commands.is_free()
    assert not _marked(commands.marks()[0])
    os.kill(north.pid, signal.SIGKILL)
    north.wait()
    server, north = commands.serve(), commands.join("north")
    assert server.wait(480) == 0, commands.said("serve")
    assert commands.reached() == 3
    for name, client in zip(NAMES, (north, south), strict=True):
        assert client.wait(120) == 0, commands.said(name)
        (report,) = (commands.folder / f"home-{name}").glob("*/report.md")
        assert "with as much work" in report.read_text()
        assert (report.parent / "model" / "model.safetensors").is_file()
        assert f"Report: {report.with_suffix('.html')}" in commands.said(name)
    assert "stands in its own report" in commands.said("serve").replace("\n", " ")
    assert (commands.out / "report.html").is_file()
    with pytest.raises(ConfigError, match="are elsewhere"):
        load(commands.out)
    assert not any(_marked(mark) for mark in commands.marks())
    assert commands.is_free()
    again = commands.serve()  # what is over is shown
    assert again.wait(120) == 0
    assert "This run is over." in commands.said("serve")
