"""How a run goes, for a person to watch: a live line, or plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedloom.core.algorithm import Algorithm
from fedloom.core.wording import counted
from fedloom.reports.units import unit_of
from fedloom.results.rows import Round
from fedloom.server.schedule import Schedule
from fedloom.server.simulation import Simulation


class Watcher:
    """Tells a console of every round: a bar on a terminal, few lines elsewhere."""

    def __init__(self, console: Console, bar: Progress | None) -> None:
        self._console = console
        self._bar = bar
        self._rounds = 0
        self._first = 0
        self._metric = "accuracy"
        self._started = time.perf_counter()
        self._scores = ""
        self._is_elsewhere = False

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

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
        if len(simulation.scored) < federation.count:
            self._say(
                f"note: scores are of {len(simulation.scored)} sampled clients, the "
                "same ones in every round; evaluate_clients says how many"
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
        self._rounds, self._first, self._metric = rounds, first, metric
        self._is_elsewhere = is_elsewhere
        self._started = time.perf_counter()
        if self._bar is not None:
            self._task = self._bar.add_task("", total=rounds, completed=first)

    def round(self, row: Round) -> None:
        """Say how a round went."""
        done = row.round - self._first
        elapsed = time.perf_counter() - self._started
        left = elapsed / done * (self._rounds - row.round)
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
            self._bar.update(self._task, completed=row.round, description=text)
            return
        stride = max(1, self._rounds // 10)
        if row.round % stride == 0 or row.round == self._rounds:
            self._say(f"{text}  {left:.0f} s left")


@contextmanager
def watch(console: Console) -> Iterator[Watcher]:
    """A watcher for this console; its bar goes away at the end."""
    if not console.is_terminal:
        yield Watcher(console, None)
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )
    with bar:
        yield Watcher(console, bar)
