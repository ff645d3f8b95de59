"""Not everybody arrives: a fleet around a fleet, which loses some on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core import streams
from fedloom.core.errors import ConfigError
from fedloom.core.measures import PersonalOutcomes, Sums
from fedloom.core.messages import (
    Arrivals,
    ModelRequest,
    Order,
    Roster,
    ScoreRequest,
)
from fedloom.core.settings import Share, check
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


class FaultyFleet:
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
        self.fleet = fleet
        self.faults = faults
        self.seed = seed
        self._sent: Order | None = None

    @property
    def roster(self) -> Roster:
        """Who there is, present or not."""
        return self.fleet.roster

    @property
    def hashes(self) -> Mapping[str, str]:
        """As the fleet has them."""
        return self.fleet.hashes

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

    def client_log(self, clients: Tensor) -> Any:
        """As the fleet has it."""
        return self.fleet.client_log(clients)

    def score(self, request: ScoreRequest) -> dict[str, Sums]:
        """The sums of all who are asked."""
        return self.fleet.score(request)

    def outcomes(self, request: ScoreRequest) -> PersonalOutcomes | None:
        """As the fleet has them."""
        return self.fleet.outcomes(request)

    def personal(self, request: ModelRequest) -> Tensor:
        """As the fleet has them."""
        return self.fleet.personal(request)

    def draws(self, request: ModelRequest) -> Tensor:
        """As the fleet has them."""
        return self.fleet.draws(request)

    def save(self) -> dict[str, Tensor]:
        """All that clients keep."""
        return self.fleet.save()

    def restore(
        self, tensors: dict[str, Tensor], request: ModelRequest, where: str
    ) -> None:
        """Take back what `save` gave."""
        self.fleet.restore(tensors, request, where)

    def _fails(self, how: str, chance: float, clients: Tensor, *at: int) -> Tensor:
        """(n,) who fails, each drawn by its own number."""
        root = torch.tensor(streams.key(self.seed, how, *at), device=clients.device)
        keys = streams.fold(root, clients)
        draws = vmap(lambda key: streams.uniform(key, (), torch.float64))(keys)
        return draws < chance
