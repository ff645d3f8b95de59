"""Random streams that depend on what they are for, never on when they are drawn.

Every draw is a function of counters: the cohort of a round comes from (seed, round),
a client's batches from (seed, round, exchange, client). The numbers are the same in
whatever order, chunk, process or machine they are drawn.

On the host a stream is a numpy generator on Philox. Inside a client's step it is a
key, an int64 scalar: the state of a SplitMix64 sequence (Steele, Lea, Flood, OOPSLA
2014), whose values are computed where the data lie, for all clients at once.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_WORD = 1 << 64
_AT_ONCE = 1 << 24
"""Normal numbers that are drawn at once: their counters take many times their room."""


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that has it."""
    value %= _WORD
    return value - _WORD if value >= _WORD // 2 else value


def purpose_word(name: str) -> int:
    """The word that stands for a purpose in a seed."""
    return zlib.crc32(name.encode())


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """A host generator for one purpose: `generator(seed, "cohort", round)`."""
    # The count keeps () and (0,) apart: a seed sequence pads with zeros.
    words = [seed, purpose_word(purpose), len(counters), *counters]
    sequence = np.random.SeedSequence(words)
    return np.random.Generator(np.random.Philox(sequence))


@contextmanager
def seeded(seed: int, purpose: str, *counters: int) -> Iterator[None]:
    """Run code that only knows torch's global generator (initialisers) on a stream.

    The global generator is put back as it was.
    """
    with torch.random.fork_rng(devices=[]):
        draw = int(generator(seed, purpose, *counters).integers(2**63))
        torch.default_generator.manual_seed(draw)
        yield


def mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 tensors; arithmetic wraps, shifts are logical."""
    # In place on what was just made: noise for large models is all about memory.
    bits = _shift(bits, 30).bitwise_xor_(bits).mul_(_signed(_FIRST))
    bits = _shift(bits, 27).bitwise_xor_(bits).mul_(_signed(_SECOND))
    return _shift(bits, 31).bitwise_xor_(bits)


def _shift(bits: Tensor, by: int) -> Tensor:
    """A tensor of its own with the bits moved down."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


def _stride(counter: Tensor) -> Tensor:
    """`counter * GOLDEN`, wrapping.

    The `& -1` changes no value. It keeps torch.compile from treating the product of a
    range as an index, whose arithmetic does not wrap: other numbers, or an error.
    """
    return (counter & -1) * _signed(GOLDEN)


def key(seed: int, purpose: str, *counters: int) -> int:
    """The root key of a stream, to be folded with clients and positions."""
    return int(generator(seed, purpose, *counters).integers(-(2**63), 2**63))


def fold(key: Tensor, counter: Tensor | int) -> Tensor:
    """The key of the `counter`-th stream below `key`; both broadcast."""
    if isinstance(counter, int):
        return mix(key + _signed((counter + 1) * GOLDEN))
    return mix(key + _stride(counter + 1))


def bits(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Int64 tensor of random bits of the given shape, for one scalar key."""
    return _bits_from(key, 0, math.prod(shape)).reshape(tuple(shape))


def _bits_from(key: Tensor, start: int, count: int) -> Tensor:
    positions = torch.arange(start + 1, start + count + 1, device=key.device)
    return mix(key + _stride(positions))


def uniform(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Uniform numbers in (0, 1), with as many random bits as the type carries.

    One bit fewer than its precision, so that adding a half is exact: neither end is
    ever reached by rounding.
    """
    return to_uniform(bits(key, shape), dtype)


def to_uniform(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Uniform numbers in (0, 1) from random bits."""
    width = 52 if dtype == torch.float64 else 23
    return (_shift(bits, 64 - width).to(dtype) + 0.5) * 2.0**-width


def normal(
    key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normal numbers (Box and Muller)."""
    count = math.prod(shape)
    if count > _AT_ONCE:
        numbers = torch.empty(count, dtype=dtype, device=key.device)
        for start in range(0, count, _AT_ONCE):
            part = numbers[start : start + _AT_ONCE]
            halves = (_bits_from(key, at, len(part)) for at in (start, count + start))
            part.copy_(_to_normal(*(to_uniform(half, dtype) for half in halves)))
        return numbers.reshape(tuple(shape))
    return _to_normal(*uniform(key, (2, *shape), dtype))


def _to_normal(radius: Tensor, angle: Tensor) -> Tensor:
    """Standard normal numbers from two uniform ones each."""
    return torch.sqrt(-2.0 * torch.log(radius)) * torch.cos(2.0 * math.pi * angle)


class NoiseSource(Protocol):
    """Random numbers that hide somebody, from a secret; `key` names the stream."""

    def bits(self, key: Tensor, shape: Sequence[int]) -> Tensor:
        """As `bits` here."""

    def normal(
        self, key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """As `normal` here."""
