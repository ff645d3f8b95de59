"""What a fleet can be asked for. A new kind of fleet is a class with these calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from fedloom.core.measures import PersonalOutcomes, Sums
from fedloom.core.messages import Arrivals, ModelRequest, Order, Roster, ScoreRequest


class Fleet(Protocol):
    """The clients of a run. They hold data and memory, and neither leaves them."""

    @property
    def roster(self) -> Roster:
        """Who there is, as enrolled."""

    @property
    def hashes(self) -> Mapping[str, str]:
        """What a checkpoint must have been made with, by name: split and data.

        Empty where clients tell nothing of their data.
        """

    def send(self, order: Order) -> None:
        """Call clients to an exchange; `receive` gives what comes of it."""

    def receive(self) -> Arrivals:
        """What came back of the order that was sent last.

        How long to wait, and for how many, is the fleet's affair.

        Raises:
            NumericalError: A client's numbers stopped being finite.
        """

    def client_log(self, clients: Tensor) -> Any:
        """What drove the last exchange of some clients who arrived, one row each.

        `Empty` where logs stay with the clients, as they do outside of a simulation.
        """

    def score(self, request: ScoreRequest) -> dict[str, Sums]:
        """By kind of model, the sums of the clients that are asked, one row each."""

    def outcomes(self, request: ScoreRequest) -> PersonalOutcomes | None:
        """What the personal models of the clients that are asked say of every sample.

        None where samples stay with the clients, as they do outside of a simulation.
        """

    def personal(self, request: ModelRequest) -> Tensor:
        """(n, d) the models that some clients use, adapted if the method adapts."""

    def draws(self, request: ModelRequest) -> Tensor:
        """(n, k, d) models from the posteriors of some clients."""

    def save(self) -> dict[str, Tensor]:
        """All that clients keep, for a checkpoint; nothing if they keep it at home."""

    def restore(
        self, tensors: dict[str, Tensor], request: ModelRequest, where: str
    ) -> None:
        """Take back what `save` gave.

        Args:
            tensors: as `save` gave them.
            request: of all clients; it shows the shapes of what they keep.
            where: how messages call the place.

        Raises:
            MessageError: A field is missing or misshapen; nothing was changed.
        """
