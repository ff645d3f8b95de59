"""How far all runs of a comparison are, by what they have written so far.

Runs may be trained in other processes or on other machines, so whoever waits for them
looks at their files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedloom.clients import Federation
from fedloom.comparison.alone import alone_directory, alone_runs, is_alone_done
from fedloom.comparison.settings import Comparison, run_directory
from fedloom.comparison.yardsticks import yardsticks_left
from fedloom.config import read_toml
from fedloom.progress import ManyRuns
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round, RowTail
from fedloom.server.schedule import Schedule
from fedloom.server.simulation import Simulation

METHOD, BESIDE, YARDSTICK = "", "alone: ", "yardstick: "
"""What the name of a part begins with: a method over all seeds, training alone beside
methods, and a yardstick."""


class Overview:
    """The parts of a comparison that are not finished when this is made.

    Args:
        progress: is told how far they are; None is for nobody.
        comparison: what is trained.
        out: its directory.
        clients: those of every seed.
    """

    def __init__(
        self,
        progress: ManyRuns | None,
        comparison: Comparison,
        out: Path,
        clients: Sequence[Federation],
    ) -> None:
        self._progress = progress
        self._runs: dict[str, list[_RunSoFar]] = {}
        if progress is None:
            return
        seeds, arm = comparison.seeds, next(iter(comparison.arms))
        rounds = comparison.config(arm, seeds[0]).schedule.rounds
        for arm in comparison.arms:
            paths = [run_directory(out, arm, seed) for seed in seeds]
            self._add(METHOD + arm, paths, rounds)
        for run in alone_runs(comparison, clients):
            # As long as the methods, or as it is tried for, until it is known.
            longest = max(rounds, *run.tried) if run.tried else rounds
            is_open = any(METHOD + arm in self._runs for arm in run.arms)
            if is_open or not is_alone_done(run, comparison, out):
                paths = [alone_directory(out, run.title, seed) for seed in seeds]
                self._add(BESIDE + run.title, paths, longest)
        for name in yardsticks_left(comparison, out):
            progress.expect(YARDSTICK + name, rounds * len(seeds))
        progress.show()

    def _add(self, part: str, paths: Sequence[Path], rounds: int) -> None:
        assert self._progress is not None
        runs = [_RunSoFar(path, rounds) for path in paths]
        done = sum(run.done() for run in runs)
        if done < rounds * len(runs):
            self._runs[part] = runs
            self._progress.expect(part, rounds * len(runs), done)

    def finish(self, kind: str, title: str) -> None:
        """Something is trained, or failed for good."""
        if self._progress is not None:
            part = kind + title
            if part in self._runs or kind == YARDSTICK:
                self._progress.finish(part)
            self._runs.pop(part, None)
            self._progress.show()

    def look(self) -> None:
        """See how far everything is, unless that was just done."""
        if self._progress is None or not self._progress.is_due:
            return
        for part, runs in self._runs.items():
            done = sum(run.done() for run in runs)
            self._progress.update(part, done, sum(run.rounds for run in runs))
        self._progress.show()

    def start(self, simulation: Simulation, schedule: Schedule, reason: str) -> None:
        """A run is about to begin in this process."""

    def round(self, row: Round) -> None:
        """A round is finished in this process."""
        self.look()


class _RunSoFar:
    """One run: how many rounds it has, and how many it will have.

    Args:
        path: its directory.
        rounds: how many it will have, as long as it does not say so itself.
    """

    def __init__(self, path: Path, rounds: int) -> None:
        self._directory = RunDirectory(path)
        self._tail = RowTail(self._directory.rows.rounds.path)
        self._says = False
        self.rounds = rounds

    def done(self) -> int:
        """How many rounds are finished; all of a run that diverged."""
        rows = self._tail.read()
        if not rows:
            return 0
        if not self._says:
            self.rounds = read_toml(self._directory.config)["rounds"]
            self._says = True
        if self._directory.failure.is_file():
            return self.rounds
        return rows[-1].round
