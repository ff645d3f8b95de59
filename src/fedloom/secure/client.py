"""A client's half of a secure sum. All that it says follows from one seed.

    client = SumClient(...)            client.keys()
    client = client.share(keys)        client.sealed()
    client = client.receive(sealed)    client.masked(summand)
    client = client.agree(alive, dead) client.signature()
                                       client.open(signatures)

Every stage gives another client, which knows more. None changes: asked the same it
answers the same, whatever was asked and refused in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from fedloom.core.errors import MessageError
from fedloom.secure.plan import PublicKeys, SumPlan, agreement
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


@dataclass(frozen=True, eq=False)
class SumClient:
    """One client in one secure sum, after any of its stages."""

    plan: SumPlan
    client: int
    """Its number."""
    seed: bytes = field(repr=False)
    """32 bytes drawn for this sum and used for nothing else."""
    key: SigningKey
    """What it signs with."""
    public: Mapping[int, PublicKeys] = field(default_factory=dict)
    """By client, the keys of all who take part."""
    transcript: bytes = b""
    shares: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    """By client, the share of its own mask and that of its masking key."""
    agreed: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    """Who is in the total, and who dropped out."""

    def keys(self) -> bytes:
        """What it says first: the public keys of this sum, signed."""
        sealing, masking, own = map(self.secret, ("sealing", "masking", "own mask"))
        return self.plan.signed_keys(self.client, sealing, masking, own, self.key)

    def share(self, keys: Mapping[int, bytes]) -> SumClient:
        """Stage "share": take in what every client sent in the stage before.

        Raises:
            MessageError: Too few take part, or keys are not what their owners signed.
        """
        self.plan.refuse_few(keys, "sent keys")
        if keys.get(self.client) != self.keys():
            raise MessageError("the keys of this client are not those that it sent.")
        public = {n: self.plan.read_keys(n, keys[n]) for n in sorted(keys)}
        for values in zip(*public.values(), strict=True):
            if len(set(values)) < len(values):
                raise MessageError("a key is there twice: one takes part as several.")
        return replace(self, public=public, transcript=self.plan.transcript(keys))

    def sealed(self) -> dict[int, bytes]:
        """By receiver, sealed shares of this client's two secrets."""
        return {
            other: seal(self._sealing_key(other, (self.client, other)), pair)
            for other, pair in self.pairs().items()
            if other != self.client
        }

    def receive(self, sealed: Mapping[int, bytes]) -> SumClient:
        """Stage "mask": take in the shares of all others who are still there.

        Raises:
            MessageError: Too few are, or a share was not sealed for this client.
        """
        self.plan.refuse_few([*sealed, self.client], "sent shares")
        if self.client in sealed or not sealed.keys() <= self.public.keys():
            raise MessageError("shares came of clients that sent no keys.")
        shares = {self.client: self.pairs()[self.client]}
        for other, text in sorted(sealed.items()):
            key = self._sealing_key(other, (other, self.client))
            what = f"what client {other} sealed for this one"
            shares[other] = unseal(key, text, what)
        return replace(self, shares=shares)

    def masked(self, summand: Words) -> Words:
        """The summand under its masks."""
        total = summand + self.plan.own_mask(self.secret("own mask"))
        for other in self.shares.keys() - {self.client}:
            theirs, own = self.public[other].masking, self.secret("masking")
            total += self.plan.pair_mask(own, self.client, theirs, other)
        return total

    def agree(self, alive: Collection[int], dead: Collection[int]) -> SumClient:
        """Stage "agree": agree who is in the total, and who dropped out.

        Args:
            alive: whose masked summand came; their own masks are to be opened.
            dead: who sent shares and no summand; their masking keys are.

        Raises:
            MessageError: Too few are in, or not everybody is in just one of the two.
        """
        self.plan.refuse_few(alive, "sent their summand")
        if sorted([*alive, *dead]) != sorted(self.shares):
            raise MessageError(
                "not everybody who sent shares is either in the total or out of it: "
                f"in are {sorted(alive)}, out are {sorted(dead)}."
            )
        if self.client not in alive:
            raise MessageError("this client sent its summand, and is said to be out.")
        return replace(self, agreed=(sorted(alive), sorted(dead)))

    def signature(self) -> bytes:
        """Its signature of what it agreed to."""
        return self.key.sign(agreement(self.transcript, *self.agreed))

    def open(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Stage "open": by client, one share: of its own mask, or its masking key.

        Args:
            signatures: of those who agreed to the same.

        Raises:
            MessageError: Too few agreed, or a signature is not of the same.
        """
        self.plan.refuse_few(signatures, "agreed who is in")
        alive, dead = self.agreed
        content = agreement(self.transcript, alive, dead)
        for other, signature in signatures.items():
            identity = self.public[other].identity if other in alive else b""
            if not is_signed(identity, content, signature):
                raise MessageError(f"client {other} has not agreed to the same.")
        own = {other: self.shares[other][:SHARE_BYTES] for other in alive}
        return own | {other: self.shares[other][SHARE_BYTES:] for other in dead}

    def secret(self, name: str) -> bytes:
        """One of its secrets of this sum.

        Args:
            name: sealing, masking, own mask or coefficients.
        """
        return derive(self.seed, name.encode() + self.plan.digest)

    def pairs(self) -> dict[int, bytes]:
        """By receiver, its shares of this client's two secrets."""
        count, tables = self.plan.threshold - 1, []
        stream = keystream(self.secret("coefficients"), 2 * count * _WORDS)
        drawn = stream.reshape(2, count, _WORDS)
        for name, rows in zip(("own mask", "masking"), drawn, strict=True):
            numbers = [int.from_bytes(row.tobytes(), "little") % PRIME for row in rows]
            secret = int.from_bytes(self.secret(name), "big")
            tables.append(make_shares(secret, numbers, map(point_of, self.public)))
        return {
            n: b"".join(t[point_of(n)].to_bytes(SHARE_BYTES, "big") for t in tables)
            for n in self.public
        }

    def _sealing_key(self, other: int, way: tuple[int, int]) -> bytes:
        own = self.secret("sealing")
        return self.plan.sealing_key(own, self.public[other].sealing, way)
