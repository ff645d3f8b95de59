"""A federation on this machine: a SuperLink with TLS and keys, and its SuperNodes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloom.config import parse, to_toml
from fedloom.flower.app import write_app
from fedloom.flower.certificates import make_client_key, make_server_certificate
from fedloom.flower.processes import FlowerCommands, SuperLink, SuperNode
from fedloom.results.directory import RunDirectory
from fedloom.results.row_files import read_batches
from fedloom.results.rows import Round
from fedloom.runs import run_config

COUNT = 5
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "evaluate_every": 10,
    "data": {"name": "synthetic", "clients": COUNT, "features": 8, "classes": 4},
    "model": {"name": "mlr"},
    "teams": {"name": "blocks", "teams": 2},
    "engine": {"device": "cpu", "compile": "off", "threads": 1},
}


class SecuredLink:
    """A SuperLink with TLS, which admits those whose keys it knows and nobody else.

    Args:
        folder: of its own.
        certificates: where its certificate is, and the keys of its clients.
    """

    def __init__(self, folder: Path, certificates: Path) -> None:
        self.certificates = certificates
        self.process = SuperLink(folder / "server", certificates=certificates)
        self.flwr = FlowerCommands(self.process.link, folder / "flwr")

    def node(self, folder: Path, name: str, config: dict[str, Any]) -> SuperNode:
        """Admit a new client, and start it."""
        private, public = make_client_key(self.certificates, name)
        self.flwr.register({name: public})
        return SuperNode(self.process.link, folder, config, key=private)


class Federation:
    """A server and clients, and how to start, end and kill each of them.

    Args:
        folder: of its own.
        count: how many clients there are.
    """

    def __init__(self, folder: Path, count: int = COUNT) -> None:
        self.folder = folder
        self.count = count
        self.certificates = folder / "certificates"
        make_server_certificate(self.certificates, ["localhost", "127.0.0.1"])
        self.keys = [
            make_client_key(self.certificates, f"client-{n}") for n in range(count)
        ]
        self.app = write_app(folder / "app")
        secured = SecuredLink(folder, self.certificates)
        self.link, self.flwr = secured.process, secured.flwr
        self.nodes: list[SuperNode] = []
        self.others: list[SuperNode] = []
        try:
            self.link.wait_until_ready()
            self.flwr.register({public.stem: public for _, public in self.keys})
            self.nodes = [self.start_node(n) for n in range(count)]
            for node in self.nodes:
                node.wait_until_connected()
        except BaseException:
            self.end()
            raise

    def start_node(self, n: int) -> SuperNode:
        """Start a client; its home is the same every time."""
        config = {"client": n, "home": str(self.home(n)), **self.node_config(n)}
        folder = self.folder / f"node-{n}"
        return SuperNode(self.link.link, folder, config, key=self.keys[n][0])

    def node_config(self, n: int) -> dict[str, Any]:
        """What else a client's node config has."""
        return {}

    def restart_server(self) -> None:
        """Start the SuperLink again where it was, after it was killed."""
        port = int(self.link.link.address.rpartition(":")[2])
        self.link = SuperLink(
            self.folder / "server", port=port, certificates=self.certificates
        )
        self.link.wait_until_ready()

    def home(self, n: int) -> Path:
        return self.folder / f"home-{n}"

    def out(self, run: str) -> Path:
        return self.folder / "runs" / run

    def submit(self, run: str, changes: dict[str, Any], **policy: float) -> int:
        """Start a run, or go on with it."""
        settings = {name.replace("_", "-"): value for name, value in policy.items()}
        return self.flwr.submit(
            self.app,
            {
                "config": to_toml(SETTINGS | changes),
                "clients": self.count,
                "out": str(self.out(run)),
                "run": run,
                **settings,
            },
        )

    def wait_for_round(self, run: str, number: int, timeout_s: float) -> None:
        """Wait until a round is finished and written."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if any(row.round >= number for row in self.rounds(run)):
                return
            time.sleep(0.2)
        raise AssertionError(f"{run}: round {number} did not end in {timeout_s} s")

    def rounds(self, run: str) -> list[Round]:
        return RunDirectory(self.out(run)).read_rounds()

    def end(self) -> None:
        for process in (*self.others, *self.nodes, self.link):
            process.end()


def accuracies(path: Path) -> NDArray[np.float64]:
    """Every client's accuracy on its own test data, by its own model."""
    table = pa.Table.from_batches(read_batches(path / "clients.arrows")).to_pylist()
    rows = [r for r in table if (r["kind"], r["part"]) == ("personal", "test")]
    last = max(row["round"] for row in rows)
    chosen = [row for row in rows if row["round"] == last]
    by_client = sorted(chosen, key=lambda row: int(row["client"]))
    return np.array([row["accuracy"] for row in by_client])


def simulated(changes: dict[str, Any]) -> NDArray[np.float64]:
    """The same of a simulation of the same settings."""
    return run_config(parse(SETTINGS | changes)).scores()
