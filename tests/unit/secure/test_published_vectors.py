"""The primitives of secure sums against published values."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from fedloom.core.errors import MessageError
from fedloom.secure.primitives import (
    SigningKey,
    agree,
    derive,
    is_signed,
    keystream,
    public_key,
    seal,
    unseal,
)
from fedloom.secure.shamir import PRIME, make_shares, secret_of, weights_at_zero

A = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
B = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")


def test_x25519_agrees_with_rfc_7748() -> None:
    """Section 6.1."""
    of_a, of_b = (public_key(private) for private in (A, B))
    assert of_a.hex() == (
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    )
    assert of_b.hex() == (
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    )
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert agree(A, of_b).hex() == agree(B, of_a).hex() == shared


def test_x25519_refuses_a_key_that_gives_zero() -> None:
    with pytest.raises(MessageError, match="gives no secret"):
        agree(A, bytes(32))


def test_hkdf_agrees_with_rfc_5869() -> None:
    """Appendix A.1 and, without salt and info, A.3."""
    secret = b"\x0b" * 22
    salt, info = bytes(range(13)), bytes(range(0xF0, 0xFA))
    assert derive(secret, info, 42, salt=salt).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
        "34007208d5b887185865"
    )
    assert derive(secret, b"", 42).hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
        "9d201395faa4b61a96c8"
    )


def test_chacha20_agrees_with_rfc_8439() -> None:
    """Appendix A.1, test vectors 1 and 2: blocks 0 and 1 of the key of zeros."""
    stream = keystream(bytes(32), 32)
    assert stream.dtype.itemsize == 4
    assert stream.tobytes().hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


def test_shares_are_those_of_the_published_example() -> None:
    """1234 = f(0), f(x) = 1234 + 166 x + 94 x^2 modulo 1613 (Wikipedia)."""
    shares = make_shares(1234, [166, 94], range(1, 7), prime=1613)
    assert shares == {1: 1494, 2: 329, 3: 965, 4: 176, 5: 1188, 6: 775}
    for points in itertools.combinations(shares, 3):
        some = {point: shares[point] for point in points}
        weights = weights_at_zero(points, prime=1613)
        assert secret_of(some, weights, prime=1613) == 1234


def test_two_shares_of_three_say_nothing_of_the_secret() -> None:
    """All of a field of 7: any two values come of every secret equally often."""
    for points in itertools.combinations(range(1, 5), 2):
        seen = {
            secret: Counter(
                tuple(make_shares(secret, pair, points, prime=7).values())
                for pair in itertools.product(range(7), repeat=2)
            )
            for secret in range(7)
        }
        everything = Counter(itertools.product(range(7), repeat=2))
        assert all(counts == everything for counts in seen.values())


def test_the_field_is_prime_and_has_every_secret_of_32_bytes() -> None:
    assert PRIME > 2**256
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin
        powers = [pow(base, odd * 2**n, PRIME) for n in range(twos)]
        assert powers[0] == 1 or PRIME - 1 in powers
    top = 2**256 - 1
    shares = make_shares(top, [PRIME - 1, 5], [1, 9, 200])
    assert secret_of(shares, weights_at_zero([1, 9, 200])) == top


def test_what_was_sealed_with_another_key_or_changed_is_refused() -> None:
    sealed = seal(A, b"share")
    assert unseal(A, sealed) == b"share"
    for key, text in ((B, sealed), (A, sealed[:-1] + bytes([sealed[-1] ^ 1]))):
        with pytest.raises(MessageError, match="cannot be opened"):
            unseal(key, text)


def test_a_signature_is_of_one_content_by_one_key_and_always_the_same() -> None:
    key, other = SigningKey.from_secret(b"a"), SigningKey.from_secret(b"b")
    signature = key.sign(b"content")
    assert signature == SigningKey.from_secret(b"a").sign(b"content")
    assert is_signed(key.identity, b"content", signature)
    assert not is_signed(key.identity, b"contents", signature)
    assert not is_signed(other.identity, b"content", signature)
    assert not is_signed(key.identity, b"content", bytes(96))
    assert not is_signed(b"\x02" + bytes(48), b"content", signature)
