"""Who attacks, and how: section [attack] of a simulation's file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedloom.clients.counts import round_share
from fedloom.core.errors import ConfigError
from fedloom.core.settings import (
    Count,
    Interval,
    Positive,
    Rate,
    Whole,
    check,
    refuse_idle,
)
from fedloom.core.streams import generator
from fedloom.robust import attacks

Kind = Literal[
    "none",
    "label-flip",
    "sign-flip",
    "little-is-enough",
    "inner-product",
    "backdoor",
]

_OF_BACKDOOR = ("target", "marked", "mark_size")
"""Settings of that attack alone."""
_FACTORS = {"sign-flip": 3.0, "inner-product": 10.0}
"""How hard attackers push by default; that of `little-is-enough` follows from how many
they are."""


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Some clients lie, for simulations: who they are, and what they do.

    Attackers are never scored: all scores of such a run are those of the others.
    """

    kind: Kind = "none"
    """What attackers do. `label-flip`: they train on wrong labels, classes - 1 - label.
    `sign-flip`: they send the opposite of what they learnt. `little-is-enough`: the
    mean of the others, off by a little. `inner-product`: the opposite of the mean of
    the others. `backdoor`: they train on images with a mark in a corner, labelled
    `target`; how often a marked test image is taken for it is scored as `backdoor`."""
    attackers: Annotated[float, Interval(least=0.0, below=1.0)] | Count = 0.2
    """Share of all clients that attack, or their number if it is a whole one; drawn by
    the seed once for the run."""
    factor: Positive | None = None
    """How hard attackers push: what is sent is multiplied by it (`sign-flip`, 3 by
    default; `inner-product`, 10), or how many standard deviations it is off
    (`little-is-enough`; by default the most with which they pass for ordinary)."""
    target: Whole = 0
    """The class that the mark of `backdoor` should stand for."""
    marked: Rate = 0.5
    """Share of its training images that an attacker marks, for `backdoor`."""
    mark_size: Count = 2
    """Side of the square mark in pixels, in the lower right corner, for `backdoor`."""

    def __post_init__(self) -> None:
        check(self)
        if not self:
            names = ("attackers", "factor", *_OF_BACKDOOR)
            why, advice = "without a kind of attack", "set kind"
            refuse_idle(self, names, why, label="Attack", advice=advice)
        if self.kind != "backdoor":
            why, advice = f"with kind = {self.kind!r}", "set kind = 'backdoor'"
            refuse_idle(self, _OF_BACKDOOR, why, label="Attack", advice=advice)
        if self.factor is not None and not self.changes_uploads:
            raise ConfigError(
                f"Attack: factor is for attacks on what is sent, found {self.kind!r}, "
                "which is an attack on data. Leave factor out."
            )

    def __bool__(self) -> bool:
        return self.kind != "none"

    @property
    def changes_uploads(self) -> bool:
        """Whether attackers change what they send, and not what they train on."""
        return self.kind in ("sign-flip", "inner-product", "little-is-enough")

    def draw(self, clients: int, seed: int) -> NDArray[np.int64]:
        """The attackers, by number, ascending; if there is an attack, at least one.

        Raises:
            ConfigError: nobody is left to be honest.
        """
        if not self:
            return np.zeros(0, dtype=np.int64)
        count = self.attackers
        if isinstance(count, float):
            count = max(round_share(count, clients), 1)
        if count >= clients:
            raise ConfigError(
                f"attack: {count} attackers among {clients} clients leave nobody who "
                "is honest and can be scored. Lower attack.attackers, or take more "
                "clients."
            )
        chosen = generator(seed, "attackers").choice(clients, count, replace=False)
        return np.sort(chosen).astype(np.int64)

    def rows(self, own: Tensor, honest: Tensor) -> Tensor:
        """(f, d) what attackers send.

        Args:
            own: (f, d) what they would have sent.
            honest: (n - f, d) what the others send; not empty.
        """
        factor = _FACTORS.get(self.kind, 1.0) if self.factor is None else self.factor
        if self.kind == "sign-flip":
            return attacks.sign_flip(own, factor)
        if self.kind == "inner-product":
            return attacks.inner_product(honest, factor).expand_as(own)
        if self.factor is None:
            factor = attacks.unseen_factor(len(own) + len(honest), len(own))
        return attacks.little_is_enough(honest, factor).expand_as(own)
