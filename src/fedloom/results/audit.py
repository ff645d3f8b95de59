"""What an audit found: how much of its clients a run gives away to somebody who tries.

Written to audit.json in the directory of the run, and read by reports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedloom.results.statistics import Estimate

FALSE_POSITIVES = 0.01
"""Share of non-members that are taken for members where true positives are counted."""

EXACT = 100.0
"""Decibels beyond which a reconstruction counts as exact."""


UPLOADS = "uploads"
"""What clients send, as the server sees it before it adds noise or drops anybody: one
of what is inverted."""

SHARED = "shared model"
"""What a round moved the shared model by, as all see who get it: the other."""


@dataclass(frozen=True)
class Membership:
    """How well it can be told which samples one kind of model was trained on."""

    kind: str
    """shared or personal."""
    auc: Estimate
    """Chance that a training sample of a client looks more like one than a held-out
    sample of the same client does: mean over clients. One half is guessing."""
    hits: Estimate
    """Share of training samples that are found while `FALSE_POSITIVES` of held-out
    samples are taken for such, over the samples of all clients."""
    control: Estimate
    """The same as `auc` of the reference runs, which know nothing of who is a member of
    this one: one half but for chance, or the attack itself is wrong."""
    clients: tuple[float, ...]
    """The same as `auc` for each client; nan for one without both kinds of samples."""
    members: int
    """Number of training samples."""
    others: int
    """Number of held-out samples."""


@dataclass(frozen=True)
class Planted:
    """A lower bound of epsilon from planted clients."""

    clients: int
    """Number of planted clients, in all runs together."""
    runs: int
    """Number of runs they were planted in."""
    right: int
    """Number of planted clients of whom it was guessed right whether they took part."""
    epsilon: float
    """The lower bound, at client level."""
    level: float
    """How often a bound made like this one is not above the true epsilon."""
    delta: float
    """The delta that belongs to epsilon."""
    ledger: float | None = None
    """Epsilon by the run's own ledger, if it has one of clients."""

    @property
    def refutes_ledger(self) -> bool:
        """Whether more was shown than the ledger allows."""
        return self.ledger is not None and self.epsilon > self.ledger


@dataclass(frozen=True)
class Inversion:
    """How near samples came to be known from what somebody sees of a round."""

    clients: int
    """Number of clients that took part in the round."""
    batch: int
    """Number of samples that each of them trained on."""
    how: str
    """The attack: `closed form` or `cosine`."""
    psnr: float
    """Peak signal-to-noise ratio in decibels, mean over the samples of one client."""
    best: float
    """That of the sample that is known best."""
    guesses: tuple[tuple[float, ...], ...] = ()
    """The reconstructions of some samples, flat, from 0 to 1."""
    seen: str = SHARED
    """`UPLOADS` or `SHARED`; files of before have the latter alone."""


@dataclass(frozen=True)
class Inversions:
    """Several inversions of the same client's samples."""

    client: str
    """Name of the client."""
    shape: tuple[int, ...]
    """Of a sample."""
    features: tuple[str, ...]
    """Names of the columns of a table; empty for pictures."""
    truth: tuple[tuple[float, ...], ...]
    """The samples themselves, flat, from 0 to 1."""
    guess: float
    """Decibels of the mean training sample, which needs no upload."""
    cases: tuple[Inversion, ...]
    """Those by the shared model first."""

    @property
    def is_picture(self) -> bool:
        """Whether a sample can be drawn: (rows, columns) or with 1 or 3 channels."""
        return len(self.shape) == 2 or (
            len(self.shape) == 3 and self.shape[0] in (1, 3)
        )


@dataclass(frozen=True)
class Audit:
    """All that an audit of one run found; None for what was left out."""

    settings: Mapping[str, Any]
    """What it was asked for."""
    references: int
    """Number of reference runs."""
    membership: tuple[Membership, ...]
    planted: Planted | None
    inversions: Inversions | None
    remarks: tuple[str, ...]
    """What was left out and why, and what must be known before believing the rest."""
    seconds: float
    """How long it took."""

    def to_table(self) -> dict[str, Any]:
        """The same as plain values, as JSON has them."""
        table: dict[str, Any] = _plain(asdict(self))
        return table

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Audit:
        """What `to_table` gave.

        Raises:
            KeyError: something is missing.
            TypeError: something is of another kind.
        """
        planted, inversions = table["planted"], table["inversions"]
        return cls(
            settings=dict(table["settings"]),
            references=int(table["references"]),
            membership=tuple(map(_membership, table["membership"])),
            planted=None if planted is None else Planted(**planted),
            inversions=None if inversions is None else _inversions(inversions),
            remarks=tuple(table["remarks"]),
            seconds=float(table["seconds"]),
        )


def _membership(table: Mapping[str, Any]) -> Membership:
    estimates = {name: _estimate(table[name]) for name in ("auc", "hits", "control")}
    clients = tuple(map(_number, table["clients"]))
    return Membership(**{**table, **estimates, "clients": clients})


def _estimate(table: Mapping[str, Any]) -> Estimate:
    ends = {name: _number(table[name]) for name in ("mean", "error", "low", "high")}
    return Estimate(**ends, count=int(table["count"]))


def _inversions(table: Mapping[str, Any]) -> Inversions:
    cases = [
        Inversion(**{**case, "guesses": _rows(case["guesses"])})
        for case in table["cases"]
    ]
    return Inversions(
        client=table["client"],
        shape=tuple(table["shape"]),
        features=tuple(table["features"]),
        truth=_rows(table["truth"]),
        guess=float(table["guess"]),
        cases=tuple(cases),
    )


def _rows(rows: Any) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(float, row)) for row in rows)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it: no number that is not finite."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
