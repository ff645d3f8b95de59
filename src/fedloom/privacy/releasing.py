"""What becomes of a total before the server uses it: noise, and weights as foreseen."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.core.algorithm import AnyAlgorithm, Cohort
from fedloom.core.errors import MessageError
from fedloom.core.records import leaves, rebuild
from fedloom.privacy.bounding import DiscreteNoise, FieldBound
from fedloom.privacy.secret import Secret


@dataclass(frozen=True)
class Release:
    """A `Release` of totals whose terms are bounded.

    A weight is not taken from the total: in its place stands what it is on average, the
    rate of sampling times everybody's weight. It says nothing then of who was there.
    """

    algorithm: AnyAlgorithm
    fields: tuple[FieldBound, ...]
    rate: float | None
    """Share of the clients that a round calls; that of the population if absent."""

    def __call__(self, total: Any, cohort: Cohort) -> tuple[Any, Any]:
        """The total with noise, and the standard deviation of that in each field."""
        values, spreads = [], []
        for place, (bound, value) in enumerate(
            zip(self.fields, leaves(total), strict=True)
        ):
            if bound.is_hidden:
                value, spread = self.noisy(place, total, cohort)
            else:
                value, spread = self._foreseen(value, cohort), 0.0
            values.append(value)
            spreads.append(torch.as_tensor(spread, dtype=value.dtype).to(value.device))
        return rebuild(total, values), rebuild(total, spreads)

    def noisy(self, place: int, total: Any, cohort: Cohort) -> tuple[Tensor, float]:
        """A field of the total with noise, and the standard deviation of that."""
        raise NotImplementedError

    def _foreseen(self, value: Tensor, cohort: Cohort) -> Tensor:
        """Everybody's weight times the rate; by team where totals are by team."""
        everyone = cohort.population
        counts = everyone.counts(self.algorithm.weighting).to(value.dtype)
        rate = everyone.rate if self.rate is None else self.rate
        if self.algorithm.needs != "sums per team":
            return rate * counts.sum()
        return rate * value.new_zeros(value.shape).index_add(0, everyone.teams, counts)


@dataclass(frozen=True)
class ServerNoise(Release):
    """Gaussian noise of the server's, a function of its secret and of what it hides.

    The same total of the same exchange has the same noise, so that a run which was
    killed releases it once. Any other total has other noise: two with the same noise
    would give away their difference.

    Without a secret nothing is hidden. Noise follows from the seed and the exchange
    alone then, so that totals which differ in their last bits, by the order of clients
    or by the runner, come out alike.
    """

    noise: float
    """Standard deviation, in multiples of each field's bound."""
    secret: Secret | None
    """None: the noise is a simulation's."""

    def noisy(self, place: int, total: Any, cohort: Cohort) -> tuple[Tensor, float]:
        """A field of the total with noise, and the standard deviation of that."""
        value, spread = leaves(total)[place], self.noise * self.fields[place].norm
        own = self._secret_of(total, cohort)
        drawn = own.normal(value.numel(), "field", place)
        noise = (spread * drawn.reshape(value.shape)).to(value.device)
        return (value.double() + noise).to(value.dtype), spread

    def _secret_of(self, total: Any, cohort: Cohort) -> Secret:
        """The secret of one release."""
        if self.secret is not None:
            return self.secret.below("release", self._digest(total, cohort))
        simulated = Secret.of_seed(cohort.population.seed)
        return simulated.below("release", str(cohort.round), str(cohort.exchange))

    def _digest(self, total: Any, cohort: Cohort) -> str:
        """What tells a release from every other: the exchange, and all that is in it.

        The spread of the noise is part of it: one total with the same noise at two
        scales would be two equations with two unknowns.
        """
        about = cohort.population.seed, cohort.round, cohort.exchange, self.noise
        digest = hashlib.blake2b(repr((about, self.fields)).encode())
        for value in (cohort.clients, *leaves(total)):
            digest.update(repr((value.dtype, value.shape)).encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class ClientNoise(Release):
    """No noise of the server's: every upload has all of it already."""

    noise: float

    def noisy(self, place: int, total: Any, cohort: Cohort) -> tuple[Tensor, float]:
        """The field as it came, and the standard deviation of all clients' noise."""
        spread = self.noise * self.fields[place].norm
        return leaves(total)[place], spread * float(len(cohort.clients)) ** 0.5


@dataclass(frozen=True)
class SharedNoise(Release):
    """No noise of the server's: the clients' parts add up to enough, in whole numbers.

    A server asks `Private.why_unusable` beforehand, and has the round lost.

    Raises:
        MessageError: Fewer clients came than have enough.
    """

    parts: DiscreteNoise

    def noisy(self, place: int, total: Any, cohort: Cohort) -> tuple[Tensor, float]:
        """The field in its own units, and the standard deviation of its noise."""
        value = leaves(total)[place]
        came, least = len(cohort.clients), self.parts.least
        if came < least:
            raise MessageError(
                f"round {cohort.round + 1}: expected at least {least} clients, for so "
                f"many have enough noise together, found {came}. Their total is not "
                "released."
            )
        bound = self.fields[place]
        grid = self.parts.grid(bound)
        scale = self.parts.scale(bound, value.numel())
        return value * grid, grid * scale * (came / least) ** 0.5
