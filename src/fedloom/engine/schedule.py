"""From the first round to the last: train, score, secure, and stop when asked to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from fedloom.core.settings import Count, Whole, check
from fedloom.engine import checkpoint
from fedloom.engine.bundle import Bundle
from fedloom.engine.record import History
from fedloom.engine.rounds import Loom, Tally
from fedloom.results.rows import Round


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long a run is, how often it is scored and how often it is secured."""

    rounds: Count = 50
    """Communication rounds."""
    seed: Whole = 0
    """Of the split, the cohorts, the batches and the first model."""
    evaluate_every: Count = 1
    """Rounds between evaluations; the last round is always evaluated."""
    checkpoint_every: Count = 10
    """Rounds between checkpoints; the last round is always kept."""
    warm_start: str | None = None
    """Directory of a run whose shared model is where this one starts."""

    def __post_init__(self) -> None:
        check(self)


class Progress(Protocol):
    """Something that wants to know how a run goes."""

    def start(self, loom: Loom, schedule: Schedule, reason: str) -> None:
        """Training is about to begin; `reason` says why the engine is set up so."""

    def round(self, row: Round) -> None:
        """A round is finished and written."""


def train(
    loom: Loom, schedule: Schedule, history: History, progress: Progress | None = None
) -> None:
    """Go on from wherever the loom is to the last round.

    Ctrl-C lets the exchange under way finish and secures it before it is raised.
    """

    def advance() -> dict[int, Tally]:
        tally = loom.advance()
        return {} if tally is None else {0: tally}

    _drive(advance, lambda: [0], [history], schedule, progress)


def train_together(
    bundle: Bundle,
    schedule: Schedule,
    histories: Sequence[History],
    progress: Progress | None = None,
) -> None:
    """The same for runs in a bundle; one that diverges is recorded as a failure."""

    def advance() -> dict[int, Tally]:
        known = set(bundle.failures)
        closed = bundle.advance()
        for n in bundle.failures.keys() - known:
            directory = histories[n].directory
            if directory is not None:
                directory.write_failure(str(bundle.failures[n]))
        return closed

    _drive(advance, lambda: bundle.going, histories, schedule, progress)


def _drive(
    advance: Callable[[], dict[int, Tally]],
    going: Callable[[], list[int]],
    histories: Sequence[History],
    schedule: Schedule,
    progress: Progress | None,
) -> None:
    """Exchange after exchange until the runs that still go are at the last round."""
    for n in going():
        if not histories[n].rounds:
            histories[n].open_round()
    with _interruptible() as asked_to_stop:
        while going() and _round(histories[going()[0]]) < schedule.rounds:
            closed = advance()
            for n, tally in closed.items():
                number = _round(histories[n])
                is_last = number == schedule.rounds
                has_scores = is_last or number % schedule.evaluate_every == 0
                row = histories[n].close_round(tally, has_scores=has_scores)
                if is_last or number % schedule.checkpoint_every == 0:
                    _secure(histories[n])
                if progress is not None and n == going()[0]:
                    progress.round(row)
            if asked_to_stop():
                for n in going():
                    _secure(histories[n])
                raise KeyboardInterrupt


def _round(history: History) -> int:
    return history.loom.state.round


def _secure(history: History) -> None:
    if history.directory is not None:
        checkpoint.save(history.loom, history.directory.checkpoint)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C into a question asked between exchanges; pressed twice, it stops."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def press(*_: Any) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
