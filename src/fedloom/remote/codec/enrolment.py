"""An enrolment: what a client, or a team's server, says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.core.errors import MessageError
from fedloom.core.messages import NOT_TOLD, Enrolment
from fedloom.core.records import named, tensors_digest
from fedloom.remote.codec.fields import (
    Tensors,
    read_record,
    refuse_others,
    under,
    where_of,
)
from fedloom.remote.codec.moments import Moments
from fedloom.remote.wire import WireMessage, refuse_infinite

TOKEN_BYTES = 32
"""Bytes that a client shows at every enrolment in a run, and that only it knows."""

MOST_SAMPLES = 1 << 40
"""Most samples of a client, or of a team, that a server believes in."""


class Proof(NamedTuple):
    """Client to server, at enrolment: what only this client can show."""

    token: Tensor
    """(TOKEN_BYTES,) the same at every enrolment in a run; a server keeps its digest
    alone."""


class TeamEnrolment(NamedTuple):
    """Team server to global server, beside an enrolment of the team as one client."""

    clients: Tensor
    """How many clients the team has."""


def enrolment_tensors(
    enrolment: Enrolment,
    moments: Mapping[str, Moments],
    token: bytes,
    *,
    team: TeamEnrolment | None = None,
) -> Tensors:
    """What one client says of itself.

    Args:
        enrolment: sizes and team.
        moments: of "inputs" and "targets".
        token: as `fedloom.remote.home.Home.token` gives it.
        team: what a team server says beside it.
    """
    shown_token = torch.frombuffer(bytearray(token), dtype=torch.uint8)
    tensors = under("enrolment", enrolment) | under("proof", Proof(shown_token))
    for name, of_name in moments.items():
        tensors |= under(name, of_name)
    return tensors | ({} if team is None else under("team", team))


class ReadEnrolment(NamedTuple):
    """What a client said of itself."""

    enrolment: Enrolment
    moments: dict[str, Moments]
    proof: str
    """Digest of its token."""
    clients: int
    """How many clients it stands for: 1, or those of a team."""


def read_enrolment(
    message: WireMessage,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    is_team: bool = False,
) -> ReadEnrolment:
    """What a client says of itself, checked.

    Args:
        message: what came.
        shapes: of the moments that are expected: "inputs", "targets".
        is_team: whether it must be a team server.

    Raises:
        MessageError: It is not what was expected.
    """
    where = where_of(message.header)
    parts = ("enrolment", "proof", *shapes, *(["team"] if is_team else []))
    refuse_others(message.tensors, parts, where)
    refuse_infinite(message.tensors, where)
    integer = torch.zeros((), dtype=torch.int64)
    enrolment = read_record(
        message.tensors, "enrolment", Enrolment(*[integer] * 4), where
    )
    numbers = [int(value) for value in enrolment]
    if (
        min(numbers) < NOT_TOLD
        or max(numbers) > MOST_SAMPLES
        or numbers[0] == 0
        or not 0 <= numbers[1] < 1 << 20
    ):
        raise MessageError(
            f"{where}: expected numbers of samples of at most {MOST_SAMPLES}, and of a "
            f"team, found {numbers} (samples, team, validation, test)."
        )
    moments = {}
    for name, shape in shapes.items():
        blank = torch.zeros(shape, dtype=torch.float64)
        moments[name] = read_record(message.tensors, name, Moments(blank, blank), where)
        if bool((moments[name].variance < 0).any()):
            raise MessageError(f"{where}: field '{name}.variance' is below 0.")
    token = Proof(torch.zeros(TOKEN_BYTES, dtype=torch.uint8))
    proof = read_record(message.tensors, "proof", token, where)
    clients = 1
    if is_team:
        sent = read_record(message.tensors, "team", TeamEnrolment(integer), where)
        clients = int(sent.clients)
        if not 1 <= clients < 1 << 31:
            raise MessageError(
                f"{where}: expected a number of clients of the team, found {clients}."
            )
    return ReadEnrolment(enrolment, moments, tensors_digest(named(proof)), clients)
