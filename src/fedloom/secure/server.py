"""The server's half of a secure sum: it passes on what it cannot read."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedloom.core.errors import MessageError
from fedloom.secure.plan import PublicKeys, SumPlan, agreed, commitment
from fedloom.secure.primitives import KEY_BYTES, Words, is_signed, public_key
from fedloom.secure.shamir import point_of, secret_of, weights_at_zero


class SumServer:
    """One secure sum; each stage takes in what its clients sent.

    Who is missing in a stage has dropped out. With fewer than the plan's threshold
    the next stage is refused.

    Args:
        plan: the sum.
    """

    def __init__(self, plan: SumPlan) -> None:
        self.plan = plan
        self.keys: dict[int, bytes] = {}
        """By client, what it sent in the stage "keys"; it goes to all."""
        self.shares: dict[int, dict[int, bytes]] = {}
        """By sender and receiver, sealed shares."""
        self.alive: list[int] = []
        """Whose summand came."""
        self.signatures: dict[int, bytes] = {}
        self._public: dict[int, PublicKeys] = {}
        self._total = np.zeros(plan.length, np.uint32)
        self._opened: dict[int, dict[int, bytes]] = {}

    @property
    def dead(self) -> list[int]:
        """Who sent shares, and no summand."""
        return sorted(self.shares.keys() - set(self.alive))

    def shares_for(self, client: int) -> dict[int, bytes]:
        """By sender, what the others who are still there sealed for a client."""
        return {o: s[client] for o, s in self.shares.items() if o != client}

    def take_keys(self, client: int, keys: bytes) -> None:
        """Stage "keys".

        Raises:
            MessageError: The client did not sign them for this sum.
        """
        self._public[client] = self.plan.read_keys(client, keys)
        self.keys[client] = keys

    def take_shares(self, client: int, shares: Mapping[int, bytes]) -> None:
        """Stage "share".

        Raises:
            MessageError: They are not for those who take part.
        """
        if shares.keys() != self.keys.keys() - {client}:
            raise MessageError("its shares are not for all others who take part.")
        self.shares[client] = dict(shares)

    def take_masked(self, client: int, masked: Words) -> None:
        """Stage "mask"."""
        self._total += masked
        self.alive = sorted([*self.alive, client])

    def take_signature(self, client: int, signature: bytes) -> None:
        """Stage "agree".

        Raises:
            MessageError: It is of something else.
        """
        content = agreed(self.plan.transcript(self.keys), self.alive, self.dead)
        if not is_signed(self._public[client].identity, content, signature):
            raise MessageError("it did not sign who is in the total.")
        self.signatures[client] = signature

    def take_opened(self, client: int, shares: Mapping[int, bytes]) -> None:
        """Stage "open".

        Raises:
            MessageError: They are not one share of each.
        """
        if shares.keys() != self.shares.keys():
            raise MessageError("it did not send one share of each.")
        self._opened[client] = dict(shares)

    def total(self) -> Words:
        """The sum of the summands of `alive`.

        Raises:
            MessageError: Too few opened it, or a share was wrong.
        """
        plan = self.plan
        plan.refuse_few(self._opened, "sent shares of masks")
        chosen = sorted(self._opened)[: plan.threshold]
        weights = weights_at_zero([point_of(client) for client in chosen])
        total = self._total.copy()
        for client in self.shares:
            parts = {
                point_of(holder): int.from_bytes(self._opened[holder][client], "big")
                for holder in chosen
            }
            number, is_alive = secret_of(parts, weights), client in self.alive
            secret = (number % 2 ** (8 * KEY_BYTES)).to_bytes(KEY_BYTES, "big")
            public = self._public[client]
            expected = public.commitment if is_alive else public.masking
            if expected != (commitment(secret) if is_alive else public_key(secret)):
                raise MessageError(f"a share of client {client}'s secret is wrong.")
            if is_alive:
                total -= plan.own_mask(secret)
                continue
            for other in self.alive:
                # What the other added is the negative of this.
                theirs = self._public[other].masking
                total += plan.pair_mask(secret, client, theirs, other)
        return total
