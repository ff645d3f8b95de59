"""Noise of a client that is real, from a secret of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedloom.privacy.secret import Secret

_WORD = 1 << 64
_AT_ONCE = 1 << 22
"""Numbers that are drawn at once: they take many times their room."""


class OwnNoise:
    """A `NoiseSource` of ChaCha20, with a key of its own for every piece of work.

    The key follows from the client's secret and from all that the work follows from:
    the run, what was asked, and what the client remembers and trains on. Work that is
    done again after a kill has the same noise, so that it is released once. Other work
    has other noise, whatever a server asks for: with the same noise in both, the
    difference of two answers would have none.

    Args:
        secret: the client's.
    """

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._work: Secret | None = None

    def begin(self, *work: str) -> None:
        """Go over to the noise of one piece of work.

        Args:
            *work: what tells it from every other.
        """
        self._work = self._secret.below("noise", *work)

    def bits(self, key: Tensor, shape: Sequence[int]) -> Tensor:
        """Int64 tensor of random bits of the given shape.

        Args:
            key: the name of a stream, an int64 scalar.
            shape: of the tensor.
        """
        parts = [
            torch.from_numpy(
                self._at_work.words(count, "bits", name, part).view("<i8").copy()
            )
            for name, part, count in _parts(key, shape)
        ]
        return _joined(parts, shape).to(key.device)

    def normal(
        self, key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Standard normal numbers, drawn in float64."""
        parts = [
            self._at_work.normal(count, "normal", name, part).to(dtype)
            for name, part, count in _parts(key, shape)
        ]
        return _joined(parts, shape).to(key.device)

    @property
    def _at_work(self) -> Secret:
        assert self._work is not None, "noise before begin"
        return self._work


def _parts(key: Tensor, shape: Sequence[int]) -> list[tuple[int, int, int]]:
    """The stream's name, and the number and the size of every part of a tensor."""
    total, name = math.prod(shape), int(key) % _WORD
    starts = range(0, max(total, 1), _AT_ONCE)
    return [(name, n, min(_AT_ONCE, total - at)) for n, at in enumerate(starts)]


def _joined(parts: list[Tensor], shape: Sequence[int]) -> Tensor:
    numbers = parts[0] if len(parts) == 1 else torch.cat(parts)
    return numbers.reshape(tuple(shape))
