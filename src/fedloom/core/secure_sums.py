"""How clients' uploads are summed so that the server learns their total alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError
from fedloom.core.rounding import Rounding
from fedloom.core.settings import Count, Interval, Positive, check
from fedloom.core.summed import Summed, needs_single_models
from fedloom.core.sums import bounds

_WORD = 32
"""Bits of a number in a sum."""


@dataclass(frozen=True, kw_only=True)
class SecureSums:
    """How uploads are summed so that the server learns their total and no single one.

    A file that has the section has secure sums. They need a method that goes by sums.
    """

    threshold: Annotated[float, Interval(least=0.5, most=1.0)] = 0.7
    """Share of the clients of a sum without whom no total is opened; always more than
    half. With 0.7 of them 30 % may drop out, and it takes the server and 40 % together
    to learn what one of the others sent."""
    fewest: Annotated[int, Interval(least=2)] = 3
    """Fewest clients that a total may be over; a sum for which the threshold would
    allow fewer is refused. A total over few says much of each."""
    bits: Annotated[int, Interval(least=2, most=_WORD - 2)] | None = None
    """Bits of a number before it is added; n clients need n * 2^bits < 2^32. By default
    as many as that allows."""
    bound: Positive = 16.0
    """Largest number, positive or negative, in the change that a client sends. One with
    a larger number withholds its upload, and counts as one that dropped out. A number
    is rounded at random to multiples of bound / (2^(bits - 1) - 1); where a change has
    a bound of its own, such as `clip`, clients leave room for that. The squared length
    of a change, which Self-FL sends too, may come to the square of it."""
    most_samples: Count | None = None
    """Training samples from which on a client counts no more, where clients count by
    samples. By default the largest number that one enrolled with; it has to be given
    where some do not tell theirs. A client refuses any number but this one."""

    def __post_init__(self) -> None:
        check(self)

    def needed(self, clients: int) -> int:
        """How many of the clients of a sum must be there until its end.

        Args:
            clients: how many are called to it.

        Raises:
            ConfigError: A total could be over too few of them.
        """
        needed = max(math.ceil(self.threshold * clients), clients // 2 + 1)
        if needed < self.fewest:
            raise ConfigError(
                f"[secure]: a sum of {clients} clients may be opened for {needed} of "
                f"them (threshold {self.threshold:g}), and a total must be over at "
                f"least {self.fewest}. Sample more clients, or lower fewest."
            )
        return needed

    def bits_for(self, clients: int) -> int:
        """The bits of a number in a sum of some clients.

        Raises:
            ConfigError: Their sum would not fit.
        """
        most = max(bits for bits in range(_WORD) if clients << bits < 1 << _WORD)
        if self.bits is None:
            return min(most, _WORD - 2)
        if self.bits > most:
            raise ConfigError(
                f"[secure]: {clients} clients with bits = {self.bits} come to "
                f"{clients << self.bits}, and a sum must stay below 2^32 = {1 << 32}. "
                f"Lower bits to {most}, or sample fewer clients."
            )
        return self.bits

    def rounding(self, clients: int) -> Rounding:
        """How a sum of some clients rounds what they add.

        Raises:
            ConfigError: Their sum would not fit.
        """
        return Rounding(self.bits_for(clients), self.bound)


def refuse_insecure(algorithm: AnyAlgorithm, rounding: Rounding | None = None) -> None:
    """Refuse a method that cannot have secure sums.

    Args:
        algorithm: the method.
        rounding: how sums round, where that is known.

    Raises:
        ConfigError: Its server needs single uploads, a setting is missing without
            which a number that it sends has no bound, or rounding is too coarse for
            the bound that it promises.
    """
    if isinstance(algorithm, Summed):
        algorithm.with_secure_sums(rounding)  # or a robust rule is refused
        if algorithm.most_samples is None:
            raise ConfigError(
                "[secure]: what is added must have a bound, and weights by numbers of "
                "samples have none. Set most_samples in [privacy]."
            )
    if algorithm.needs == "single models":
        raise ConfigError(f"[secure]: {needs_single_models(algorithm)}")
    for field, bound in bounds(algorithm.summand_record).items():
        if bound.setting and getattr(algorithm, bound.setting) is None:
            raise ConfigError(
                f"[secure]: {algorithm.name}: {field} of what a client sends has no "
                f"bound, and what is added must have one. Set {bound.setting} in "
                "[algorithm]."
            )
