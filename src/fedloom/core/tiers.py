"""A method in two tiers, as its global server runs it: the teams are its clients.

A team's server runs the method itself, for its own clients and with the shared model
of the global one. What goes up and down between the two tiers has types of its own,
`TeamDownload` and `TeamUpload`; no client's upload is among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm, AnyAlgorithm, Client, Cohort, Population
from fedloom.core.errors import ConfigError
from fedloom.core.messages import TeamDownload, TeamUpload
from fedloom.core.records import Empty
from fedloom.core.task import Task


@dataclass(frozen=True, kw_only=True)
class GlobalTier(Algorithm[Any, Empty, TeamDownload, TeamDownload, TeamUpload]):
    """The global server of a method whose teams have servers of their own.

    Its server record is the method's, its clients are the teams, by number.

    Raises:
        ConfigError: The method has no team servers.
    """

    group = "tiered"

    method: AnyAlgorithm
    """What the teams run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.method.has_team_servers:
            raise ConfigError(
                f"{self.method.name}: has no team servers, for its clients send to one "
                "server alone. Serve it without teams, or take a method that has them, "
                "such as pfedmt."
            )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The method's."""
        return self.method.name

    def init_server(self, population: Population) -> Any:
        """The method's, with a place for every team."""
        return self.method.init_server(population)

    def download(self, server: Any, cohort: Cohort) -> TeamDownload:
        """The shared model."""
        shared = self.method.shared(server, cohort.population.task)
        assert shared is not None, "a method with team servers has a shared model"
        return TeamDownload(shared)

    def model_download(self, server: Any, cohort: Cohort) -> Empty:
        """Nothing: a team has its model, and its clients have theirs."""
        return Empty()

    def aggregate(self, server: Any, uploads: TeamUpload, cohort: Cohort) -> Any:
        """The method's `aggregate_teams`; who is not there counts for nothing."""
        before = self.team_models(server, cohort.population.task)
        models = before.index_copy(0, cohort.clients, uploads.model)
        # No team counts for more than what it enrolled with.
        counts = cohort.sizes * uploads.share.clamp(0.0, 1.0).to(cohort.sizes.dtype)
        if not bool((counts > 0).any()):
            return server  # nobody took part in any team
        everyone = torch.zeros_like(cohort.population.sizes)
        counts = everyone.index_copy(0, cohort.clients, counts)
        return self.method.aggregate_teams(server, models, counts)

    def shared(self, server: Any, task: Task) -> Tensor | None:
        """The method's."""
        return self.method.shared(server, task)

    def team_models(self, server: Any, task: Task) -> Tensor:
        """(teams, d) where the teams were when they were last heard of."""
        models = self.method.team_models(server, task)
        assert models is not None, "a method with team servers has team models"
        return models

    def begin(
        self, down: TeamDownload, memory: Empty, client: Client, task: Task
    ) -> TeamDownload:
        """What a team's server begins a round with."""
        return down

    def finish(
        self,
        work: TeamDownload,
        down: TeamDownload,
        memory: Empty,
        client: Client,
        task: Task,
    ) -> tuple[Empty, TeamUpload]:
        """What a team would send of which nobody took part."""
        nobody = torch.zeros((), dtype=torch.float64, device=work.shared.device)
        return memory, TeamUpload(work.shared, nobody)
