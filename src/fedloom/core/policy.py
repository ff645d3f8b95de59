"""How long a server waits, for how many, and what it takes from a client."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedloom.core.settings import Positive, Share, check

LARGEST_NORM = 1e9
"""Longest tensor of an upload, by its Euclidean norm, that a server takes."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How long a server waits, for how many, and what it takes from a client."""

    deadline_s: Positive = 600.0
    """Seconds after which an exchange goes on without those who have not answered, if
    a quorum has."""
    quorum: Share = 0.5
    """Share of the called clients whose answers an exchange needs."""
    patience_s: Positive = 3600.0
    """Seconds after which a server that waits for clients, at the start or for a
    quorum, stops with a message. What was finished is kept."""
    retry_s: Positive = 60.0
    """Seconds after which who has not answered is asked again; a client that has done
    the work answers with what it has stored."""
    end_s: Positive = 120.0
    """Seconds that a server whose run is over waits until all clients know."""
    largest_norm: Positive = LARGEST_NORM
    """Longest tensor of an upload, by its Euclidean norm, that is taken; and the
    largest loss of a sample, its square where numbers are predicted."""

    def __post_init__(self) -> None:
        check(self)

    def needed(self, called: int) -> int:
        """How many of the called clients must answer; at least one."""
        return max(1, math.ceil(self.quorum * called))
