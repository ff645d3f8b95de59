"""Not everybody arrives: a fleet around a fleet, which loses some on the way."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core import streams
from fedloom.core.errors import ConfigError
from fedloom.core.messages import (
    Arrivals,
    Order,
)
from fedloom.core.settings import Share, check
from fedloom.fleet.around import FleetAround
from fedloom.fleet.protocol import Fleet


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How often clients fail to take part, for simulations of real networks."""

    absent: Share = 0.0
    """Chance that a client is out of reach for a whole round: it gets no order, as if
    it had not been sampled."""
    lost: Share = 0.0
    """Chance that what a client sends after an exchange does not arrive: it has
    trained, and its next order tells it that the upload was not taken."""

    def __post_init__(self) -> None:
        check(self)

    def __bool__(self) -> bool:
        return self.absent > 0 or self.lost > 0


def checked_faults(faults: Faults | None) -> Faults:
    """What a caller means by faults; none at all if nothing is given.

    Raises:
        ConfigError: It is something else than `Faults`.
    """
    if faults is None:
        return Faults()
    if not isinstance(faults, Faults):
        raise ConfigError(
            f"faults: expected fedloom.Faults(absent=..., lost=...), found {faults!r}."
        )
    return faults


class FaultyFleet(FleetAround):
    """A fleet some of whose clients are absent and some of whose uploads get lost.

    Who fails depends on the seed, the round, the exchange and the client's number
    alone. An evaluation reaches everybody.

    Args:
        fleet: the clients.
        faults: how often they fail.
        seed: seed of who fails when.
    """

    def __init__(self, fleet: Fleet, faults: Faults, *, seed: int = 0) -> None:
        if faults.lost > 0 and not getattr(fleet, "can_lose", True):
            raise ValueError(
                "uploads get lost, so the fleet must be made with can_lose=True: its "
                "clients must keep what they have without their upload, too"
            )
        super().__init__(fleet)
        self.faults = faults
        self.seed = seed
        self._sent: Order | None = None

    def send(self, order: Order) -> None:
        """Pass the order on to those who are present."""
        absent = self._fails("absent", self.faults.absent, order.clients, order.round)
        self._sent = order.only(~absent)
        if len(self._sent.clients):
            self.fleet.send(self._sent)

    def receive(self) -> Arrivals:
        """What did not get lost."""
        order = self._sent
        assert order is not None, "receive before send"
        if not len(order.clients):
            return Arrivals.nobody(order.clients)
        arrivals = self.fleet.receive()
        at = (order.round, order.exchange)
        lost = self._fails("lost", self.faults.lost, arrivals.clients, *at)
        return arrivals.only(~lost)

    def _fails(self, how: str, chance: float, clients: Tensor, *at: int) -> Tensor:
        """(n,) who fails, each drawn by its own number."""
        root = torch.tensor(streams.key(self.seed, how, *at), device=clients.device)
        keys = streams.fold(root, clients)
        draws = vmap(lambda key: streams.uniform(key, (), torch.float64))(keys)
        return draws < chance
