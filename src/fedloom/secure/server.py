"""The server's half of a secure sum: it passes on what it cannot read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from fedloom.core.errors import MessageError
from fedloom.secure.plan import PublicKeys, SumPlan, agreement, commitment
from fedloom.secure.primitives import KEY_BYTES, Words, is_signed, public_key
from fedloom.secure.shamir import point_of, secret_of, weights_at_zero

_TRIES = 200
"""Of combining shares, where some do not fit."""
_weights = lru_cache(maxsize=2)(weights_at_zero)


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
        self.unfit: dict[int, list[int]] = {}
        """By who opened them, whose shares did not fit those of the others. Either it
        opened other shares than it had, or they were sealed wrong for it."""
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
        content = agreement(self.plan.transcript(self.keys), self.alive, self.dead)
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
            MessageError: Too few opened it, or sent shares that fit.
        """
        plan = self.plan
        plan.refuse_few(self._opened, "sent shares of masks")
        total = self._total.copy()
        for client in self.shares:
            secret = self._secret(client)
            if client in self.alive:
                total -= plan.own_mask(secret)
                continue
            for other in self.alive:
                # What the other added is the negative of this.
                theirs = self._public[other].masking
                total += plan.pair_mask(secret, client, theirs, other)
        return total

    def _secret(self, client: int) -> bytes:
        """The secret of a client's own mask if it is in the total, else of its masks.

        Where the first shares do not fit what it has shown of that secret, as many
        others are tried: one part of the holders after the other left out, then some
        that are drawn.

        Raises:
            MessageError: None fit.
        """
        public, is_in = self._public[client], client in self.alive
        show = commitment if is_in else public_key
        shown = public.commitment if is_in else public.masking
        holders = sorted(self._opened, key=lambda h: (h in self.unfit, h))
        spare, draw = len(holders) - self.plan.threshold, np.random.default_rng(0)
        for at in range(0, _TRIES * spare + 1, spare or 1):
            is_new = at < len(holders)
            order = np.roll(holders, -at) if is_new else draw.permutation(holders)
            chosen, left_out = np.split(order, [self.plan.threshold])
            secret = self._joined(client, chosen.tolist())
            if show(secret) == shown:
                break
        else:
            raise MessageError(
                f"client {client} sealed wrong shares of its secret, or too many of "
                f"the {len(holders)} who opened theirs opened others."
            )
        for holder in left_out.tolist() if at else []:
            # One more point of the same curve changes nothing.
            if self._joined(client, [*chosen.tolist()[1:], holder]) != secret:
                self.unfit.setdefault(holder, []).append(client)
        return secret

    def _joined(self, client: int, holders: Sequence[int]) -> bytes:
        """A client's secret by the shares that some have opened."""
        shares = {point_of(holder): self._opened[holder][client] for holder in holders}
        parts = {point: int.from_bytes(s, "big") for point, s in shares.items()}
        number = secret_of(parts, _weights(tuple(parts)))
        return (number % (1 << 8 * KEY_BYTES)).to_bytes(KEY_BYTES, "big")
