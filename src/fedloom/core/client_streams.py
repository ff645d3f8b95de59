"""The host streams of many clients at once: the same numbers, drawn side by side.

`streams.generator(seed, purpose, client)` costs some 20 microseconds before its first
number, which is most of the time that it takes to divide a million clients. Here what
numpy does there (seed sequence, Philox 4x64 with ten rounds, shuffling) is written for
arrays. Client by client the numbers are those of the generators; a test holds it to
that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedloom.core.streams import purpose_word

Numbers = NDArray[np.int64]
_Words = NDArray[np.uint32]
_Bits = NDArray[np.uint64]

_POOL = 4
"""Words of 32 bits that a seed sequence mixes."""
_BLOCK = 8
"""Words of 32 bits that Philox makes of one counter."""


class ClientStreams:
    """`generator(seed, purpose, client)` for each of some clients.

    Args:
        seed: as for `generator`.
        purpose: as for `generator`.
        clients: (n,) the counter of each generator, below 2**32.
    """

    def __init__(self, seed: int, purpose: str, clients: Numbers) -> None:
        self._keys = _philox_keys(seed, purpose, clients)
        self._used = np.zeros(len(clients), dtype=np.int64)
        self._block = np.zeros((len(clients), _BLOCK), dtype=np.uint32)

    def permutation(self, values: Numbers, sizes: Numbers) -> Numbers:
        """What `generator.permutation` gives for each client's list.

        It takes one step for every entry of the longest list.

        Args:
            values: (total,) the lists, one after another.
            sizes: (n,) their lengths.
        """
        shuffled = values.copy()
        starts = np.cumsum(sizes) - sizes
        rows = np.argsort(-sizes, kind="stable")
        longest_first = -sizes[rows]
        for last in range(int(sizes.max(initial=0)) - 1, 0, -1):
            # Fisher and Yates, from the last entry to the second.
            some = rows[: np.searchsorted(longest_first, -last)]
            here, there = starts[some] + last, starts[some] + self._up_to(last, some)
            shuffled[here], shuffled[there] = shuffled[there], shuffled[here]
        return shuffled

    def _up_to(self, high: int, rows: Numbers) -> Numbers:
        """A number from 0 to `high` of each of some streams, as numpy shuffles by."""
        mask = np.uint32((1 << high.bit_length()) - 1)
        numbers = self._next(rows) & mask
        while len(again := np.flatnonzero(numbers > high)):
            numbers[again] = self._next(rows[again]) & mask
        return numbers.astype(np.int64)

    def _next(self, rows: Numbers) -> _Words:
        """The next word of 32 bits of each of some streams."""
        place = self._used[rows] % _BLOCK
        empty = rows[place == 0]
        # The counter moves on before it is used.
        counter = (self._used[empty] // _BLOCK + 1).astype(np.uint64)
        made = _philox(counter, self._keys[empty])
        self._block[empty] = made.astype("<u8").view("<u4")
        self._used[rows] += 1
        words: _Words = self._block[rows, place]
        return words


def _philox_keys(seed: int, purpose: str, clients: Numbers) -> _Bits:
    """(n, 2) the keys that numpy's seed sequence gives to Philox."""
    entropy = [*_seed_words(seed), purpose_word(purpose), 1]
    words = [np.full(len(clients), word, dtype=np.uint32) for word in entropy]
    words.append(clients.astype(np.uint32))
    constant = _Constant(0x43B0D7E5, 0x931E8875)
    zero = np.zeros(len(clients), dtype=np.uint32)
    pool = [constant.hash(words[n] if n < len(words) else zero) for n in range(_POOL)]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = _mix(pool[target], constant.hash(pool[source]))
    for word in words[_POOL:]:
        pool = [_mix(mixed, constant.hash(word)) for mixed in pool]
    constant = _Constant(0x8B51F9DD, 0x58F38DED)
    low, high, low_2, high_2 = (constant.hash(word).astype(np.uint64) for word in pool)
    shift = np.uint64(32)
    return np.stack([low | high << shift, low_2 | high_2 << shift], axis=1)


def _seed_words(seed: int) -> list[int]:
    """A whole number in words of 32 bits, the lowest first; 0 is one word."""
    words = [seed & 0xFFFFFFFF]
    while seed := seed >> 32:
        words.append(seed & 0xFFFFFFFF)
    return words


class _Constant:
    """The running constant of a seed sequence's hash."""

    def __init__(self, first: int, factor: int) -> None:
        self._value, self._factor = first, factor

    def hash(self, word: _Words) -> _Words:
        mixed = word ^ np.uint32(self._value)
        self._value = self._value * self._factor & 0xFFFFFFFF
        mixed = mixed * np.uint32(self._value)
        return mixed ^ mixed >> np.uint32(16)


def _mix(first: _Words, second: _Words) -> _Words:
    mixed: _Words = first * np.uint32(0xCA01F9DD) - second * np.uint32(0x4973F715)
    return mixed ^ mixed >> np.uint32(16)


def _philox(counter: _Bits, keys: _Bits) -> _Bits:
    """(k, 4) what Philox 4x64 makes of counters (c, 0, 0, 0)."""
    zero = np.zeros_like(counter)
    a, b, c, d = counter, zero, zero, zero
    key, other_key = keys[:, 0], keys[:, 1]
    for n in range(10):
        if n:
            key = key + np.uint64(0x9E3779B97F4A7C15)
            other_key = other_key + np.uint64(0xBB67AE8584CAA73B)
        high, low = _multiply(a, 0xD2E7470EE14C6C93)
        high_2, low_2 = _multiply(c, 0xCA5A826395121157)
        a, b, c, d = high_2 ^ b ^ key, low_2, high ^ d ^ other_key, low
    return np.stack([a, b, c, d], axis=1)


def _multiply(bits: _Bits, factor: int) -> tuple[_Bits, _Bits]:
    """The upper and the lower 64 bits of a product."""
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    low, high = np.uint64(factor & 0xFFFFFFFF), np.uint64(factor >> 32)
    bits_low, bits_high = bits & mask, bits >> half
    middle = bits_high * low + (bits_low * low >> half)
    other = bits_low * high + (middle & mask)
    return bits_high * high + (middle >> half) + (other >> half), bits * np.uint64(
        factor
    )
