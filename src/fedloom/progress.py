"""How work goes, for a person to watch: a live line, or plain lines in a log.

    Watcher      one run: its rounds and scores
    ManyRuns     a comparison or a search: all that is to be done, and the time left
    TerminalBar  a line that is drawn again and again, and goes away
    NotebookBar  one output of a cell that changes, and stays as its last line

From Python there is a bar on a terminal or in a notebook by default, and nothing
elsewhere: a script whose output goes to a file stays quiet.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any, Protocol

from rich import progress as rich_progress
from rich.console import Console

from fedloom.core.algorithm import Algorithm
from fedloom.core.errors import ConfigError, shown
from fedloom.core.foreign_text import terminal_text
from fedloom.core.wording import counted
from fedloom.reports.units import seconds, unit_of, words
from fedloom.results.rows import Round
from fedloom.server.schedule import Progress, Schedule
from fedloom.server.simulation import Simulation

_OFTEN = 0.25
"""Seconds between two looks at the files of runs that go on, at least."""


class Bar(Protocol):
    """Where a line of progress is drawn."""

    def show(self, text: str, share: float, left: str) -> None:
        """Draw the line anew.

        Args:
            text: what goes on.
            share: how much of the work is done, from 0 to 1.
            left: how long it will take; empty as long as nobody knows.
        """


class TerminalBar:
    """A line at the bottom of a terminal, which goes away at the end."""

    def __init__(self, console: Console) -> None:
        self._progress = rich_progress.Progress(
            rich_progress.TextColumn("{task.description}", markup=False),
            rich_progress.BarColumn(bar_width=20),
            rich_progress.TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=1.0, visible=False, left="")

    def __enter__(self) -> TerminalBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def text(self) -> str:
        """What the line says now."""
        return self._progress.tasks[0].description

    def show(self, text: str, share: float, left: str) -> None:
        """Draw the line anew."""
        self._progress.update(
            self._task, description=text, completed=share, left=left, visible=True
        )


class NotebookBar:
    """One output of a notebook's cell, which is replaced as the work goes on.

    It needs no widgets, and a notebook that was run by a program holds its last line.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = 0.0
        self._last: tuple[str, float, str] | None = None

    def __enter__(self) -> NotebookBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._last is not None:
            self._draw(*self._last)

    def show(self, text: str, share: float, left: str) -> None:
        """Draw the line anew, twice a second at most."""
        self._last = text, share, left
        if time.perf_counter() - self._drawn >= 2 * _OFTEN:
            self._draw(text, share, left)

    def _draw(self, text: str, share: float, left: str) -> None:
        from IPython.display import display

        text = terminal_text(text)
        line = "  ".join(filter(None, (text, f"{share:.0%}", left)))
        bar = f'<progress max="1" value="{share:.3f}"></progress>' if share < 1 else ""
        html = f'<div style="font-family:monospace">{bar} {escape(line)}</div>'
        both = {"text/plain": line, "text/html": html}
        if self._handle is None:
            self._handle = display(both, raw=True, display_id=True)
        else:
            self._handle.update(both, raw=True)
        self._drawn = time.perf_counter()


def is_notebook() -> bool:
    """Whether this is a notebook's kernel, whose outputs are shown in cells."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def bar_for(console: Console | None = None) -> Iterator[Bar | None]:
    """A bar where somebody can watch it; None where nobody can.

    Args:
        console: where it goes on a terminal; by default standard error, so that what a
            script prints stays as it is.
    """
    if console is None and is_notebook():
        with NotebookBar() as notebook:
            yield notebook
        return
    console = console if console is not None else Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with TerminalBar(console) as terminal:
        yield terminal


class _Clock:
    """How long the rest of some work will take, by what was done since the start."""

    def __init__(self, first: float) -> None:
        self._first = first
        self._started = time.perf_counter()

    def left(self, done: float, total: float) -> float | None:
        """Seconds; None as long as nothing was done."""
        elapsed = time.perf_counter() - self._started
        if done <= self._first:
            return None
        return elapsed / (done - self._first) * max(total - done, 0)

    def text(self, done: float, total: float) -> str:
        """The time that is left, or that it took once all is done."""
        if done >= total:
            return f"in {_spelt(time.perf_counter() - self._started)}"
        left = self.left(done, total)
        return "" if left is None else f"{_spelt(left)} left"


def _spelt(duration: float) -> str:
    """A time in as many digits as anybody believes."""
    return seconds(round(duration) if 1 <= duration < 120 else duration)


class Watcher:
    """Tells a console of every round: a bar on a terminal, few lines elsewhere.

    Args:
        console: where lines go; without one there is the bar alone.
        bar: where the line of the round goes; without one, some rounds get a line.
    """

    def __init__(self, console: Console | None, bar: Bar | None) -> None:
        self._console = console
        self._bar = bar
        self._rounds = 0
        self._metric = "accuracy"
        self._clock = _Clock(0)
        self._title = self._scores = ""
        self._is_elsewhere = False

    def _say(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def start(self, simulation: Simulation, schedule: Schedule, reason: str) -> None:
        """Say what is about to run."""
        federation = simulation.federation
        self._say(federation.describe())
        self._say(
            f"{simulation.algorithm.name} on {federation.dataset.name}: "
            f"{counted(federation.count, 'client')}, {int(federation.sizes.sum())} "
            f"training samples, {simulation.task.d} parameters, "
            f"{simulation.task.device}"
        )
        if federation.split_warning:
            self._say(f"warning: {federation.split_warning}")
        small = int((federation.sizes < simulation.algorithm.batch_size).sum())
        if small:
            self._say(
                f"note: {counted(small, 'client')} with fewer samples than batch_size "
                f"{simulation.algorithm.batch_size}: all that a client has is one batch"
            )
        scored = simulation.scored_clients
        if "sampled" in scored:
            self._say(
                f"note: scores are of {scored}, the same ones in every round; "
                "evaluate_clients says how many"
            )
        if simulation.attack:
            self._say(
                f"note: {counted(len(simulation.attackers), 'client')} of "
                f"{federation.count} attack ({simulation.attack.kind}) and are not "
                "scored"
            )
        has_teams = type(simulation.algorithm).team_models is not Algorithm.team_models
        if has_teams and simulation.coordinator.population.team_count == 1:
            self._say(
                "note: no teams were given, so all clients form one; for two of them "
                "--set teams.name=blocks --set teams.teams=2"
            )
        for name in ("absent", "lost"):
            if getattr(simulation.faults, name) == 1.0:
                self._say(
                    f"note: faults.{name} is 1, so that nothing that clients learn "
                    "ever reaches the server; a lower chance leaves some of it"
                )
        if reason:
            self._say(f"note: {reason}")
        if self._console is None:  # nothing above the bar says which method this is
            self._title = f"{simulation.algorithm.name}  "
        self.begin(schedule.rounds, simulation.state.round, simulation.task.metric)

    def begin(
        self, rounds: int, first: int, metric: str, *, is_elsewhere: bool = False
    ) -> None:
        """Count from here.

        Args:
            rounds: how many there will be.
            first: how many are done already.
            metric: what scores are shown of.
            is_elsewhere: whether clients are elsewhere, whose rounds take seconds.
        """
        self._rounds, self._metric = rounds, metric
        self._is_elsewhere = is_elsewhere
        self._clock = _Clock(first)
        if self._bar is not None:
            self._bar.show(f"{self._title}round {first}/{rounds}", first / rounds, "")

    def round(self, row: Round) -> None:
        """Say how a round went."""
        left = self._clock.text(row.round, self._rounds)
        scores = ""
        for kind, parts in row.scores.items():
            part = "test" if "test" in parts else next(iter(parts))
            score = parts[part][self._metric]
            # Each in its own size, which may grow without bound from round to round.
            scores += f"  {kind} {unit_of(self._metric, [score]).score(score)}"
        if scores:
            self._scores = f"{scores} (round {row.round})"
        elif self._bar is not None:
            scores = self._scores  # those of the last round that has some
        speed = row.participants / max(row.seconds, 1e-9)
        is_slow = self._is_elsewhere or speed < 1
        pace = f"{row.seconds:.0f} s a round" if is_slow else f"{speed:.0f} clients/s"
        loss = "-"
        if row.train_loss is not None:
            loss = unit_of("loss", [row.train_loss]).number(row.train_loss)
        text = f"round {row.round}/{self._rounds}  loss {loss}{scores}  {pace}"
        if self._bar is not None:
            self._bar.show(f"{self._title}{text}", row.round / self._rounds, left)
            return
        stride = max(1, self._rounds // 10)
        if row.round % stride == 0 or row.round == self._rounds:
            self._say(f"{text}  {left}")


class ManyRuns:
    """Tells of work that is made of many runs: how much is done, and the time left.

    Work is counted in rounds, and comes in parts: a method over all its seeds, say. A
    part may turn out longer or shorter than was expected.

    Args:
        bar: where the line goes; without one nothing is shown.
    """

    def __init__(self, bar: Bar | None) -> None:
        self._bar = bar
        self._parts: dict[str, tuple[int, int]] = {}
        self._clock: _Clock | None = None
        self._shown = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is worth while to look how far the runs are."""
        return self._bar is not None and time.perf_counter() - self._shown >= _OFTEN

    def expect(self, part: str, rounds: int, done: int = 0) -> None:
        """There is a part of so many rounds; `done` of them were done before."""
        self._parts[part] = done, max(rounds, 1)

    def update(self, part: str, done: int, rounds: int | None = None) -> None:
        """So many rounds of a part are done.

        Args:
            part: as `expect` was told.
            done: how many.
            rounds: how many there will be, where that is known better by now.
        """
        total = self._parts[part][1] if rounds is None else max(rounds, 1)
        self._parts[part] = min(done, total), total

    def finish(self, part: str) -> None:
        """A part is over, whatever came of it."""
        self.update(part, self._parts[part][1])

    def show(self) -> None:
        """Draw the line anew."""
        if self._bar is None or not self._parts:
            return
        done, total = (
            sum(numbers) for numbers in zip(*self._parts.values(), strict=True)
        )
        if self._clock is None:
            self._clock = _Clock(done)
        going = [name for name, (d, t) in self._parts.items() if 0 < d < t]
        over = sum(d == t for d, t in self._parts.values())
        text = f"{over}/{len(self._parts)} done"
        if going:
            text = f"{words(going, 3)}  {text}"
        self._bar.show(text, done / total, self._clock.text(done, total))
        self._shown = time.perf_counter()


class Part:
    """One part of many runs, whose rounds come one after the other.

    Args:
        progress: the whole.
        name: of the part.
        rounds: how many it has.
    """

    def __init__(self, progress: ManyRuns, name: str, rounds: int) -> None:
        self._progress, self._name, self._done = progress, name, 0
        progress.expect(name, rounds)

    def at(self, done: int) -> None:
        """So many rounds are done, whatever was counted before."""
        self._done = done
        self._progress.update(self._name, done)
        self._progress.show()

    def start(self, simulation: Simulation, schedule: Schedule, reason: str) -> None:
        """A run is about to begin."""

    def round(self, row: Round) -> None:
        """One more round is done."""
        self._done += 1
        self._progress.update(self._name, self._done)
        if self._progress.is_due:
            self._progress.show()

    def finish(self) -> None:
        """The part is over."""
        self._progress.finish(self._name)
        self._progress.show()


@contextmanager
def watch(console: Console) -> Iterator[Watcher]:
    """A watcher of one run for this console; its bar goes away at the end."""
    with bar_for(console) as bar:
        yield Watcher(console, bar)


@contextmanager
def watch_many(console: Console) -> Iterator[ManyRuns]:
    """The same for many runs; only a terminal sees something of it."""
    with bar_for(console) as bar:
        yield ManyRuns(bar)


@contextmanager
def watched_run(
    progress: bool | Progress | None, where: str
) -> Iterator[Progress | None]:
    """What the argument `progress` of a function that trains one run means.

    Args:
        progress: whether to show a bar where somebody can watch; or what is told.
        where: name of the function.

    Raises:
        ConfigError: it is neither.
    """
    if progress is None or progress is False:
        yield None
    elif progress is True:
        with bar_for() as bar:
            yield Watcher(None, bar) if bar is not None else None
    elif hasattr(progress, "start") and hasattr(progress, "round"):
        yield progress
    else:
        raise ConfigError(
            f"{where}: progress must be True, False or an object with start() and "
            f"round() as fedloom.Progress has them, found {shown(progress)}."
        )


@contextmanager
def watched_runs(
    progress: bool | ManyRuns | None, where: str
) -> Iterator[ManyRuns | None]:
    """What the argument `progress` of a function that trains many runs means.

    Args:
        progress: whether to show a bar where somebody can watch; or what is told.
        where: name of the function.

    Raises:
        ConfigError: it is neither.
    """
    if progress is None or progress is False:
        yield None
    elif isinstance(progress, ManyRuns):
        yield progress
    elif progress is True:
        with bar_for() as bar:
            yield ManyRuns(bar)
    else:
        raise ConfigError(
            f"{where}: progress must be True or False, found {shown(progress)}."
        )
