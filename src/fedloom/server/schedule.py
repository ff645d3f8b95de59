"""From the first round to the last: train, score, secure, and stop when asked to."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from fedloom.core.errors import NumericalError
from fedloom.core.settings import Count, Positive, Seed, check
from fedloom.results.rows import Round
from fedloom.server import checkpoint
from fedloom.server.coordinator import RoundCost
from fedloom.server.history import History
from fedloom.server.simulation import Simulation, SimulationBundle


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long a run is, how often it is scored and how often it is secured."""

    rounds: Count = 50
    """Number of communication rounds."""
    seed: Seed = 0
    """Seed of the split, the cohorts, the batches and the first model."""
    evaluate_every: Count = 1
    """Number of rounds between evaluations; the last round is always evaluated."""
    evaluate_start: bool = False
    """Whether the models are also evaluated before the first round, as round 0."""
    evaluate_train: bool = False
    """Whether every evaluation scores training data too; the first evaluation before
    any round and the last one do in any case, and all do where none is held out."""
    evaluate_clients: Count | None = None
    """Number of clients that an evaluation scores: a random sample, drawn once from
    the seed and the same in every round and for every method. "none" scores all."""
    checkpoint_every: Count = 10
    """Number of rounds between checkpoints; the last round is always kept."""
    checkpoint_minutes: Positive | None = 10.0
    """Age in minutes at which a checkpoint gets a successor in any case, at the end of
    an exchange."""
    warm_start: str | None = None
    """Directory of a run whose shared model is where this one starts."""

    def __post_init__(self) -> None:
        check(self)

    def is_scored(self, rounds: int) -> bool:
        """Whether models are scored after so many rounds."""
        if rounds == 0:
            return self.evaluate_start
        is_last = rounds == self.rounds
        return is_last or (rounds < self.rounds and rounds % self.evaluate_every == 0)


ENDS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""Signals that ask a process to end, apart from Ctrl-C."""


class Progress(Protocol):
    """Something that wants to know how a run goes."""

    def start(self, simulation: Simulation, schedule: Schedule, reason: str) -> None:
        """Training is about to begin; `reason` says why the engine is set up so."""

    def round(self, row: Round) -> None:
        """A round is finished and written."""


def train(
    schedule: Schedule,
    history: History,
    progress: Progress | None = None,
) -> None:
    """Go on from wherever the run is to the last round.

    Ctrl-C, SIGTERM and a lost terminal let the exchange under way finish and secure it
    before they end the run.

    Raises:
        NumericalError: numbers stopped being finite; or the run is over, and its models
            are far worse than none.
    """

    def run_exchange() -> dict[int, RoundCost]:
        cost = history.training.run_exchange()
        return {} if cost is None else {0: cost}

    _drive(run_exchange, lambda: [0], [history], schedule, progress)
    if history.divergence is not None:
        raise NumericalError(history.divergence)


def train_together(
    bundle: SimulationBundle,
    schedule: Schedule,
    histories: Sequence[History],
    progress: Progress | None = None,
) -> None:
    """The same for runs in a bundle; one that diverges is recorded as a failure."""

    def run_exchange() -> dict[int, RoundCost]:
        known = set(bundle.failures)
        closed = bundle.run_exchange()
        for n in bundle.failures.keys() - known:
            directory = histories[n].directory
            if directory is not None:
                state = histories[n].training.state
                why = str(bundle.failures[n])
                directory.sync()
                directory.write_failure(why, state.round, state.exchange)
        return closed

    _drive(run_exchange, lambda: bundle.going, histories, schedule, progress)
    for n in bundle.going:
        why = histories[n].divergence
        if why is not None:
            bundle.failures[n] = NumericalError(why)


def _drive(
    run_exchange: Callable[[], dict[int, RoundCost]],
    going: Callable[[], list[int]],
    histories: Sequence[History],
    schedule: Schedule,
    progress: Progress | None,
) -> None:
    """Exchange after exchange until the runs that still go are at the last round."""
    for n in going():
        if not histories[n].rounds:
            histories[n].open_round(has_scores=schedule.evaluate_start)
    secured = time.monotonic()
    with _interruptible() as asked:
        while going() and _round(histories[going()[0]]) < schedule.rounds:
            closed = run_exchange()
            for n in going():
                histories[n].record_exchange()
            rows: list[Round] = []
            is_stopping = bool(asked)
            is_due = is_stopping or _is_old(secured, schedule)
            for n, cost in closed.items():
                number = _round(histories[n])
                is_last = number == schedule.rounds
                has_scores = schedule.is_scored(number)
                has_train = is_last or schedule.evaluate_train
                rows.append(
                    histories[n].close_round(
                        cost, has_scores=has_scores, has_train=has_train
                    )
                )
                histories[n].record_outcomes(is_last=is_last)
                if is_last:
                    histories[n].close_run()
                is_due |= is_last or number % schedule.checkpoint_every == 0
            if is_due:
                _secure(histories, going())
                secured = time.monotonic()
            if rows and progress is not None:
                progress.round(rows[0])
            if is_stopping:
                raise _meaning(asked[0])


def _round(history: History) -> int:
    return history.training.state.round


def _is_old(secured: float, schedule: Schedule) -> bool:
    """Whether the last checkpoint was written long ago.

    The clock decides when one is written, never what is in it.
    """
    minutes = schedule.checkpoint_minutes
    return minutes is not None and time.monotonic() - secured >= 60 * minutes


def _secure(histories: Sequence[History], going: Sequence[int]) -> None:
    """Checkpoints of all runs at the same place, each after its rows."""
    for n in going:
        directory = histories[n].directory
        if directory is not None:
            directory.sync()
            rows = directory.rows.extents
            checkpoint.save(histories[n].training, directory.checkpoint, rows)


@contextmanager
def _interruptible() -> Iterator[list[int]]:
    """Collect signals that ask for an end, to be looked at between exchanges.

    Ctrl-C pressed twice does not wait.
    """
    asked: list[int] = []

    def ask(number: int, _: Any) -> None:
        asked.append(number)
        if asked.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt

    with handling((signal.SIGINT, *ENDS), ask):
        yield asked


@contextmanager
def handling(
    numbers: Iterable[int], handler: Callable[[int, Any], None] | signal.Handlers
) -> Iterator[None]:
    """Handle signals, but for those that the program around this one handles itself."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _meaning(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
