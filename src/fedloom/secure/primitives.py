"""The primitives that secure sums stand on, all of them from `cryptography`."""

from __future__ import annotations

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils, x25519
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedloom.core.errors import MessageError

Words = NDArray[np.uint32]
"""Whole numbers modulo 2^32."""

KEY_BYTES = 32
SEALED_BYTES = 16
"""What sealing adds."""
IDENTITY_BYTES = 49
"""A point of P-384, compressed."""
_HALF = 48
SIGNATURE_BYTES = 2 * _HALF
_CURVE = ec.SECP384R1()


def public_key(private: bytes) -> bytes:
    """The public half of an X25519 key (RFC 7748)."""
    key = x25519.X25519PrivateKey.from_private_bytes(private)
    return key.public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, owner: str = "somebody") -> bytes:
    """What two X25519 keys have in common (RFC 7748).

    Args:
        private: one's own.
        public: another's.
        owner: how a message calls the other.

    Raises:
        MessageError: The public key is one of those with which anything gives zero.
    """
    try:
        own = x25519.X25519PrivateKey.from_private_bytes(private)
        return own.exchange(x25519.X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise MessageError(f"{owner} sent a key that gives no secret.") from error


def derive(
    secret: bytes, about: bytes, length: int = KEY_BYTES, *, salt: bytes | None = None
) -> bytes:
    """A key for one purpose (HKDF with SHA-256, RFC 5869)."""
    return HKDF(hashes.SHA256(), length, salt, about).derive(secret)


def keystream(key: bytes, words: int) -> Words:
    """The stream of ChaCha20 (RFC 8439) from block 0, nonce 0: a key has one use."""
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(4 * words)), dtype="<u4")


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate one text (ChaCha20-Poly1305); a key has one use."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, sealed: bytes, what: str = "a sealed text") -> bytes:
    """What `seal` sealed.

    Args:
        key: the one that it was sealed with.
        sealed: what it gave.
        what: how a message calls it.

    Raises:
        MessageError: It was another key, or something else was sealed.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None)
    except InvalidTag as error:
        raise MessageError(f"{what} cannot be opened.") from error


class SigningKey:
    """What a client signs with: ECDSA on P-384 with SHA-384, without randomness."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.identity = identity_of(key.public_key())
        """The public half."""

    @classmethod
    def from_secret(cls, secret: bytes) -> SigningKey:
        """The key that follows from a secret."""
        # One byte shorter than the order of the curve, and so always below it.
        raw = derive(secret, b"fedloom signing key", _HALF - 1)
        return cls(ec.derive_private_key(int.from_bytes(raw, "big") + 1, _CURVE))

    def sign(self, content: bytes) -> bytes:
        """The signature; of the same content always the same (RFC 6979)."""
        how = ec.ECDSA(hashes.SHA384(), deterministic_signing=True)
        pair = utils.decode_dss_signature(self._key.sign(content, how))
        return b"".join(half.to_bytes(_HALF, "big") for half in pair)


def identity_of(key: object) -> bytes:
    """A public key on P-384 as it is sent.

    Raises:
        TypeError: It is another kind of key.
    """
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.key_size != 8 * _HALF:
        raise TypeError("it is not on P-384")
    return key.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    )


def is_signed(identity: bytes, content: bytes, signature: bytes) -> bool:
    """Whether a client has signed a content."""
    halves = (signature[:_HALF], signature[_HALF:])
    pair = (int.from_bytes(half, "big") for half in halves)
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, identity)
        encoded = utils.encode_dss_signature(*pair)
        key.verify(encoded, content, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError):
        return False
    return True
