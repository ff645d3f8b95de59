"""The process that answers a client and stays; `fedloom_flower_client` asks it."""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from fedloom.config import RunConfig
from fedloom.engine.threads import on_threads
from fedloom.flower.client_app import answer_records, client_node, finish_run
from fedloom.flower.server_app import run_settings
from fedloom.flower.sockets import receive_question, send_answer
from fedloom.remote import Node
from fedloom_flower_client import RUN

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
            configs, records = receive_question(connection)
            client = partial(self._node, configs)
            own = configs["node"], configs["run"]
            with self._one_at_a_time:
                # The answer goes on its way while results are made.
                send_answer(connection, lambda: answer_records(records, *own, client))
                finish_run(records, client)

    def _node(self, settings: dict[str, Any]) -> tuple[RunConfig, Node]:
        """The client that a message is for, held from message to message."""
        run = settings["run"]
        config = run_settings(run)
        about = (run.get(key) for key in ("config", "homes", RUN))
        key = json.dumps([settings["node"], *about])
        if key not in self._nodes:
            while len(self._nodes) >= _HELD:
                del self._nodes[next(iter(self._nodes))]
            with on_threads(config.engine.threads):
                self._nodes[key] = client_node(config, settings["node"], run)
        return config, self._nodes[key]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    Worker(Path(sys.argv[1])).run()
