"""Who answers a server's messages: a client, or a team's server to the global one."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import FedloomError, MessageError
from fedloom.core.secure_sums import SecureSums
from fedloom.core.task import Task
from fedloom.remote.codec import (
    RunEnd,
    agreement,
    disagreement,
    read_end,
    refuse_others,
    settings_digest,
)
from fedloom.remote.enrolment import enrolment_digest
from fedloom.remote.home import Home, Standing
from fedloom.remote.wire import (
    LONGEST_REASON,
    STAGES,
    UNNUMBERED,
    Header,
    Kind,
    WireMessage,
)

_log = logging.getLogger(__name__)
_DOWN = ("enrol", "train", *STAGES, "score", "end")
PATIENCE_S = 24 * 3600.0
"""Longest that a message waits for another one that the same client is still at."""


class Participant(ABC):
    """Answers messages, each kind checked alike before anything is done.

    Args:
        name: what the server calls it.
        home: folder of its own.
        algorithm: what the server runs.
        task: model and loss.
        seed: seed of the run.
        run: id of the run that it takes part in; None if any is right.
        secure: how uploads are summed securely; None if they are not.
    """

    def __init__(
        self,
        name: str,
        home: Path,
        algorithm: AnyAlgorithm,
        task: Task,
        *,
        seed: int,
        run: str | None,
        secure: SecureSums | None = None,
    ) -> None:
        self.name = name
        self.home = Home(home)
        self.settings = settings_digest(algorithm, task, seed, secure)
        """Digest of what it must have the same as the server."""
        self._agreement = agreement(algorithm, seed, secure)
        self._exchanges = algorithm.exchanges
        self._run = run

    def answer(self, message: WireMessage) -> WireMessage:
        """What is answered; a refusal says why what was asked for is not done."""
        answer = self._answer(message)
        self.home.keep_answer(message.header.run, message.header.kind, answer)
        return answer

    def _answer(self, message: WireMessage) -> WireMessage:
        header = message.header
        try:
            self._check(message)
            with self.home.hold(header.run, PATIENCE_S):
                if header.kind == "enrol":
                    self.home.forget_end(header.run)
                    return self._enrolment(header)
                if header.kind == "train":
                    return self._train_once(message)
                if header.kind in STAGES:
                    return self._add(message)
                if header.kind == "score":
                    return self._score(message)
                return self._end(message)
        except FedloomError as error:
            _log.warning("Refused: %s", error)
            # Where its files lie is nobody else's business.
            reason = str(error).replace(str(self.home.path), "its folder")
        except Exception as error:
            # The server goes on without this participant. What an error says may be
            # of its data, so it is said at home alone.
            _log.exception("What the server asked for failed.")
            kind = type(error).__name__
            reason = f"{self.name}: it failed ({kind}); its own log says why."
        return WireMessage(self._header(header, "refused", reason), {})

    @abstractmethod
    def _enrolment(self, header: Header) -> WireMessage:
        """What it says of itself."""

    @abstractmethod
    def _train(self, message: WireMessage, standings: list[Standing]) -> WireMessage:
        """Do an exchange that was not done yet, and keep what came of it."""

    @abstractmethod
    def _score(self, message: WireMessage) -> WireMessage:
        """Score its models."""

    @abstractmethod
    def _take_end(self, message: WireMessage, end: RunEnd) -> None:
        """Keep that the run is over, and what came with it."""

    @abstractmethod
    def _turned_away(self, run: str, end: RunEnd) -> None:
        """Keep that the server did not take it in."""

    def _check(self, message: WireMessage) -> None:
        """Refuse a message that is not for this participant, whatever its kind."""
        header = message.header
        if header.kind not in _DOWN:
            raise MessageError(
                f"{self.name}: expected one of {', '.join(_DOWN)}, found "
                f"{header.kind!r}."
            )
        if self._run is not None and header.run != self._run:
            raise MessageError(
                f"{self.name}: takes part in the run {self._run!r}, and was asked for "
                f"{header.run!r}."
            )
        if header.kind == "enrol":
            differs = disagreement(self._agreement, header.text)
            if differs:
                raise MessageError(
                    f"{self.name}: the server's settings are not its own: {differs}. "
                    "They must be the same on both sides."
                )
        # Nobody has a number yet who enrols, or is not taken in.
        is_before = header.kind == "enrol" or (
            header.kind == "end" and header.client == UNNUMBERED
        )
        settings = "" if is_before else self.settings
        if header.settings != settings:
            raise MessageError(
                f"{self.name}: the server's settings are not its own: their digest is "
                f"{header.settings[:12]!r}, expected {settings[:12]!r}. Method, "
                "settings, model, seed and version of Fedloom must be the same on both "
                "sides."
            )
        name = "" if header.kind == "enrol" else self.name
        if header.name != name or (header.client == UNNUMBERED) != is_before:
            raise MessageError(
                f"{self.name}: this message is for client {header.name!r}, number "
                f"{header.client}."
            )
        if is_before:
            refuse_others(message.tensors, (), f"{self.name}, {header.kind!r}")
        is_exchange = header.kind == "train" or header.kind in STAGES
        most = self._exchanges if is_exchange else 1
        number = header.round * self._exchanges + header.exchange
        if (
            header.exchange >= most
            or number != header.number
            or (is_before and number > 0)
        ):
            raise MessageError(
                f"{self.name}: {header.kind!r} of round {header.round + 1}, exchange "
                f"{header.exchange + 1} cannot be exchange number {header.number + 1} "
                f"of a method with {self._exchanges} a round."
            )

    def _place(self, number: int) -> str:
        """An exchange that is counted over all rounds, in words."""
        round_, exchange = divmod(number, self._exchanges)
        return f"round {round_ + 1}, exchange {exchange + 1}"

    def _header(self, asked: Header, kind: Kind, text: str = "") -> Header:
        return replace(
            asked,
            kind=kind,
            settings=self.settings,
            name=self.name,
            text=text[:LONGEST_REASON] if kind == "refused" else text,
        )

    def _train_once(self, message: WireMessage) -> WireMessage:
        """Do an exchange; one that was done is answered with what is stored."""
        standings = self.home.standings(message.header.run)
        for done in standings:
            if done.order == message.content_digest:
                return self._repeat(message, done)
        return self._train(message, standings)

    def _repeat(self, message: WireMessage, done: Standing) -> WireMessage:
        """Answer an order that was done with what is stored."""
        again = replace(done.answer.header, session=message.header.session)
        return WireMessage(again, done.answer.tensors)

    def _add(self, message: WireMessage) -> WireMessage:
        """Do a stage of a secure sum."""
        raise MessageError(f"{self.name}: takes part in no secure sums.")

    def _end(self, message: WireMessage) -> WireMessage:
        header = message.header
        end, enrolment = read_end(header, self.name)
        if header.client != UNNUMBERED:
            self._take_end(message, end)
        elif enrolment != enrolment_digest(self._enrolment(header)):
            raise MessageError(
                f"{self.name}: what the server refused was not this client as it is "
                "now."
            )
        else:
            self._turned_away(header.run, end)
        return WireMessage(self._header(header, "ended"), {})
