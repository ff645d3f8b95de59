"""A server and its clients, wherever they are, that move round by round."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.measures import PersonalOutcomes
from fedloom.core.messages import PARTS, Arrivals, Order
from fedloom.core.records import map_record, message_bytes
from fedloom.core.streams import generator
from fedloom.core.task import Task
from fedloom.fleet.protocol import Fleet
from fedloom.results.scores import Scores
from fedloom.server.coordinator import Coordinator, ExchangeLog, RoundCost, ServerState


class Training:
    """A coordinator and a fleet.

    Args:
        coordinator: the server's half.
        fleet: the clients' half.
    """

    def __init__(self, coordinator: Coordinator, fleet: Fleet) -> None:
        self.coordinator = coordinator
        self.fleet = fleet
        self.last: ExchangeLog | None = None
        """The exchange that was finished last, with the clients' logs if they give
        any."""
        self.called: Callable[[int], Tensor] | None = None
        """Who is called in a round, from 0, by number; those whom the sampling draws
        where this is None."""
        self.scored = coordinator.everyone
        """(m,) the clients that an evaluation scores, by number, ascending."""
        self._order: Order | None = None
        self._started = 0.0

    @property
    def algorithm(self) -> AnyAlgorithm:
        """The method."""
        return self.coordinator.algorithm

    @property
    def task(self) -> Task:
        """Model and loss."""
        return self.coordinator.task

    @property
    def constant_loss(self) -> float | None:
        """Mean over clients of what a constant model's loss on training data is.

        None where it is not known, since samples stay with the clients.
        """
        return None

    @property
    def parts(self) -> list[str]:
        """The parts of the data that models are scored on."""
        return [part for part in PARTS if self.coordinator.roster.has(part)]

    @property
    def seed(self) -> int:
        """Seed of everything that is drawn during training."""
        return self.coordinator.seed

    @property
    def state(self) -> ServerState:
        """All that changes on the server."""
        return self.coordinator.state

    def score_only(self, count: int | None) -> None:
        """Have evaluations score a sample of the clients, drawn from the seed.

        Args:
            count: how many; None, or more than there are, means everybody.
        """
        if count is None or count >= len(self.scored):
            return
        draw = generator(self.seed, "evaluated")
        chosen = draw.choice(len(self.scored), count, replace=False, shuffle=False)
        self.scored = self.scored[torch.as_tensor(np.sort(chosen)).to(self.scored)]

    def run_exchange(self) -> RoundCost | None:
        """Do one exchange. Gives the cost of the round when it closes one."""
        self.send()
        return self.receive()

    def send(self) -> None:
        """Give the next order to the clients."""
        self._started = time.perf_counter()
        if self.called is None:
            self._order = self.coordinator.next_order()
        else:
            clients = self.called(self.state.round)
            uploads = torch.ones_like(clients, dtype=torch.bool)
            self._order = self.coordinator.order(clients, uploads)
        if len(self._order.clients):
            self.fleet.send(self._order)

    def receive(self, *, bundle_size: int = 1) -> RoundCost | None:
        """Take in what they came to; see `run_exchange`.

        Args:
            bundle_size: how many runs shared the time since the order was given.

        Raises:
            NumericalError: A client's numbers stopped being finite; the server is as it
                was before.
        """
        assert self._order is not None, "receive before send"
        if len(self._order.clients):
            arrivals = self.fleet.receive()
        else:
            arrivals = Arrivals.nobody(self._order.clients)
        seconds = (time.perf_counter() - self._started) / bundle_size
        cost = self.coordinator.apply_results(self._order, arrivals, seconds)
        log = self.coordinator.log
        self.last = replace(log, client_log=self.fleet.client_log(log.clients))
        return cost

    def evaluate(self, part: str, clients: Tensor | None = None) -> Evaluation:
        """Score every kind of model that there is, client by client.

        Args:
            part: one of `parts`.
            clients: who is scored, by number; by default `scored`.
        """
        clients = clients if clients is not None else self.scored
        return evaluate(self.coordinator, self.fleet, part, clients)

    def start_loss(self) -> float:
        """Mean over scored clients of the first model's loss on training data."""
        sums = [
            self.fleet.score(replace(request, shared=self.task.start))["shared"]
            for request in self.coordinator.score_requests("train", self.scored)
        ]
        joined = map_record(lambda *rows: torch.cat(rows), *sums)
        scores = Scores.from_sums("shared", "train", self.task.metric, joined)
        return float(np.nanmean(scores.values["loss"]))

    def outcomes(
        self, part: str, clients: Tensor | None = None
    ) -> PersonalOutcomes | None:
        """What personal models say of every sample; None outside of a simulation.

        Args:
            part: one of `fedloom.core.messages.PARTS`.
            clients: whose, by number, ascending; everybody's by default.
        """
        requests = self.coordinator.score_requests(part, clients)
        answers = [self.fleet.outcomes(request) for request in requests]
        samples = [answer for answer in answers if answer is not None]
        if len(samples) < len(answers):
            return None
        columns = zip(*samples, strict=True)
        return PersonalOutcomes(*(torch.cat(column) for column in columns))

    def models(self, client: Tensor) -> Tensor:
        """(k, d) the models that a client's predictions are averaged over."""
        if self.algorithm.has_posterior:
            return self.draws(client)[0]
        return self.personal(client)

    def personal(self, clients: Tensor) -> Tensor:
        """(n, d) the personal models of some clients, adapted if the method adapts."""
        return self.fleet.personal(self.coordinator.model_request(clients))

    def draws(self, clients: Tensor) -> Tensor:
        """(n, k, d) models from the posteriors of some clients."""
        return self.fleet.draws(self.coordinator.model_request(clients))

    def shared(self) -> Tensor | None:
        """The shared model, or None."""
        return self.algorithm.shared(self.state.server, self.task)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Scores, and what it took to get them."""

    scores: tuple[Scores, ...]
    """Of every kind of model."""
    bytes_down: int
    """What all clients were sent for it."""
    bytes_up: int
    """What they sent back."""


def evaluate(
    coordinator: Coordinator, fleet: Fleet, part: str, clients: Tensor | None = None
) -> Evaluation:
    """Have a fleet score its models, and make scores of the sums.

    Args:
        coordinator: the server.
        fleet: the clients.
        part: one of `fedloom.core.messages.PARTS`.
        clients: who is scored, by number; everybody by default.
    """
    answers, bytes_down, bytes_up = [], 0, 0
    for request in coordinator.score_requests(part, clients):
        sums_by_kind = fleet.score(request)
        answers.append(sums_by_kind)
        bytes_down += request.bytes_down
        row_bytes = sum(message_bytes(sums) for sums in sums_by_kind.values())
        bytes_up += len(request.clients) * row_bytes
    scores = []
    for kind in answers[0]:
        parts = [answer[kind] for answer in answers]
        sums = map_record(lambda *rows: torch.cat(rows), *parts)
        scores.append(Scores.from_sums(kind, part, coordinator.task.metric, sums))
    return Evaluation(tuple(scores), bytes_down, bytes_up)
