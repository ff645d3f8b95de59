"""A client's half of a secure sum. All that it says follows from one seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fedloom.core.errors import MessageError
from fedloom.secure.plan import PublicKeys, SumPlan, agreed
from fedloom.secure.primitives import (
    KEY_BYTES,
    SigningKey,
    Words,
    derive,
    is_signed,
    keystream,
    seal,
    unseal,
)
from fedloom.secure.shamir import PRIME, SHARE_BYTES, make_shares, point_of

_WORDS = (KEY_BYTES + 8) // 4
"""Of a coefficient, before the remainder: longer than an element of the field, so that
it is as good as uniform."""


class SumClient:
    """One client in one secure sum, through its stages in their order.

    Whoever holds it asks each stage once: it does not remember what it has answered.

    Args:
        plan: the sum.
        client: its number.
        seed: 32 bytes drawn for this sum and used for nothing else.
        key: what it signs with.
    """

    def __init__(
        self, plan: SumPlan, client: int, seed: bytes, key: SigningKey
    ) -> None:
        self.plan = plan
        self.client = client
        self.public: dict[int, PublicKeys] = {}
        """By client, the keys of all who take part; none before the stage "share"."""
        self._key = key
        purposes = (b"sealing", b"masking", b"own mask", b"coefficients")
        secrets = (derive(seed, purpose + plan.digest) for purpose in purposes)
        self._sealing, self._masking, self._own, self._drawn = secrets
        self._shares: dict[int, bytes] = {}
        """By client, the share of its own mask and that of its masking key."""
        self._transcript = b""
        self._agreed: tuple[list[int], list[int]] = [], []

    def keys(self) -> bytes:
        """Stage "keys": the public keys of this sum, signed."""
        secrets = (self._sealing, self._masking, self._own)
        return self.plan.signed_keys(self.client, *secrets, self._key)

    def share(self, keys: Mapping[int, bytes]) -> dict[int, bytes]:
        """Stage "share": by receiver, sealed shares of this client's two secrets.

        Args:
            keys: what every client sent in the stage before.

        Raises:
            MessageError: Too few take part, or keys are not what their owners signed.
        """
        plan, client = self.plan, self.client
        plan.refuse_few(keys, "sent keys")
        if keys.get(client) != self.keys():
            raise MessageError("the keys of this client are not those that it sent.")
        public = {other: plan.read_keys(other, keys[other]) for other in sorted(keys)}
        for values in zip(*public.values(), strict=True):
            if len(set(values)) < len(values):
                raise MessageError("a key is there twice: one takes part as several.")
        pairs = self._pairs(public)
        self.public, self._transcript = public, plan.transcript(keys)
        self._shares = {client: pairs.pop(client)}
        return {
            other: seal(self._sealing_key(other, (client, other)), pair)
            for other, pair in pairs.items()
        }

    def receive(self, sealed: Mapping[int, bytes]) -> None:
        """Stage "mask": take in the shares of all others who are still there.

        Raises:
            MessageError: Too few are, or a share was not sealed for this client.
        """
        self.plan.refuse_few([*sealed, self.client], "sent shares")
        if self.client in sealed or not sealed.keys() <= self.public.keys():
            raise MessageError("shares came of clients that sent no keys.")
        for other, text in sorted(sealed.items()):
            key = self._sealing_key(other, (other, self.client))
            what = f"what client {other} sealed for this one"
            self._shares[other] = unseal(key, text, what)

    def masked(self, summand: Words) -> Words:
        """The same stage: the summand under its masks."""
        total = summand + self.plan.own_mask(self._own)
        for other in self._shares.keys() - {self.client}:
            theirs = self.public[other].masking
            total += self.plan.pair_mask(self._masking, self.client, theirs, other)
        return total

    def agree(self, alive: Collection[int], dead: Collection[int]) -> bytes:
        """Stage "agree": sign who is in the total, and who dropped out.

        Args:
            alive: whose masked summand came; their own masks are to be opened.
            dead: who sent shares and no summand; their masking keys are.

        Raises:
            MessageError: Too few are in, or not everybody is in just one of the two.
        """
        self.plan.refuse_few(alive, "sent their summand")
        if sorted([*alive, *dead]) != sorted(self._shares):
            raise MessageError(
                "not everybody who sent shares is either in the total or out of it: "
                f"in are {sorted(alive)}, out are {sorted(dead)}."
            )
        if self.client not in alive:
            raise MessageError("this client sent its summand, and is said to be out.")
        self._agreed = sorted(alive), sorted(dead)
        return self._key.sign(agreed(self._transcript, *self._agreed))

    def open(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Stage "open": by client, one share: of its own mask, or its masking key.

        Args:
            signatures: of those who agreed to the same.

        Raises:
            MessageError: Too few agreed, or a signature is not of the same.
        """
        alive, dead = self._agreed
        self.plan.refuse_few(signatures, "agreed who is in")
        for other, signature in signatures.items():
            content = agreed(self._transcript, alive, dead)
            is_in = other in alive
            if not is_in or not is_signed(
                self.public[other].identity, content, signature
            ):
                raise MessageError(f"client {other} has not agreed to the same.")
        own = {other: self._shares[other][:SHARE_BYTES] for other in alive}
        return own | {other: self._shares[other][SHARE_BYTES:] for other in dead}

    def _pairs(self, clients: Collection[int]) -> dict[int, bytes]:
        """By receiver, its shares of this client's two secrets."""
        count = self.plan.threshold - 1
        drawn = keystream(self._drawn, 2 * count * _WORDS).reshape(2, count, _WORDS)
        points, tables = [point_of(client) for client in clients], []
        for secret, rows in zip((self._own, self._masking), drawn, strict=True):
            numbers = [int.from_bytes(row.tobytes(), "little") % PRIME for row in rows]
            tables.append(make_shares(int.from_bytes(secret, "big"), numbers, points))
        return {
            client: b"".join(t[point].to_bytes(SHARE_BYTES, "big") for t in tables)
            for client, point in zip(clients, points, strict=True)
        }

    def _sealing_key(self, other: int, way: tuple[int, int]) -> bytes:
        return self.plan.sealing_key(self._sealing, self.public[other].sealing, way)
