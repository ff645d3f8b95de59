"""What carries messages between the server and its clients."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, Protocol

from fedloom.core.errors import MessageError
from fedloom.remote.wire import WireMessage

POLL_S = 1.0
"""How long a server waits for an answer before it looks who else has come."""

Address = Hashable
"""Where a client can be reached; the carrier vouches for it."""


class Delivery(NamedTuple):
    """What came from an address."""

    sender: Address
    message: WireMessage | None
    """None if it was no message."""
    reason: str = ""
    """Why it was none."""


class Channel(Protocol):
    """A carrier of messages. A new one is a class with these calls."""

    def addresses(self) -> Iterable[Address]:
        """Who can be reached now."""

    def send(self, messages: Iterable[tuple[Address, WireMessage]]) -> None:
        """Send messages; what comes of them is given by `receive`."""

    def receive(self, timeout_s: float) -> list[Delivery]:
        """What has come since; waits for something until the time is over."""


class InProcessChannel:
    """Clients in this process, with bytes in between.

    Args:
        nodes: by address, what answers a message.
    """

    def __init__(
        self, nodes: dict[Address, Callable[[WireMessage], WireMessage]]
    ) -> None:
        self.nodes = nodes
        self.bytes_down = 0
        """All bytes that were sent to clients."""
        self.bytes_up = 0
        self._came: deque[tuple[Address, bytes]] = deque()

    def addresses(self) -> Iterable[Address]:
        """All nodes."""
        return list(self.nodes)

    def send(self, messages: Iterable[tuple[Address, WireMessage]]) -> None:
        """Have each node answer at once."""
        for address, message in messages:
            raw = message.to_bytes()
            self.bytes_down += len(raw)
            answer = self.nodes[address](WireMessage.from_bytes(raw))
            self.deliver(address, answer.to_bytes())

    def deliver(self, sender: Address, raw: bytes) -> None:
        """Put bytes where `receive` finds them."""
        self.bytes_up += len(raw)
        self._came.append((sender, raw))

    def receive(self, timeout_s: float) -> list[Delivery]:
        """What the nodes answered; without any, the time passes."""
        if not self._came:
            time.sleep(min(timeout_s, 0.01))
        deliveries = []
        while self._came:
            sender, raw = self._came.popleft()
            try:
                deliveries.append(Delivery(sender, WireMessage.from_bytes(raw)))
            except MessageError as error:
                deliveries.append(Delivery(sender, None, str(error)))
        return deliveries
