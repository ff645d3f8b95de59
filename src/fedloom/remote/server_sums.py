"""The server's half of the secure sums of one exchange: stage by stage, and the total.

One sum over all who upload, or one for each team.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import MessageError
from fedloom.core.messages import Refusal
from fedloom.core.records import map_record, stack
from fedloom.core.secure_sums import SecureSums
from fedloom.core.summed import Total
from fedloom.remote.client_sums import make_plan
from fedloom.remote.codec.fields import Tensors
from fedloom.remote.codec.secure import (
    SEALED_PAIR_BYTES,
    call_tensors,
    lists_tensors,
    read_keys,
    read_masked,
    read_rows,
    read_signature,
    rows_tensors,
)
from fedloom.remote.summands import SummandForm
from fedloom.remote.wire import Header, Kind, WireMessage
from fedloom.secure.plan import KEYS_BYTES
from fedloom.secure.primitives import SIGNATURE_BYTES
from fedloom.secure.server import SumServer
from fedloom.secure.shamir import SHARE_BYTES

_log = logging.getLogger(__name__)


class Stage(NamedTuple):
    """One stage of the sums under way."""

    kind: Kind
    tensors: dict[int, Tensors]
    """By client, what it is sent."""
    needed: int
    """How many must answer."""
    accept: Callable[[int, WireMessage], None]
    """Takes in an answer."""


class Result(NamedTuple):
    """What came of the sums of an exchange."""

    total: Total | None
    """None where an earlier session of the server may have had it."""
    summed: list[int]
    """Whose summands are in it, by number."""
    refused: tuple[Refusal, ...]


class ServerSums:
    """The secure sums of one exchange.

    Args:
        settings: of the run's secure sums.
        header: of messages of the exchange.
        groups: by team, whose summands are added, by number; a single one for a sum
            over everybody.
        form: how summands lie in a vector.
        most: training samples that count as 1 where clients count by samples.
        orders: by team, digest of what its clients are asked alike.
        may_be_opened: whether clients can have opened the exchange for an earlier
            session of the server: it is the one that this session began with.

    Raises:
        ConfigError: A sum has too few clients, or too many, or its numbers do not fit.
    """

    def __init__(
        self,
        settings: SecureSums,
        header: Header,
        groups: Mapping[int, Sequence[int]],
        form: SummandForm,
        most: float,
        orders: Mapping[int, str],
        *,
        may_be_opened: bool = False,
    ) -> None:
        self._may_be_opened = may_be_opened
        self._where = f"{header.place}: "
        self._form = form
        self._most = most
        self._codes = {
            team: form.code(settings.bits_for(len(clients)))
            for team, clients in groups.items()
        }
        self._sums = {
            team: SumServer(
                make_plan(
                    settings,
                    header.run,
                    header.settings,
                    header.number,
                    clients,
                    form.length,
                    orders[team],
                )
            )
            for team, clients in groups.items()
        }
        self._sum_of = {c: self._sums[team] for team, cs in groups.items() for c in cs}
        self.bytes_down = 0
        """What clients were sent in the stages."""
        self.bytes_up = 0
        """What they answered in them, and their keys."""
        self._opened: set[int] = set()
        """Who has opened this exchange for an earlier session of the server."""

    @property
    def needed(self) -> int:
        """How many clients must be there at every stage."""
        return sum(sum_.plan.threshold for sum_ in self._sums.values())

    def call(self, client: int) -> Tensors:
        """What an order says to a client of its sum."""
        sum_ = self._sum_of.get(client)
        return call_tensors(sum_.plan.clients if sum_ else (), self._most)

    def take_keys(self, client: int, message: WireMessage) -> None:
        """Take in what came beside a report.

        Raises:
            MessageError: It is not this client's keys for this sum, or it says that it
                has opened a sum that there was not.
        """
        keys, is_opened = read_keys(message)
        if is_opened and not self._may_be_opened:
            raise MessageError(
                "it says that it has opened this exchange for an earlier start of the "
                "server, and in no earlier start was the exchange under way."
            )
        self._sum_of[client].take_keys(client, keys)
        self.bytes_up += KEYS_BYTES
        if is_opened:
            self._opened.add(client)

    def run(
        self,
        ask: Callable[[Stage], tuple[Refusal, ...]],
        algorithm: AnyAlgorithm,
        teams: int,
    ) -> Result:
        """All stages, and the total.

        Those who opened the exchange before, for an earlier session of the server, help
        to the very same total and to no other. Where all have opened it, it is opened
        again; where so few have that there was no total, the others make one. Else the
        server may have had it, and was killed before it had written what came of it:
        then the exchange counts for nothing.

        Args:
            ask: does a stage, and gives what was refused.
            algorithm: the method.
            teams: how many there are.

        Raises:
            MessageError: Too few clients were there to the end.
        """
        refused: tuple[Refusal, ...] = ()
        try:
            self._leave_out_spent()
            for stage in self._stages():
                self.bytes_down += sum(map(_size, stage.tensors.values()))
                refused += ask(stage)
            summed = [client for sum_ in self._sums.values() for client in sum_.alive]
            total = self._total(algorithm, teams)
            return Result(total, sorted(summed), refused + self._unfit())
        except MessageError as error:
            reason = str(error).removeprefix(self._where)
            if not self._opened:
                raise MessageError(
                    f"{self._where}there is no secure sum, and no single upload was "
                    f"seen. {reason}{_listed(refused)}"
                ) from error
            _log.warning(
                "A secure sum was opened before the server was started again, and is "
                "not opened for other clients: the exchange counts for nothing. %s",
                error,
            )
            return Result(None, [], refused + self._lost(reason))

    def _lost(self, reason: str) -> tuple[Refusal, ...]:
        """Why nobody's upload of this exchange counts, for everybody who sent keys."""
        opened = ", ".join(map(str, sorted(self._opened)))
        text = (
            "its upload was not used. The sum of this exchange was opened for an "
            f"earlier start of the server, as client {opened} says, and is opened for "
            f"no others: the exchange counts for nothing. {reason}"
        )
        there = {c for sum_ in self._sums.values() for c in sum_.keys} | self._opened
        return tuple(Refusal(client, text) for client in sorted(there))

    def _unfit(self) -> tuple[Refusal, ...]:
        """Whose shares could not be used, though the total was opened without them."""
        unfit: dict[int, list[int]] = {}
        for sum_ in self._sums.values():
            unfit |= sum_.unfit
        for holder, owners in sorted(unfit.items()):
            _log.warning("%sclient %d: %s", self._where, holder, _unfit_reason(owners))
        return tuple(Refusal(c, _unfit_reason(o)) for c, o in sorted(unfit.items()))

    def _leave_out_spent(self) -> None:
        """Leave out who has opened the exchange, if the others are enough.

        Raises:
            MessageError: They are not.
        """
        for sum_ in self._sums.values():
            fresh = sum_.keys.keys() - self._opened
            if fresh and len(fresh) < len(sum_.keys):
                sum_.plan.refuse_few(fresh, "have not opened it before")
                sum_.keys = {client: sum_.keys[client] for client in fresh}

    def _stages(self) -> Iterator[Stage]:
        """The stages after the keys; each is to be done before the next is asked for.

        Raises:
            MessageError: Too few are still there, before anything is opened.
        """
        sums, of = self._sums.values(), self._sum_of

        def stage(
            kind: Kind, clients: Callable[[SumServer], Any], make: Any, take: Any
        ) -> Stage:
            for sum_ in sums:
                sum_.plan.refuse_few(clients(sum_), "are still there")
            tensors = {c: make(sum_, c) for sum_ in sums for c in clients(sum_)}

            def accept(client: int, message: WireMessage) -> None:
                take(of[client], client, message)
                self.bytes_up += _size(message.tensors)

            return Stage(kind, tensors, self.needed, accept)

        yield stage(
            "share",
            lambda s: s.keys,
            lambda s, c: rows_tensors(s.keys, KEYS_BYTES),
            lambda s, c, m: s.take_shares(c, read_rows(m, SEALED_PAIR_BYTES)),
        )
        yield stage(
            "mask",
            lambda s: s.shares,
            lambda s, c: rows_tensors(s.shares_for(c), SEALED_PAIR_BYTES),
            lambda s, c, m: s.take_masked(c, read_masked(m, s.plan.length)),
        )
        yield stage(
            "agree",
            lambda s: s.alive,
            lambda s, c: lists_tensors(s.alive, s.dead),
            lambda s, c, m: s.take_signature(c, read_signature(m)),
        )
        yield stage(
            "open",
            lambda s: s.signatures,
            lambda s, c: rows_tensors(s.signatures, SIGNATURE_BYTES),
            lambda s, c, m: s.take_opened(c, read_rows(m, SHARE_BYTES)),
        )

    def _total(self, algorithm: AnyAlgorithm, teams: int) -> Total:
        """What the method's server takes in."""
        records = {}
        for team, sum_ in self._sums.items():
            numbers = self._codes[team].decode(sum_.total())
            records[team] = self._form.rebuild(numbers)
        if algorithm.needs != "sums per team":
            (record,) = records.values()
            return Total(record)
        nothing = map_record(torch.zeros_like, next(iter(records.values())))
        return Total(stack([records.get(team, nothing) for team in range(teams)]))


def _unfit_reason(owners: Sequence[int]) -> str:
    """What is wrong with the shares that a client has opened."""
    listed = ", ".join(map(str, owners))
    return (
        "what it opened does not fit what the others did: either it opened other "
        f"shares than it had, or they were sealed wrong for it by client {listed}. The "
        "total was opened without them."
    )


def _listed(refused: Sequence[Refusal]) -> str:
    """Refusals as the end of a message."""
    reasons = dict.fromkeys(f"client {client}: {why}" for client, why in refused)
    return f" Refused before: {' '.join(reasons)}" if reasons else ""


def _size(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of a message's tensors."""
    return sum(tensor.nbytes for tensor in tensors.values())
