"""The models of a trained run: to use, to export, to make for newcomers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from fedloom.core.errors import DataError, unknown
from fedloom.data.new_samples import Inputs, inputs_like
from fedloom.export.exported_model import RunInfo, module_of
from fedloom.export.folders import export, exported_models
from fedloom.export.newcomer import Newcomer, average_prediction, personalize
from fedloom.results.scores import Scores
from fedloom.server.history import History
from fedloom.server.simulation import Simulation


class Models:
    """Every client's model.

    Args:
        simulation: the run.
        history: its rows.
        config: its resolved settings.
    """

    def __init__(
        self, simulation: Simulation, history: History, config: Mapping[str, Any]
    ) -> None:
        self._simulation = simulation
        self._config = config
        self.history = history
        self.federation = simulation.federation

    @property
    def path(self) -> Path | None:
        """The run directory, if the run was written to one."""
        return self.history.directory.path if self.history.directory else None

    def model(self, client: int | str) -> nn.Module:
        """A client's personal model as an ordinary module.

        It takes inputs as `prepare` gives them: bytes scaled, features standardised.
        What it gives of a regression is in the target's own units.

        Args:
            client: its number from 0, or its name.
        """
        simulation = self._simulation
        row = torch.tensor([self._row(client)], device=simulation.task.device)
        return module_of(simulation.task, simulation.personal(row)[0])

    def shared_model(self) -> nn.Module | None:
        """The one model for all, or None if the method has none."""
        theta = self._simulation.shared()
        return None if theta is None else module_of(self._simulation.task, theta)

    def prepare(self, x: Inputs) -> tuple[torch.Tensor, ...]:
        """Raw inputs as the models take them: bytes scaled, features standardised.

        Args:
            x: an array or tensor like the training inputs, or a tuple of them.
        """
        task = self._simulation.task
        inputs = inputs_like(self.federation.dataset, x)
        return task.prepare(tuple(part.to(task.device) for part in inputs))

    def predict(self, client: int | str, x: Inputs) -> torch.Tensor:
        """What a client's model says of new inputs.

        Args:
            client: its number from 0, or its name.
            x: an array or tensor like the training inputs, or a tuple of them.

        Returns:
            (n, classes) probabilities, averaged over the client's posterior where the
            method has one; for a regression, the predicted numbers.
        """
        simulation = self._simulation
        row = torch.tensor([self._row(client)], device=simulation.task.device)
        inputs = inputs_like(self.federation.dataset, x)
        return average_prediction(simulation.task, simulation.models(row), inputs)

    def _last_scores(self) -> Sequence[Scores]:
        """The scores of the last evaluated round, with a row for every client."""
        last = self.history.last_scores
        scored, count = self._simulation.scored, self.federation.count
        if len(scored) == count:
            return last
        return [scores.for_everyone(scored.cpu().numpy(), count) for scores in last]

    def export(
        self,
        out: str | Path,
        *,
        clients: Iterable[int | str] | int | str | None = None,
        shared: bool = False,
        fresh: bool = False,
    ) -> Path:
        """Write models to a new directory: state dict, model card, how to rebuild it.

        Args:
            out: the directory; one model goes into it, several into a folder each.
            clients: whose models, by name or number; by default everybody's, or
                nobody's if the shared model is asked for.
            shared: the one model for all.
            fresh: replace an earlier export.
        """
        clients = [clients] if isinstance(clients, str | int) else clients
        everybody = () if shared else range(self.federation.count)
        rows = [self._row(c) for c in (everybody if clients is None else clients)]
        models = exported_models(
            self._simulation,
            self._last_scores(),
            rows,
            has_shared=shared,
            directory=self.path,
        )
        return export(self._run_info(), models, Path(out), fresh=fresh)

    def personalize(
        self,
        x: Inputs,
        y: ArrayLike | torch.Tensor,
        *,
        name: str = "newcomer",
        test: float = 0.25,
        rounds: int = 1,
        team: int | None = None,
    ) -> Newcomer:
        """Give a client who was never there a model of its own.

        On the method's own path for a client that was never sampled: it is sent what
        such a client is sent and trains without uploading. The run does not change.

        Args:
            x: its inputs, like those of the run.
            y: its targets, like those of the run.
            name: what to call it.
            test: share of its samples kept for testing.
            rounds: how many rounds it trains.
            team: the team that it joins; by default the one that fits it best.

        Returns:
            Its module, its scores, and what it gains over training alone and over the
            shared model.
        """
        return personalize(
            self._simulation,
            self._run_info(),
            x,
            y,
            name=name,
            test=test,
            rounds=rounds,
            team=team,
        )

    def _run_info(self) -> RunInfo:
        directory = self.history.directory
        manifest = directory.read_manifest() if directory is not None else {}
        return RunInfo.of(self._simulation, self._config, manifest)

    def _row(self, client: int | str) -> int:
        names = self.federation.names
        if isinstance(client, str):
            if client not in names:
                raise DataError(unknown("client", client, names))
            return names.index(client)
        if not isinstance(client, int | np.integer) or not 0 <= client < len(names):
            raise DataError(
                f"There is no client {client!r}: the run has clients 0 to "
                f"{len(names) - 1}, called {names[0]}{_and_others(names)}."
            )
        return int(client)


def _and_others(names: Sequence[str]) -> str:
    few = ", ".join(names[1:_LONG])
    more = " and so on" if len(names) > _LONG else ""
    return f", {few}{more}" if few else ""


_LONG = 10
"""Names that a message lists."""
