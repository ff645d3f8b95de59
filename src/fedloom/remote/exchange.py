"""One exchange with clients elsewhere: ask, ask again, check, know when to go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from fedloom.core.errors import MessageError
from fedloom.core.messages import Refusal
from fedloom.core.policy import Policy
from fedloom.remote.channel import POLL_S, Address, Channel, Delivery
from fedloom.remote.enrolment import Enrolled, is_farewell, read_rejoin, turn_away
from fedloom.remote.wire import UNNUMBERED, Header, Kind, WireMessage

_log = logging.getLogger(__name__)
_NEVER = -1e18
_REMEMBERED = 32
"""Answers of a client, the last ones, that are known when they come once more."""


class AddressBook:
    """Where the clients of a run can be reached.

    Args:
        channel: carries messages.
        header: of messages that ask a stranger to enrol.
        settings: the digest that a client's settings must have.
        enrolled: the clients of the run.
        retry_s: seconds after which a stranger is asked again.
    """

    def __init__(
        self,
        channel: Channel,
        header: Header,
        settings: str,
        enrolled: Enrolled,
        retry_s: float,
    ) -> None:
        self.channel = channel
        self.names = enrolled.roster.names
        self.addresses = dict(enrolled.addresses)
        """By number."""
        self._header = header
        self._settings = settings
        self._enrolled = enrolled
        self._retry_s = retry_s
        self._greeted: dict[Address, float] = {}
        self._undecided: set[Address] = set()
        """Strangers who have not answered, or not heard that they are refused."""
        self._heard: dict[int, dict[str, str]] = {}
        """By client and digest of an answer, the digest of what it answered."""

    def has_heard(self, client: int, answer: WireMessage, asked: WireMessage) -> bool:
        """Whether an answer has come before, to something else than what is asked now.

        Who is asked twice answers twice, and the second may come late.
        """
        heard = self._heard.get(client, {}).get(answer.content_digest)
        return heard is not None and heard != asked.content_digest

    def remember(self, client: int, answer: WireMessage, asked: WireMessage) -> None:
        """Know an answer, whether it was taken in or refused, if it comes once more."""
        heard = self._heard.setdefault(client, {})
        heard.setdefault(answer.content_digest, asked.content_digest)
        while len(heard) > _REMEMBERED:
            del heard[next(iter(heard))]

    def greet(self, now: float) -> None:
        """Ask who is at addresses that no client is known to have."""
        known = set(self.addresses.values())
        strangers = [
            address
            for address in self.channel.addresses()
            if address not in known
            and now - self._greeted.get(address, _NEVER) > self._retry_s
        ]
        self._greeted |= dict.fromkeys(strangers, now)
        self._undecided.update(strangers)
        self.channel.send((a, WireMessage(self._header, {})) for a in strangers)

    def client_at(self, sender: Address) -> int | None:
        """The number of the client at an address; None if it is nobody's."""
        of_address = {address: n for n, address in self.addresses.items()}
        return of_address.get(sender)

    def rejoin(self, delivery: Delivery) -> int | None:
        """Take a stranger's answer for a client of the run that has come back.

        Returns:
            Its number; None if it is refused.
        """
        message = delivery.message
        if message is None or message.header.kind != "enrolled":
            self._undecided.discard(delivery.sender)
        if is_farewell(delivery):
            return None
        try:
            client = read_rejoin(delivery, self._header, self._enrolled, self._settings)
        except MessageError as error:
            _log.warning("A client was refused: %s", error)
            turn_away(self.channel, delivery, self._header, str(error))
            return None
        _log.info("%s is back.", self.names[client])
        self.addresses[client] = delivery.sender
        self._undecided.discard(delivery.sender)
        return client

    def refuse_latecomers(self, patience_s: float) -> None:
        """At the end of a run, let those who have just come know that they are not in.

        Args:
            patience_s: how long to wait until all of them know.
        """
        end = time.monotonic() + patience_s
        self.greet(time.monotonic())
        while time.monotonic() < end:
            if not self._undecided.intersection(self.channel.addresses()):
                break
            for delivery in self.channel.receive(POLL_S):
                if self.client_at(delivery.sender) is None:
                    self.rejoin(delivery)


class Exchange:
    """Messages to some clients, and their answers.

    Args:
        book: where clients can be reached.
        policy: how long to wait, and for how many.
        messages: by client, what it is sent.
        kind: what an answer is.
        accept: takes in an answer; a `MessageError` says why it cannot be used.
        needs_quorum: whether to wait for a quorum after the deadline.
    """

    def __init__(
        self,
        book: AddressBook,
        policy: Policy,
        messages: Mapping[int, WireMessage],
        kind: Kind,
        accept: Callable[[int, WireMessage], None],
        *,
        needs_quorum: bool,
    ) -> None:
        self._book = book
        self._policy = policy
        self._messages = messages
        self._kind = kind
        self._accept = accept
        self._needed = policy.needed(len(messages)) if needs_quorum else 0
        self._pending = set(messages)
        self._answers: dict[int, str] = {}
        """By client, the digest of the answer that was taken in."""
        self._refused: list[Refusal] = []
        self._sent_at: dict[int, float] = {}
        self._started = time.monotonic()

    def send(self) -> None:
        """Send to whoever has not answered and was not asked lately."""
        now, addresses = time.monotonic(), self._book.addresses
        due = [
            client
            for client in sorted(self._pending & addresses.keys())
            if now - self._sent_at.get(client, _NEVER) > self._policy.retry_s
        ]
        self._sent_at |= dict.fromkeys(due, now)
        self._book.channel.send((addresses[c], self._messages[c]) for c in due)

    def wait(self) -> tuple[Refusal, ...]:
        """Take in answers until all are there, or it is time to go on.

        Returns:
            What was refused.

        Raises:
            MessageError: There was no quorum in time.
        """
        policy, longest = self._policy, self._policy.deadline_s
        if self._needed:
            longest = max(longest, policy.patience_s)
        has_told = False
        while self._pending:
            self._book.greet(time.monotonic())
            self.send()
            for delivery in self._book.channel.receive(POLL_S):
                client = self._book.client_at(delivery.sender)
                if client is not None:
                    self._take(client, delivery)
                elif (client := self._book.rejoin(delivery)) is not None:
                    self._sent_at.pop(client, None)
            waited = time.monotonic() - self._started
            has_quorum = len(self._answers) >= self._needed
            if waited > longest or (waited > policy.deadline_s and has_quorum):
                break
            if waited > policy.deadline_s and not has_told:
                has_told = True
                self._tell_who_is_missing(longest - waited)
        if len(self._answers) < self._needed:
            raise self._no_quorum()
        return tuple(self._refused)

    def _take(self, client: int, delivery: Delivery) -> None:
        """Take in what came from a client, or record why it cannot be used."""
        if client not in self._messages or _answers_greeting(delivery):
            return  # what was not asked for changes nothing
        message, asked = delivery.message, self._messages[client]
        if message is not None:
            if self._book.has_heard(client, message, asked):
                return
            self._book.remember(client, message, asked)
        try:
            answer = _checked(delivery, asked.header, self._kind)
            if client in self._pending:
                self._accept(client, answer)
                self._answers[client] = answer.content_digest
            elif self._answers.get(client) != answer.content_digest:
                raise MessageError(
                    "it answered twice, and not the same; the first counts."
                )
        except MessageError as error:
            name = self._book.names[client]  # which whoever shows it says already
            refusal = Refusal(client, str(error).removeprefix(f"{name}: "))
            if message is None or refusal not in self._refused:
                self._refused.append(refusal)
            if isinstance(error, _OtherExchangeError):
                return  # what was asked for may still come
        self._pending.discard(client)

    def _tell_who_is_missing(self, left_s: float) -> None:
        """Say for whom an exchange waits that does not go on without them."""
        header, names = next(iter(self._messages.values())).header, self._book.names
        _log.warning(
            "%s (%s): %s of %s clients have answered, and %s are needed. Waiting for "
            "%s, for %.0f s more (--patience-s); then the run stops, and goes on when "
            "it is started again.",
            header.place,
            header.kind,
            len(self._answers),
            len(self._messages),
            self._needed,
            ", ".join(names[client] for client in sorted(self._pending)) or "nobody",
            left_s,
        )

    def _no_quorum(self) -> MessageError:
        header, names = next(iter(self._messages.values())).header, self._book.names
        absent = sorted(self._messages.keys() - self._answers.keys())
        reasons = dict.fromkeys(f"{names[c]}: {text}" for c, text in self._refused)
        return MessageError(
            f"{header.place}: {len(self._answers)} of {len(self._messages)} clients "
            f"answered, and {self._needed} are needed (quorum "
            f"{self._policy.quorum:g}). Missing: "
            f"{', '.join(names[client] for client in absent)}."
            + (f" Refused: {' '.join(reasons)}" if reasons else "")
        )


class _OtherExchangeError(MessageError):
    """An answer to another exchange than the one under way."""


def _answers_greeting(delivery: Delivery) -> bool:
    """Whether a client that was asked twice to enrol has answered the second time."""
    if delivery.message is None:
        return False
    header = delivery.message.header
    return header.client == UNNUMBERED and header.kind in ("enrolled", "refused")


def _place(header: Header) -> tuple[int, ...]:
    """Where in a run a message belongs."""
    return header.round, header.exchange, header.number, header.session


def _words(header: Header) -> str:
    """The same in words."""
    return (
        f"{header.place} (number {header.number + 1} of the run, start "
        f"{header.session + 1} of the server)"
    )


def _checked(delivery: Delivery, asked: Header, kind: Kind) -> WireMessage:
    """A client's answer, its header compared with what it was asked.

    Raises:
        MessageError: It is damaged, a refusal, or an answer to something else.
    """
    message = delivery.message
    if message is None:
        raise MessageError(delivery.reason)
    header = message.header
    is_there = _place(header) == _place(asked)
    is_refusal = is_there and header.kind == "refused"
    # Who cannot use its data or settings at all refuses without a name or settings.
    own = ("run", "client") if is_refusal else ("run", "settings", "name", "client")
    for name in own:
        if getattr(header, name) != getattr(asked, name):
            raise MessageError(
                f"its {name} is {getattr(header, name)!r}, expected "
                f"{getattr(asked, name)!r}."
            )
    if is_refusal:
        raise MessageError(header.text or "it refused without a reason.")
    if not is_there or header.kind != kind:
        raise _OtherExchangeError(
            f"it sent {header.kind!r} of {_words(header)}, expected {kind!r} of "
            f"{_words(asked)}."
        )
    return message
