"""A fleet in a worker, another process here or elsewhere, which may be lost.

What its clients keep stays there. Here are a snapshot of it, a few exchanges old, and
the orders since: another worker that takes up the snapshot and repeats those orders is
where the lost one was, for all that is drawn depends on counters alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor

from fedloom.cluster import WorkerLost
from fedloom.core.errors import FedloomError
from fedloom.core.measures import PersonalOutcomes, Sums
from fedloom.core.messages import (
    Arrivals,
    ModelRequest,
    Order,
    Roster,
    ScoreRequest,
)
from fedloom.core.records import Empty, leaves, take
from fedloom.core.wording import counted

_log = logging.getLogger(__name__)

SNAPSHOT_EVERY = 10
"""Exchanges that are repeated at most when a worker is lost."""
_KEPT_BYTES = 1 << 28
"""What is kept of orders at most before a snapshot takes their place."""
_LOSSES = 3
"""Workers that may be lost over the same call before the run is given up."""


class Worker(Protocol):
    """Something in another process that can be called by name."""

    @property
    def place(self) -> str:
        """Where it is, for messages."""

    def call(self, name: str, *values: Any) -> Callable[[], Any]:
        """Have it set about a call.

        Calls are done one after another.

        Returns:
            What waits for the answer, and raises what the call raised, or `WorkerLost`.
        """

    def end(self) -> None:
        """End it at once, if it is still there."""


class WorkerFleet:
    """Clients in a worker. If it is lost another takes its place, to the same result.

    What the worker holds has the calls of a `Fleet`, with `exchange` in place of `send`
    and `receive`: it does an order and gives the arrivals and the clients' logs.

    Args:
        place: starts a worker with these clients as they are before the first round.
        roster: who they are.
        snapshot_every: the most exchanges that another worker would have to repeat.
        tell: is told in one line of every worker that is lost.
    """

    def __init__(
        self,
        place: Callable[[], Worker],
        roster: Roster,
        *,
        snapshot_every: int = SNAPSHOT_EVERY,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        self.roster = roster
        self._place = place
        self._tell = tell
        self._snapshot_every = snapshot_every
        self._worker = place()
        self._snapshot: dict[str, Tensor] | None = None
        self._shapes: ModelRequest | None = None
        self._orders: list[Order] = []
        self._saving: tuple[int, Callable[[], Any]] | None = None
        self._sent: tuple[Order, Callable[[], Any]] | None = None
        self._log: Any = Empty()
        self._logged = torch.zeros(0, dtype=torch.int64)

    @property
    def hashes(self) -> Mapping[str, str]:
        """None: who cut the clients into shards knows those of all of them."""
        return MappingProxyType({})

    def send(self, order: Order) -> None:
        """Set the clients about an exchange."""
        self._take_snapshot()
        self._sent = order, self.start("exchange", order)

    def receive(self) -> Arrivals:
        """What they came to, be it in the second worker."""
        assert self._sent is not None, "receive before send"
        (order, answer), self._sent = self._sent, None
        arrivals: Arrivals
        arrivals, self._log = answer()
        self._logged = arrivals.clients
        self._orders.append(order)
        self._shapes = ModelRequest(
            order.round, order.clients, order.taken, order.download
        )
        kept = sum(t.nbytes for o in self._orders for t in leaves(o.download.record))
        if len(self._orders) >= self._snapshot_every or kept > _KEPT_BYTES:
            self._saving = len(self._orders), self._worker.call("save")
        return arrivals

    def client_log(self, clients: Tensor) -> Any:
        """What drove the last exchange of some of those who took part in it."""
        return take(self._log, torch.searchsorted(self._logged, clients))

    def score(self, request: ScoreRequest) -> dict[str, Sums]:
        """The sums of the clients asked."""
        by_kind: dict[str, Sums] = self.start("score", request)()
        return by_kind

    def outcomes(self, request: ScoreRequest) -> PersonalOutcomes | None:
        """What the personal models of the clients asked say of every sample."""
        outcomes: PersonalOutcomes | None = self.start("outcomes", request)()
        return outcomes

    def personal(self, request: ModelRequest) -> Tensor:
        """(n, d) the models that some clients use."""
        thetas: Tensor = self.start("personal", request)()
        return thetas

    def draws(self, request: ModelRequest) -> Tensor:
        """(n, k, d) models from the posteriors of some clients."""
        thetas: Tensor = self.start("draws", request)()
        return thetas

    def save(self) -> dict[str, Tensor]:
        """All that these clients keep."""
        tensors: dict[str, Tensor] = self.start("save")()
        return tensors

    def restore(
        self, tensors: dict[str, Tensor], request: ModelRequest, where: str
    ) -> None:
        """Take back what `save` gave."""
        self.start("restore", tensors, request, where)()

    def end(self) -> None:
        """End the worker, with all that its clients keep."""
        self._worker.end()

    def start(self, name: str, *values: Any) -> Callable[[], Any]:
        """Have the worker set about a call.

        Returns:
            What waits for the answer, whichever worker gives it in the end.

        Raises:
            FedloomError: Workers were lost over this call again and again.
        """
        return partial(self._finish, name, values, self._worker.call(name, *values))

    def _finish(
        self, name: str, values: tuple[Any, ...], answer: Callable[[], Any]
    ) -> Any:
        for left in reversed(range(_LOSSES)):
            try:
                result = answer()
            except WorkerLost as error:
                if not left:
                    raise FedloomError(
                        f"{_LOSSES} workers of {self._clients} were lost one after "
                        f"another; the last on {self._worker.place} ({error}). Give "
                        "the machines more memory, or take more workers, each with "
                        "fewer clients."
                    ) from error
                answer = self._with_another(error, name, values)
                continue
            if name == "save":
                self._keep(result, len(self._orders))
            elif name == "restore":
                self._keep(values[0], len(self._orders))
                self._shapes = values[1]
            return result
        raise AssertionError("unreachable")

    def _with_another(
        self, error: WorkerLost, name: str, values: tuple[Any, ...]
    ) -> Callable[[], Any]:
        """Put another worker where the lost one was, and set it about the call."""
        repeats = counted(len(self._orders), "exchange")
        self._tell(
            f"The worker of {self._clients} on {self._worker.place} was lost ({error})."
            f" Another takes its place and repeats {repeats}."
        )
        self._worker.end()
        self._saving = None
        self._worker = worker = self._place()
        answers = []
        if self._snapshot is not None and self._shapes is not None:
            where = "the snapshot of a lost worker"
            answers.append(worker.call("restore", self._snapshot, self._shapes, where))
        answers += [worker.call("exchange", order) for order in self._orders]
        answers.append(worker.call(name, *values))
        return lambda: [answer() for answer in answers][-1]

    def _take_snapshot(self) -> None:
        """Keep a snapshot that was asked for, if the worker lived to give it."""
        if self._saving is None:
            return
        (count, answer), self._saving = self._saving, None
        try:
            self._keep(answer(), count)
        except WorkerLost:
            return  # the next call meets the same, and has another worker repeat more

    def _keep(self, snapshot: dict[str, Tensor], count: int) -> None:
        self._snapshot = snapshot
        del self._orders[:count]

    @property
    def _clients(self) -> str:
        return counted(self.roster.count, "client")
