"""What a federation over Flower costs beside training: seconds and bytes.

    python benchmarks/federation.py
    python benchmarks/federation.py --bytes     # without Flower, in seconds

A SuperLink with TLS and keys, five SuperNodes on this machine, five rounds of FedAvg.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flwr.common.serde import recorddict_to_proto

from fedloom.config import parse, to_toml
from fedloom.deploy import make_node, only_client, serve
from fedloom.flower.app import write_app
from fedloom.flower.certificates import make_client_key, make_server_certificate
from fedloom.flower.processes import FlowerCommands, SuperLink, SuperNode
from fedloom.flower.records import to_records
from fedloom.plan import make_clients
from fedloom.remote import InProcessChannel
from fedloom.remote.wire import WireMessage
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round

CLIENTS, ROUNDS = 5, 5
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "evaluate_every": ROUNDS,
    "algorithm": {"name": "fedavg"},
    "data": {"name": "synthetic", "clients": CLIENTS},
    "model": {"name": "mlp", "hidden": [100]},
    "engine": {"device": "cpu", "compile": "off", "threads": 1},
}


def over_flower(folder: Path) -> list[Round]:
    """The rows of a run with TLS and keys."""
    certificates = folder / "certificates"
    make_server_certificate(certificates, ["127.0.0.1"])
    keys = [make_client_key(certificates, str(n)) for n in range(CLIENTS)]
    link = SuperLink(folder / "server", certificates=certificates)
    nodes: list[SuperNode] = []
    try:
        link.wait_until_ready()
        flwr = FlowerCommands(link.link, folder / "flwr")
        flwr.register({public.stem: public for _, public in keys})
        for n, (private, _) in enumerate(keys):
            config = {"client": n, "home": str(folder / f"home-{n}")}
            nodes.append(SuperNode(link.link, folder / str(n), config, key=private))
        for node in nodes:
            node.wait_until_connected()
        run_config = {
            "config": to_toml(SETTINGS),
            "clients": CLIENTS,
            "out": str(folder / "run"),
        }
        flwr.wait(flwr.submit(write_app(folder / "app"), run_config), 1200)
    finally:
        for process in (*nodes, link):
            process.end()
    return RunDirectory(folder / "run").read_rounds()


class Counter(InProcessChannel):
    """Counts the bytes that Flower would carry."""

    sizes: dict[str, dict[str, int]]
    """By kind of message, the bytes of its fields and those that Flower carries."""

    def send(self, messages: Any) -> None:
        """Count, and send."""
        for address, message in messages:
            self._count(message)
            super().send([(address, message)])

    def deliver(self, sender: Any, raw: bytes) -> None:
        """Count, and deliver."""
        self._count(WireMessage.from_bytes(raw))
        super().deliver(sender, raw)

    def _count(self, message: WireMessage) -> None:
        proto = recorddict_to_proto(to_records(message))
        self.sizes[message.header.kind] = {
            "declared": sum(tensor.nbytes for tensor in message.tensors.values()),
            "over Flower": len(proto.SerializeToString()),
        }


def in_one_process(
    folder: Path, tells_log_odds: bool = False, **changes: Any
) -> tuple[list[Round], dict[str, dict[str, int]]]:
    """The rows of the same run without Flower, and the bytes of each message."""
    config, clients = make_clients(parse(SETTINGS | changes))
    channel = Counter(
        {
            n: make_node(
                config,
                only_client(clients, n),
                folder / f"home-{n}",
                tells_log_odds=tells_log_odds,
            ).answer
            for n in range(CLIENTS)
        }
    )
    channel.sizes = {}
    out = folder / "run"
    history = serve(config, channel, out, run="bytes", clients=CLIENTS)
    return history.rounds, channel.sizes


def bytes_of_scores() -> dict[str, dict[str, int]]:
    """Of a score of two models on training and test data, by what is told."""
    two = {"name": "synthetic", "clients": CLIENTS, "classes": 2}
    cases: dict[str, dict[str, Any]] = {
        "ten classes": {},
        "two classes": {"data": two},
        "two classes, with --log-odds": {"data": two, "tells_log_odds": True},
    }
    sizes = {}
    for title, changes in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            _, by_kind = in_one_process(Path(folder), rounds=1, **changes)
        sizes[title] = by_kind["scored"]
    return sizes


def main() -> None:
    """Print what was measured."""
    print(json.dumps({"bytes of a score": bytes_of_scores()}, indent=2))
    if sys.argv[1:] == ["--bytes"]:
        return
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        alone, sizes = in_one_process(Path(one))
        started = time.monotonic()
        rows = over_flower(Path(other))
        total = time.monotonic() - started
    declared = rows[1].bytes_down // CLIENTS, rows[1].bytes_up // CLIENTS
    measured = {
        "seconds of each round over Flower": [round(r.seconds, 1) for r in rows[1:]],
        "seconds of each round in one process": [
            round(r.seconds, 2) for r in alone[1:]
        ],
        "seconds in all, with starting and ending": round(total, 1),
        "declared bytes per client and round, down and up": declared,
        "bytes of a message as Flower carries it": sizes,
    }
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
