"""The process that answers a client's messages and stays."""

from __future__ import annotations

import importlib
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

import fedloom.flower
import fedloom_flower_client
from fedloom.config import to_toml
from fedloom.core.errors import ConfigError, MessageError
from fedloom.flower import worker
from fedloom.flower.client_app import client_node
from fedloom.flower.records import from_records, to_records
from fedloom.flower.server_app import run_settings
from fedloom.remote import WireMessage, greeting_for, wire
from fedloom.remote.home import Home
from fedloom_flower_client import OK, receive_part, send_part, socket_path

CONFIG = to_toml(
    {
        "algorithm": {"name": "ditto"},
        "data": {"name": "synthetic", "clients": 3, "features": 4, "classes": 3},
        "model": {"name": "mlr"},
    }
)


def ask(place: Path, settings: dict[str, Any], **header: Any) -> tuple[bytes, bytes]:
    config = run_settings(settings["run"])
    greeting = greeting_for(config.algorithm, run="a-run", seed=0)
    message = WireMessage(replace(greeting, **header), {})
    content = recorddict_to_proto(to_records(message)).SerializeToString()
    return fedloom_flower_client._ask(place, settings, content)


def test_a_worker_answers_holds_the_client_and_ends_when_it_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_IDLE_S", 1.0)
    place = tmp_path / "w.sock"
    made = worker.Worker(place)
    thread = threading.Thread(target=made.run)
    thread.start()
    while not place.exists():
        pass
    node = {"client": 1, "home": str(tmp_path / "home")}
    for _ in range(2):
        kind, raw = ask(place, {"node": node, "run": {"config": CONFIG}})
        assert kind == OK
        answer = from_records(recorddict_from_proto(ProtoRecordDict.FromString(raw)))
        assert (answer.header.kind, answer.header.name) == ("enrolled", "1")
    assert len(made._nodes) == 1
    node = {"client": "nobody", "home": str(tmp_path / "other")}
    kind, raw = ask(place, {"node": node, "run": {"config": CONFIG}})
    assert kind == OK
    answer = from_records(recorddict_from_proto(ProtoRecordDict.FromString(raw)))
    assert answer.header.kind == "refused"
    assert "its own log says why" in answer.header.text
    (line,) = Home(tmp_path / "other").answers("a-run")
    assert line.exit_code == 3
    assert "unknown client 'nobody'" in line.text
    assert (tmp_path / "home" / "a-run" / "config.toml").read_text() == CONFIG
    refuses_another_protocol(place, tmp_path / "third", monkeypatch)
    thread.join(30)
    assert not thread.is_alive()
    assert not place.exists()


def refuses_another_protocol(
    place: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's people and the server's people read both versions."""
    configs = {"node": {"client": 1, "home": str(home)}, "run": {"config": CONFIG}}
    kind, raw = ask(place, configs, protocol=99)
    assert kind == OK
    (line,) = Home(home).answers("a-run")
    assert (line.kind, line.exit_code) == ("failed", MessageError.exit_code)
    assert f"expected protocol {wire.PROTOCOL}, that of" in line.text
    assert "found protocol 99 of Fedloom" in line.text
    mine = wire.PROTOCOL
    with monkeypatch.context() as server:
        server.setattr(wire, "PROTOCOL", 99)
        records = recorddict_from_proto(ProtoRecordDict.FromString(raw))
        with pytest.raises(MessageError, match=f"protocol 99, .*found protocol {mine}"):
            from_records(records)


def test_a_message_of_another_run_is_refused(tmp_path: Path) -> None:
    run = {"config": CONFIG, "run": "b-run"}
    node = client_node(run_settings(run), {"client": 1, "home": str(tmp_path)}, run)
    greeting = greeting_for(node.algorithm, run="a-run", seed=0)
    answer = node.answer(WireMessage(greeting, {}))
    assert answer.header.kind == "refused"
    assert "in the run 'b-run', and was asked for 'a-run'" in answer.header.text
    answer = node.answer(WireMessage(replace(greeting, run="b-run"), {}))
    assert answer.header.kind == "enrolled"


def test_the_socket_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = socket_path({"home": "a"})
    assert place != socket_path({"home": "b"})
    assert place.parent.stat().st_mode & 0o777 == 0o700
    place.parent.chmod(0o755)
    with pytest.raises(PermissionError, match="nobody else can enter"):
        socket_path({"home": "a"})


def test_parts_that_are_cut_short_are_noticed() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_part(ours, b"x" * 100_000)
        assert receive_part(theirs) == b"x" * 100_000
        ours.sendall((50).to_bytes(8, "little") + b"few")
        ours.close()
        with pytest.raises(EOFError):
            receive_part(theirs)


def test_without_flwr_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'fedloom\[flower\]'"):
        importlib.reload(fedloom.flower)
    monkeypatch.undo()
    importlib.reload(fedloom.flower)
