"""What a run promises: its section [privacy], and epsilon by its own account."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedloom.audit.subject import Subject

DELTA = 1e-5
"""The delta of a run that names none."""


@dataclass(frozen=True)
class Promise:
    """Differential privacy as a run has it."""

    unit: str
    """client or sample: who is hidden."""
    at: str
    """Who adds the noise: server, clients or local."""
    delta: float
    epsilon: float | None
    """After the last round, by the run's rows; None if nobody kept an account."""

    @classmethod
    def of(cls, subject: Subject) -> Promise | None:
        """That of a run; None if it promises nothing."""
        table = subject.plan.tables.get("privacy")
        if not table:
            return None
        rows = subject.directory.read_rounds()
        spent = rows[-1].server_log.get("epsilon") if rows else None
        is_known = isinstance(spent, float) and math.isfinite(spent)
        return cls(
            unit=str(table.get("unit", "client")),
            at=str(table.get("at", "server")),
            delta=float(table.get("delta") or DELTA),
            epsilon=spent if is_known else None,
        )

    @property
    def client_epsilon(self) -> float | None:
        """Epsilon, where it is one of clients."""
        return self.epsilon if self.unit == "client" else None

    @property
    def obstacle_to_planting(self) -> str | None:
        """Why no client can be planted; None if some can."""
        if self.at == "server":
            return None
        return (
            "The lower bound of epsilon is left out: a planted client that does not "
            f"take part would not add its noise (privacy.at = {self.at!r}), which the "
            "epsilon of this run does not cover."
        )
