"""How a server comes to know its clients: names, sizes, teams, and samples."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from hmac import compare_digest

import torch
from torch import Tensor

from fedloom.core.digests import text_digest
from fedloom.core.errors import MessageError
from fedloom.core.messages import Roster
from fedloom.core.policy import Policy
from fedloom.core.records import stack, tensors_digest
from fedloom.data.sample_format import SampleFormat
from fedloom.remote.channel import POLL_S, Address, Channel, Delivery
from fedloom.remote.codec import (
    Moments,
    ReadEnrolment,
    RunEnd,
    end_text,
    read_enrolment,
)
from fedloom.remote.wire import LONGEST_REASON, Header, WireMessage

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A client that has answered."""

    delivery: Delivery
    format: SampleFormat
    sent: ReadEnrolment

    @property
    def address(self) -> Address:
        return self.delivery.sender


@dataclass(frozen=True, eq=False)
class Enrolled:
    """The clients of a run as they enrolled."""

    roster: Roster
    """In the order of names; a client's number is its place here."""
    format: SampleFormat
    """What everybody's samples are like."""
    constants: dict[str, Tensor]
    """What standardises "inputs" and "targets", (2, ...) each."""
    addresses: dict[int, Address] = field(default_factory=dict)
    """By number, where clients can be reached."""
    proofs: tuple[str, ...] = ()
    """By number, the digest of the token that each client showed; empty where none is
    known, as in a run that began without them."""
    moments: dict[str, Moments] = field(default_factory=dict)
    """What `constants` follow from: of "inputs" and "targets", over all clients."""
    team_sizes: tuple[int, ...] = ()
    """By number, how many clients each team has, if the clients are team servers."""
    is_one_team: bool = False
    """Whether the server is a team's, whose clients are in its team whatever they say.
    """

    def is_same(self, client: int, address: Address, proof: str) -> bool:
        """Whether who answers from an address is the client that enrolled.

        It shows the same token, or is where the client was: a carrier that
        authenticates its nodes gives an address to one key alone.
        """
        known = self.proofs[client] if self.proofs else ""
        is_there = str(self.addresses.get(client)) == str(address)
        return not known or is_there or compare_digest(known, proof)


def enrol(
    channel: Channel,
    header: Header,
    count: int,
    policy: Policy,
    settings_of: Callable[[SampleFormat], str],
    *,
    known: Enrolled | None = None,
    of_teams: bool = False,
) -> Enrolled:
    """Ask everybody who can be reached to enrol, until there are enough.

    Who goes away meanwhile is forgotten. What samples are like is for most clients to
    say, once it is clear what most of them have; the others are told what differs.

    Args:
        channel: carries messages.
        header: of the messages, of the kind "enrol".
        count: how many clients the run has.
        policy: how long to wait.
        settings_of: the digest that a client's settings must have, for its samples.
        known: the clients of a run that goes on: it is they who are waited for, and a
            quorum of them is enough.
        of_teams: whether the clients are team servers.

    Raises:
        MessageError: Too few came in time, or they do not fit together.
    """
    names = set(known.roster.names) if known is not None else set()
    enough = policy.needed(count) if known is not None else count
    candidates: dict[str, _Candidate] = {}
    asked: dict[Address, float] = {}
    refusals: list[str] = []
    end = time.monotonic() + policy.patience_s
    soon = time.monotonic() + policy.deadline_s
    while len(candidates) < count:
        now = time.monotonic()
        if now > end or (
            now > soon and known is not None and len(candidates) >= enough
        ):
            break
        again = now - policy.retry_s
        reached = list(channel.addresses())
        for name in [n for n, c in candidates.items() if c.address not in reached]:
            _log.info("%s has gone before the run began.", name)
            asked.pop(candidates.pop(name).address, None)
        there = {c.address for c in candidates.values()}
        fresh = [
            address
            for address in reached
            if address not in there and asked.get(address, -1e18) < again
        ]
        asked |= dict.fromkeys(fresh, now)
        channel.send((address, WireMessage(header, {})) for address in fresh)
        for delivery in channel.receive(POLL_S):
            if is_farewell(delivery):
                continue
            try:
                name, candidate = _candidate(
                    delivery, header, settings_of, of_teams=of_teams
                )
                _refuse_odd(name, candidate, candidates, known)
            except MessageError as error:
                refusals.append(str(error))
                _log.warning("A client was refused: %s", error)
                turn_away(channel, delivery, header, str(error))
                continue
            candidates[name] = candidate
            for odd, difference in _unlike_most(candidates, count).items():
                reason = f"{odd}: its samples are not like most others': {difference}."
                refusals.append(reason)
                _log.warning("A client was refused: %s", reason)
                turn_away(channel, candidates.pop(odd).delivery, header, reason)
            if name in candidates:
                _log.info("%s has enrolled (%d of %d).", name, len(candidates), count)
    if len(candidates) < enough:
        raise MessageError(_too_few(candidates, count, names, refusals, policy))
    if known is not None:
        numbers = {name: n for n, name in enumerate(known.roster.names)}
        addresses = {numbers[name]: c.address for name, c in candidates.items()}
        proofs = list(known.proofs or [""] * known.roster.count)
        for name, candidate in candidates.items():
            proofs[numbers[name]] = candidate.sent.proof
        return replace(known, addresses=addresses, proofs=tuple(proofs))
    return _in_order(candidates, of_teams=of_teams)


def read_rejoin(
    delivery: Delivery, header: Header, known: Enrolled, settings: str
) -> int:
    """The number of a client of the run that has answered from a new address.

    Args:
        delivery: what it answered.
        header: what it was asked with.
        known: the clients of the run.
        settings: the digest that its settings must have.

    Raises:
        MessageError: It is not one of the run's clients, or not as it was.
    """
    of_teams = bool(known.team_sizes)
    name, candidate = _candidate(
        delivery, header, lambda _: settings, of_teams=of_teams
    )
    _refuse_odd(name, candidate, {}, known)
    return known.roster.names.index(name)


def turn_away(channel: Channel, delivery: Delivery, asked: Header, why: str) -> None:
    """Tell a client that enrolled, and is not taken in, why; others need no word."""
    message = delivery.message
    if message is None or message.header.kind != "enrolled":
        return
    text = end_text(RunEnd(0, why[:LONGEST_REASON]), enrolment_digest(message))
    header = replace(asked, kind="end", name=message.header.name, text=text)
    channel.send([(delivery.sender, WireMessage(header, {}))])


def enrolment_digest(message: WireMessage) -> str:
    """Of what a client said of itself; it may come back with other data."""
    return text_digest(message.header.text) + tensors_digest(message.tensors)


def is_farewell(delivery: Delivery) -> bool:
    """Whether a client that was turned away has heard of it."""
    return delivery.message is not None and delivery.message.header.kind == "ended"


def _candidate(
    delivery: Delivery,
    asked: Header,
    settings_of: Callable[[SampleFormat], str],
    *,
    of_teams: bool,
) -> tuple[str, _Candidate]:
    message = delivery.message
    if message is None:
        raise MessageError(f"{delivery.sender}: {delivery.reason}")
    header = message.header
    if header.kind == "refused":
        raise MessageError(header.text)
    expected = replace(
        asked,
        kind="enrolled",
        settings=header.settings,
        name=header.name,
        text=header.text,
    )
    if header != expected:
        names = [field.name for field in fields(Header)]
        name = next(n for n in names if getattr(header, n) != getattr(expected, n))
        raise MessageError(
            f"{header.name or delivery.sender}: expected an enrolment whose {name} is "
            f"{getattr(expected, name)!r}, found {getattr(header, name)!r}."
        )
    if not header.name:
        raise MessageError(f"{delivery.sender}: expected a name, found none.")
    format_ = SampleFormat.from_json(header.text)
    try:
        settings = settings_of(format_)
    except Exception as error:
        # Whatever one client says, the others go on.
        raise MessageError(
            f"{header.name}: there is no model for its samples: {error}"
        ) from error
    if header.settings != settings:
        raise MessageError(
            f"{header.name}: the digest of its settings is {header.settings[:12]!r}, "
            f"the server's is {settings[:12]!r}. Method, settings, model, seed and "
            "version of Fedloom must be the same on both sides."
        )
    sent = read_enrolment(message, format_.standardised, is_team=of_teams)
    return header.name, _Candidate(delivery, format_, sent)


def _refuse_odd(
    name: str,
    candidate: _Candidate,
    candidates: dict[str, _Candidate],
    known: Enrolled | None,
) -> None:
    """Refuse a client that does not fit those who are there already."""
    other = candidates.get(name)
    if (
        other is not None
        and other.address != candidate.address
        and not compare_digest(other.sent.proof, candidate.sent.proof)
    ):
        raise MessageError(
            f"{name}: two clients go by this name. Give each a name of its own."
        )
    if known is None:
        return
    difference = known.format.difference(candidate.format)
    if difference:
        raise MessageError(
            f"{name}: its samples are not like those of the run: {difference}."
        )
    if name not in known.roster.names:
        raise MessageError(
            f"{name}: is not one of this run's clients, who were all there before it "
            "began. It can take part in the next run."
        )
    number = known.roster.names.index(name)
    before = [int(column[number]) for column in known.roster.enrolments]
    now = [int(value) for value in candidate.sent.enrolment]
    if known.is_one_team:
        now[1] = before[1]
    if known.team_sizes:
        # Which number a team has is for the global server to say.
        before[1], now[1] = known.team_sizes[number], candidate.sent.clients
    if before != now:
        teams = "clients" if known.team_sizes else "number of the team"
        titles = ("training samples", teams, "validation samples", "test samples")
        changed = [
            f"{title} {was} then and {is_} now"
            for title, was, is_ in zip(titles, before, now, strict=True)
            if was != is_
        ]
        raise MessageError(
            f"{name}: is not as it was when it enrolled: {', '.join(changed)}. Put its "
            "data back as they were."
        )
    if not known.is_same(number, candidate.address, candidate.sent.proof):
        raise MessageError(
            f"{name}: expected the client that enrolled by this name, found one that "
            f"cannot show it, at {candidate.address}. Start it with the folder that it "
            "enrolled with, or give it a name of its own in a new run."
        )


def _unlike_most(candidates: dict[str, _Candidate], count: int) -> dict[str, str]:
    """By name, in what a client's samples are not like those of most; often nobody's.

    It is known what most have when more than half of the clients of a run agree, or
    when all are there; of two formats with as many clients the first counts.
    """
    votes = Counter(candidate.format for candidate in candidates.values())
    ((format_, most),) = votes.most_common(1)
    if 2 * most <= count and len(candidates) < count:
        return {}
    return {
        name: format_.difference(candidate.format)
        for name, candidate in candidates.items()
        if candidate.format != format_
    }


def _in_order(candidates: dict[str, _Candidate], *, of_teams: bool) -> Enrolled:
    """Clients in the order of their names, and what standardises their samples."""
    names = sorted(candidates, key=_place)
    chosen = [candidates[name] for name in names]
    sent = [c.sent for c in chosen]
    enrolments = stack([s.enrolment for s in sent])
    if of_teams:
        enrolments = enrolments._replace(team=torch.arange(len(names)))
    roster = Roster(tuple(names), enrolments)
    sizes = roster.sizes(torch.float64)
    moments = {
        name: Moments.pooled([s.moments[name] for s in sent], sizes)
        for name in chosen[0].format.standardised
    }
    return Enrolled(
        roster,
        chosen[0].format,
        {name: of_name.constants for name, of_name in moments.items()},
        addresses={n: c.address for n, c in enumerate(chosen)},
        proofs=tuple(s.proof for s in sent),
        moments=moments,
        team_sizes=tuple(s.clients for s in sent) if of_teams else (),
    )


def _place(name: str) -> tuple[bool, int, str]:
    """Names that are numbers go by number and come first, as in a simulation."""
    is_number = name.isascii() and name.isdigit()
    return not is_number, int(name) if is_number else 0, name


def _too_few(
    candidates: dict[str, _Candidate],
    count: int,
    names: set[str],
    refusals: list[str],
    policy: Policy,
) -> str:
    missing = sorted(names - candidates.keys())
    text = (
        f"enrolment: {len(candidates)} of {count} clients came within "
        f"{policy.patience_s:g} s ({', '.join(sorted(candidates)) or 'nobody'})."
    )
    if missing:
        text += f" Missing: {', '.join(missing)}."
    if refusals:
        text += f" Refused: {' '.join(dict.fromkeys(refusals))}"
    return text + " Start the missing clients, and then the server again."
