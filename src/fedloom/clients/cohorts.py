"""Sampling: who takes part in a round, the section [sampling] of a run's file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedloom.clients.counts import floor_share
from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, Rate, Whole, check
from fedloom.core.streams import generator

_DRAWS = 1000
"""How often a Bernoulli cohort below two clients is drawn anew."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the cohort of a round is drawn, and who trains."""

    rate: Rate = 1.0
    """Share of the clients that a round samples."""
    kind: Literal["fixed", "bernoulli", "poisson"] = "fixed"
    """How many a round samples. `fixed`: always floor(rate * clients), at least 1.
    `bernoulli`: each client on its own with probability rate, drawn anew until there
    are at least 2. `poisson`: the same and never drawn anew, so that a round may have
    nobody; what [privacy] can account for."""
    protocol: Literal["train-selected", "train-all"] = "train-selected"
    """Who trains: only the cohort downloads, trains and uploads; or all clients
    download and train and the cohort uploads."""

    def __post_init__(self) -> None:
        check(self)

    def expected(self, population: int) -> int:
        """How many of so many clients a round is expected to sample."""
        return max(floor_share(self.rate, population), 1)

    def most(self, population: int) -> int:
        """How many of so many clients a round samples at most."""
        return self.expected(population) if self.kind == "fixed" else population

    def draw(self, population: int, seed: int, round: int) -> NDArray[np.int64]:
        """The cohort: sorted client numbers, a function of (seed, round) alone.

        Costs as much as the cohort is large when the rate is small, however many
        clients there are.

        Raises:
            ConfigError: There are too few clients.
        """
        least = 2 if self.kind == "bernoulli" else 1
        if population < least:
            raise ConfigError(
                f"sampling: {self.kind} needs at least {least} clients, found "
                f"{population}."
            )
        draw = generator(seed, "cohort", round)
        if self.kind == "poisson":
            size = int(draw.binomial(population, self.rate))
        elif self.kind == "fixed":
            size = self.expected(population)
        else:
            size = self._bernoulli_size(population, draw)
        if size == population:
            return np.arange(population, dtype=np.int64)
        # Without the shuffle numpy draws small samples by Floyd's method.
        chosen = draw.choice(population, size, replace=False, shuffle=False)
        return np.sort(chosen).astype(np.int64)

    def draw_teams(
        self, team_sizes: Sequence[int], seed: int, round: int
    ) -> NDArray[np.int64]:
        """The teams that have a client in the cohort, sorted by number.

        Args:
            team_sizes: how many clients each team has; clients are numbered team by
                team.
            seed: as for `draw`.
            round: as for `draw`.
        """
        ends = np.cumsum(team_sizes)
        drawn = self.draw(int(ends[-1]), seed, round)
        return np.unique(np.searchsorted(ends, drawn, side="right"))

    def _bernoulli_size(self, population: int, draw: np.random.Generator) -> int:
        """The size of a Bernoulli cohort; given its size all cohorts are alike."""
        for _ in range(_DRAWS):
            size = int(draw.binomial(population, self.rate))
            if size >= 2:
                return size
        # So many failures mean a tiny rate, for which 2 is nearly the only size.
        return 2


@dataclass(frozen=True, kw_only=True)
class TeamSampling(Sampling):
    """What a cohort of all clients means for those of one team."""

    first: Whole = 0
    """Number of the team's first client."""
    total: Count = 1
    """How many clients all teams have."""

    def draw(self, population: int, seed: int, round: int) -> NDArray[np.int64]:
        """The members of the cohort, by their place in the team; there may be none."""
        drawn = super().draw(self.total, seed, round) - self.first
        return drawn[(drawn >= 0) & (drawn < population)]
