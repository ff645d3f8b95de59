"""What a client does to its summand: every field shortened to its bound.

A summand that has a number that is not finite is withheld: zeros leave, as of a client
that is not there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedloom.core import streams
from fedloom.core.algorithm import AnyAlgorithm, Client
from fedloom.core.errors import ConfigError
from fedloom.core.records import rebuild
from fedloom.core.rounding import Rounding, norm_before_rounding
from fedloom.core.streams import NoiseSource
from fedloom.core.summed import Leaving
from fedloom.core.sums import bounds
from fedloom.privacy.discrete import discrete_gaussian
from fedloom.privacy.settings import Privacy

_NOISE = 1 << 40
"""Which streams below a client's secret noise comes from."""

_MARGIN = 1e-6
"""By so much of itself a clipped vector stays below its bound, whatever is rounded."""

_FAR = 8.0
"""In standard deviations, what a number of the noise passes once in 10^15 times."""


@dataclass(frozen=True)
class FieldBound:
    """How one field of a summand is bounded."""

    name: str
    norm: float
    kind: Literal["vector", "share", "weight", "square"]
    step: float = field(default=0.0, repr=False)
    """What its numbers are rounded to multiples of when it has left, for which the
    bound leaves room; 0 if they are not."""

    def __post_init__(self) -> None:
        norm_before_rounding(self.norm, self.step, 1)  # or it is refused

    @property
    def is_hidden(self) -> bool:
        """Whether noise hides it; a weight is known beforehand and needs none."""
        return self.kind != "weight"

    def shorten(self, value: Tensor) -> Tensor:
        """The value, no longer than the bound."""
        if self.kind != "vector":
            value = value.clamp(min=0.0)
        # The largest number first: the square of a huge one would be infinite.
        wide = value.double()
        largest = wide.abs().amax().clamp(min=1e-300) if value.numel() else 1.0
        norm = largest * torch.linalg.vector_norm(wide / largest)
        longest = norm_before_rounding(self.norm, self.step, value.numel())
        is_long = norm > longest
        factor = longest * (1.0 - _MARGIN) / torch.where(is_long, norm, 1.0)
        return torch.where(is_long, wide * factor, wide).to(value.dtype)


def field_bounds(algorithm: AnyAlgorithm, privacy: Privacy) -> tuple[FieldBound, ...]:
    """How the fields of a method's summand are bounded.

    Raises:
        ConfigError: A field has no bound.
    """
    own = bounds(algorithm.summand_record) if algorithm.needs != "nothing" else {}
    vectors = [name for name, bound in own.items() if bound.kind == "vector"]
    for name in privacy.clips:
        if name not in vectors:
            raise ConfigError(
                f"privacy: clips.{name} is no vector of {algorithm.name}'s sums. "
                f"Known: {', '.join(vectors) or 'none'}."
            )
    for name, bound in own.items():
        if bound.setting is not None and getattr(algorithm, bound.setting) is None:
            raise ConfigError(
                f"{algorithm.name}: {name} has no bound, which privacy needs. Set "
                f"algorithm.{bound.setting}; `fedloom describe {algorithm.name}` says "
                "what it is."
            )
    assert privacy.clip is not None
    norms = {"share": 1.0, "weight": 1.0, "square": privacy.clip**2}
    return tuple(
        FieldBound(
            name,
            norms.get(bound.kind, float(privacy.clips.get(name, privacy.clip))),
            bound.kind,
        )
        for name, bound in own.items()
    )


def largest_sent(algorithm: AnyAlgorithm, privacy: Privacy) -> dict[str, float]:
    """Most that a number of a change comes to, by the setting that says so.

    Args:
        algorithm: the method.
        privacy: how its clients are hidden, but for noise in whole numbers.
    """
    if privacy.clip is None or algorithm.needs == "nothing":
        return {}
    kinds = bounds(algorithm.summand_record)
    hidden = sum(bound.kind != "weight" for bound in kinds.values())
    has_noise = privacy.at == "local"
    factor = 1.0 + has_noise * _FAR * privacy.noise * math.sqrt(hidden)
    largest = {}
    for name, bound in kinds.items():
        if bound.kind == "vector":
            setting = f"clips.{name}" if name in privacy.clips else "clip"
            norm = float(privacy.clips.get(name, privacy.clip))
            largest[f"privacy.{setting}"] = norm * factor
    return largest


@dataclass(frozen=True)
class Bounding:
    """A `Leave`: bounds, and the client's own part of the noise if there is any."""

    fields: tuple[FieldBound, ...]

    def __call__(self, summand: Any, client: Client) -> Leaving:
        """The bounded summand, and what is sent of it."""
        bounded = self.bounded(summand)
        return Leaving(bounded, bounded)

    def before(self, rounding: Rounding) -> Bounding:
        """The same where what leaves is rounded: the bounds hold after that.

        Raises:
            ConfigError: Rounding is too coarse for them.
        """
        fields = [replace(b, step=rounding.step(b.kind)) for b in self.fields]
        return replace(self, fields=tuple(fields))

    def bounded(self, summand: Any) -> Any:
        """The summand with every field shortened; zeros if a number is not finite."""
        finite = torch.stack([torch.isfinite(value).all() for value in summand]).all()
        return rebuild(
            summand,
            [
                bound.shorten(torch.where(finite, value, 0.0))
                for bound, value in zip(self.fields, summand, strict=True)
            ],
        )


@dataclass(frozen=True)
class LocalNoise(Bounding):
    """The same with all of the noise on every upload, drawn by the client."""

    noise: float
    """Standard deviation, in multiples of each field's bound."""
    source: NoiseSource | None = None
    """Where the noise comes from; by default from the client's stream alone."""

    def before(self, rounding: Rounding) -> LocalNoise:
        """The same: what is rounded has all of its noise, and tells no more."""
        return self

    def __call__(self, summand: Any, client: Client) -> Leaving:
        """The bounded summand, and the same with noise."""
        bounded = self.bounded(summand)
        sent = [
            value + self.noise * bound.norm * self._normal(client, place, value)
            if bound.is_hidden
            else torch.zeros_like(value)
            for place, (bound, value) in enumerate(
                zip(self.fields, bounded, strict=True)
            )
        ]
        return Leaving(bounded, rebuild(summand, sent))

    def _normal(self, client: Client, place: int, like: Tensor) -> Tensor:
        normal = streams.normal if self.source is None else self.source.normal
        return normal(_stream(client, place), like.shape, like.dtype)


def _stream(client: Client, place: int) -> Tensor:
    """The client's stream for the noise of a field."""
    return streams.fold(client.secret, _NOISE + place)


@dataclass(frozen=True)
class DiscreteNoise(Bounding):
    """The same in whole numbers, each client with its part of the noise.

    A field is rounded at random to multiples of its grid, so that it is right on
    average; that may lengthen it by grid * sqrt(numbers), for which there is noise too.
    """

    noise: float
    """Standard deviation in the total, in multiples of each field's bound."""
    bits: int
    least: int
    """How many clients have enough noise together."""
    source: NoiseSource | None = None
    """Where chance comes from; by default from the client's stream alone."""

    def before(self, rounding: Rounding) -> DiscreteNoise:
        """The same: whole numbers are not rounded any more."""
        return self

    def __call__(self, summand: Any, client: Client) -> Leaving:
        """The bounded summand, and whole numbers of its grid with noise."""
        bounded = self.bounded(summand)
        sent = [
            self._numbers(bound, value, client, place)
            if bound.is_hidden
            else torch.zeros_like(value)
            for place, (bound, value) in enumerate(
                zip(self.fields, bounded, strict=True)
            )
        ]
        return Leaving(bounded, rebuild(summand, sent))

    def grid(self, bound: FieldBound) -> float:
        """What the whole numbers of a field are multiples of."""
        return bound.norm / float(1 << (self.bits - 1))

    def scale(self, bound: FieldBound, numbers: int) -> float:
        """Standard deviation of the noise in the total of a field, in grid steps."""
        longest = bound.norm + self.grid(bound) * math.sqrt(numbers)
        return self.noise * longest / self.grid(bound)

    def largest(self, numbers: int) -> float:
        """Most that a client's whole number comes to, but for one time in 10^30."""
        return max(
            (1 << (self.bits - 1)) + 1 + 12.0 * self.scale(b, numbers) / self._root
            for b in self.fields
            if b.is_hidden
        )

    @property
    def least_scale(self) -> float:
        """What the standard deviation of one client's noise is above, in grid steps."""
        return self.noise * float(1 << (self.bits - 1)) / self._root

    @property
    def _root(self) -> float:
        return math.sqrt(self.least)

    def _numbers(
        self, bound: FieldBound, value: Tensor, client: Client, place: int
    ) -> Tensor:
        steps = value.double() / self.grid(bound)
        own = _stream(client, place)
        bits = streams.bits if self.source is None else self.source.bits
        drawn = bits(streams.fold(own, 0), value.shape)
        rounded = torch.floor(steps + streams.to_uniform(drawn, torch.float64))
        scale = self.scale(bound, value.numel()) / self._root
        words = bits(streams.fold(own, 1), value.shape)
        noise = discrete_gaussian(words, scale)
        return (rounded + noise).to(value.dtype)
