"""A method with differential privacy: a method around a method."""

from __future__ import annotations

import copy
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedloom.core.algorithm import AnyAlgorithm, Cohort
from fedloom.core.clip import PerSample
from fedloom.core.errors import ConfigError
from fedloom.core.records import leaves, rebuild
from fedloom.core.rounding import Rounding
from fedloom.core.streams import NoiseSource
from fedloom.core.summed import Summed, Total, Wrapped
from fedloom.privacy.accounting import Accountant
from fedloom.privacy.bounding import (
    Bounding,
    DiscreteNoise,
    FieldBound,
    LocalNoise,
    field_bounds,
)
from fedloom.privacy.releasing import ClientNoise, Release, ServerNoise, SharedNoise
from fedloom.privacy.secret import Secret
from fedloom.privacy.settings import Privacy

_LARGEST = 2**31 - 1
_EXACT = 2**24
"""Whole numbers up to here are exact in float32."""
_FEWEST_STEPS = 2.0
"""Standard deviation of a client's discrete noise, in steps, from which on sums of it
are Gaussian to 1e-15 (Kairouz, Liu, Steinke, ICML 2021, Theorem 1)."""


class Private(Summed):
    """A method whose clients are hidden: bounds on the way out, noise in the total.

    Args:
        algorithm: the method.
        settings: those of the section [privacy].
        rate: share of the clients that a round calls; that of the population if absent.
        called: how many clients a round calls, where the noise comes from them.
        source: where the noise of a client that is real comes from; by default it
            follows from the run's seed.

    Raises:
        ConfigError: The method needs more than sums, a field has no bound, or the sums
            could overflow.
    """

    settings: Privacy
    accountant: Accountant | None
    """What tells epsilon; nobody accounts before `accounted` puts it there."""
    source: NoiseSource | None

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        settings: Privacy,
        *,
        rate: float | None = None,
        called: int | None = None,
        source: NoiseSource | None = None,
    ) -> None:
        super().__init__(algorithm, most_samples=settings.most_samples)
        vars(self).update(settings=settings, accountant=None, source=source)
        if algorithm.needs == "nothing":
            return
        if settings.clip is not None:
            if settings.most_samples is None:
                raise ConfigError(
                    "privacy: most_samples must be a number where there is a clip, "
                    "found none: what a client adds is its change times its weight, "
                    "and a weight of all its samples has no bound. Set most_samples = "
                    "1, with which all count the same, or leave out clip and noise."
                )
            fields = field_bounds(algorithm, settings)
            vars(self)["leave"] = Bounding(fields)
            if settings.noise:
                self._add_noise(fields, rate, called)

    def _add_noise(
        self, fields: tuple[FieldBound, ...], rate: float | None, called: int | None
    ) -> None:
        settings, method, source = self.settings, self.algorithm, self.source
        # Each of F fields with noise z b_f sqrt(F) is one Gaussian of multiplier z.
        noise = settings.noise * math.sqrt(sum(bound.is_hidden for bound in fields))
        if settings.at == "server":
            path, secret = settings.secret, None
            if path is not None:
                secret = Secret(path=Path(path).expanduser())
            release: Release = ServerNoise(method, fields, rate, noise, secret)
        elif settings.at == "local":
            vars(self)["leave"] = LocalNoise(fields, noise, source)
            release = ClientNoise(method, fields, rate, noise)
        elif method.needs == "sums per team":
            raise ConfigError(
                f'{method.name}: privacy.at = "clients" needs one sum of all, and this '
                "method has one for each team, whose members would be too few to have "
                'enough noise. Set privacy.at = "server".'
            )
        else:
            least = settings.least_clients or called
            if least is None:
                raise ConfigError(
                    'privacy: at = "clients" needs least_clients, how many clients '
                    "have enough noise together, found none. A round to which fewer "
                    "come is not used, so take fewer than are called on average."
                )
            parts = DiscreteNoise(fields, noise, settings.bits, least, source)
            if parts.least_scale < _FEWEST_STEPS:
                raise ConfigError(
                    f"privacy: {least} clients would add noise of "
                    f"{parts.least_scale:.2g} steps of a whole number each, and below "
                    f"{_FEWEST_STEPS:g} their sum hides less than epsilon says. Raise "
                    f"privacy.bits, found {settings.bits}, or privacy.noise."
                )
            vars(self).update(leave=parts, reduce=_whole_numbers)
            release = SharedNoise(method, fields, rate, parts)
        vars(self)["release"] = release

    def with_secure_sums(self, rounding: Rounding | None = None) -> Summed:
        """The same with bounds that hold for what is rounded, too.

        Args:
            rounding: how the sum rounds what clients add; None if that is not known.

        Raises:
            ConfigError: Rounding is too coarse for a bound.
        """
        made = super().with_secure_sums(rounding)
        if rounding is not None and isinstance(self.leave, Bounding):
            made = copy.copy(made)
            vars(made)["leave"] = self.leave.before(rounding)
        return made

    def download(self, server: Any, cohort: Cohort) -> Any:
        """The method's, unless the round would pass the budget.

        Raises:
            ConfigError: It would.
        """
        refuse_beyond(self.settings.budget, self.accountant, cohort)
        return self.algorithm.download(server, cohort)

    def end_round(self, server: Any, cohort: Cohort) -> Any:
        """The method's; with noise, as if everybody had been there.

        How many of a team were there would tell who was.
        """
        if self.release is None:
            return super().end_round(server, cohort)
        return super().end_round(server, cohort.of_everyone)

    def spent(self, rounds: int) -> float | None:
        """Epsilon after so many rounds; None where there is no noise."""
        return self.accountant.epsilon(rounds) if self.accountant is not None else None

    @property
    def parts(self) -> dict[str, str]:
        """The settings that server and clients share; where the secret is, is not."""
        return shared_settings(self.settings)

    @property
    def secret(self) -> Secret | None:
        """What the server's noise comes from; None if that is the seed."""
        return getattr(self.release, "secret", None)

    @property
    def noisy_clients(self) -> int:
        """How many clients have enough noise together; 1 where each has, or none."""
        return self.leave.least if isinstance(self.leave, DiscreteNoise) else 1

    def largest_whole(self, numbers: int) -> float | None:
        """Most that a client's whole number is, where the noise is in such numbers."""
        leave = self.leave
        return leave.largest(numbers) if isinstance(leave, DiscreteNoise) else None

    @property
    def releases_always(self) -> bool:  # type: ignore[override]
        """Whether a round in which nobody was there is released too: it has noise.

        Not where that is made of the clients' parts: without them there is none.
        """
        return self.release is not None and not isinstance(self.leave, DiscreteNoise)

    @property
    def may_be_unusable(self) -> bool:  # type: ignore[override]
        """Whether a round may be lost, since it takes several clients' noise."""
        return self.noisy_clients > 1

    def why_unusable(self, uploads: Any, cohort: Cohort) -> str:
        """Why the parts of noise in what a cohort sent are too few to be released."""
        if not isinstance(self.leave, DiscreteNoise):
            return ""
        # Who has no samples is left out of the rows that are added, noise and all.
        is_total = isinstance(uploads, Total)
        came = len(cohort.clients) if is_total else int((cohort.sizes > 0).sum())
        if came >= self.leave.least:
            return ""
        return (
            f"was not used: expected {self.leave.least} clients at least, for so many "
            "have enough noise together (least_clients in [privacy]), found "
            f"{came}. The round is lost."
        )

    def check_sums(self, parameters: int, clients: int) -> None:
        """Refuse sums of whole numbers that could overflow.

        Args:
            parameters: numbers of the largest field.
            clients: most that add up.

        Raises:
            ConfigError: They could.
        """
        largest = self.largest_whole(parameters)
        if largest is None:
            return
        if largest > _EXACT or clients * largest > _LARGEST:
            limit = _EXACT if largest > _EXACT else _LARGEST
            raise ConfigError(
                f"privacy: {clients} clients with whole numbers up to {largest:.3g} "
                f"could come to {clients * largest:.3g}; what one sends must stay "
                f"below {_EXACT:,}, the total below {_LARGEST:,}, and {limit:,} is "
                f"passed. Lower privacy.bits, found {self.settings.bits}."
            )


def _whole_numbers(rows: Any, cohort: Cohort, key: Tensor) -> Any:
    """The exact sum of whole numbers: a `Reduce`."""
    values = [row.to(torch.int64).sum(0).to(torch.float64) for row in leaves(rows)]
    kinds = [row.dtype for row in leaves(rows)]
    return rebuild(rows, [v.to(k) for v, k in zip(values, kinds, strict=True)])


class PrivateSteps(Wrapped):
    """A method whose clients' samples are hidden, in every gradient of local steps.

    What a client keeps, sends and uses follows from these gradients, the model and its
    number of samples. A method that also looks at its samples in another way, such as a
    loss that decides, is refused when it does.

    Args:
        algorithm: the method.
        settings: those of the section [privacy].
        source: where the noise of a client that is real comes from; by default it
            follows from the run's seed.
    """

    settings: Privacy
    accountant: Accountant | None
    """What tells epsilon; nobody accounts before `accounted` puts it there."""
    source: NoiseSource | None

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        settings: Privacy,
        *,
        source: NoiseSource | None = None,
    ) -> None:
        super().__init__(algorithm)
        assert settings.clip is not None
        vars(self).update(settings=settings, accountant=None, source=source)

    @property
    def parts(self) -> dict[str, str]:
        """The settings that server and clients share."""
        return shared_settings(self.settings)

    @property
    def per_sample(self) -> PerSample:  # type: ignore[override]
        """How the gradients of local steps are taken."""
        assert self.settings.clip is not None
        return PerSample(self.settings.clip, self.settings.noise, self.source)

    def download(self, server: Any, cohort: Cohort) -> Any:
        """The method's, unless the round would pass the budget.

        Raises:
            ConfigError: It would.
        """
        refuse_beyond(self.settings.budget, self.accountant, cohort)
        return self.algorithm.download(server, cohort)

    def spent(self, rounds: int) -> float | None:
        """Epsilon after so many rounds; None where there is no noise."""
        return self.accountant.epsilon(rounds) if self.accountant is not None else None


def shared_settings(settings: Privacy) -> dict[str, str]:
    """Settings of which a server and its clients must have the same."""
    plain = asdict(replace(settings, secret=None))
    return {f"privacy.{name}": repr(value) for name, value in plain.items()}


def refuse_beyond(
    budget: float | None, accountant: Accountant | None, cohort: Cohort
) -> None:
    """Stop before a round that would pass the budget.

    Raises:
        ConfigError: It would.
    """
    if budget is None or accountant is None or cohort.exchange:
        return
    rounds = cohort.round + 1
    epsilon = accountant.epsilon(rounds)
    # Round by round adds errors of rounding to what the whole run was granted for.
    if epsilon > budget and accountant.foreseen(rounds, afresh=True) > budget:
        raise ConfigError(
            f"round {cohort.round + 1} would come to epsilon {epsilon:.4g}, more than "
            f"privacy.budget = {budget:g}. Nothing of it was sent."
        )
