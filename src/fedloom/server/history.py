"""What a run records: written at once, to its directory or to a temporary folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.algorithm import has_own
from fedloom.core.describe import returned
from fedloom.core.messages import HELD_OUT
from fedloom.core.records import client_dims, named
from fedloom.core.remarks import (
    Remark,
    divergence,
    on_attackers,
    on_participants,
    on_training_loss,
)
from fedloom.results.directory import RunDirectory
from fedloom.results.outcomes import Outcomes, RunOutcomes
from fedloom.results.row_files import RowFiles
from fedloom.results.rows import Round
from fedloom.results.scores import Scores
from fedloom.server.coordinator import ExchangeLog, RoundCost
from fedloom.server.training import Training

Columns = dict[str, NDArray[Any]]


class History:
    """The rows of a run so far.

    Args:
        training: the run.
        rounds: rows of an earlier part of it.
        directory: where rows go; a temporary folder by default.
    """

    def __init__(
        self,
        training: Training,
        rounds: list[Round] | None = None,
        directory: RunDirectory | None = None,
    ) -> None:
        self.training = training
        self.rounds = rounds if rounds is not None else []
        self.directory = directory
        self.rows = directory.rows if directory is not None else RowFiles()
        """Everything of every round; in memory are the rounds' sums alone."""
        self.follower: Callable[[Round], None] | None = None
        """Is told of every row as soon as it is kept."""
        self.last_scores: tuple[Scores, ...] = ()
        """Every client's, at the last evaluated round."""
        self.remarks = directory.read_remarks() if directory is not None else ()
        """What there is to say of the run, once it is over."""
        self.divergence: str | None = None
        """Why the run counts as diverged, once it is over, if it does."""
        self.outcomes: dict[int, RunOutcomes] = {}
        """By round, what personal models said of every held-out sample."""
        self.wanted: Mapping[int, NDArray[np.int64]] = {}
        """By round, from 1, the clients whose outcomes are recorded before the last
        round; at the last round those of everybody who is scored are."""
        self.wanted_scores: dict[int, list[Scores]] = {}
        """By such a round, the scores of those clients on test data; kept where there
        is no directory."""
        self._scalars: dict[str, float] = {}

    def open_round(self, *, has_scores: bool) -> None:
        """Record the start, before any training, as round 0."""
        self._keep(Round(round=0, **(self.evaluate() if has_scores else {})))

    def record_exchange(self) -> None:
        """Record what drove the exchange that the run has just finished."""
        log = self.training.last
        assert log is not None
        columns, arrays, self._scalars = _sort(log)
        if self.training.algorithm.exchanges > 1:
            # A round's row has room for those of its last exchange alone.
            arrays |= {n: np.array(value) for n, value in self._scalars.items()}
        self.rows.append_client_log(columns)
        if arrays:
            self.rows.append_arrays(log.round + 1, log.exchange, arrays)

    def close_round(
        self, cost: RoundCost, *, has_scores: bool, has_train: bool = True
    ) -> Round:
        """Record the round that the run has just finished.

        Args:
            cost: what it took.
            has_scores: whether models are scored now.
            has_train: whether they are scored on training data too.
        """
        number = self.training.state.round
        costs = asdict(cost)
        loss = costs.pop("loss")
        row = Round(
            round=number,
            train_loss=loss if cost.steps else None,
            **costs,
            server_log=self._scalars | self._record_spent(number),
            **(self.evaluate(has_train=has_train) if has_scores else {}),
        )
        self._keep(row)
        return row

    def _record_spent(self, rounds: int) -> dict[str, float]:
        """What the rounds so far have cost of privacy, if anybody is hidden."""
        algorithm = self.training.algorithm
        epsilon = algorithm.spent(rounds)
        if epsilon is None:
            return {}
        if self.directory is not None:
            # All of it every time: a round that is done again is released once.
            spent = [algorithm.spent(number) for number in range(1, rounds + 1)]
            self.directory.write_ledger(spent)
        return {"epsilon": epsilon}

    def close_run(self) -> None:
        """Record what there is to say of the run, whose last round is over."""
        first, last = (
            row.scores.get("personal", {}).get("train", {}).get("loss")
            for row in (self.rounds[0], self.rounds[-1])
        )
        trained = [row for row in self.rounds if row.round > 0]
        remarks = [*on_participants([row.participants for row in trained])]
        robust = getattr(self.training.algorithm, "robust", None)
        if robust is not None:
            remarks += on_attackers(
                [(len(r.attackers), robust.liars(r.participants)) for r in trained]
            )
        remarks += self._method_remarks()
        if len(self.rounds) > 1 and last is not None:  # training data were scored
            constant, task = self.training.constant_loss, self.training.task
            self.divergence = divergence(
                last,
                constant,
                self.training.algorithm.lr,
                has_classes=task.metric == "accuracy",
                is_noisy=self.training.algorithm.spent(1) is not None,
            )
            if self.divergence is not None and last < self.training.start_loss():
                self.divergence = None  # it began even further away
            if self.divergence is None:
                remarks += on_training_loss(last, first, constant)
        self.remarks = tuple(remarks)
        if self.directory is not None:
            self.directory.write_remarks(self.remarks)
            if self.divergence is not None:
                state = self.training.state
                self.directory.write_failure(
                    self.divergence, state.round, state.exchange
                )

    def _method_remarks(self) -> Iterable[Remark]:
        algorithm = self.training.algorithm
        if not has_own(algorithm, "remarks"):
            return ()
        log = self.rows.read_client_log()
        own = getattr(returned(algorithm.client_log), "_fields", ())
        # Outside of a simulation clients keep their logs to themselves.
        is_there = all(name in log for name in ("round", *own))
        return algorithm.remarks(log) if is_there and len(log["round"]) else ()

    def record_outcomes(self, *, is_last: bool) -> None:
        """Record what personal models say of held-out samples, if it is wanted now."""
        number = self.training.state.round
        chosen = self.wanted.get(number)
        if not is_last and chosen is None:
            return
        scored = self.training.scored
        clients = scored if chosen is None else torch.as_tensor(chosen).to(scored)
        if chosen is not None and self.directory is None:
            made = self.training.evaluate("test", clients)
            self.wanted_scores[number] = list(made.scores)
        outcomes = self.collect_outcomes(scored if is_last else clients)
        if outcomes is None:
            return
        if self.directory is None:
            self.outcomes[number] = outcomes
        else:
            self.directory.write_outcomes(number, outcomes)

    def collect_outcomes(self, clients: Tensor) -> RunOutcomes | None:
        """What some clients' models say of held-out samples now; nothing is recorded.

        None where samples stay with the clients, or nobody has a held-out sample.

        Args:
            clients: (n,) who is asked, by number, ascending.
        """
        parts, work = {}, self.training.state.work.cpu().clone()
        adaptation = torch.zeros_like(work)
        for part in HELD_OUT:
            if not self.training.coordinator.roster.has(part):
                continue
            answer = self.training.outcomes(part, clients)
            if answer is None:
                return None
            parts[part] = Outcomes(
                rows=answer.rows.numpy(),
                clients=answer.clients.to(torch.int32).numpy(),
                values=answer.values.numpy(),
            )
            own = adaptation[clients.cpu()]
            adaptation[clients.cpu()] = torch.maximum(own, answer.work)
        return RunOutcomes(parts, (work + adaptation).numpy()) if parts else None

    def evaluate(self, *, has_train: bool = True) -> dict[str, Any]:
        """Score models on every part that has samples, and sum up.

        Args:
            has_train: whether training data are scored where others are.

        Returns:
            What a row says of it.
        """
        roster = self.training.coordinator.roster
        scored = self.training.scored
        sizes = roster.sizes(torch.float64)[scored].cpu().numpy()
        parts = self.training.parts
        if not has_train and len(parts) > 1:
            parts.remove("train")
        made = [self.training.evaluate(part) for part in parts]
        self.last_scores = tuple(s for evaluation in made for s in evaluation.scores)
        summary: dict[str, dict[str, dict[str, float]]] = {}
        for scores in self.last_scores:
            numbers = scores.summary(sizes)
            summary.setdefault(scores.kind, {})[scores.part] = numbers
        return {
            "scores": summary,
            "evaluation_bytes_down": sum(e.bytes_down for e in made),
            "evaluation_bytes_up": sum(e.bytes_up for e in made),
        }

    def write(self, directory: RunDirectory) -> None:
        """Write all rows to a directory, and later ones too."""
        self.copy(directory)
        self.directory, self.rows = directory, directory.rows

    def copy(self, directory: RunDirectory) -> None:
        """Write all rows to a directory; later ones go where they went before."""
        directory.rows.copy_from(self.rows)
        directory.write_remarks(self.remarks)
        for number, outcomes in self.outcomes.items():
            directory.write_outcomes(number, outcomes)

    def _keep(self, row: Round) -> None:
        self.rounds.append(row)
        if row.scores:
            names = self.training.coordinator.roster.names
            clients = self.training.scored.cpu().numpy()
            self.rows.append_scores(row.round, names, self.last_scores, clients)
        self.rows.append(row)
        if self.follower is not None:
            self.follower(row)


def _sort(log: ExchangeLog) -> tuple[Columns, Columns, dict[str, float]]:
    """What drove an exchange: numbers of each client, arrays, scalars."""
    clients = log.clients.cpu().numpy()
    columns: Columns = {
        "round": np.full(len(clients), log.round + 1, dtype=np.int32),
        "exchange": np.full(len(clients), log.exchange, dtype=np.int32),
        "client": clients.astype(np.int32),
        "train_loss": log.reports.loss.double().cpu().numpy(),
        "steps": log.reports.steps.cpu().numpy(),
        "gradients": log.reports.gradients.cpu().numpy(),
    }
    for name, tensor in named(log.client_log).items():
        columns[name] = tensor.detach().cpu().numpy()
    arrays: Columns = {}
    scalars: dict[str, float] = {}
    for whose, members, record in (
        ("called", log.called, log.download_log),
        ("clients", log.uploaders, log.server_log),
    ):
        numbers = members.cpu().numpy()
        dims = client_dims(record)
        for (name, tensor), per_client in zip(named(record).items(), dims, strict=True):
            value = tensor.detach().cpu().numpy()
            if per_client and value.ndim == 1:
                columns[name] = np.full(len(clients), np.nan)
                has_row = np.isin(clients, numbers)
                rows = np.searchsorted(numbers, clients[has_row])
                columns[name][has_row] = value[rows]
            elif value.ndim == 0:
                scalars[name] = float(value)
            else:
                arrays[name], arrays[whose] = value, numbers
    return columns, arrays, scalars
