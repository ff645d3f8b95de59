"""How much privacy a run has spent: epsilon after so many rounds.

A round is one Gaussian of the noise `z`, in multiples of what one client (or sample)
can change: its K exchanges call the same clients, and K Gaussians of noise z for the
same data are one of z / sqrt(K). Over rounds, by what is known of the cohorts:

    everybody, or known cohorts   one Gaussian of z / sqrt(T): exact, no amplification
    poisson, secret cohorts       privacy loss distributions, add or remove one
    fixed size, secret cohorts    Renyi, replace one: z / 2, for a client that is
                                  replaced can move a total by twice its bound
    noise at the clients          as known cohorts, for the server knows them
    local noise                   z / 2: any two uploads of a client are that far apart
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from fedloom.core.errors import ConfigError
from fedloom.privacy.extra import optional
from fedloom.privacy.settings import Privacy

_FOR = "Accounting for the sampling of clients"
_INTERVAL = 1e-4
"""Of the grid of privacy losses."""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """What the releases of a run are, as an accountant sees them."""

    noise: float
    """Standard deviation over what one of those who are hidden can change at most."""
    delta: float
    releases: float = 1
    """Gaussians in a round, all of the same data."""
    sampling: Literal["none", "poisson", "fixed"] = "none"
    """How those whom a round concerns were drawn, where that is a secret."""
    rate: float = 1.0
    population: int = 1
    unit: str = "client"
    adjacency: str = "add or remove one client"

    @property
    def round_noise(self) -> float:
        """That of one Gaussian as strong as all of a round."""
        return self.noise / math.sqrt(self.releases)

    def as_json(self) -> dict[str, Any]:
        """What stands beside an epsilon, for files."""
        return {
            "unit": self.unit,
            "adjacency": self.adjacency,
            "sampling": self.words,
            "noise": self.noise,
            "releases": self.releases,
            "delta": self.delta,
        }

    @property
    def words(self) -> str:
        """The sampling in words, for tables."""
        return {
            "none": "cohorts are known: no amplification",
            "poisson": f"Poisson sampling at {self.rate:g}, cohorts kept secret",
            "fixed": f"{round(self.rate * self.population)} of {self.population} "
            "clients, cohorts kept secret",
        }[self.sampling]


@dataclass
class Accountant:
    """Epsilon of a mechanism, round by round."""

    mechanism: Mechanism
    _known: list[float] = field(default_factory=lambda: [0.0], repr=False)
    _composed: Any = field(default=None, repr=False)
    """What was composed so far: such a distribution, or an accountant."""

    def epsilon(self, rounds: int) -> float:
        """What has been spent after so many rounds."""
        while len(self._known) <= rounds:
            self._known.append(self._with_another_round())
        return self._known[rounds]

    def foreseen(self, rounds: int, *, afresh: bool = False) -> float:
        """The same in one go, without what is spent on the way.

        Args:
            rounds: how many.
            afresh: do not take it from what was counted round by round.
        """
        if rounds < len(self._known) and not afresh:
            return self._known[rounds]
        if self.mechanism.sampling == "none":
            return self._one_gaussian(rounds)
        delta = self.mechanism.delta
        if self.mechanism.sampling == "poisson":
            losses = self._losses_of_round().self_compose(rounds)
            return float(losses.get_epsilon_for_delta(delta))
        accountant, event = self._renyi()
        accountant.compose(event, rounds)
        return float(accountant.get_epsilon(delta))

    def _with_another_round(self) -> float:
        """Compose one round more; epsilon after it."""
        delta = self.mechanism.delta
        if self.mechanism.sampling == "none":
            return self._one_gaussian(len(self._known))
        if self.mechanism.sampling == "poisson":
            one, before = self._losses_of_round(), self._composed
            self._composed = one if before is None else before.compose(one)
            return float(self._composed.get_epsilon_for_delta(delta))
        if self._composed is None:
            self._composed = self._renyi()
        accountant, event = self._composed
        accountant.compose(event)
        return float(accountant.get_epsilon(delta))

    def _one_gaussian(self, rounds: int) -> float:
        """Epsilon of so many rounds, which are one Gaussian."""
        noise = self.mechanism.round_noise / math.sqrt(rounds)
        return gaussian_epsilon(noise, self.mechanism.delta)

    def _losses_of_round(self) -> Any:
        """Poisson sampling, add or remove one: what one round may give away."""
        return _poisson_losses(self.mechanism.round_noise, self.mechanism.rate)

    def _renyi(self) -> tuple[Any, Any]:
        """Fixed size, replace one: a fresh accountant, and the event of a round."""
        dp, mechanism = optional("dp_accounting", _FOR), self.mechanism
        rdp = optional("dp_accounting.rdp", _FOR)
        relation = dp.NeighboringRelation.REPLACE_ONE
        size = round(mechanism.rate * mechanism.population)
        event = dp.SampledWithoutReplacementDpEvent(
            mechanism.population, size, dp.GaussianDpEvent(mechanism.round_noise)
        )
        return rdp.RdpAccountant(neighboring_relation=relation), event


@lru_cache(maxsize=16)
def _poisson_losses(noise: float, rate: float) -> Any:
    """The privacy loss distribution of a round, which takes a second to make.

    All runs of a comparison have the same.

    Args:
        noise: of the round, over what one of those who are hidden can change.
        rate: at which they are sampled.
    """
    pld = optional("dp_accounting.pld.privacy_loss_distribution", _FOR)
    return pld.from_gaussian_mechanism(
        standard_deviation=noise,
        sampling_prob=rate,
        value_discretization_interval=_INTERVAL,
    )


def mechanism_of(
    privacy: Privacy,
    *,
    clients: int,
    rate: float,
    kind: str,
    releases: float,
) -> Mechanism:
    """What a run with noise is to an accountant.

    Args:
        privacy: the settings.
        clients: how many there are.
        rate: share of them that a round calls.
        kind: how they are drawn: fixed, poisson or bernoulli.
        releases: exchanges of a round; where samples are hidden, in how many gradients
            of a round a sample is at most.

    Raises:
        ConfigError: The cohorts are drawn in a way that nobody can account for.
    """
    assert privacy.delta is not None
    plain = Mechanism(
        noise=privacy.noise, delta=privacy.delta, releases=releases, population=clients
    )
    if privacy.unit == "sample":
        return Mechanism(
            noise=privacy.noise,
            delta=privacy.delta,
            releases=releases,
            unit="sample",
            adjacency="a sample's gradients, or zeros in their place",
        )
    if kind == "bernoulli" and rate < 1:
        raise ConfigError(
            'privacy: sampling.kind = "bernoulli" draws cohorts below two clients '
            "again, for which no epsilon is known. Set sampling.kind = "
            '"poisson", which does not.'
        )
    if privacy.at == "local":
        return Mechanism(
            noise=privacy.noise / 2,
            delta=privacy.delta,
            releases=releases,
            adjacency="replace all data of one client",
        )
    if privacy.cohorts == "known" or rate == 1:
        return plain  # with noise of clients' parts, cohorts are always known
    if kind == "poisson":
        return Mechanism(
            **{**vars(plain), "sampling": "poisson", "rate": rate},
        )
    return Mechanism(
        **{
            **vars(plain),
            "noise": privacy.noise / 2,
            "sampling": "fixed",
            "rate": rate,
            "adjacency": "replace one client by another",
        }
    )


def noise_for(mechanism: Mechanism, rounds: int, epsilon: float) -> float:
    """The noise with which so many rounds come to an epsilon, to three digits above it.

    Args:
        mechanism: all else of the run; its own noise does not matter, but for whether
            the accounts are of all of it or of half (one client replaced by another).
        rounds: of the run.
        epsilon: what it may come to.
    """

    def spent(noise: float) -> float:
        return Accountant(replace(mechanism, noise=noise)).foreseen(rounds)

    low, high = 0.0, 1.0
    while spent(high) > epsilon:
        low, high = high, 2.0 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


def gaussian_epsilon(noise: float, delta: float) -> float:
    """Epsilon of one Gaussian, exactly (Balle and Wang, ICML 2018, Theorem 8).

    Args:
        noise: standard deviation over sensitivity.
        delta: probability with which the bound may not hold.
    """
    low, high = 0.0, 1.0
    if gaussian_delta(noise, low) <= delta:
        return 0.0
    while gaussian_delta(noise, high) > delta:
        low, high = high, 2.0 * high
    while low < (middle := (low + high) / 2.0) < high:
        if gaussian_delta(noise, middle) > delta:
            low = middle
        else:
            high = middle
    return high


def gaussian_delta(noise: float, epsilon: float) -> float:
    """Delta of one Gaussian at an epsilon, by the same theorem."""
    # Phi(1 / (2 s) - e s) - exp(e) Phi(-1 / (2 s) - e s)
    first = _tail(epsilon * noise - 0.5 / noise)
    log_second = epsilon + _log_tail(epsilon * noise + 0.5 / noise)
    return first - math.exp(min(log_second, 0.0))


def _tail(x: float) -> float:
    """The probability that a standard normal number is above x."""
    return 0.5 * math.erfc(x / math.sqrt(2.0))


def _log_tail(x: float) -> float:
    """Its logarithm, far out too, where x is above 0."""
    if x < 30.0:
        return math.log(_tail(x))
    # Mills' ratio; the next term of the series is below 1e-5 of it.
    return -0.5 * x * x - math.log(x * math.sqrt(2.0 * math.pi)) - 1.0 / (x * x)
