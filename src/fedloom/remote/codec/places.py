"""Between tiers: which clients are a team's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.core.errors import MessageError
from fedloom.remote.codec.fields import Tensors, read_record, under, where_of
from fedloom.remote.wire import WireMessage


class TeamPlace(NamedTuple):
    """Global server to team server, with every message: which clients are the team's.

    Clients have numbers over all teams, so that cohorts and random streams are those of
    one server for all.
    """

    first: Tensor
    """Number of the team's first client; the others follow."""
    total: Tensor
    """How many clients all teams have."""


def place_tensors(team_sizes: Sequence[int], team: int) -> Tensors:
    """What one team server is sent with every message.

    Args:
        team_sizes: how many clients each team has, by number.
        team: its number.
    """
    place = TeamPlace(
        first=torch.tensor(sum(team_sizes[:team])),
        total=torch.tensor(sum(team_sizes)),
    )
    return under("place", place)


def read_place(message: WireMessage, clients: int) -> tuple[int, range]:
    """How many clients all teams have, and the numbers of those of one.

    Args:
        message: what came.
        clients: how many the team has.

    Raises:
        MessageError: It is not what its type declares.
    """
    integer = torch.zeros((), dtype=torch.int64)
    where = where_of(message.header)
    place = read_record(message.tensors, "place", TeamPlace(integer, integer), where)
    first, total = int(place.first), int(place.total)
    if not 0 <= first <= total - clients:
        raise MessageError(
            f"{where}: expected a place for {clients} clients, found {first} of "
            f"{total}."
        )
    return total, range(first, first + clients)
