"""Shamir's shares of a secret: any `threshold` of them give it, fewer say nothing.

Shamir. How to share a secret. Communications of the ACM 22(11), 1979.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

PRIME = 2**256 + 297
"""The smallest prime above 2^256, so that 32 bytes are an element of the field."""

SHARE_BYTES = 33


def point_of(client: int) -> int:
    """Where a client's shares are evaluated: not at 0, where the secret is."""
    return client + 1


def make_shares(
    secret: int, coefficients: Sequence[int], points: Iterable[int], prime: int = PRIME
) -> dict[int, int]:
    """Shares of a secret, by point.

    Args:
        secret: an element of the field.
        coefficients: one fewer than the shares that give the secret, drawn uniformly.
        points: where the polynomial is evaluated; different ones, none of them 0.
        prime: size of the field.
    """
    shares = {}
    for point in points:
        value = 0
        for coefficient in reversed((secret, *coefficients)):
            value = (value * point + coefficient) % prime
        shares[point] = value
    return shares


def weights_at_zero(points: Sequence[int], prime: int = PRIME) -> dict[int, int]:
    """By point, what its share counts in the secret (Lagrange)."""
    weights = {}
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % prime
                below = below * (other - point) % prime
        weights[point] = above * pow(below, -1, prime) % prime
    return weights


def secret_of(
    shares: Mapping[int, int], weights: Mapping[int, int], prime: int = PRIME
) -> int:
    """The secret of as many shares, by point, as it takes."""
    return sum(weights[point] * share for point, share in shares.items()) % prime
