"""A team's server: a server to its clients, and a client of the global server.

It answers the global server's messages, and for that moves its own run: a round of the
global server is a round of exchanges with the team's clients. What they send stays
here; what goes up is the team's model, and sums over the team.

    HOME/RUN/order.safetensors      what the global server asked for last
    HOME/RUN/round.json             what the team's last round cost
    HOME/RUN/memory.safetensors     what was answered last
    OUT                             the run of the team, as every server has one

Its checkpoint, written after every exchange, and these files are all that it needs to
go on after a kill: towards the global server and towards its clients, everything is
done once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fedloom.clients.cohorts import TeamSampling
from fedloom.config import RunConfig
from fedloom.core.digests import read_checked_json, write_checked_json
from fedloom.core.errors import MessageError
from fedloom.core.files import atomic_write
from fedloom.core.losses import Loss
from fedloom.core.measures import Sums
from fedloom.core.messages import (
    NOT_TOLD,
    Enrolment,
    Report,
    ScoreRequest,
    TeamUpload,
)
from fedloom.deploy.server import OpenRun, global_tier, open_run
from fedloom.remote import Channel, Header, Policy, WireMessage
from fedloom.remote.codec import (
    RunEnd,
    TeamEnrolment,
    enrolment_tensors,
    joined_sums,
    read_constants,
    read_order,
    read_place,
    read_requests,
    refuse_others,
    result_tensors,
    sums_of_team,
    sums_tensors,
)
from fedloom.remote.home import Standing
from fedloom.remote.participant import Participant
from fedloom.server import checkpoint
from fedloom.server.coordinator import RoundCost

_log = logging.getLogger(__name__)


@contextmanager
def open_team(
    config: RunConfig,
    channel: Channel,
    out: Path,
    *,
    name: str,
    home: Path,
    run: str,
    clients: int,
    policy: Policy | None = None,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
) -> Iterator[TeamServer]:
    """A team's server, once its clients have enrolled, at its last checkpoint.

    Args:
        config: method, model, schedule, sampling and engine, as the global server and
            the clients have them.
        channel: carries messages to and from the team's clients.
        out: directory of the team's run.
        name: what the global server calls the team. Teams are numbered by their names,
            and clients team by team.
        home: folder of the team server's own.
        run: id of the run, the same in all tiers.
        clients: how many clients the team has.
        policy: how long to wait for clients, and for how many.
        model: as for `fedloom.deploy.serve`.
        loss: as for `fedloom.run`.
        head: as for `fedloom.run`.

    Raises:
        ConfigError: The method has no team servers; or as for `fedloom.deploy.serve`.
        MessageError: As for `fedloom.deploy.serve`.
    """
    with open_run(
        config,
        channel,
        out,
        run=run,
        clients=clients,
        tier="team",
        policy=policy,
        model=model,
        loss=loss,
        head=head,
    ) as opened:
        yield TeamServer(config, opened, name=name, home=home)


class TeamServer(Participant):
    """Answers the global server, and moves the team's run for it.

    Args:
        config: the settings of the run.
        opened: the run of the team.
        name: what the global server calls the team.
        home: folder of the team server's own.
    """

    def __init__(
        self, config: RunConfig, opened: OpenRun, *, name: str, home: Path
    ) -> None:
        tier, task = global_tier(config), opened.training.task
        seed, run = config.schedule.seed, opened.fleet.run
        super().__init__(name, home, tier, task, seed=seed, run=run)
        self.opened = opened
        self.training = opened.training
        self.tier = tier
        self._config = config
        self.has_ended = False
        """Whether the global server has said that the run is over."""

    @property
    def is_over(self) -> bool:
        """Whether the last round is done and scored."""
        rows = self.opened.history.rounds
        return bool(rows) and rows[-1].round >= self._config.schedule.rounds

    def _enrolment(self, header: Header) -> WireMessage:
        enrolled = self.opened.fleet.enrolled
        samples, _, validation, test = map(_sum, enrolled.roster.enrolments)
        team = torch.zeros((), dtype=torch.int64)  # its number is not known here
        return WireMessage(
            self._header(header, "enrolled", enrolled.format.to_json()),
            enrolment_tensors(
                Enrolment(samples, team, validation, test),
                enrolled.moments,
                self.home.token(header.run),
                team=TeamEnrolment(torch.tensor(enrolled.roster.count)),
            ),
        )

    def _read_place(self, message: WireMessage) -> Callable[[], None]:
        """Which clients are the team's, and what standardises samples, checked.

        Returns:
            What has the team's run follow it.
        """
        fleet = self.opened.fleet
        total, numbers = read_place(message, fleet.roster.count)
        shapes = fleet.enrolled.format.standardised
        constants = read_constants(message, shapes, self.name)

        def take_place() -> None:
            fleet.first = numbers.start
            fleet.enrolled = replace(fleet.enrolled, constants=constants)
            self.training.coordinator.sampling = TeamSampling(
                **asdict(self._config.sampling), first=numbers.start, total=total
            )

        return take_place

    def _train(self, message: WireMessage, standings: list[Standing]) -> WireMessage:
        header = message.header
        take_place = self._read_place(message)
        order = read_order(_without_place(message), self.tier, self.training.task)
        shared, start = order.download.record.shared, self.training.task.start
        if (shared.shape, shared.dtype) != (start.shape, start.dtype):
            raise MessageError(
                f"{self.name}: the shared model should be {start.dtype} "
                f"{tuple(start.shape)}, found {shared.dtype} {tuple(shared.shape)}."
            )
        begun = self._last_order(header.run)
        if begun is None or begun.header.round < header.round:
            begun = None
        elif begun.content_digest != message.content_digest:
            raise MessageError(
                f"{self.name}: round {header.round + 1} is older than what was begun, "
                f"round {begun.header.round + 1}, or is not the one that was begun."
            )
        take_place()
        if begun is None:
            self._close_round(has_scores=False)
            with atomic_write(self._order(header.run), lasting=True) as part:
                part.write_bytes(message.to_bytes())
        self._run_round(header.round, shared)
        answer = WireMessage(
            self._header(header, "trained"),
            result_tensors(*self._result(header.round)),
        )
        kept = Standing(
            client=header.client,
            number=header.number,
            session=header.session,
            settings=self.settings,
            order=message.content_digest,
            shapes={},
            memory={},
            answer=answer,
        )
        self.home.keep(header.run, kept)
        return answer

    def _run_round(self, round_: int, shared: Tensor) -> None:
        """Do a round with the team's clients, or what is left of it."""
        state = self.training.state
        if (state.round, state.exchange) <= (round_, 0):
            # Whatever is left of a round that the global server gave up stays undone.
            state.server = self.tier.method.with_shared(state.server, shared)
            state.round, state.exchange, state.cost = round_, 0, RoundCost()
        if not self._has_cohort(round_) and state.round == round_:
            state.round += 1
            self._keep_cost(RoundCost())
            self._secure()
        while state.round == round_:
            cost = self.training.run_exchange()
            self.opened.history.record_exchange()
            if cost is not None:
                self._keep_cost(cost)
            self._secure()

    def _has_cohort(self, round_: int) -> bool:
        """Whether anybody of the team is called in a round."""
        coordinator = self.training.coordinator
        sampling, count = coordinator.sampling, coordinator.roster.count
        is_everyone = sampling.protocol == "train-all"
        is_everyone |= self.tier.method.trains_everyone
        return is_everyone or len(sampling.draw(count, coordinator.seed, round_)) > 0

    def _result(self, round_: int) -> tuple[Report, TeamUpload]:
        """What goes up of a round that is done: it follows from what is on the disk."""
        state, task = self.training.state, self.training.task
        number, cost = self._last_cost()
        if (state.round, number) != (round_ + 1, round_ + 1):
            raise MessageError(
                f"{self.name}: round {round_ + 1} was asked for, and the team is after "
                f"round {state.round}. Start the team's server again."
            )
        sizes = self.training.coordinator.population.sizes.double()
        has_part = state.taken >= round_ * self.tier.method.exchanges
        upload = TeamUpload(
            model=self.tier.team_models(state.server, task)[0].cpu(),
            share=((sizes * has_part).sum() / sizes.sum()).cpu(),
        )
        report = Report(
            loss=torch.tensor(cost.loss, dtype=task.dtype),
            steps=torch.tensor(cost.steps),
            gradients=torch.tensor(cost.gradients),
        )
        return report, upload

    def _score(self, message: WireMessage) -> WireMessage:
        header = message.header
        take_place = self._read_place(message)
        asked = read_requests(_without_place(message), self.tier, self.training.task)
        take_place()
        with self._models_of(asked[0]):
            self._close_round(has_scores=True)
            sums = {request.part: self._team_sums(request.part) for request in asked}
        self._secure()
        return WireMessage(self._header(header, "scored"), sums_tensors(sums))

    def _take_end(self, message: WireMessage, end: RunEnd) -> None:
        """Tell the team's clients that the run is over, with the models of its end."""
        run, alike = message.header.run, _without_place(message)
        take_place = self._read_place(message)
        if end.why:
            refuse_others(alike.tensors, ("constants",), f"{self.name}, 'end'")
            self.home.keep_end(run, *end)
            self.opened.fleet.end((), end.why)
        else:
            asked = read_requests(alike, self.tier, self.training.task)[0]
            self.home.keep_end(run, *end)
            take_place()
            with self._models_of(asked):
                self.opened.end()
        self.has_ended = True

    def _turned_away(self, run: str, end: RunEnd) -> None:
        _log.warning("The global server did not take this team in: %s", end.why)

    @contextmanager
    def _models_of(self, asked: ScoreRequest) -> Iterator[None]:
        """The team's server with the models that the global server wants scored."""
        state, method = self.training.state, self.tier.method
        before = state.server, state.round, state.exchange
        if asked.shared is not None:
            state.server = method.with_shared(state.server, asked.shared)
        state.round, state.exchange = max(asked.round, state.round), 0
        try:
            yield
        finally:
            state.server, state.round, state.exchange = before

    def _team_sums(self, part: str) -> dict[str, Sums]:
        """By kind of model, sums over the team's clients, one row."""
        rows: dict[str, list[Sums]] = {}
        for request in self.training.coordinator.score_requests(part):
            for kind, sums in self.opened.fleet.score(request).items():
                rows.setdefault(kind, []).append(sums)
        return {kind: sums_of_team(joined_sums(parts)) for kind, parts in rows.items()}

    def _close_round(self, *, has_scores: bool) -> None:
        """Write the row of the last round, unless it is there.

        Of a round that the team had no part in there is one if it is scored.
        """
        history, state = self.opened.history, self.training.state
        if not history.rounds:
            is_start = (state.round, state.exchange) == (0, 0)
            history.open_round(has_scores=has_scores and is_start)
        number, cost = self._last_cost()
        had_part = number == state.round
        if state.round <= history.rounds[-1].round or not (had_part or has_scores):
            return
        history.close_round(cost if had_part else RoundCost(), has_scores=has_scores)
        if self.is_over:
            history.close_run()

    def _keep_cost(self, cost: RoundCost) -> None:
        table = {"round": self.training.state.round, "cost": asdict(cost)}
        write_checked_json(self._cost, table)

    def _last_cost(self) -> tuple[int, RoundCost]:
        """The last round that was finished, from 1, and what it cost; 0 without one."""
        if not self._cost.is_file():
            return 0, RoundCost()
        table = read_checked_json(self._cost, "a team's round", ("round", "cost"))
        return int(table["round"]), RoundCost(**table["cost"])

    def _secure(self) -> None:
        """Write a checkpoint, after the rows that belong to it."""
        directory = self.opened.directory
        directory.sync()
        checkpoint.save(self.training, directory.checkpoint, directory.rows.extents)

    @property
    def _cost(self) -> Path:
        return self.home.path / self.opened.fleet.run / "round.json"

    def _order(self, run: str) -> Path:
        return self.home.path / run / "order.safetensors"

    def _last_order(self, run: str) -> WireMessage | None:
        file = self._order(run)
        return WireMessage.from_bytes(file.read_bytes()) if file.is_file() else None


def _without_place(message: WireMessage) -> WireMessage:
    """A message as the global server sends it to any client."""
    tensors = {n: t for n, t in message.tensors.items() if not n.startswith("place.")}
    return WireMessage(message.header, tensors)


def _sum(column: Tensor) -> Tensor:
    """Of all clients, if all have told."""
    return torch.tensor(NOT_TOLD) if bool((column == NOT_TOLD).any()) else column.sum()
