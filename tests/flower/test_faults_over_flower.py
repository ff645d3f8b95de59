"""Strangers, kills and what is left behind, in a federation over Flower."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from federation import COUNT, Federation, accuracies, simulated
from safetensors.torch import load_file

from fedloom.flower.certificates import make_client_key, make_server_certificate
from fedloom.flower.processes import Link, SuperNode
from fedloom.remote.home import Home

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    made = Federation(tmp_path_factory.mktemp("federation"))
    yield made
    made.end()


def test_who_does_not_prove_itself_is_refused(federation: Federation) -> None:
    """An unknown key, a server that nobody known vouches for, no encryption."""
    folder, link = federation.folder, federation.link.link
    stranger, _ = make_client_key(folder / "strangers", "stranger")
    make_server_certificate(folder / "strangers", ["localhost", "127.0.0.1"])
    own, other_ca = federation.keys[0][0], folder / "strangers" / "ca.pem"
    config = {"client": 0, "home": str(folder / "stranger")}
    unknown = SuperNode(link, folder / "unknown", config, key=stranger)
    deceived = SuperNode(
        Link(link.address, other_ca), folder / "deceived", config, key=own
    )
    plain = SuperNode(Link(link.address, None), folder / "plain", config)
    federation.others += [unknown, deceived, plain]
    signs = {
        "Failed to activate SuperNode": unknown,
        "CERTIFICATE_VERIFY_FAILED": deceived,
        "Connection attempt failed": plain,
    }
    end = time.monotonic() + 60
    for sign, node in signs.items():
        is_refused = False
        while time.monotonic() < end and not is_refused:
            time.sleep(0.5)
            ended = node is plain or not node.is_running  # that one tries for ever
            is_refused = sign in node.said() and ended
        assert is_refused, node.said()
        assert "SuperNode ID" not in node.said()
        node.end()
    assert not (folder / "stranger").exists()
    assert not plain_answer(link.address).startswith(b"HTTP")


def plain_answer(address: str) -> bytes:
    """What a server says to somebody who does not encrypt."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")
        try:
            return connection.recv(100)
        except OSError:
            return b""


def test_a_killed_federation_completes_and_nothing_is_lost(
    federation: Federation,
) -> None:
    """Two of five clients in round 2, the server in round 3; as if nothing had been."""
    asked = {"algorithm": {"name": "scaffold"}, "rounds": 4}
    policy = {"deadline_s": 600.0, "retry_s": 20.0, "patience_s": 900.0, "quorum": 1.0}
    federation.submit("killed", asked, **policy)
    federation.wait_for_round("killed", 1, 300)
    for n in (1, 3):
        federation.nodes[n].kill()
    for n in (1, 3):
        federation.nodes[n] = federation.start_node(n)
    for n in (1, 3):
        federation.nodes[n].wait_until_connected()
    federation.wait_for_round("killed", 2, 300)
    federation.link.kill()
    before = {n: Home(federation.home(n)).standings("killed")[0] for n in range(COUNT)}
    assert all(standing.number >= 1 for standing in before.values())
    federation.restart_server()
    run = federation.submit("killed", asked, **policy)
    federation.flwr.wait(run, 600)
    rows = federation.rounds("killed")
    assert [row.round for row in rows] == [0, 1, 2, 3, 4]
    assert [row.participants for row in rows[1:]] == [COUNT] * 4
    found = accuracies(federation.out("killed"))
    assert np.abs(found - simulated(asked)).max() <= 1e-4
    kept = [Home(federation.home(n)).standings("killed")[0] for n in range(COUNT)]
    assert [standing.number for standing in kept] == [3] * COUNT
    variates = torch.stack([s.memory["memory.variate"][0] for s in kept])
    server = load_file(federation.out("killed") / "checkpoint.safetensors")
    assert torch.allclose(server["server.variate"], variates.mean(0), atol=1e-6)
    assert not any(name.startswith("clients.") for name in server)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """What a SuperNode starts in sessions of its own ends with it, too."""
    made = Federation(tmp_path)
    processes = [made.link, *made.nodes]
    time.sleep(3)
    assert all(len(process._ids()) >= 2 for process in processes)
    made.end()
    assert not any(process._ids() for process in processes)
