"""What one secure sum is about, its public keys, and its masks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedloom.core.errors import MessageError
from fedloom.secure.primitives import (
    IDENTITY_BYTES,
    KEY_BYTES,
    SIGNATURE_BYTES,
    SigningKey,
    Words,
    agree,
    derive,
    is_signed,
    keystream,
    public_key,
)

_BODY_BYTES = 3 * KEY_BYTES + IDENTITY_BYTES
KEYS_BYTES = _BODY_BYTES + SIGNATURE_BYTES
"""What a client sends in the stage "keys"."""
_ANY_KEY = bytes(KEY_BYTES)
"""A private key of nobody's."""


class PublicKeys(NamedTuple):
    """A client's public keys of one sum."""

    sealing: bytes
    """By which others seal shares for it."""
    masking: bytes
    """From which the masks between it and others follow."""
    commitment: bytes
    """The digest of the secret that its own mask follows from."""
    identity: bytes
    """The public half of what it signs with."""


class SumPlan(NamedTuple):
    """One sum, as server and clients know it beforehand. It enters every key."""

    run: str
    settings: str
    """Digest of the run's settings, those of its secure sums among them."""
    number: int
    """The exchange, counted over all rounds."""
    clients: tuple[int, ...]
    """Who is called, by number, ascending."""
    threshold: int
    """Fewest clients that open a total."""
    length: int
    """How many numbers are summed."""
    order: str
    """Digest of what all of them were asked alike, each by what came to it."""

    @property
    def digest(self) -> bytes:
        """Of all of it."""
        return hashlib.sha256(json.dumps(self).encode()).digest()

    def refuse_few(self, clients: Iterable[int], what: str) -> None:
        """Refuse to go on with fewer clients than open a total.

        Raises:
            MessageError: There are fewer, or some that were not called.
        """
        there = set(clients)
        if not there <= set(self.clients):
            raise MessageError(f"some {what} who were not called to this sum.")
        if len(there) < self.threshold:
            raise MessageError(
                f"{len(there)} of {len(self.clients)} clients {what}, and a total is "
                f"opened for at least {self.threshold}. Nothing of it was opened."
            )

    def read_keys(self, client: int, keys: bytes) -> PublicKeys:
        """A client's public keys.

        Raises:
            MessageError: Their owner did not sign them for this sum, or has nothing in
                common with others by one of them.
        """
        body, signature = keys[:_BODY_BYTES], keys[_BODY_BYTES:]
        at = [n * KEY_BYTES for n in range(4)] + [_BODY_BYTES]
        public = PublicKeys(*(body[a:b] for a, b in pairwise(at)))
        if not is_signed(public.identity, self._of(client) + body, signature):
            text = f"the keys of client {client} are not signed by it for this order."
            raise MessageError(text)
        for key in public.sealing, public.masking:
            # A key that gives no secret with one private key gives none with any.
            agree(_ANY_KEY, key, f"client {client}")
        return public

    def signed_keys(
        self, client: int, sealing: bytes, masking: bytes, own: bytes, key: SigningKey
    ) -> bytes:
        """The public halves of a client's secrets, signed for this sum."""
        public = (public_key(sealing), public_key(masking), commitment(own))
        body = b"".join((*public, key.identity))
        return body + key.sign(self._of(client) + body)

    def transcript(self, keys: Mapping[int, bytes]) -> bytes:
        """Digest of the sum and of the keys in it, for all to have the same."""
        rows = sorted((client, of_client.hex()) for client, of_client in keys.items())
        return hashlib.sha256(self.digest + json.dumps(rows).encode()).digest()

    def own_mask(self, own: bytes) -> Words:
        """The mask that a client has for itself."""
        return keystream(derive(own, b"own mask" + self.digest), self.length)

    def pair_mask(
        self, private: bytes, client: int, public: bytes, other: int
    ) -> Words:
        """The mask of a pair as `client` adds it; the other adds its negative."""
        key = derive(agree(private, public), b"pair mask" + self.digest)
        mask = keystream(key, self.length)
        return mask if client < other else np.negative(mask)

    def sealing_key(self, private: bytes, public: bytes, way: tuple[int, int]) -> bytes:
        """What shares are sealed with on their way from one client to another."""
        about = f"share from {way[0]} to {way[1]}".encode()
        return derive(agree(private, public), about + self.digest)

    def _of(self, client: int) -> bytes:
        return f"keys of {client}".encode() + self.digest


def commitment(own: bytes) -> bytes:
    """What binds a client to the secret of its own mask without telling it."""
    return hashlib.sha256(b"own mask" + own).digest()


def agreement(transcript: bytes, alive: Iterable[int], dead: Iterable[int]) -> bytes:
    """What clients sign before a total is opened: who is in, and who dropped out."""
    table = {"alive": sorted(alive), "dead": sorted(dead)}
    return b"open" + transcript + json.dumps(table).encode()
