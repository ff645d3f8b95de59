"""The process that answers a client and stays; `fedloom_flower_client` asks it."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from fedloom.config import RunConfig
from fedloom.core.errors import FedloomError
from fedloom.core.files import atomic_write
from fedloom.engine.threads import on_threads
from fedloom.flower.client_app import client_node, finish
from fedloom.flower.records import from_records, to_records
from fedloom.flower.server_app import run_settings
from fedloom.remote import Header, Node, WireMessage
from fedloom.remote.home import Home
from fedloom_flower_client import FAILED, OK, receive_part, send_part

_log = logging.getLogger(__name__)
_IDLE_S = 600.0
"""A worker that nobody has asked anything for so long ends."""
_HELD = 4
"""Runs whose clients are held at once."""


class Worker:
    """Answers one message after the other.

    Args:
        place: the socket that it listens at.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        self._nodes: dict[str, Node] = {}
        self._one_at_a_time = threading.Lock()

    def run(self) -> None:
        """Answer until nothing has come for a while."""
        self.place.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.place))
            listener.listen()
            listener.settimeout(_IDLE_S)
            try:
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(
                        target=self._serve, args=(connection,), daemon=True
                    ).start()
            except TimeoutError:
                _log.info("Nothing has come for %g s.", _IDLE_S)
            finally:
                self.place.unlink(missing_ok=True)
        with self._one_at_a_time:
            pass  # what is under way ends first

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError):
            settings = json.loads(receive_part(connection))
            content = receive_part(connection)
            with self._one_at_a_time:
                try:
                    asked = from_records(
                        recorddict_from_proto(ProtoRecordDict.FromString(content))
                    )
                    answer = self._answer(settings, asked)
                    records = recorddict_to_proto(to_records(answer))
                    kind, raw = OK, bytes(records.SerializeToString())
                except Exception as error:
                    _log.exception("A message could not be answered.")
                    kind, raw = FAILED, f"{type(error).__name__}: {error}".encode()
                send_part(connection, kind)
                send_part(connection, raw)
                if kind == OK and asked.header.kind == "end":
                    connection.close()  # the answer goes on its way meanwhile
                    self._finish(settings, asked.header.run)

    def _answer(self, settings: dict[str, Any], asked: WireMessage) -> WireMessage:
        try:
            config, node = self._node(settings)
        except FedloomError as error:
            return _refusal(asked.header, settings["node"], error)
        with on_threads(config.engine.threads):
            answer = node.answer(asked)
        text = settings["run"].get("config", "")
        file = node.home.path / asked.header.run / "config.toml"
        if answer.header.kind == "enrolled":
            with atomic_write(file) as part:
                part.write_text(text, encoding="utf-8")
        return answer

    def _node(self, settings: dict[str, Any]) -> tuple[RunConfig, Node]:
        """The client that a message is for, held from message to message."""
        run = settings["run"]
        config = run_settings(run)
        key = json.dumps([settings["node"], run.get("config"), run.get("homes")])
        if key not in self._nodes:
            while len(self._nodes) >= _HELD:
                del self._nodes[next(iter(self._nodes))]
            with on_threads(config.engine.threads):
                self._nodes[key] = client_node(config, settings["node"], run)
        return config, self._nodes[key]

    def _finish(self, settings: dict[str, Any], run: str) -> None:
        config, node = self._node(settings)
        if node.home.end_of(run) is None:
            return  # it was not for this client
        with on_threads(config.engine.threads):
            finish(node, run, config)


def _refusal(
    asked: Header, node_config: dict[str, Any], error: FedloomError
) -> WireMessage:
    """The answer of a client whose data or settings cannot be used.

    What is wrong with its data is said at home alone: it may show some of them.
    """
    _log.warning("%s", error)
    if "home" in node_config:
        home = Home(Path(str(node_config["home"])))
        home.keep_failure(asked.run, asked.kind, str(error), error.exit_code)
    name = str(node_config.get("name", node_config.get("client", "")))
    text = (
        f"{name or 'a client'}: its data or settings cannot be used; its own log says "
        "why."
    )
    return WireMessage(replace(asked, kind="refused", name=name, text=text), {})


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    Worker(Path(sys.argv[1])).run()
