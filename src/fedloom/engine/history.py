"""What a run records: kept in memory and, given a directory, written at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloom.core.records import named
from fedloom.engine.evaluate import evaluate
from fedloom.engine.rounds import Exchange, RoundCost, Simulation
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round
from fedloom.results.scores import Scores


class History:
    """The rows of a run so far.

    Args:
        simulation: the run.
        rounds: rows of an earlier part of it.
        directory: where rows go; they stay in memory either way.
    """

    def __init__(
        self,
        simulation: Simulation,
        rounds: list[Round] | None = None,
        directory: RunDirectory | None = None,
    ) -> None:
        self.simulation = simulation
        self.rounds = rounds if rounds is not None else []
        self.directory = directory
        self.follower: Callable[[Round], None] | None = None
        """Is told of every row as soon as it is kept."""
        self.scores: dict[int, list[Scores]] = {}
        self.client_log: dict[int, dict[str, NDArray[Any]]] = {}
        self.arrays: dict[int, dict[str, NDArray[Any]]] = {}

    def open_round(self) -> None:
        """Record the start, before any training, as round 0."""
        self._keep(Round(round=0, scores=self.evaluate(0)))

    def close_round(self, tally: RoundCost, *, has_scores: bool) -> Round:
        """Record the round that the run has just finished."""
        number = self.simulation.state.round
        server_log = self._note(number) if self.simulation.last is not None else {}
        row = Round(
            round=number,
            participants=tally.participants,
            train_loss=tally.loss,
            steps=tally.steps,
            bytes_down=tally.bytes_down,
            bytes_up=tally.bytes_up,
            team_bytes_down=tally.team_bytes_down,
            team_bytes_up=tally.team_bytes_up,
            seconds=tally.seconds,
            server_log=server_log,
            scores=self.evaluate(number) if has_scores else {},
        )
        self._keep(row)
        return row

    def evaluate(self, number: int) -> dict[str, dict[str, dict[str, float]]]:
        """Score all models on every part that has samples, and sum up."""
        federation = self.simulation.federation
        found: list[Scores] = []
        for part in ("validation", "test"):
            if getattr(federation, part).sizes.any():
                found += evaluate(self.simulation, part)
        self.scores[number] = found
        summary: dict[str, dict[str, dict[str, float]]] = {}
        for scores in found:
            numbers = scores.summary(federation.sizes)
            summary.setdefault(scores.kind, {})[scores.part] = numbers
        return summary

    def write(self, directory: RunDirectory) -> None:
        """Write all rows to a directory, and later ones too."""
        self.directory = directory
        for row in self.rounds:
            self._write(row, directory)

    def _keep(self, row: Round) -> None:
        self.rounds.append(row)
        if self.directory is not None:
            self._write(row, self.directory)
        if self.follower is not None:
            self.follower(row)

    def _write(self, row: Round, directory: RunDirectory) -> None:
        number = row.round
        if number in self.scores:
            names = self.simulation.federation.names
            directory.write_scores(number, names, self.scores[number])
        if number in self.client_log:
            directory.write_client_log(number, self.client_log[number])
        if number in self.arrays:
            directory.write_arrays(number, self.arrays[number])
        directory.append(row)

    def _note(self, number: int) -> dict[str, float]:
        """Keep what drove a round: columns and arrays; give back the scalars."""
        assert self.simulation.last is not None
        exchange = self.simulation.last
        columns, arrays, scalars = _sort(exchange)
        clients = columns["client"]
        round_ = np.full(len(clients), number, dtype=np.int32)
        self.client_log[number] = {"round": round_, **columns}
        if arrays:
            arrays["clients"] = exchange.uploaders.cpu().numpy()
            self.arrays[number] = arrays
        return scalars


def _sort(
    exchange: Exchange,
) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], dict[str, float]]:
    """Notes and account by shape: a number per client, an array, a scalar."""
    clients = exchange.clients.cpu().numpy()
    columns: dict[str, NDArray[Any]] = {
        "client": clients.astype(np.int32),
        "train_loss": exchange.loss.double().cpu().numpy(),
        "steps": exchange.steps.cpu().numpy(),
    }
    for name, tensor in named(exchange.client_log).items():
        columns[name] = tensor.detach().cpu().numpy()
    sent = np.isin(clients, exchange.uploaders.cpu().numpy())
    scalars: dict[str, float] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for name, tensor in named(exchange.server_log).items():
        value = tensor.detach().cpu().numpy()
        if value.ndim == 0:
            scalars[name] = float(value)
        elif value.shape == (int(sent.sum()),):
            columns[name] = np.full(len(clients), np.nan)
            columns[name][sent] = value
        else:
            arrays[name] = value
    return columns, arrays, scalars
