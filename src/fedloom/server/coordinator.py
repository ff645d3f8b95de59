"""The server's half of a round: the one place that knows the order of its parts.

It knows the settings, the clients as enrolled, the method's server record, the cohort
and what arrived; never a sample, never a client's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from fedloom.clients.cohorts import Sampling
from fedloom.core.algorithm import AnyAlgorithm, Cohort, Population
from fedloom.core.messages import (
    Arrivals,
    CohortDownload,
    Enrolment,
    ModelRequest,
    Order,
    Refusal,
    Report,
    Roster,
    ScoreRequest,
    TeamDownload,
    TeamUpload,
)
from fedloom.core.records import Empty, message_bytes, without_log
from fedloom.core.task import Task

_REQUEST_BYTES = 1 << 28
"""Most that is made at a time for clients that are to be scored."""

NONE_TAKEN = -1
"""In the place of the number of an upload: the server has none of this client."""


@dataclass
class RoundCost:
    """What a round cost and met so far; the exchanges of a round add up."""

    participants: int = 0
    """Clients that trained and arrived."""
    missing: int = 0
    """Answers of called clients that did not arrive, all exchanges together."""
    bytes_down: int = 0
    """Server (or team) to clients, all of them."""
    bytes_up: int = 0
    team_bytes_down: int = 0
    """Global server to teams; 0 without team servers."""
    team_bytes_up: int = 0
    steps: int = 0
    gradients: int = 0
    """Samples that entered a gradient, each as often as it did."""
    loss: float = 0.0
    """Mean training loss over gradient steps, all clients together."""
    seconds: float = 0.0
    refusals: list[dict[str, Any]] = field(default_factory=list)
    """As in `fedloom.results.rows.Round`."""
    absent: list[int] = field(default_factory=list)
    """As in `fedloom.results.rows.Round`."""
    attackers: list[int] = field(default_factory=list)
    """As in `fedloom.results.rows.Round`; filled in when the round is over."""

    def add(self, other: RoundCost) -> None:
        """Take in another exchange of the same round."""
        steps = self.steps + other.steps
        loss = self.loss * self.steps + other.loss * other.steps
        participants = max(self.participants, other.participants)
        for part in fields(self):
            total = getattr(self, part.name) + getattr(other, part.name)
            setattr(self, part.name, total)
        self.participants = participants
        self.loss = loss / steps if steps else 0.0


@dataclass(frozen=True, eq=False)
class ExchangeLog:
    """One exchange, for the run's files."""

    round: int
    exchange: int
    """Both from 0."""
    called: Tensor
    """(n,) who was sent a download."""
    download_log: Any
    """What drove the downloads; fields per client have n rows."""
    clients: Tensor
    """(k,) who arrived."""
    reports: Report
    """k rows."""
    uploaders: Tensor
    """(u,) whose uploads were used."""
    server_log: Any
    """What drove the aggregation; fields per client have u rows."""
    client_log: Any = ()
    """What drove the clients, k rows; only a simulation has it."""


@dataclass
class ServerState:
    """All that changes on the server; with the settings it determines what follows."""

    server: Any
    """The method's record."""
    taken: Tensor
    """(M,) number of the exchange whose upload was taken last of each client."""
    work: Tensor
    """(M,) gradient-samples that each client reported, over all exchanges."""
    round: int = 0
    exchange: int = 0
    cost: RoundCost = field(default_factory=RoundCost)
    """Of the round that is under way."""


class Coordinator:
    """A method's server: it gives orders and takes in what arrives.

    Args:
        algorithm: the method.
        task: model and loss.
        roster: the clients as enrolled.
        sampling: who takes part in a round; everybody by default.
        seed: seed of the cohorts and of what the server draws.
        cohort_seed: another one for the cohorts, where clients know the seed and shall
            not know who else takes part.
        closes_rounds: whether the rounds end here. Those of a team's server end at the
            global one.
    """

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        task: Task,
        roster: Roster,
        *,
        sampling: Sampling | None = None,
        seed: int = 0,
        cohort_seed: int | None = None,
        closes_rounds: bool = True,
    ) -> None:
        self.algorithm = algorithm
        self.closes_rounds = closes_rounds
        self.task = task
        self.roster = roster
        self.sampling = sampling if sampling is not None else Sampling()
        self.seed = seed
        self.cohort_seed = seed if cohort_seed is None else cohort_seed
        self.population = Population(
            task=task,
            theta=lambda index: task.initial(seed, index),
            sizes=roster.sizes(task.dtype),
            teams=roster.enrolments.team,
            rate=self.sampling.rate,
            seed=seed,
        )
        taken = torch.full((roster.count,), NONE_TAKEN, device=task.device)
        self.state = ServerState(
            algorithm.init_server(self.population), taken, torch.zeros_like(taken)
        )
        self.log: ExchangeLog
        """The exchange that was applied last."""
        self._download_log: Any = None

    def next_order(self) -> Order:
        """Call up the clients of the next exchange and make what they are sent."""
        count, round_ = self.roster.count, self.state.round
        drawn = self.sampling.draw(count, self.cohort_seed, round_)
        clients = torch.as_tensor(drawn, device=self.task.device)
        uploads = torch.ones_like(clients, dtype=torch.bool)
        if self.sampling.protocol == "train-all" or self.algorithm.trains_everyone:
            sampled = clients
            clients = self.everyone
            uploads = torch.isin(clients, sampled)
        return self.order(clients, uploads)

    def order(self, clients: Tensor, uploads: Tensor) -> Order:
        """The next exchange, for a cohort of one's own choice.

        Args:
            clients: (n,) who is called, by number, ascending.
            uploads: (n,) whose upload will be used.
        """
        state = self.state
        record, self._download_log = without_log(
            self.algorithm.download(state.server, self.cohort(clients))
        )
        return Order(
            round=state.round,
            exchange=state.exchange,
            number=self._number,
            clients=clients,
            download=CohortDownload.of(record),
            uploads=uploads,
            taken=state.taken[clients],
        )

    def apply_results(
        self, order: Order, arrivals: Arrivals, seconds: float = 0.0
    ) -> RoundCost | None:
        """Take in what arrived of an exchange.

        Args:
            order: what was sent.
            arrivals: what came back; who is not there is out of the cohort.
            seconds: how long it took.

        Returns:
            The cost of the round if this closes it, else None.
        """
        state, algorithm = self.state, self.algorithm
        arrivals = self._usable(arrivals)
        server_log: Any = Empty()
        server, uploaders = state.server, arrivals.uploaders
        if len(uploaders) or algorithm.releases_always:
            server, server_log = without_log(
                algorithm.aggregate(server, arrivals.uploads, self.cohort(uploaders))
            )
        is_last = state.exchange == algorithm.exchanges - 1
        cost = _cost(order, arrivals, seconds, self.roster.names)
        # Whoever arrived in any exchange of the round was in its cohort; every exchange
        # of a round calls the same clients.
        is_member = torch.isin(order.clients, uploaders)
        is_member |= state.taken[order.clients] >= order.number - state.exchange
        members = order.clients[is_member]
        is_released = len(members) or algorithm.releases_always
        if is_last and is_released and self.closes_rounds:
            cohort = self.cohort(members)
            server = algorithm.end_round(server, cohort)
            models = algorithm.team_models(server, self.task)
            if algorithm.has_team_servers and models is not None:
                rows = models[torch.unique(cohort.teams)]
                share = rows.new_zeros(len(rows), dtype=torch.float64)
                cost.team_bytes_down = len(rows) * message_bytes(TeamDownload(rows))
                cost.team_bytes_up = len(rows) * message_bytes(TeamUpload(rows, share))
        self.log = ExchangeLog(
            state.round,
            state.exchange,
            order.clients,
            self._download_log,
            arrivals.clients,
            arrivals.reports,
            uploaders,
            server_log,
        )
        state.cost.add(cost)
        # In place, when nothing can fail any more: a copy of what is known of everybody
        # would make a round as long as the roster.
        gradients = arrivals.reports.gradients.to(state.work)
        state.work.index_add_(0, arrivals.clients, gradients)
        state.taken.index_fill_(0, uploaders, order.number)
        state.server, state.exchange = server, state.exchange + 1
        if not is_last:
            return None
        cost = state.cost
        state.round, state.exchange, state.cost = state.round + 1, 0, RoundCost()
        return cost

    def _usable(self, arrivals: Arrivals) -> Arrivals:
        """The same without those whose uploads the method cannot use together."""
        uploaders = arrivals.uploaders
        if not len(uploaders):
            return arrivals
        cohort = self.cohort(uploaders)
        reason = self.algorithm.why_unusable(arrivals.uploads, cohort)
        if not reason:
            return arrivals
        refused = tuple(Refusal(client, reason) for client in uploaders.tolist())
        others = arrivals.only(~torch.isin(arrivals.clients, uploaders))
        return replace(others, refused=arrivals.refused + refused)

    def cohort(self, clients: Tensor) -> Cohort:
        """Some clients, by number, as the method's server sees them."""
        return Cohort(
            clients=clients,
            sizes=self.population.sizes[clients],
            teams=self.population.teams[clients],
            round=self.state.round,
            exchange=self.state.exchange,
            population=self.population,
        )

    @property
    def everyone(self) -> Tensor:
        """(M,) the numbers of all clients."""
        return torch.arange(self.roster.count, device=self.task.device)

    def model_request(self, clients: Tensor) -> ModelRequest:
        """What some clients, by number, need to have their models at hand."""
        cohort = replace(self.cohort(clients), exchange=0)
        download = self.algorithm.model_download(self.state.server, cohort)
        return ModelRequest(
            round=self.state.round,
            clients=clients,
            taken=self.state.taken[clients],
            download=CohortDownload.of(download),
        )

    def score_requests(
        self, part: str, clients: Tensor | None = None
    ) -> Iterator[ScoreRequest]:
        """What an evaluation on a part of the data needs.

        One request for everybody, or several where what clients are sent is large.

        Args:
            part: one of `fedloom.core.messages.PARTS`.
            clients: who is scored, by number; everybody by default.
        """
        server = self.state.server
        clients = clients if clients is not None else self.everyone
        shared = self.algorithm.shared(server, self.task)
        teams = self.algorithm.team_models(server, self.task)
        row_bytes = self.model_request(clients[:1]).download.row_bytes
        width = max(1, _REQUEST_BYTES // max(row_bytes, 1))
        for some in torch.split(clients, width):
            asked = vars(self.model_request(some))
            yield ScoreRequest(**asked, part=part, shared=shared, teams=teams)

    def with_client(self, name: str, enrolment: Enrolment) -> Coordinator:
        """The server as if one client more had been there and never been sampled.

        This one is not changed.

        Raises:
            ContractError: The method's server has no room for another client.
        """
        roster = self.roster.with_client(name, enrolment)
        other = Coordinator(
            self.algorithm,
            self.task,
            roster,
            sampling=self.sampling,
            seed=self.seed,
            cohort_seed=self.cohort_seed,
            closes_rounds=self.closes_rounds,
        )
        state = self.state
        other.state = replace(
            state,
            server=self.algorithm.add_client(state.server, other.population),
            taken=torch.cat([state.taken, state.taken.new_tensor([NONE_TAKEN])]),
            work=torch.cat([state.work, state.work.new_zeros(1)]),
        )
        return other

    @property
    def _number(self) -> int:
        """The next exchange, counted over all rounds."""
        return self.state.round * self.algorithm.exchanges + self.state.exchange


def _cost(
    order: Order, arrivals: Arrivals, seconds: float, names: Sequence[str]
) -> RoundCost:
    reports = arrivals.reports
    missing = len(order.clients) - len(arrivals.clients)
    has_arrived = torch.isin(order.clients, arrivals.clients) if missing else None
    # A method may undo a failed step; its loss then counts for nothing.
    total = (reports.loss * reports.steps).nansum().double()
    sums = torch.stack([reports.steps.sum(), reports.gradients.sum(), total])
    steps, gradients, loss = sums.tolist()  # a GPU is waited for once
    return RoundCost(
        participants=len(arrivals.clients),
        missing=missing,
        absent=[] if has_arrived is None else order.clients[~has_arrived].tolist(),
        bytes_down=order.bytes_down + arrivals.sum_bytes_down,
        bytes_up=arrivals.bytes_up,
        steps=int(steps),
        gradients=int(gradients),
        loss=loss / max(steps, 1),
        seconds=seconds,
        refusals=[
            {
                "exchange": order.exchange,
                "name": names[refusal.client],
                **refusal._asdict(),
            }
            for refusal in arrivals.refused
        ],
    )
