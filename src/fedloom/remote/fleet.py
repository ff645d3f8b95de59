"""Clients elsewhere as a fleet: orders go out as messages, answers are checked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError, ContractError
from fedloom.core.measures import PersonalOutcomes, Sums
from fedloom.core.messages import (
    NOT_TOLD,
    PARTS,
    Arrivals,
    ModelRequest,
    Order,
    Refusal,
    Report,
    Roster,
    ScoreRequest,
)
from fedloom.core.policy import Policy
from fedloom.core.records import Empty, leaves, map_record, rebuild, stack
from fedloom.core.secure_sums import SecureSums, refuse_insecure
from fedloom.core.task import Task
from fedloom.core.tiers import GlobalTier
from fedloom.engine.evaluate import sums_of_shared
from fedloom.engine.footprint import untrained_result
from fedloom.engine.job import Samples
from fedloom.engine.work import MostWork, WorkLimits
from fedloom.fleet.local import TRAIN_SCORED
from fedloom.privacy.private import Private
from fedloom.remote.channel import Channel
from fedloom.remote.codec import (
    MOST_SAMPLES,
    RunEnd,
    agreement,
    common_digest,
    end_text,
    joined_sums,
    order_tensors,
    place_tensors,
    read_result,
    read_sums,
    refuse_others,
    request_tensors,
    settings_digest,
    sums_to_send,
    upload_ranges,
)
from fedloom.remote.enrolment import Enrolled
from fedloom.remote.exchange import AddressBook, Exchange
from fedloom.remote.summands import SummandForm, by_sums, most_samples
from fedloom.remote.wire import STAGES, Header, Kind, WireMessage

if TYPE_CHECKING:
    from fedloom.remote.server_sums import ServerSums, Stage

_log = logging.getLogger(__name__)
_LATECOMERS_S = 20.0
"""Longest that the end waits for clients that were never of the run."""


def greeting_for(
    algorithm: AnyAlgorithm,
    *,
    run: str,
    seed: int,
    session: int = 0,
    secure: SecureSums | None = None,
) -> Header:
    """The header of a message that asks a client to enrol.

    Args:
        algorithm: the method.
        run: id of the run.
        seed: seed of the run.
        session: how often the server of this run has been started before.
        secure: how uploads are summed securely; None if they are not.
    """
    text = agreement(algorithm, seed, secure)
    return Header(
        kind="enrol", run=run, settings="", name="", session=session, text=text
    )


class _PreparedExchange(NamedTuple):
    """An order that was sent, and what has come of it."""

    exchange: Exchange | None
    """None where nobody was asked."""
    results: dict[int, tuple[Report, Any]]
    uploaders: set[int]
    at: dict[str, Any]
    """Round, exchange and number of it."""
    sums: ServerSums | None
    """The secure sums of it; None where uploads come as they are."""
    refused: tuple[Refusal, ...]
    """Who was not asked, for a secure sum would have been over too few."""


class RemoteFleet:
    """A run's clients, each reached through a channel.

    Args:
        algorithm: the method.
        task: model and loss, with the constants of all clients.
        enrolled: who there is.
        channel: carries messages.
        run: id of the run.
        seed: seed of the run; the clients must have the same.
        policy: how long to wait, and for how many.
        session: how often the server of this run has been started before.
        first: number of the first client; that of a team's follows from its place.
        secure: how uploads are summed securely; none has them come as they are.
    """

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        task: Task,
        enrolled: Enrolled,
        channel: Channel,
        *,
        run: str,
        seed: int = 0,
        policy: Policy | None = None,
        session: int = 0,
        first: int = 0,
        secure: SecureSums | None = None,
    ) -> None:
        self.run = run
        self.first = first
        self.algorithm = algorithm
        self.task = task
        self.enrolled = enrolled
        self.channel = channel
        self.policy = policy if policy is not None else Policy()
        greeting = greeting_for(
            algorithm, run=run, seed=seed, session=session, secure=secure
        )
        settings = settings_digest(algorithm, task, seed, secure)
        self._header = replace(greeting, settings=settings, text="")
        self.book = AddressBook(
            channel, greeting, settings, enrolled, self.policy.retry_s
        )
        """Where clients can be reached."""
        self._prepared: _PreparedExchange | None = None
        self._began_with: int | None = None
        """The first exchange of this session, which another may have been at."""
        self._scored: tuple[tuple[str, ...], dict[str, dict[str, Sums]]] = (), {}
        self.secure = secure if algorithm.needs != "nothing" else None
        """How uploads are summed securely; None where they are not, or there is nothing
        to sum."""
        self.method: AnyAlgorithm = algorithm
        """The method whose uploads come, for the coordinator: with secure sums, that of
        their totals."""
        if self.secure is not None:
            import_module("fedloom.secure")  # or it says which extra is missing
            refuse_insecure(algorithm)
            self._most = most_samples(algorithm, self.secure, enrolled.roster)
            self.method = by_sums(algorithm, self._most)
        self._ranges = upload_ranges(self.method)
        self._uploads_like: dict[tuple[Any, ...], Any] = {}
        self._sums_like = self._blank_sums()

    @property
    def roster(self) -> Roster:
        """Who there is, as enrolled."""
        return self.enrolled.roster

    @property
    def hashes(self) -> Mapping[str, str]:
        """The settings: clients tell nothing of their data."""
        return {"settings": self._header.settings}

    def send(self, order: Order) -> None:
        """Send each client its part; who does not answer is asked again.

        Clients who are too few for a secure sum are not asked in this exchange.

        Raises:
            ConfigError: There are too few clients for any secure sum, or too many.
        """
        clients = order.clients.tolist()
        at: dict[str, Any] = {
            "round": order.round,
            "exchange": order.exchange,
            "number": order.number,
        }
        uploaders = {
            c for c, is_one in zip(clients, order.uploads, strict=True) if is_one
        }
        if self._began_with is None:
            self._began_with = order.number
        groups, refused = self._groups(sorted(uploaders), order.round)
        left_out = {refusal.client for refusal in refused}
        uploaders -= left_out
        like = self._upload_like(order)
        sums = self._begin_sums(groups, order, like, **at)
        messages = {
            client: self._message(
                "train",
                client,
                order_tensors(order, row) | (sums.call(client) if sums else {}),
                **at,
            )
            for row, client in enumerate(clients)
            if client not in left_out
        }
        if not messages:
            self._prepared = _PreparedExchange(None, {}, uploaders, at, None, refused)
            return
        results: dict[int, tuple[Report, Any]] = {}

        def accept(client: int, message: WireMessage) -> None:
            sends_keys = sums is not None and client in uploaders
            result = read_result(
                message,
                like if client in uploaders and not sends_keys else None,
                self.task.dtype,
                most=self._most_work(client),
                largest_norm=self.policy.largest_norm,
                largest_loss=self._largest,
                ranges=self._ranges,
                beside=("secure",) if sends_keys else (),
            )
            if sums is not None and sends_keys:
                sums.take_keys(client, message)
            results[client] = result

        exchange = Exchange(
            self.book,
            self._policy_for(len(messages), sums.needed if sums else 0),
            messages,
            "trained",
            accept,
            needs_quorum=True,
        )
        exchange.send()
        self._prepared = _PreparedExchange(
            exchange, results, uploaders, at, sums, refused
        )

    def receive(self) -> Arrivals:
        """What came back until the deadline, or until there is a quorum.

        Raises:
            MessageError: There was no quorum in time, or too few for a secure sum.
        """
        prepared, self._prepared = self._prepared, None
        assert prepared is not None, "receive before send"
        refused = prepared.refused
        if prepared.exchange is not None:
            refused += prepared.exchange.wait()
        if prepared.sums is not None:
            return self._sum(prepared, prepared.sums, refused)
        arrived = sorted(prepared.results)
        uploaders = [client for client in arrived if client in prepared.uploaders]
        uploads = [prepared.results[client][1] for client in uploaders]
        return self._arrivals(
            prepared, arrived, uploaders, stack(uploads) if uploads else None, refused
        )

    def _arrivals(
        self,
        prepared: _PreparedExchange,
        arrived: list[int],
        uploaders: list[int],
        uploads: Any,
        refused: tuple[Refusal, ...],
        **sums: Any,
    ) -> Arrivals:
        if not arrived:
            return replace(Arrivals.nobody(self._numbers([])), refused=refused)
        return Arrivals(
            clients=self._numbers(arrived),
            reports=self._here(stack([prepared.results[c][0] for c in arrived])),
            uploaders=self._numbers(uploaders),
            uploads=None if uploads is None else self._here(uploads),
            refused=refused,
            **sums,
        )

    def _groups(
        self, uploaders: list[int], round_: int
    ) -> tuple[dict[int, list[int]], tuple[Refusal, ...]]:
        """By team, or for all together, whose summands are added; and who is too few.

        Raises:
            ConfigError: There are too few in the whole run, or in a whole team.
        """
        if self.secure is None:
            return {}, ()
        teams = self.roster.enrolments.team.tolist()
        if not self._sums_per_team:
            teams = [0] * len(teams)
        groups: dict[int, list[int]] = {}
        for client in uploaders:
            groups.setdefault(teams[client], []).append(client)
        refused: list[Refusal] = []
        for team, clients in sorted(groups.items()):
            reason = self._too_few(self.secure, len(clients))
            if not reason:
                continue
            if self._too_few(self.secure, teams.count(team)):
                raise ConfigError(reason)
            _log.warning(
                "Round %d goes on without %s: %s",
                round_ + 1,
                ", ".join(self.roster.names[client] for client in clients),
                reason,
            )
            refused += [Refusal(c, f"was not asked. {reason}") for c in clients]
            del groups[team]
        return groups, tuple(refused)

    def _too_few(self, secure: SecureSums, clients: int) -> str:
        """Why a sum of so many clients cannot be; empty if it can."""
        try:
            needed = secure.needed(clients)
        except ConfigError as error:
            return str(error)
        least = 1
        if isinstance(self.algorithm, Private):
            least = self.algorithm.noisy_clients
        if needed >= least:
            return ""
        return (
            f"[secure]: a sum of {clients} clients may be opened for {needed} of them, "
            f"and it takes {least} to have enough noise (least_clients in [privacy])."
        )

    @property
    def _sums_per_team(self) -> bool:
        """Whether each team has a secure sum of its own."""
        return self.algorithm.needs == "sums per team"

    def _begin_sums(
        self, groups: Mapping[int, list[int]], order: Order, like: Any, **at: Any
    ) -> ServerSums | None:
        """The secure sums of an exchange, or None."""
        if self.secure is None or not groups:
            return None
        # They need an extra.
        from fedloom.remote.codec.secure import call_tensors
        from fedloom.remote.server_sums import ServerSums

        beside = self._constants() | call_tensors((), self._most)
        places = {client: row for row, client in enumerate(order.clients.tolist())}
        orders = {
            team: common_digest(
                order_tensors(order, places[clients[0]]) | beside,
                order.download.record,
                in_team=self._sums_per_team,
            )
            for team, clients in groups.items()
        }
        header = replace(self._header, kind="train", **at)
        form = SummandForm(self.method, like, self.secure)
        was_under_way = header.session > 0 and order.number == self._began_with
        return ServerSums(
            self.secure,
            header,
            groups,
            form,
            self._most,
            orders,
            may_be_opened=was_under_way,
        )

    def _sum(
        self,
        prepared: _PreparedExchange,
        sums: ServerSums,
        refused: tuple[Refusal, ...],
    ) -> Arrivals:
        """Have the clients who trained add up what they send, and take in the total."""
        at = prepared.at

        def ask(stage: Stage) -> tuple[Refusal, ...]:
            messages = {
                client: self._message(stage.kind, client, tensors, plain=True, **at)
                for client, tensors in stage.tensors.items()
            }
            exchange = Exchange(
                self.book,
                self._policy_for(len(messages), stage.needed),
                messages,
                STAGES[stage.kind],
                stage.accept,
                needs_quorum=True,
            )
            exchange.send()
            return exchange.wait()

        teams = int(self.roster.enrolments.team.max()) + 1
        result = sums.run(ask, self.algorithm, teams)
        others = prepared.results.keys() - prepared.uploaders
        return self._arrivals(
            prepared,
            sorted(others | set(result.summed)),
            result.summed,
            result.total,
            refused + result.refused,
            sum_bytes_down=sums.bytes_down,
            sum_bytes_up=sums.bytes_up,
        )

    def _policy_for(self, asked: int, needed: int) -> Policy:
        """How long to wait for so many of those who are asked."""
        if needed <= self.policy.needed(asked):
            return self.policy
        return replace(self.policy, quorum=(needed - 0.5) / asked)

    def client_log(self, clients: Tensor) -> Any:
        """Nothing: logs stay with the clients."""
        return Empty()

    def score(self, request: ScoreRequest) -> dict[str, Sums]:
        """The sums of those who are asked; zeros for who does not answer.

        Clients are scored on all parts of their data at once: one exchange is enough
        for an evaluation.
        """
        parts = [p for p in PARTS if self.roster.has(p) or p == request.part]
        messages = self._model_messages("score", request, parts)
        asked = tuple(message.content_digest for message in messages.values())
        if asked != self._scored[0]:
            like = self._kinds_like(request)
            self._scored = asked, self._score_all(messages, like, parts)
        return self._scored[1][request.part]

    def _score_all(
        self, messages: dict[int, WireMessage], like: dict[str, Sums], parts: list[str]
    ) -> dict[str, dict[str, Sums]]:
        """The sums of those who are asked, by part and kind of model."""
        answers: dict[int, dict[str, dict[str, Sums]]] = {}

        def accept(client: int, message: WireMessage) -> None:
            samples = {part: self._most_samples(client, part) for part in parts}
            answers[client] = read_sums(message, like, samples, largest=self._largest)

        exchange = Exchange(
            self.book, self.policy, messages, "scored", accept, needs_quorum=False
        )
        exchange.send()
        for refusal in exchange.wait():
            name = self.roster.names[refusal.client]
            _log.warning("%s was not scored: %s", name, refusal.reason)
        nothing = dict.fromkeys(parts, like)
        rows = [answers.get(client, nothing) for client in messages]
        return {
            part: {
                kind: joined_sums([row[part][kind] for row in rows]) for kind in like
            }
            for part in parts
        }

    def end(self, requests: Iterable[ScoreRequest], why: str = "") -> tuple[str, ...]:
        """Tell the clients that the run is over, with what their models are made of.

        Args:
            requests: for everybody's model; none where there is nothing to be had.
            why: what ended the run, if it is not its last round.

        Returns:
            The names of those who have not answered; they miss the notice alone.
        """
        text = end_text(RunEnd(self.roster.count, why))
        parts = [part for part in PARTS if self.roster.has(part)]
        messages: dict[int, WireMessage] = {}
        for request in requests:
            messages |= self._model_messages("end", request, parts, text=text)
        for client in range(self.roster.count):
            if client not in messages:
                messages[client] = self._message("end", client, {}, text=text)
        informed: set[int] = set()

        def accept(client: int, message: WireMessage) -> None:
            refuse_others(message.tensors, (), "'ended'")
            informed.add(client)

        soon = replace(
            self.policy,
            deadline_s=self.policy.end_s,
            retry_s=min(self.policy.retry_s, self.policy.end_s / 3),
        )
        exchange = Exchange(
            self.book,
            soon,
            messages,
            "ended",
            accept,
            needs_quorum=False,
        )
        exchange.send()
        for refusal in exchange.wait():
            _log.warning("%s: %s", self.roster.names[refusal.client], refusal.reason)
        self.book.refuse_latecomers(min(_LATECOMERS_S, self.policy.end_s))
        return tuple(
            name for n, name in enumerate(self.roster.names) if n not in informed
        )

    def outcomes(self, request: ScoreRequest) -> PersonalOutcomes | None:
        """None: samples stay with the clients."""
        return None

    def personal(self, request: ModelRequest) -> Tensor:
        """Refused: personal models stay with the clients."""
        raise ContractError(
            "personal models stay with the clients of a federation. Each client finds "
            "its own in its folder."
        )

    def draws(self, request: ModelRequest) -> Tensor:
        """Refused: personal models stay with the clients."""
        return self.personal(request)

    def save(self) -> dict[str, Tensor]:
        """Nothing: clients keep their memory at home."""
        return {}

    def restore(
        self, tensors: dict[str, Tensor], request: ModelRequest, where: str
    ) -> None:
        """Nothing to take back."""

    def _model_messages(
        self, kind: Kind, request: ScoreRequest, parts: list[str], **header: Any
    ) -> dict[int, WireMessage]:
        """By client, what its own model is made of."""
        teams = self.roster.enrolments.team.tolist()
        return {
            client: self._message(
                kind,
                client,
                request_tensors(request, row, teams[client], parts),
                round=request.round,
                number=request.round * self.algorithm.exchanges,
                **header,
            )
            for row, client in enumerate(request.clients.tolist())
        }

    def _message(
        self,
        kind: Kind,
        client: int,
        tensors: dict[str, Tensor],
        *,
        plain: bool = False,
        **at: Any,
    ) -> WireMessage:
        """A message to a client; a plain one has nothing beside its tensors."""
        name = self.roster.names[client]
        number = self.first + client
        header = replace(self._header, kind=kind, client=number, name=name, **at)
        if plain:
            return WireMessage(header, tensors)
        team_sizes = self.enrolled.team_sizes
        if team_sizes:
            tensors |= place_tensors(team_sizes, client)
        tensors |= self._constants()
        return WireMessage(header, {n: t.detach().cpu() for n, t in tensors.items()})

    def _constants(self) -> dict[str, Tensor]:
        """What standardises samples, as it goes beside every order and request."""
        constants = self.enrolled.constants.items()
        return {f"constants.{name}": values for name, values in constants}

    def _upload_like(self, order: Order) -> Any:
        """What an upload of an order looks like, on the host."""
        down = order.download.take(0).record
        shapes = tuple((leaf.dtype, leaf.shape) for leaf in leaves(down))
        if shapes not in self._uploads_like:
            upload = untrained_result(self.method, self.task, down)[1]
            blank = [torch.zeros_like(leaf, device="cpu") for leaf in leaves(upload)]
            self._uploads_like[shapes] = rebuild(upload, blank)
        return self._uploads_like[shapes]

    def _blank_sums(self) -> Sums:
        """What a client sends of one model, one row of zeros."""
        nothing = Ragged.of([np.arange(0)])
        blank = Federation(
            dataset=self.enrolled.format.blank(),
            train=Ragged.of([np.arange(1)]),
            validation=nothing,
            test=nothing,
            names=("nobody",),
            teams=np.zeros(1, dtype=np.int64),
        )
        samples = Samples.of(blank, blank.test, self.task.device)
        sums = sums_of_shared(self.task, self.task.start, samples)
        return sums_to_send(sums, tells_log_odds=True)

    @cached_property
    def _work_limits(self) -> WorkLimits:
        """What an exchange of the method takes; of a global tier's, each of a team."""
        method = self.algorithm
        method = method.method if isinstance(method, GlobalTier) else method
        return WorkLimits.of(method, self.task, self.enrolled.format.blank())

    @property
    def _largest(self) -> float:
        """Most that a loss may be, or what a sample adds to a score without a limit."""
        largest = self.policy.largest_norm
        return largest if self.task.metric == "accuracy" else largest**2

    def _clients_of(self, client: int) -> int:
        """How many clients one stands for: 1, or those of a team."""
        sizes = self.enrolled.team_sizes
        return sizes[client] if sizes else 1

    def _most_work(self, client: int) -> MostWork:
        """What a client's report can say at most."""
        number = int(self.roster.enrolments.samples[client])
        samples = MOST_SAMPLES if number == NOT_TOLD else number
        steps, gradients = self._work_limits.most(samples, self._clients_of(client))
        if isinstance(self.algorithm, GlobalTier):
            exchanges = self.algorithm.method.exchanges
            steps, gradients = steps * exchanges, gradients * exchanges
        return MostWork(steps, gradients)

    def _most_samples(self, client: int, part: str) -> int:
        """How many samples of a part a client can have been scored on."""
        column = "samples" if part == "train" else part
        number = int(getattr(self.roster.enrolments, column)[client])
        most = MOST_SAMPLES if number == NOT_TOLD else number
        if part == "train":
            most = min(most, TRAIN_SCORED * self._clients_of(client))
        return most

    def _kinds_like(self, request: ScoreRequest) -> dict[str, Sums]:
        kinds = {
            "shared": request.shared is not None,
            "team": request.teams is not None,
            "personal": True,
            "averaged": self.algorithm.has_posterior,
        }
        return {kind: self._sums_like for kind, is_there in kinds.items() if is_there}

    def _numbers(self, clients: list[int]) -> Tensor:
        return torch.tensor(clients, dtype=torch.int64, device=self.task.device)

    def _here(self, record: Any) -> Any:
        return map_record(lambda tensor: tensor.to(self.task.device), record)
