"""Fleets of several runs that train in the same passes.

The runs differ in their seed, and so in split, cohorts, start, noise and the constants
that standardise their samples. To the runner they are one run with more clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fedloom.core.errors import ContractError
from fedloom.core.messages import CohortDownload
from fedloom.core.records import map_record, take
from fedloom.core.summed import at_clients
from fedloom.core.task import scaling_of
from fedloom.engine.job import Participants, Runner, Samples, train_job
from fedloom.fleet.local import LocalFleet


class Bundle:
    """Local fleets of one method and model whose exchanges are trained together.

    Args:
        fleets: one for each run.
        runner: what trains the clients of all of them.

    Raises:
        ContractError: The clients of one do not do what those of another do.
    """

    def __init__(self, fleets: Sequence[LocalFleet], runner: Runner) -> None:
        self.fleets = tuple(fleets)
        self.runner = runner
        first = self.fleets[0]
        for fleet in self.fleets:
            if at_clients(fleet.algorithm) != at_clients(first.algorithm):
                raise ContractError(
                    "Bundle: expected runs whose clients all do the same, found "
                    f"{first.algorithm} and {fleet.algorithm}. Train them in bundles "
                    "of their own."
                )
        samples = Samples.joined([fleet.samples for fleet in self.fleets])
        job = train_job(first.algorithm, first.task, samples, can_lose=first.can_lose)
        counts = torch.tensor([fleet.federation.count for fleet in self.fleets])
        run_of = torch.arange(len(counts)).repeat_interleave(counts)
        self._job = replace(
            job,
            scaling=scaling_of([fleet.task for fleet in self.fleets]),
            run_of=run_of.to(first.task.device),
        )
        self._before = [0, *counts.cumsum(0).tolist()]

    def train(self) -> None:
        """Do the work of all exchanges that were sent, in one call of the runner."""
        sent = [
            (fleet, before, fleet.prepared)
            for fleet, before in zip(self.fleets, self._before, strict=False)
            if fleet.prepared is not None
        ]
        if not sent:
            return
        sizes = [len(prepared.participants.rows) for _, _, prepared in sent]
        cohorts = [
            prepared.participants._replace(rows=prepared.participants.rows + before)
            for _, before, prepared in sent
        ]
        participants: Participants = map_record(
            lambda *rows: torch.cat(rows), cohorts[0], *cohorts[1:]
        )
        downloads = [prepared.order.download for _, _, prepared in sent]
        download = CohortDownload.joined(downloads, sizes)
        results = self.runner.run(self._job, download, participants)
        start = 0
        for (fleet, _, _), size in zip(sent, sizes, strict=True):
            fleet.train(take(results, slice(start, start + size)))
            start += size
