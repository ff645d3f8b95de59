"""Flower's grid as a channel: one message for each client, polled for."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedloom.core.errors import MessageError
from fedloom.flower.records import MESSAGE_TYPES, from_records, to_records
from fedloom.remote.channel import Address, Delivery
from fedloom.remote.wire import WireMessage

_log = logging.getLogger(__name__)
_POLL_S = 0.5
"""Time between two looks for answers."""
_LOOK_S = 3.0
"""Time between two looks who is connected."""
_UNAVAILABLE = {
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
}
"""Errors that say that a client is gone, or was killed: it may come back."""


class GridChannel:
    """The SuperNodes of a SuperLink, each at its node id.

    Args:
        grid: what Flower gives a server app.
        ttl_s: how long a message and its answer are good for; who comes back later
            does not find it any more.
    """

    def __init__(self, grid: Grid, *, ttl_s: float) -> None:
        self._grid = grid
        self._ttl_s = ttl_s
        self._waiting: dict[str, tuple[Address, str]] = {}
        """By id of a message, whom it was sent to, and what that client is called."""
        self._known: list[Address] = []
        self._asked = -_LOOK_S

    def addresses(self) -> Iterable[Address]:
        """The nodes that are connected, as of a few seconds ago."""
        if time.monotonic() - self._asked > _LOOK_S:
            self._known = list(self._grid.get_node_ids())
            self._asked = time.monotonic()
        return self._known

    def send(self, messages: Iterable[tuple[Address, WireMessage]]) -> None:
        """Hand messages to the SuperLink."""
        outgoing: list[Message] = []
        receivers: list[tuple[Address, str]] = []
        for address, message in messages:
            header = message.header
            outgoing.append(
                Message(
                    content=to_records(message),
                    dst_node_id=int(str(address)),
                    message_type=MESSAGE_TYPES[header.kind],
                    ttl=self._ttl_s,
                    group_id=str(header.round),
                )
            )
            name = header.name or f"the client at {address}"
            receivers.append((int(str(address)), name))
        if not outgoing:
            return
        ids = self._grid.push_messages(outgoing)
        for id_, receiver in zip(ids, receivers, strict=True):
            if id_:
                self._waiting[id_] = receiver

    def receive(self, timeout_s: float) -> list[Delivery]:
        """What nodes answered; an answer that never came is none."""
        end = time.monotonic() + timeout_s
        while True:
            deliveries = self._pull()
            if deliveries or time.monotonic() >= end:
                return deliveries
            time.sleep(_POLL_S)

    def _pull(self) -> list[Delivery]:
        if not self._waiting:
            return []
        deliveries = []
        for answer in self._grid.pull_messages(list(self._waiting)):
            asked = answer.metadata.reply_to_message_id
            if asked not in self._waiting:
                continue
            sender, name = self._waiting.pop(asked)
            if answer.has_error():
                error = answer.error
                if error.code in _UNAVAILABLE:
                    _log.info("No answer from %s: %s", name, error.reason)
                    continue
                reason = f"its app failed (Flower's error {error.code}): {error.reason}"
                deliveries.append(Delivery(sender, None, reason))
                continue
            try:
                deliveries.append(Delivery(sender, from_records(answer.content)))
            except MessageError as error:
                deliveries.append(Delivery(sender, None, str(error)))
        return deliveries
