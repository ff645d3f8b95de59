"""Several runs of one method as one: their clients move in the same passes.

The runs differ in their seed, and so in split, cohorts, start and noise. To the runner
they are one run with more clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedloom.core.errors import NumericalError
from fedloom.core.records import map_record, take
from fedloom.engine.job import CohortDownload, Participants, Runner, Samples, train_job
from fedloom.engine.rounds import RoundCost, Simulation


class Bundle:
    """Runs that go on together, exchange by exchange.

    Args:
        simulations: runs of one method on one model, all at the same round.
        runner: what trains the clients of all of them.
    """

    def __init__(self, simulations: Sequence[Simulation], runner: Runner) -> None:
        self.simulations = tuple(simulations)
        self.runner = runner
        self.failures: dict[int, NumericalError] = {}
        """Why the runs that diverged did, by their place in `simulations`."""
        first = self.simulations[0]
        samples = Samples.joined(
            [simulation.samples for simulation in self.simulations]
        )
        self._job = train_job(first.algorithm, first.task, samples)
        counts = torch.tensor(
            [simulation.federation.count for simulation in self.simulations]
        )
        self._before = [0, *counts.cumsum(0).tolist()]

    @property
    def going(self) -> list[int]:
        """The places of the runs that have not diverged."""
        return [n for n in range(len(self.simulations)) if n not in self.failures]

    def run_exchange(self) -> dict[int, RoundCost]:
        """Do one exchange of every run that still goes.

        A run that diverges is left as it was before, and goes no further.

        Returns:
            By place, the tally of each run that closed a round.
        """
        going = self.going
        turns = [self.simulations[n].prepare() for n in going]
        sizes = [len(turn.crew.rows) for turn in turns]
        crews = [
            turn.crew._replace(rows=turn.crew.rows + self._before[n])
            for n, turn in zip(going, turns, strict=True)
        ]
        crew: Participants = map_record(
            lambda *rows: torch.cat(rows), crews[0], *crews[1:]
        )
        sent = CohortDownload.joined([turn.down for turn in turns], sizes)
        outcome = self.runner.run(self._job, sent, crew)
        closed, start = {}, 0
        for n, turn, size in zip(going, turns, sizes, strict=True):
            own = take(outcome, slice(start, start + size))
            start += size
            try:
                tally = self.simulations[n].apply_results(
                    turn, own, bundle_size=len(going)
                )
            except NumericalError as error:
                self.failures[n] = error
                continue
            if tally is not None:
                closed[n] = tally
        return closed
