"""A team's server behind a socket, as the app of its SuperNode asks it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

import fedloom_flower_client
from fedloom.algorithms import FedAvg
from fedloom.core.errors import MessageError
from fedloom.flower.records import from_records, to_records
from fedloom.flower.team_listener import TeamListener
from fedloom.remote import Policy, WireMessage, greeting_for
from fedloom_flower_client import FAILED, OK, TEAM_HOME, socket_path

ASKED = WireMessage(greeting_for(FedAvg(), run="a-run", seed=0), {})


def team_of(home: Path, answer: Any) -> Any:
    """What a listener needs of a team's server."""
    return SimpleNamespace(
        name="north",
        home=SimpleNamespace(path=home),
        is_over=False,
        has_ended=False,
        answer=answer,
    )


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In a folder with a short name, for the path of a socket is short."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder) / "home"


def ask(home: Path) -> tuple[bytes, bytes]:
    content = recorddict_to_proto(to_records(ASKED)).SerializeToString()
    place = socket_path({TEAM_HOME: str(home)})
    return fedloom_flower_client._ask(place, {}, content, starts=False)


def test_a_team_answers_until_its_run_is_over(home: Path) -> None:
    team = team_of(home, lambda message: message)
    listener = TeamListener(team, Policy(retry_s=0.01))
    thread = threading.Thread(target=listener.run)
    thread.start()
    kind, raw = ask(home)  # waits until somebody listens
    assert kind == OK
    answer = from_records(recorddict_from_proto(ProtoRecordDict.FromString(raw)))
    assert answer.digest == ASKED.digest
    team.answer = None
    kind, raw = ask(home)
    assert kind == FAILED
    assert b"TypeError" in raw
    team.is_over = True
    thread.join(30)
    assert not thread.is_alive()
    assert not listener.place.exists()


def test_a_team_that_nobody_asks_says_so(home: Path) -> None:
    team = team_of(home, lambda message: message)
    with pytest.raises(MessageError, match="north: the global server has not asked"):
        TeamListener(team, Policy(patience_s=0.01)).run()


def test_the_socket_of_a_team_follows_from_its_folder_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = socket_path({TEAM_HOME: str(home)})
    monkeypatch.setenv("PYTHONPATH", "another")
    assert socket_path({TEAM_HOME: str(home.parent / "x" / ".." / "home")}) == place
    assert socket_path({TEAM_HOME: str(home.parent)}) != place
