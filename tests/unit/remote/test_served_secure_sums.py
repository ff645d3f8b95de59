"""Secure sums as a server and its clients have them from a run's file."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.config import RunConfig, parse
from fedloom.core.errors import ConfigError
from fedloom.core.records import tensors_digest
from fedloom.deploy import make_node, only_client, serve
from fedloom.plan import make_clients
from fedloom.remote import InProcessChannel, Node, Policy
from fedloom.remote.wire import WireMessage
from fedloom.results.directory import RunDirectory
from fedloom.server import schedule

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
    """Keeps what is asked, and what is answered."""

    def __init__(self, nodes: list[Node]) -> None:
        super().__init__({f"address {n}": node.answer for n, node in enumerate(nodes)})
        self.asked: list[WireMessage] = []
        self.answered: list[WireMessage] = []

    def send(self, messages: Any) -> None:
        messages = list(messages)
        self.asked += [message for _, message in messages]
        super().send(messages)

    def deliver(self, sender: Any, raw: bytes) -> None:
        self.answered.append(WireMessage.from_bytes(raw))
        super().deliver(sender, raw)

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


def test_a_server_that_was_killed_after_scores_gets_the_same_ones_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of the round is not written yet: all of it is asked once more."""
    config, out = parse(SETTINGS), tmp_path / "out"
    secured, honest = [0], schedule._secure

    def kill(*args: Any) -> None:
        secured[0] += 1
        if secured[0] in (2, 4):
            raise KeyboardInterrupt
        honest(*args)

    monkeypatch.setattr(schedule, "_secure", kill)
    answered: list[WireMessage] = []
    for _ in range(2):
        channel = Kinds(nodes_of(config, tmp_path))
        with pytest.raises(KeyboardInterrupt):
            serve(config, channel, out, run="a-run", clients=CLIENTS)
        answered += channel.answered
    channel = Kinds(nodes_of(config, tmp_path))
    serve(config, channel, out, run="a-run", clients=CLIENTS, policy=POLICY)
    answered += channel.answered
    assert "refused" not in {message.header.kind for message in answered}
    scores: dict[tuple[int, int], set[str]] = {}
    times = 0
    for message in answered:
        if message.header.kind == "scored":
            times += 1
            at = message.header.round, message.header.client
            scores.setdefault(at, set()).add(tensors_digest(message.tensors))
    assert times == (3 + 2) * CLIENTS
    assert {len(digests) for digests in scores.values()} == {1}
    assert all(row.scores for row in RunDirectory(out).read_rounds()[1:])


def test_models_are_scored_when_the_settings_say_so_and_at_no_other_time(
    tmp_path: Path,
) -> None:
    config = parse({**SETTINGS, "evaluate_every": 2})
    nodes = nodes_of(config, tmp_path)
    channel = Kinds(nodes)
    serve(config, channel, tmp_path / "out", run="a-run", clients=CLIENTS)
    scored = {m.header.round for m in channel.asked if m.header.kind == "score"}
    assert scored == {2, 3}
    request = next(m for m in channel.asked if m.header.kind == "score")
    for rounds, is_scored in ((0, False), (1, False), (2, True), (3, True), (4, False)):
        header = replace(request.header, round=rounds, number=rounds)
        taken = {"instruction.taken": torch.tensor(-1)}
        answer = nodes[0].answer(WireMessage(header, {**request.tensors, **taken}))
        is_unforeseen = "by the settings of the run none are" in answer.header.text
        assert is_unforeseen != is_scored
