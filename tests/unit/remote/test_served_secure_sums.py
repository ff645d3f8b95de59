"""Secure sums as a server and its clients have them from a run's file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fedloom.config import RunConfig, parse
from fedloom.core.errors import ConfigError
from fedloom.deploy import make_node, only_client, serve
from fedloom.plan import make_clients
from fedloom.remote import InProcessChannel, Node, Policy
from fedloom.remote.wire import WireMessage

CLIENTS = 4
SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "data": {"name": "synthetic", "clients": CLIENTS, "features": 50, "classes": 4},
    "model": {"name": "mlr"},
    "algorithm": {"name": "fedavg", "epochs": 1},
    "secure": {"fewest": 3},
    "engine": {"device": "cpu", "compile": "off", "threads": 1},
}
POLICY = Policy(deadline_s=0.05, retry_s=100.0, patience_s=0.3, end_s=0.1)


@pytest.fixture(autouse=True)
def _no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def nodes_of(config: RunConfig, folder: Path, count: int = CLIENTS) -> list[Node]:
    """The clients, whose homes are in a folder."""
    _, clients = make_clients(config)
    return [
        make_node(config, only_client(clients, n), folder / f"home-{n}")
        for n in range(count)
    ]


class Kinds(InProcessChannel):
    """Counts what is asked, by kind."""

    def __init__(self, nodes: list[Node]) -> None:
        super().__init__({f"address {n}": node.answer for n, node in enumerate(nodes)})
        self.asked: list[WireMessage] = []

    def send(self, messages: Any) -> None:
        messages = list(messages)
        self.asked += [message for _, message in messages]
        super().send(messages)

    @property
    def kinds(self) -> set[str]:
        return {message.header.kind for message in self.asked}


def test_rounding_too_coarse_for_the_model_is_refused_before_anybody_trains(
    tmp_path: Path,
) -> None:
    """Before clients have enrolled nobody knows how large it is."""
    pytest.importorskip("dp_accounting")
    secret = tmp_path / "secret"
    privacy = {"clip": 0.5, "delta": 1e-3, "secret": str(secret)}
    secure = {"fewest": 3, "bits": 12, "bound": 16.0}
    config = parse({**SETTINGS, "privacy": privacy, "secure": secure})
    channel, out = Kinds(nodes_of(config, tmp_path)), tmp_path / "out"
    reason = r"rounding its 204 numbers to multiples of 0\.00782 could lengthen it"
    with pytest.raises(ConfigError, match=reason) as refused:
        serve(config, channel, out, run="a-run", clients=CLIENTS, policy=POLICY)
    assert "start the server" not in str(refused.value)
    assert "train" not in channel.kinds
    assert not (out / "config.toml").exists()
    finer = parse({**SETTINGS, "privacy": privacy, "secure": {**secure, "bits": 20}})
    channel = Kinds(nodes_of(finer, tmp_path))
    serve(finer, channel, tmp_path / "out", run="a-run", clients=CLIENTS, policy=POLICY)
    assert "open" in channel.kinds
