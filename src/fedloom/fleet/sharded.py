"""Several fleets as one, each with some of the clients: the workers of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from fedloom.fleet.protocol import Fleet


class ShardedFleet:
    """Fleets that hold different clients, seen as one fleet.

    An order is cut into one for each shard; all are sent before the first answer is
    waited for. Answers are put together by the clients' numbers, so that nothing
    depends on who answers first. When a shard diverges the others have gone on, so the
    way back is a checkpoint.

    Args:
        shards: the fleets.
        numbers: by shard, (k,) the number of each of its clients, ascending. Together
            they are all numbers from 0 on, each once.
    """

    def __init__(self, shards: Sequence[Fleet], numbers: Sequence[Tensor]) -> None:
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

    @property
    def hashes(self) -> Mapping[str, str]:
        """Those of each shard, under its place among them."""
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
        return self._asked(
            clients, lambda shard, chosen: shard.client_log(clients[chosen])
        )

    def score(self, request: ScoreRequest) -> dict[str, Sums]:
        """The sums of all who are asked, of every shard."""
        kinds: list[str] = []

        def ask(shard: Fleet, chosen: Tensor) -> tuple[Sums, ...]:
            by_kind = shard.score(request.only(chosen))
            kinds[:] = by_kind
            return tuple(by_kind.values())

        sums = self._asked(request.clients, ask)
        return dict(zip(kinds, sums, strict=True))

    def outcomes(self, request: ScoreRequest) -> PersonalOutcomes | None:
        """The samples of all shards by their clients' numbers; None if one has none."""
        parts, asked = [], []
        for shard, numbers in zip(self.shards, self.numbers, strict=True):
            chosen = torch.isin(request.clients, numbers.to(request.clients))
            if bool(chosen.any()):
                parts.append(shard.outcomes(request.only(chosen)))
                asked.append(chosen.nonzero()[:, 0])
        samples = [part for part in parts if part is not None]
        if not samples or len(samples) < len(parts):
            return None
        columns = zip(*samples, strict=True)
        rows, clients, values, work = (torch.cat(column) for column in columns)
        order = clients.argsort(stable=True)
        work = work[torch.cat(asked).argsort().cpu()]
        return PersonalOutcomes(rows[order], clients[order], values[order], work)

    def personal(self, request: ModelRequest) -> Tensor:
        """(n, d) the models that some clients use."""
        thetas: Tensor = self._asked(
            request.clients,
            lambda shard, chosen: shard.personal(request.only(chosen)),
        )
        return thetas

    def draws(self, request: ModelRequest) -> Tensor:
        """(n, k, d) models from the posteriors of some clients."""
        thetas: Tensor = self._asked(
            request.clients, lambda shard, chosen: shard.draws(request.only(chosen))
        )
        return thetas

    def save(self) -> dict[str, Tensor]:
        """What each shard gives, under its place among them."""
        return {
            f"shard{n}.{name}": tensor
            for n, shard in enumerate(self.shards)
            for name, tensor in shard.save().items()
        }

    def restore(
        self, tensors: dict[str, Tensor], request: ModelRequest, where: str
    ) -> None:
        """Take back what `save` gave, with the same shards."""
        before = self.save()
        try:
            self._restore(tensors, request, where)
        except MessageError:
            self._restore(before, request, where)
            raise

    def _restore(
        self, tensors: dict[str, Tensor], request: ModelRequest, where: str
    ) -> None:
        for n, (shard, numbers) in enumerate(
            zip(self.shards, self.numbers, strict=True)
        ):
            prefix = f"shard{n}."
            own = {
                name.removeprefix(prefix): tensor
                for name, tensor in tensors.items()
                if name.startswith(prefix)
            }
            chosen = torch.isin(request.clients, numbers.to(request.clients))
            shard.restore(own, request.only(chosen), where)

    def _merge(self, parts: Sequence[Any]) -> Any:
        """Rows of all shards, in the order of the clients' numbers."""
        return take(_joined(parts), self._order)

    def _asked(self, clients: Tensor, ask: Any) -> Any:
        """What the shards answer about some clients, in the order asked for.

        `ask` is given a shard and, (n,), which of the clients are its own.
        """
        parts, asked = [], []
        for shard, numbers in zip(self.shards, self.numbers, strict=True):
            chosen = torch.isin(clients, numbers.to(clients))
            if bool(chosen.any()):
                parts.append(ask(shard, chosen))
                asked.append(chosen.nonzero()[:, 0])
        return take(_joined(parts), torch.cat(asked).argsort()) if parts else Empty()


def _joined(parts: Sequence[Any]) -> Any:
    return map_record(lambda *rows: torch.cat(rows), parts[0], *parts[1:])
