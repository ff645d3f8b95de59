"""The section [privacy] of a run's file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fedloom.core.errors import ConfigError
from fedloom.core.settings import (
    Count,
    Interval,
    NonNegative,
    Positive,
    check,
    refuse_idle,
)

Bits = Annotated[int, Interval(least=8, most=24)]
Delta = Annotated[float, Interval(above=0.0, below=1.0)]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Differential privacy: what clients send is bounded, and noise hides each one."""

    unit: Literal["client", "sample"] = "client"
    """Who is hidden: all that one `client` sent, or one `sample` of a client. With a
    handful of clients, such as hospitals, only samples can be hidden."""
    at: Literal["server", "clients", "local"] = "server"
    """Who adds the noise that hides a client. `server`: the server, which is trusted,
    to each total. `clients`: each client its part, in whole numbers, so that the total
    has enough; a federation needs `[secure]` for it. `local`: each client all of it,
    against a server that sees every upload; this costs far more."""
    clip: Positive | None = 1.0
    """Largest norm of what a client adds to a sum, its change of the parameters times
    its weight; of the gradient of one sample where samples are hidden. None bounds
    nothing, which no noise can hide."""
    clips: dict[str, Any] = field(default_factory=dict)
    """The same for single fields of a method's sums, by name, such as `variate` of
    scaffold; `clip` for the others."""
    noise: NonNegative = 1.0
    """Standard deviation of the noise, in multiples of `clip`. 0 is a bound alone, of
    which no epsilon follows."""
    delta: Delta | None = None
    """Probability with which the bound may not hold; must be given with noise, and be
    well below 1 over the number of clients (or of samples) that are hidden."""
    budget: Positive | None = None
    """Largest epsilon that the run may come to; one that would pass it is refused."""
    cohorts: Literal["known", "secret"] = "known"
    """Whether who took part in a round is a secret. The sampling of clients lowers
    epsilon only for those who do not know the cohorts: neither the seed, nor the run's
    directory, nor the server's log. It is for noise of the server, and for rounds that
    do not call everybody."""
    most_samples: Positive | None = 1.0
    """Where clients are hidden, training samples from which on one counts no more; with
    1 all clients count the same. None weighs by numbers of samples, which no noise can
    hide. Where samples are hidden, clients count as the method says."""
    bits: Bits = 16
    """With `at = "clients"`, whole numbers of so many bits go from minus `clip` to
    `clip`."""
    least_clients: Count | None = None
    """With `at = "clients"`, how many clients have enough noise together; a round to
    which fewer come is lost: the model stays what it was, `refusals` in its row says
    why, and epsilon counts it. All who are called if absent; a federation wants it
    given."""
    secret: str | None = None
    """File of the 32 bytes that the server's noise is drawn from, outside of the run's
    directory and readable by its owner alone; made if it is not there. Without it the
    noise follows from the seed, which hides nothing from whoever has that."""

    @property
    def has_noise_of_clients(self) -> bool:
        """Whether clients add noise, from secrets of their own where they are real."""
        return bool(self.noise) and (self.unit, self.at) != ("client", "server")

    def __post_init__(self) -> None:
        check(self)
        for name, clip in self.clips.items():
            if not isinstance(clip, int | float) or not clip > 0:
                raise ConfigError(
                    f"privacy: clips.{name} must be a number above 0, found {clip!r}."
                )
        if not self.noise and self.delta is not None:
            raise ConfigError(
                f"privacy: noise = 0 with delta = {self.delta:g}: without noise there "
                "is no epsilon, whatever delta is. Raise noise, or leave out delta."
            )
        if not self.noise and self.budget is not None:
            raise ConfigError(
                f"privacy: noise = 0 with budget = {self.budget:g}: without noise "
                "epsilon is infinite. Raise noise, or leave out budget."
            )
        if self.noise and self.delta is None:
            raise ConfigError(
                "privacy: delta must be given with noise, found none. Well below 1 "
                "over the number of those who are hidden, such as 1e-5."
            )
        if self.noise and self.clip is None:
            raise ConfigError(
                f"privacy: clip must be a number where noise is {self.noise:g}, found "
                "none: noise is measured in multiples of it."
            )
        if self.unit == "sample" and (self.at != "server" or self.clip is None):
            raise ConfigError(
                'privacy: unit = "sample" needs clip, and leave out at: the noise is '
                f"added in the clients' own steps. Found at = {self.at!r}, clip = "
                f"{self.clip}."
            )
        if self.secret is not None and (self.unit, self.at) != ("client", "server"):
            raise ConfigError(
                "privacy: secret is where the server's noise comes from, and here the "
                "clients add it, from secrets of their own. Leave it out."
            )
        for names, why, advice in self._idle():
            refuse_idle(self, names, why, label="privacy", advice=advice)

    def _idle(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Settings that do nothing, each with where that is and what to do else."""
        if self.unit == "sample":
            yield (
                ("clips", "most_samples", "cohorts", "bits", "least_clients"),
                "where samples are hidden, in steps that every client takes by itself",
                'set unit = "client"',
            )
        if not self.noise:
            yield (
                ("at", "cohorts", "bits", "least_clients", "secret"),
                "without noise",
                "raise noise",
            )
        if self.clip is None:
            yield ("clips",), "without clip", "set clip"
        if self.at != "server":
            yield (
                ("cohorts",),
                f'with at = "{self.at}": cohorts are no secret to the server, and the '
                "noise is against it",
                'set at = "server"',
            )
        if self.at != "clients":
            yield (
                ("bits", "least_clients"),
                f'with at = "{self.at}", where noise is not made of the clients\' '
                "parts",
                'set at = "clients"',
            )
