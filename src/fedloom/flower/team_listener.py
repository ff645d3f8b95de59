"""A team's server that listens to the global one, in the process of its server app.

The team takes part at the global SuperLink by a SuperNode on the same machine, whose
app (`fedloom_flower_client`) hands every message to this process and waits.
"""

from __future__ import annotations

import logging
import socket
import time
from contextlib import suppress

from flwr.app import RecordDict

from fedloom.core.errors import MessageError
from fedloom.deploy import TeamServer
from fedloom.flower.records import from_records
from fedloom.flower.sockets import receive_question, send_answer
from fedloom.remote import Policy, WireMessage
from fedloom.remote.channel import POLL_S
from fedloom.remote.wire import OtherProtocolError
from fedloom_flower_client import TEAM_HOME, socket_path

_log = logging.getLogger(__name__)


class TeamListener:
    """Answers the global server, one message after the other.

    Args:
        team: the team's server.
        policy: how long it waits for the global server.
    """

    def __init__(self, team: TeamServer, policy: Policy) -> None:
        self.place = socket_path({TEAM_HOME: str(team.home.path)})
        """The socket that it listens at."""
        self._team = team
        self._policy = policy

    def run(self) -> None:
        """Answer until the run is over.

        If the global server does not say so, the last round and a while are enough.

        Raises:
            MessageError: The global server has not asked for anything for too long.
        """
        self.place.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.place))
            listener.listen()
            listener.settimeout(POLL_S)
            _log.info("The clients of %s are there.", self._team.name)
            asked = time.monotonic()
            try:
                while not self._is_done(time.monotonic() - asked):
                    try:
                        connection, _ = listener.accept()
                    except TimeoutError:
                        continue
                    # In this thread: the clients are reached from no other.
                    self._serve(connection)
                    asked = time.monotonic()
            finally:
                self.place.unlink(missing_ok=True)

    def _is_done(self, quiet_s: float) -> bool:
        if self._team.has_ended:
            return True
        if self._team.is_over:
            return quiet_s > 2 * self._policy.retry_s
        if quiet_s > self._policy.patience_s:
            raise MessageError(
                f"{self._team.name}: the global server has not asked for anything for "
                f"{quiet_s:.0f} s. Start it, and then this team's server again."
            )
        return False

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, EOFError):
            # Configs say nothing to a team's server.
            _, records = receive_question(connection)
            send_answer(connection, lambda: self._answer(records))

    def _answer(self, records: RecordDict) -> WireMessage:
        try:
            return self._team.answer(from_records(records))
        except OtherProtocolError as error:
            _log.warning("The global server cannot be understood. %s", error)
            return error.answer(self._team.name)
