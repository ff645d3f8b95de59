"""Sums: what a method needs of its clients' uploads, and how long each part may be.

Most methods use uploads through sums alone. Such a method says what one client adds to
them, its summand, and what the server makes of the totals:

    total = sum over the cohort of summand(upload, down, client)
    server = from_sum(server, total, cohort)

and that equals `aggregate`. Whatever only lets sums through then serves every such
method: a bound with noise (differential privacy), a robust rule in the place of the
sum, a sum that the server learns without its terms.

A vector in a summand is u = trained minus downloaded, times the client's weight w: it
is short, and zero stands for a client that is not there. Every field is a `Vector`, a
`Share`, a `Square` or a `Weight`, so that it can be bounded by its type.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

import torch
from torch import Tensor

from fedloom.core.records import leaves, rebuild, take

T = TypeVar("T")

Needs = Literal["nothing", "sums", "sums per team", "single models"]
"""What a server needs of the uploads of a round. `sums per team`: a total for each
team, where the server knows who is in which."""


class Bound(NamedTuple):
    """How a field of a summand is bounded: in the Euclidean norm of all its numbers."""

    kind: Literal["vector", "share", "weight", "square"]
    """`vector`: to a norm that whoever bounds it says. `share`: its numbers are 0 or
    more and their norm is at most 1. `weight`: the same, and it follows from the number
    of training samples alone, so that its sum can be foreseen. `square`: 0 or more, and
    at most the square of the norm of vectors."""
    setting: str | None = None
    """The method's setting without which a share has no bound; none if it has one."""


Vector = Annotated[T, Bound("vector")]
"""A change of parameters, times the weight of its client: `Vector[Tensor]`."""

Share = Annotated[T, Bound("share")]
"""Numbers from 0 to 1 that follow from a client's data: `Share[Tensor]`."""

Square = Annotated[T, Bound("square")]
"""The squared length of a client's change, times its weight: `Square[Tensor]`."""

Weight = Annotated[T, Bound("weight")]
"""How much a client counts: 1, or its training samples. Where sizes are capped, the
size that a summand is given is a share of the cap, and so is this."""


def bounds(kind: type[Any]) -> dict[str, Bound]:
    """How each field of a type of summand is bounded."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: next(m for m in hints[name].__metadata__ if isinstance(m, Bound))
        for name in kind._fields
    }


@cache
def average_record(fields: tuple[str, ...]) -> type[Any]:
    """The summand of a method that needs the weighted means of these fields."""
    make: Any = NamedTuple  # whose fields a type checker wants to read
    changes = [(field, Vector[Tensor]) for field in fields]
    kind: Any = make("Average", [*changes, ("weight", Weight[Tensor])])
    kind.__doc__ = "How far the client moved what it was sent, times its weight."
    # A class that no module holds goes to another process by what it is made of.
    kind.__reduce__ = lambda self: (_average, (fields, *self))
    record: type[Any] = kind
    return record


def _average(fields: tuple[str, ...], *values: Tensor) -> Any:
    return average_record(fields)(*values)


def over(total: Tensor, weight: Tensor) -> Tensor:
    """A total divided by a weight; zero where nobody counts.

    Args:
        total: (...) or, for several weights, (k, ...).
        weight: a scalar, or (k,).
    """
    counts = weight > 0
    divisor = torch.where(counts, weight, 1.0)
    shape = weight.shape + (1,) * (total.dim() - weight.dim())
    return torch.where(
        counts.reshape(shape), total / divisor.to(total.dtype).reshape(shape), 0.0
    )


def add(rows: T) -> T:
    """The sums of a record's rows, each tensor over its first dimension."""
    return rebuild(rows, [row.sum(0) for row in leaves(rows)])


def add_by_team(rows: Any, teams: Tensor, count: int) -> Any:
    """(count, ...) the sums of each team's rows; zero for a team without any."""
    return rebuild(
        rows,
        [
            row.new_zeros((count, *row.shape[1:])).index_add(0, teams, row)
            for row in leaves(rows)
        ],
    )


def only_present(rows: T, sizes: Tensor) -> T:
    """The rows of clients that have training samples; the others count for nothing."""
    present = sizes > 0
    return rows if bool(present.all()) else take(rows, present)
