"""A secure sum whose messages lie in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

import numpy as np

from fedloom.secure.client import SumClient
from fedloom.secure.plan import SumPlan
from fedloom.secure.primitives import SigningKey, Words
from fedloom.secure.server import SumServer

LENGTH = 5


def make_plan(
    count: int, threshold: int, number: int = 3, order: str = "order"
) -> SumPlan:
    clients = tuple(range(count))
    return SumPlan("run", "settings", number, clients, threshold, LENGTH, order)


def make_client(plan: SumPlan, client: int, seed: int = 0) -> SumClient:
    drawn = hashlib.sha256(f"seed {seed} of {client}".encode()).digest()
    key = SigningKey.from_secret(f"identity {client}".encode())
    return SumClient(plan, client, drawn, key)


def summands(count: int) -> Words:
    return np.random.default_rng(1).integers(0, 2**32, (count, LENGTH), np.uint32)


class InMemory:
    """The clients and the server of one sum, up to whichever stage one wants.

    Args:
        count: how many clients are called.
        threshold: fewest that open a total.
        gone: by stage ("keys", "share", "mask", "agree", "open"), who is not there any
            more.
    """

    def __init__(self, count: int, threshold: int, **gone: Collection[int]) -> None:
        self.plan = make_plan(count, threshold)
        self.clients = [make_client(self.plan, n) for n in range(count)]
        self.server = SumServer(self.plan)
        self.values = summands(count)
        self.gone = gone
        self.seen: list[bytes] = []
        """All that reached the server."""

    def there(self, stage: str) -> list[int]:
        stages = ("keys", "share", "mask", "agree", "open")
        before = stages[: stages.index(stage) + 1]
        away = {n for name in before for n in self.gone.get(name, ())}
        return [n for n in range(len(self.clients)) if n not in away]

    def run(self, until: str = "open") -> None:
        """All stages up to one, that one included."""
        self.run_on("keys", until)

    def run_on(self, since: str, until: str = "open") -> None:
        """All stages from one up to one, both included."""
        stages = ("keys", "share", "mask", "agree", "open")
        for stage in stages[stages.index(since) :]:
            for n in self.there(stage):
                getattr(self, stage)(n)
            if stage == until:
                return

    def run_and_open(self) -> Words:
        self.run()
        return self.server.total()

    def keys(self, n: int) -> None:
        keys = self.clients[n].keys()
        self.seen.append(keys)
        self.server.take_keys(n, keys)

    def share(self, n: int) -> None:
        self.clients[n] = self.clients[n].share(self.server.keys)
        shares = self.clients[n].sealed()
        self.seen += shares.values()
        self.server.take_shares(n, shares)

    def mask(self, n: int) -> None:
        self.clients[n] = self.clients[n].receive(self.server.shares_for(n))
        masked = self.clients[n].masked(self.values[n])
        self.seen.append(masked.tobytes())
        self.server.take_masked(n, masked)

    def agree(self, n: int) -> None:
        alive, dead = self.server.alive, self.server.dead
        self.clients[n] = self.clients[n].agree(alive, dead)
        self.server.take_signature(n, self.clients[n].signature())

    def open(self, n: int) -> None:
        opened = self.clients[n].open(self.server.signatures)
        self.seen += opened.values()
        self.server.take_opened(n, opened)

    def plain(self, members: Sequence[int]) -> Words:
        return self.values[list(members)].sum(0, dtype=np.uint32)
