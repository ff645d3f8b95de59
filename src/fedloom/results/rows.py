"""One row per round: what it cost, what it met and what came of it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_NOT_NUMBERS = ("round", "absent", "attackers", "refusals", "server_log", "scores")


@dataclass(frozen=True, kw_only=True)
class Round:
    """A finished round, numbered from 1; row 0 is the start, before any training."""

    round: int
    participants: int = 0
    """Clients that trained and arrived."""
    missing: int = 0
    """Answers of called clients that did not arrive, all exchanges together."""
    absent: list[int] = field(default_factory=list)
    """Whose answers these were: numbers of clients, once for every exchange."""
    attackers: list[int] = field(default_factory=list)
    """Numbers of the clients that were called and attack, as a simulation knows it."""
    train_loss: float | None = None
    """Mean loss that the gradient steps met; None if there were none."""
    steps: int = 0
    """Gradient steps of all clients together."""
    gradients: int = 0
    """Samples that entered a gradient, each as often as it did: the unit of work."""
    bytes_down: int = 0
    """From the server (or the teams) to clients, all of them together."""
    bytes_up: int = 0
    """From clients to the server (or their teams)."""
    team_bytes_down: int = 0
    """From the global server to team servers; 0 without teams."""
    team_bytes_up: int = 0
    """From team servers to the global server."""
    evaluation_bytes_down: int = 0
    """From the server to clients for the scores of this round."""
    evaluation_bytes_up: int = 0
    """Sums that clients sent for them."""
    seconds: float = 0.0
    """Training time, evaluation not counted."""
    refusals: list[dict[str, Any]] = field(default_factory=list)
    """What clients sent that could not be used, or would not do: the exchange, from 0,
    the client's number and name, and the reason."""
    server_log: dict[str, float] = field(default_factory=dict)
    """Scalars that the method recorded of its aggregation."""
    scores: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """`scores[kind][part][number]`; empty for a round that was not evaluated."""

    def as_json(self) -> dict[str, Any]:
        """The row as it is written to rounds.jsonl."""
        return asdict(self)

    def numbers(self) -> dict[str, float]:
        """Every number under one name: `train_loss`, `personal/test/accuracy`."""
        numbers = {
            name: value
            for name, value in asdict(self).items()
            if name not in _NOT_NUMBERS and value is not None
        }
        numbers |= {
            f"server_log/{name}": value for name, value in self.server_log.items()
        }
        for kind, parts in self.scores.items():
            for part, scores in parts.items():
                for name, value in scores.items():
                    numbers[f"{kind}/{part}/{name}"] = value
        return numbers


@dataclass
class RowTail:
    """The rows of a growing file; a line that is still being written waits."""

    path: Path
    rows: list[Round] = field(default_factory=list)
    _offset: int = 0
    _inode: int = -1

    def read(self) -> list[Round]:
        """All rows so far. A file that was replaced or shortened is read anew."""
        try:
            with self.path.open("rb") as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self._inode or now.st_size < self._offset:
                    self.rows, self._offset, self._inode = [], 0, now.st_ino
                file.seek(self._offset)
                text = file.read()
        except OSError:
            return self.rows
        complete = text[: text.rfind(b"\n") + 1]
        rows = map(_parse, complete.splitlines())
        self.rows += [row for row in rows if row is not None]
        self._offset += len(complete)
        return self.rows


def _parse(line: bytes) -> Round | None:
    """The row that a line says; None if it was cut short or says something else."""
    try:
        row = Round(**json.loads(line))
        numbers = row.numbers().values()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    is_row = type(row.round) is int and all(type(n) in (int, float) for n in numbers)
    return row if is_row else None
