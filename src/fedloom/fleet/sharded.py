"""Several fleets as one, each with some of the clients: the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedloom.core.errors import MessageError
from fedloom.core.measures import PersonalOutcomes, Sums
from fedloom.core.messages import (
    Arrivals,
    ModelRequest,
    Order,
    Roster,
    ScoreRequest,
)
from fedloom.core.records import Empty, map_record, take
from fedloom.engine.memory import cut_saved, join_saved
from fedloom.fleet.protocol import Fleet
from fedloom.fleet.worker import WorkerFleet


class ShardedFleet:
    """Fleets that hold different clients, seen as one fleet.

    An order is cut into one for each shard; all are sent before the first answer is
    waited for, and so is whatever else shards in workers are asked. Answers are put
    together by the clients' numbers, so that nothing depends on who answers first, and
    what is saved is what one fleet of all clients would save. When a shard diverges the
    others have gone on, so the way back is a checkpoint.

    Args:
        shards: the fleets.
        numbers: by shard, (k,) the number of each of its clients, ascending. Together
            they are all numbers from 0 on, each once.
        hashes: those of all clients together; by default each shard's own.
    """

    def __init__(
        self,
        shards: Sequence[Fleet],
        numbers: Sequence[Tensor],
        *,
        hashes: Mapping[str, str] | None = None,
    ) -> None:
        self.shards = tuple(shards)
        self.numbers = tuple(numbers)
        everyone = torch.cat(list(numbers))
        self._order = everyone.argsort()
        names = [name for shard in shards for name in shard.roster.names]
        self.roster = Roster(
            tuple(names[n] for n in self._order.tolist()),
            self._merge([shard.roster.enrolments for shard in shards]),
        )
        if not torch.equal(everyone[self._order], torch.arange(len(everyone))):
            raise ValueError("the shards' numbers are not 0, 1, 2, ..., each once")
        self._called: list[Fleet] = []
        self._hashes = hashes

    @property
    def hashes(self) -> Mapping[str, str]:
        """Those of all clients together, or of each shard under its place."""
        if self._hashes is not None:
            return self._hashes
        return {
            f"shard{n}.{name}": value
            for n, shard in enumerate(self.shards)
            for name, value in shard.hashes.items()
        }

    def send(self, order: Order) -> None:
        """Send each shard its part; one without a client that is called gets none."""
        self._called = []
        for shard, numbers in zip(self.shards, self.numbers, strict=True):
            chosen = torch.isin(order.clients, numbers.to(order.clients))
            if bool(chosen.any()):
                shard.send(order.only(chosen))
                self._called.append(shard)

    def receive(self) -> Arrivals:
        """What came back from all shards, in the order of the clients' numbers."""
        parts = [shard.receive() for shard in self._called]
        if not parts:
            return Arrivals.nobody(self.numbers[0])
        clients = torch.cat([part.clients for part in parts])
        uploaders = torch.cat([part.uploaders for part in parts])
        uploads = [part.uploads for part in parts if part.uploads is not None]
        return Arrivals(
            clients=clients.sort().values,
            reports=take(_joined([p.reports for p in parts]), clients.argsort()),
            uploaders=uploaders.sort().values,
            uploads=take(_joined(uploads), uploaders.argsort()) if uploads else None,
            refused=tuple(refusal for part in parts for refusal in part.refused),
        )

    def client_log(self, clients: Tensor) -> Any:
        """The logs of all shards that have any of these clients."""
        parts, order = self._asked(
            clients, lambda shard, chosen: partial(shard.client_log, clients[chosen])
        )
        return take(_joined(parts), order) if parts else Empty()

    def score(self, request: ScoreRequest) -> dict[str, Sums]:
        """The sums of all who are asked, of every shard."""
        parts, order = self._answers("score", request)
        kinds = parts[0] if parts else {}
        return {kind: take(_joined([p[kind] for p in parts]), order) for kind in kinds}

    def outcomes(self, request: ScoreRequest) -> PersonalOutcomes | None:
        """The samples of all shards by their clients' numbers; None if one has none."""
        parts, by_client = self._answers("outcomes", request)
        samples = [part for part in parts if part is not None]
        if not samples or len(samples) < len(parts):
            return None
        columns = zip(*samples, strict=True)
        rows, clients, values, work = (torch.cat(column) for column in columns)
        order = clients.argsort(stable=True)
        work = work[by_client.cpu()]
        return PersonalOutcomes(rows[order], clients[order], values[order], work)

    def personal(self, request: ModelRequest) -> Tensor:
        """(n, d) the models that some clients use."""
        parts, order = self._answers("personal", request)
        return torch.cat(parts)[order]

    def draws(self, request: ModelRequest) -> Tensor:
        """(n, k, d) models from the posteriors of some clients."""
        parts, order = self._answers("draws", request)
        return torch.cat(parts)[order]

    def save(self) -> dict[str, Tensor]:
        """What all shards give, as one fleet of all clients would give it."""
        waiting = [start(shard, "save") for shard in self.shards]
        return join_saved([answer() for answer in waiting], self.numbers)

    def restore(
        self, tensors: dict[str, Tensor], request: ModelRequest, where: str
    ) -> None:
        """Take back what `save` gave, of these or of any other shards."""
        seen = tensors.get("seen", self._order[:0])
        if len(seen) and int(seen.max()) >= len(self._order):
            raise MessageError(
                f"{where}: field 'seen' names client {int(seen.max())}, and there are "
                f"{len(self._order)}."
            )
        before = self.save()
        try:
            self._restore(tensors, request, where)
        except MessageError:
            self._restore(before, request, where)
            raise

    def _restore(
        self, tensors: dict[str, Tensor], request: ModelRequest, where: str
    ) -> None:
        waiting = []
        for shard, numbers in zip(self.shards, self.numbers, strict=True):
            chosen = torch.isin(request.clients, numbers.to(request.clients))
            own = cut_saved(tensors, numbers)
            waiting.append(start(shard, "restore", own, request.only(chosen), where))
        for answer in waiting:
            answer()

    def _merge(self, parts: Sequence[Any]) -> Any:
        """Rows of all shards, in the order of the clients' numbers."""
        return take(_joined(parts), self._order)

    def _answers(self, name: str, request: ModelRequest) -> tuple[list[Any], Tensor]:
        """What the shards answer to a request, and how rows come in its order."""
        return self._asked(
            request.clients,
            lambda shard, chosen: start(shard, name, request.only(chosen)),
        )

    def _asked(
        self, clients: Tensor, ask: Callable[[Fleet, Tensor], Callable[[], Any]]
    ) -> tuple[list[Any], Tensor]:
        """What the shards answer about some clients; all are asked before any answers.

        Args:
            clients: (n,) who is asked about.
            ask: is given a shard and, (n,), which of the clients are its own.

        Returns:
            The answers, and the order in which their rows are those of `clients`.
        """
        waiting, asked = [], [clients.new_zeros(0)]
        for shard, numbers in zip(self.shards, self.numbers, strict=True):
            chosen = torch.isin(clients, numbers.to(clients))
            if bool(chosen.any()):
                waiting.append(ask(shard, chosen))
                asked.append(chosen.nonzero()[:, 0])
        return [answer() for answer in waiting], torch.cat(asked).argsort()


def start(shard: Fleet, name: str, *values: Any) -> Callable[[], Any]:
    """Have a shard set about a call, if it works elsewhere.

    Returns:
        What waits for the answer.
    """
    if isinstance(shard, WorkerFleet):
        return shard.start(name, *values)
    return partial(getattr(shard, name), *values)


def _joined(parts: Sequence[Any]) -> Any:
    return map_record(lambda *rows: torch.cat(rows), parts[0], *parts[1:])
