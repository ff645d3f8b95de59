"""The process that answers a client and stays; `fedloom_flower_client` asks it."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from fedloom.engine.threads import on_threads
from fedloom.flower.client_app import client_node
from fedloom.flower.records import from_records, to_records
from fedloom.flower.server_app import run_settings
from fedloom.remote import Node
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
            try:
                with self._one_at_a_time:
                    kind, raw = OK, self._answer(settings, content)
            except Exception as error:
                _log.exception("A message could not be answered.")
                kind, raw = FAILED, f"{type(error).__name__}: {error}".encode()
            send_part(connection, kind)
            send_part(connection, raw)

    def _answer(self, settings: dict[str, Any], content: bytes) -> bytes:
        config = run_settings(settings["run"])
        run = settings["run"]
        key = json.dumps([settings["node"], run.get("config"), run.get("homes")])
        with on_threads(config.engine.threads):
            if key not in self._nodes:
                while len(self._nodes) >= _HELD:
                    del self._nodes[next(iter(self._nodes))]
                node = client_node(config, settings["node"], run)
                self._nodes[key] = node
            records = recorddict_from_proto(ProtoRecordDict.FromString(content))
            answered = self._nodes[key].answer(from_records(records))
        return bytes(recorddict_to_proto(to_records(answered)).SerializeToString())


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    Worker(Path(sys.argv[1])).run()
