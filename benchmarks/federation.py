"""What a federation over Flower costs beside training: seconds and bytes.

    python benchmarks/federation.py
    python benchmarks/federation.py --bytes     # without Flower, in seconds
    python benchmarks/federation.py --secure    # what secure sums add

A SuperLink with TLS and keys, five SuperNodes on this machine, five rounds of FedAvg;
with `--secure` ten SuperNodes, models of 10^4 and 10^6 parameters, with and without.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
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
SECURE_CLIENTS = 10
SECURE_HIDDEN = ([140], [1000, 930])
"""Of models with about 10^4 and 10^6 parameters."""
SETTINGS: dict[str, Any] = {
    "rounds": ROUNDS,
    "evaluate_every": ROUNDS,
    "algorithm": {"name": "fedavg"},
    "data": {"name": "synthetic", "clients": CLIENTS},
    "model": {"name": "mlp", "hidden": [100]},
    "engine": {"device": "cpu", "compile": "off", "threads": 1},
}


def over_flower(folder: Path, runs: Sequence[dict[str, Any]]) -> list[list[Round]]:
    """The rows of runs with TLS and keys, one after another in one federation."""
    certificates = folder / "certificates"
    make_server_certificate(certificates, ["127.0.0.1"])
    count = runs[0]["data"]["clients"]
    keys = [make_client_key(certificates, str(n)) for n in range(count)]
    link = SuperLink(folder / "server", certificates=certificates)
    nodes: list[SuperNode] = []
    try:
        link.wait_until_ready()
        flwr = FlowerCommands(link.link, folder / "flwr")
        flwr.register({public.stem: public for _, public in keys})
        for n, (private, _) in enumerate(keys):
            config: dict[str, int | str] = {
                "client": n,
                "home": str(folder / f"home-{n}"),
                "peers": str(certificates),
                "client-key": str(private),
            }
            nodes.append(SuperNode(link.link, folder / str(n), config, key=private))
        for node in nodes:
            node.wait_until_connected()
        app = write_app(folder / "app")
        outs = []
        for number, settings in enumerate(runs):
            outs.append(folder / f"run-{number}")
            run_config = {
                "config": to_toml(settings),
                "clients": count,
                "out": str(outs[-1]),
                "run": outs[-1].name,
            }
            flwr.wait(flwr.submit(app, run_config), 1200)
    finally:
        for process in (*nodes, link):
            process.end()
    return [RunDirectory(out).read_rounds() for out in outs]


def with_secure_sums() -> list[dict[str, Any]]:
    """Seconds of rounds over Flower with secure sums and without, by model."""
    cases = list(product(SECURE_HIDDEN, (False, True)))
    runs = [
        {
            **SETTINGS,
            "data": {"name": "synthetic", "clients": SECURE_CLIENTS},
            "model": {"name": "mlp", "hidden": hidden},
            **({"secure": {"fewest": 3}} if is_secure else {}),
        }
        for hidden, is_secure in cases
    ]
    with tempfile.TemporaryDirectory() as folder:
        ended = over_flower(Path(folder), runs)
    return [
        {
            "parameters": rows[1].bytes_down // SECURE_CLIENTS // 4,
            "clients": SECURE_CLIENTS,
            "secure sums": is_secure,
            "seconds of each round": [round(row.seconds, 1) for row in rows[1:]],
            "bytes up, each client": rows[1].bytes_up // SECURE_CLIENTS,
        }
        for (_, is_secure), rows in zip(cases, ended, strict=True)
    ]


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
    if sys.argv[1:] == ["--secure"]:
        print(json.dumps(with_secure_sums(), indent=2))
        return
    print(json.dumps({"bytes of a score": bytes_of_scores()}, indent=2))
    if sys.argv[1:] == ["--bytes"]:
        return
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        alone, sizes = in_one_process(Path(one))
        started = time.monotonic()
        (rows,) = over_flower(Path(other), [SETTINGS])
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
