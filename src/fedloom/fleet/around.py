"""A fleet around a fleet: whatever is not changed on the way is passed on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fedloom.core.measures import PersonalOutcomes, Sums
from fedloom.core.messages import Arrivals, ModelRequest, Order, Roster, ScoreRequest
from fedloom.fleet.protocol import Fleet


class FleetAround:
    """A fleet that passes every call on to another.

    Args:
        fleet: the other.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    @property
    def roster(self) -> Roster:
        """Who there is, whatever becomes of what they send."""
        return self.fleet.roster

    @property
    def hashes(self) -> Mapping[str, str]:
        """As the fleet has them."""
        return self.fleet.hashes

    def send(self, order: Order) -> None:
        """Pass the order on."""
        self.fleet.send(order)

    def receive(self) -> Arrivals:
        """What came of it."""
        return self.fleet.receive()

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
