"""One client, wherever it is: its data, its memory at home, its half of the method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedloom.clients.federation import Federation
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import DataError, MessageError
from fedloom.core.messages import (
    NOT_TOLD,
    Enrolment,
    ModelRequest,
    Order,
    Report,
    ScoreRequest,
)
from fedloom.core.records import take, tensors_digest
from fedloom.core.rounding import Rounding
from fedloom.core.secure_sums import SecureSums
from fedloom.core.task import Task
from fedloom.data.sample_format import SampleFormat
from fedloom.engine.job import Runner
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.fleet.local import LocalFleet
from fedloom.privacy.private import Private
from fedloom.remote.answered import AnsweredModels
from fedloom.remote.codec import (
    Moments,
    RunEnd,
    common_digest,
    enrolment_tensors,
    read_constants,
    read_order,
    read_requests,
    refuse_others,
    result_tensors,
    sums_tensors,
    sums_to_send,
)
from fedloom.remote.home import DamagedMemoryError, Standing
from fedloom.remote.participant import PATIENCE_S, Participant
from fedloom.remote.summands import by_sums
from fedloom.remote.wire import STAGES, Header, WireMessage

if TYPE_CHECKING:
    from fedloom.privacy import OwnNoise
    from fedloom.remote.client_sums import ClientSums
    from fedloom.secure.primitives import SigningKey

FRESH = -1
"""In the place of the number of an exchange: a client that has done none."""


class Node(Participant):
    """A client that answers messages.

    Every order is done once: memory and answer are at home before the answer is sent,
    and an order that was done already is answered with what is stored.

    Args:
        federation: this client and its data, with no other client. Its name is what
            the server calls it, its team what it enrols with.
        algorithm: the method, as the server has it.
        make_task: model and loss for these data, whose constants may be the server's.
        home: folder of the client's own; nothing in it leaves.
        seed: seed of batches and of the noise in local steps, as the server has it.
        runner: what trains; a `Weave` of one by default.
        run: id of the run that it takes part in; any by default.
        tells_sizes: whether the server is told how many samples there are.
        tells_log_odds: whether, with two classes, scores tell how many samples of each
            have which log-odds, in few bins. The server makes the AUC over the samples
            of all clients of it, and sees with few samples what the model says of
            single ones; this client's own AUC is sent in any case.
        begins_anew: whether a client whose memory is gone takes part as one that was
            never here. Methods whose server counts on what clients keep, such as
            SCAFFOLD, are then no longer exact.
        secret: what noise that protects the client is drawn from; by default a number
            that is drawn once and kept at home.
        noise: the source of that noise, where the method draws from one. It is then
            told what the work is, and no exchange is done a second time for another
            order.
        secure: how uploads are summed securely, as the server has it; none sends them
            as they are.
        signing_key: what this client signs with in secure sums; by default a key that
            follows from the secret at home.
        admitted: who may take part in them, by the public halves of these keys; by
            default whoever does.
        is_scored: whether models are scored after so many rounds, by the run's
            settings; with secure sums they are then, and at no other time. None scores
            them whenever a server asks.
        rounds: how many the run has; no later one is done. With a source of noise a
            run keeps to what this was when the client first trained in it. None has no
            end.
    """

    def __init__(
        self,
        federation: Federation,
        algorithm: AnyAlgorithm,
        make_task: Callable[[Federation], Task],
        home: Path,
        *,
        seed: int = 0,
        runner: Runner | None = None,
        run: str | None = None,
        tells_sizes: bool = True,
        tells_log_odds: bool = False,
        begins_anew: bool = False,
        secret: int | None = None,
        noise: OwnNoise | None = None,
        secure: SecureSums | None = None,
        signing_key: SigningKey | None = None,
        admitted: frozenset[bytes] = frozenset(),
        is_scored: Callable[[int], bool] | None = None,
        rounds: int | None = None,
    ) -> None:
        if federation.count != 1:
            raise DataError(f"a node is one client, found {federation.count}.")
        name, task = federation.names[0], make_task(federation)
        super().__init__(name, home, algorithm, task, seed=seed, run=run, secure=secure)
        self.federation = federation
        self.algorithm = algorithm
        self.format = SampleFormat.of(federation.dataset)
        self._make_task = make_task
        self._seed = seed
        # A source draws on the host, which nothing that is vmapped can wait for.
        default: Runner = Weave(1) if noise is None else Loop()
        self._runner = runner if runner is not None else default
        self._noise = noise
        self._rounds = rounds
        self._is_scored = is_scored
        self._answered = AnsweredModels(home)
        self._tells_sizes = tells_sizes
        self._tells_log_odds = tells_log_odds
        self._begins_anew = begins_anew
        self._secret = secret
        self._fleets: dict[tuple[Any, ...], LocalFleet] = {}
        self._sums: ClientSums | None = None
        """This client's half of the secure sums, where anything is sent at all."""
        self._most_samples: float | None = None
        """Training samples that count as 1 in a secure sum; None as long as the server
        has not said it."""
        self._rounding: Rounding | None = None
        """How the last secure sum that this client was called to rounds."""
        if secure is not None and algorithm.needs != "nothing":
            self._sums = self._client_sums(secure, signing_key, admitted)

    def _client_sums(
        self,
        secure: SecureSums,
        signing_key: SigningKey | None,
        admitted: frozenset[bytes],
    ) -> ClientSums:
        from fedloom.remote.client_sums import ClientSums  # they need an extra
        from fedloom.secure.primitives import SigningKey

        if signing_key is None:
            secret = f"{self.home.secret():x}".encode()
            signing_key = SigningKey.from_secret(secret)
        folder = self.home.path
        return ClientSums(folder, secure, self.settings, signing_key, admitted)

    def models(self, run: str) -> Tensor:
        """(k, d) the models that this client's predictions are averaged over.

        With what the server sent last to have them scored. They never leave.

        Raises:
            DataError: The server has not had them scored yet.
            MessageError: What is kept at home was damaged.
        """
        fleet, requests = self.at_hand(run)
        if self.algorithm.has_posterior:
            return fleet.draws(requests[0])[0]
        return fleet.personal(requests[0])

    def at_hand(self, run: str) -> tuple[LocalFleet, list[ScoreRequest]]:
        """This client as it stands in a run, and what asks it for its own model.

        Returns:
            A fleet of one, with the constants of all clients, and a request for every
            part of the data that models are scored on.

        Raises:
            DataError: The server has not had its model scored yet.
            MessageError: What is kept at home was damaged.
        """
        message = self._last_request(run)
        with self.home.hold(run, PATIENCE_S):
            fleet = self._fleet_for(message)
            requests = read_requests(message, self.algorithm, fleet.task)
            self._recall_for(message, requests, fleet)
        return fleet, requests

    def _last_request(self, run: str) -> WireMessage:
        message = self.home.last_request(run)
        if message is None:
            raise DataError(
                f"{self.home.path}: there is no model of the run {run} yet. A client's "
                "model can be used once the server has had it scored."
            )
        return message

    def _enrolment(self, header: Header) -> WireMessage:
        if self._sums is not None:
            self._sums.refuse_second_run(header.run, self.name)
        own, data = self.federation, self.federation.dataset
        sizes = [len(part.indices) for part in own.parts]
        if not self._tells_sizes:
            sizes = [NOT_TOLD] * len(sizes)
        samples, validation, test = map(torch.tensor, sizes)
        team = torch.tensor(int(own.teams[0]))
        values = {"inputs": data.inputs[0], "targets": data.targets}
        moments = {
            name: Moments.of(values[name][torch.from_numpy(own.train.indices)])
            for name in self.format.standardised
        }
        return WireMessage(
            self._header(header, "enrolled", self.format.to_json()),
            enrolment_tensors(
                Enrolment(samples, team, validation, test),
                moments,
                self.home.token(header.run),
            ),
        )

    def _train(self, message: WireMessage, standings: list[Standing]) -> WireMessage:
        header = message.header
        self._refuse_later_round(header)
        members: list[int] = []
        if self._sums is not None:
            members = self._read_call(message, self._sums.settings)
            self._sums.refuse_second_total(header, members)
            self._refuse_little_noise(self._sums.settings, members)
        fleet = self._fleet_for(message)
        beside = () if self._sums is None else ("secure",)
        order = read_order(message, self.algorithm, fleet.task, beside)
        standing = self._standing_before(header, int(order.taken), standings)
        goes_back = bool(standings) and standing is not standings[0]
        if goes_back and header.session <= standings[0].session:
            raise MessageError(
                f"{self.name}: {header.place} is older than what was done, "
                f"{self._place(standings[0].number)}, or is not the one that was done."
            )
        if standing is not None:
            self._refuse_unlike(message, standing.shapes)
        if self._sums is not None:
            self._sums.claim(header.run, self.name)
            self._answered.refuse_other_order(message)
        if self._noise is not None:
            if goes_back:
                raise self._second_release(header)
            self._noise.begin(*self._work(message, standing))
        _recall(fleet, _as_request(order), standing)
        fleet.send(order)
        arrivals = fleet.receive()
        upload = None if arrivals.uploads is None else take(arrivals.uploads, 0)
        report: Report = take(arrivals.reports, 0)
        if not bool(torch.isfinite(report.loss)):
            # Of a step that the method undid; it counts for nothing everywhere.
            report = report._replace(loss=torch.zeros_like(report.loss))
        sent, keys = upload, {}
        if self._sums is not None:
            sent = None
            if upload is not None:
                method = by_sums(self.algorithm, self._most_samples or 1.0)
                common = common_digest(
                    message.tensors,
                    order.download.record,
                    in_team=self.algorithm.needs == "sums per team",
                )
                keys = self._sums.begin(message, method, upload, members, common)
        answer = WireMessage(
            self._header(header, "trained"), result_tensors(report, sent)
        )
        kept = Standing(
            client=header.client,
            number=header.number,
            session=header.session,
            settings=self.settings,
            order=message.content_digest,
            shapes=_shapes(message),
            memory=fleet.save(),
            answer=answer,
        )
        self.home.keep(header.run, kept, replaces=goes_back)
        return WireMessage(answer.header, {**answer.tensors, **keys})

    def _refuse_later_round(self, header: Header) -> None:
        """Refuse a round that the run does not have.

        Raises:
            MessageError: It is one.
        """
        if self._rounds is None:
            return
        rounds = self._rounds
        if self._noise is not None:
            rounds = min(rounds, self.home.agreed_rounds(header.run, rounds))
        if header.round >= rounds:
            why = "Nothing was trained for it."
            if self._noise is not None:
                why = (
                    "Every answer has new noise, and their mean has less: more of them "
                    "tell more of this client's samples than its privacy counts."
                )
            raise MessageError(
                f"{self.name}: expected a round up to {rounds}, the last of the run as "
                f"it began here, found round {header.round + 1}. {why}"
            )

    def _work(self, message: WireMessage, standing: Standing | None) -> Iterator[str]:
        """What an answer follows from: the order, what is kept, and the samples."""
        yield message.content_digest
        yield "" if standing is None else tensors_digest(standing.memory)
        yield self.federation.hash
        yield self.federation.dataset.hash

    def _second_release(self, header: Header) -> MessageError:
        return MessageError(
            f"{self.name}: {header.place} was answered, and is asked for "
            "again with another order. A second answer would tell more of this "
            "client's samples than its privacy counts. Resume the server from a later "
            "checkpoint, or start a new run."
        )

    def _refuse_little_noise(self, secure: SecureSums, members: list[int]) -> None:
        """Refuse a sum that may be opened for fewer clients than have enough noise.

        Raises:
            MessageError: It may.
        """
        if not members or not isinstance(self.algorithm, Private):
            return
        needed, least = secure.needed(len(members)), self.algorithm.noisy_clients
        if needed < least:
            raise MessageError(
                f"{self.name}: a sum of {len(members)} clients may be opened for "
                f"{needed} of them, and it takes {least} to have enough noise "
                "(least_clients in [privacy]). Lower that, or raise the threshold in "
                "[secure]."
            )

    def _read_call(self, message: WireMessage, secure: SecureSums) -> list[int]:
        """Whose summands are added, this client's among them if it is to upload.

        Raises:
            MessageError: Clients are to count by another number than was agreed.
        """
        from fedloom.remote.codec.secure import read_call

        members, most = read_call(message)
        if secure.most_samples not in (None, most):
            raise MessageError(
                f"{self.name}: {message.header.place}: expected a client to "
                f"count no more from {secure.most_samples} samples on (most_samples "
                f"in [secure]), found {most:g} in the order."
            )
        rounding = self._rounding
        if members:
            rounding = secure.rounding(len(members))
        if (most, rounding) != (self._most_samples, self._rounding):
            self._most_samples, self._rounding, self._fleets = most, rounding, {}
        return members

    def _repeat(self, message: WireMessage, done: Standing) -> WireMessage:
        answer = super()._repeat(message, done)
        if self._sums is None or not bool(message.tensors["instruction.uploads"]):
            return answer
        keys = self._sums.again(message)
        return WireMessage(answer.header, {**answer.tensors, **keys})

    def _add(self, message: WireMessage) -> WireMessage:
        if self._sums is None:
            return super()._add(message)
        tensors = self._sums.answer(message)
        kind = STAGES[message.header.kind]
        return WireMessage(self._header(message.header, kind), tensors)

    def _take_end(self, message: WireMessage, end: RunEnd) -> None:
        """Keep the notice once the message is sound, be the memory gone or damaged."""
        run, fleet = message.header.run, self._fleet_for(message)
        with suppress(DamagedMemoryError):
            self._refuse_other_number(message.header, self.home.standings(run))
        if end.why:
            refuse_others(message.tensors, ("constants",), f"{self.name}, 'end'")
            self.home.keep_end(run, *end)
            return
        requests = self._requests(message, fleet)
        self.home.keep_end(run, *end)
        self._recall_for(message, requests, fleet)
        self.home.keep_request(run, message)

    def _turned_away(self, run: str, end: RunEnd) -> None:
        self.home.keep_end(run, *end)

    def _requests(self, message: WireMessage, fleet: LocalFleet) -> list[ScoreRequest]:
        """What a message asks of this client's model, checked."""
        last = self.home.last_request(message.header.run)
        if last is not None:
            self._refuse_unlike(message, _shapes(last))
        return read_requests(message, self.algorithm, fleet.task)

    def _recall_for(
        self, message: WireMessage, requests: list[ScoreRequest], fleet: LocalFleet
    ) -> None:
        """Have a fleet remember what this client kept before these requests."""
        standing = self._standing_before(message.header, int(requests[0].taken))
        _recall(fleet, requests[0], standing)

    def _score(self, message: WireMessage) -> WireMessage:
        header, fleet = message.header, self._fleet_for(message)
        if self._sums is not None:
            self._refuse_unforeseen_score(header)
        requests = self._requests(message, fleet)
        self._recall_for(message, requests, fleet)
        if self._sums is not None:
            self._sums.claim(header.run, self.name)
            self._answered.refuse_other_score(message, fleet.task)
        tells = self._tells_log_odds
        sums = {
            request.part: {
                kind: sums_to_send(of_kind, tells_log_odds=tells)
                for kind, of_kind in fleet.score(request).items()
            }
            for request in requests
        }
        self.home.keep_request(header.run, message)
        return WireMessage(self._header(header, "scored"), sums_tensors(sums))

    def _refuse_unforeseen_score(self, header: Header) -> None:
        """Refuse to score models when the run's settings do not say so.

        Raises:
            MessageError: They do not.
        """
        if self._is_scored is None or self._is_scored(header.round):
            return
        raise MessageError(
            f"{self.name}: was asked to score models {header.place}, when by the "
            "settings of the run none are scored (rounds, evaluate_every and "
            "evaluate_start). With secure sums nothing more is said of single models."
        )

    def _refuse_unlike(self, message: WireMessage, before: dict[str, Any]) -> None:
        """Refuse a message whose tensors are not like those of the one before it."""
        shapes = _shapes(message)
        if shapes != before:
            differ = {n for n in shapes | before if shapes.get(n) != before.get(n)}
            name = min(differ)
            raise MessageError(
                f"{self.name}: this message is not like those before it: {name} should "
                f"be {before.get(name)}, found {shapes.get(name)}."
            )

    def _refuse_other_number(self, header: Header, standings: list[Standing]) -> None:
        """Refuse a message for a client that this one never was in the run."""
        for standing in standings:
            if (standing.client, standing.settings) != (header.client, self.settings):
                raise MessageError(
                    f"{self.name}: the memory of this run was made by client "
                    f"{standing.client} with the settings {standing.settings[:12]!r}, "
                    f"and this is client {header.client} with {self.settings[:12]!r}."
                )

    def _standing_before(
        self, header: Header, taken: int, standings: list[Standing] | None = None
    ) -> Standing | None:
        """Where this client was before an exchange; None if it was never here.

        Raises:
            MessageError: It is not known any more, or belongs to something else.
        """
        if standings is None:
            standings = self.home.standings(header.run)
        self._refuse_other_number(header, standings)
        earlier = [s for s in standings if s.number < header.number]
        last = earlier[0] if earlier else None
        if last is None and standings and header.number > 0:
            raise MessageError(
                f"{self.name}: the server is at {self._place(header.number)}, and this "
                f"client has done {self._place(standings[0].number)} with no memory "
                "from before. Resume the server from a later checkpoint, or start a "
                "new run."
            )
        known = last.number if last is not None else FRESH
        if taken > known and not self._begins_anew:
            raise MessageError(
                f"{self.name}: the server took this client's upload of "
                f"{self._place(taken)}, and its memory "
                + ("is gone" if known == FRESH else f"is that of {self._place(known)}")
                + ". Put the folder of the client back, or let it begin anew: "
                "fedloom join ... --begin-anew."
            )
        return last

    def _fleet_for(self, message: WireMessage) -> LocalFleet:
        """This client as a fleet of one, with the server's number and constants.

        Raises:
            MessageError: The constants do not fit this client's samples.
        """
        constants = read_constants(message, self.format.standardised, self.name)
        made_for = (message.header.client, tensors_digest(constants))
        if made_for not in self._fleets:
            self._fleets = {made_for: self._make_fleet(message.header, constants)}
        return self._fleets[made_for]

    def _make_fleet(self, header: Header, constants: dict[str, Tensor]) -> LocalFleet:
        federation = replace(
            self.federation,
            constants=constants.get("inputs"),
            target_constants=constants.get("targets"),
            # A client is sent the model of its own team alone.
            teams=np.zeros(1, dtype=np.int64),
        )
        task = self._make_task(federation)
        algorithm = self.algorithm
        if self._most_samples is not None:
            algorithm = by_sums(algorithm, self._most_samples, self._rounding)
        return LocalFleet(
            algorithm,
            task,
            federation,
            self._runner,
            seed=self._seed,
            numbers=torch.tensor([header.client], device=task.device),
            can_lose=True,
            secret=self.home.secret() if self._secret is None else self._secret,
        )


def _recall(
    fleet: LocalFleet, request: ModelRequest, standing: Standing | None
) -> None:
    """Have a fleet remember what its client kept; nothing if it was never here."""
    nobody = {"seen": torch.zeros(0, dtype=torch.int64)}
    memory = standing.memory if standing is not None else nobody
    fleet.restore(memory, request, "client memory")


def _as_request(order: Order) -> ModelRequest:
    """What shows the shapes of what a client keeps, from an order."""
    return ModelRequest(order.round, order.clients, order.taken, order.download)


def _shapes(message: WireMessage) -> dict[str, list[Any]]:
    """Type and shape of the tensors of a message, as JSON has them.

    Not of those that call to a secure sum: its clients are others in every round.
    """
    return {
        name: [str(tensor.dtype), list(tensor.shape)]
        for name, tensor in sorted(message.tensors.items())
        if not name.startswith("secure.")
    }
