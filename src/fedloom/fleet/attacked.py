"""Some clients lie: a fleet around a fleet, for simulations of attacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedloom.clients.federation import Federation
from fedloom.core.measures import Sums
from fedloom.core.messages import (
    Arrivals,
    ScoreRequest,
)
from fedloom.core.records import rebuild
from fedloom.core.sums import bounds
from fedloom.core.task import Task
from fedloom.engine.evaluate import sums_of_own, sums_of_shared
from fedloom.engine.job import Runner, Samples
from fedloom.fleet.around import FleetAround
from fedloom.fleet.protocol import Fleet
from fedloom.robust.attack import Attack
from fedloom.robust.poison import marked_tests

BACKDOOR = "backdoor"
"""In the place of a part of the data: test images with the attackers' mark, which are
all labelled with the class that the mark should stand for."""


class AttackedFleet(FleetAround):
    """A fleet some of whose clients send what they please.

    What they train on is not its affair: the fleet inside has their poisoned data.

    Args:
        fleet: the clients, without attacks on what they send.
        attack: what attackers do.
        attackers: (f,) who they are, by number, ascending.
        clients: all clients with the data as they were before any poison.
        task: model and loss.
        runner: what scores the models.
    """

    def __init__(
        self,
        fleet: Fleet,
        attack: Attack,
        attackers: Tensor,
        clients: Federation,
        task: Task,
        runner: Runner,
    ) -> None:
        super().__init__(fleet)
        self.attack = attack
        self.attackers = attackers
        self._task, self._runner = task, runner
        self._marked: Samples | None = None
        if attack.kind == BACKDOOR:
            data, tests = marked_tests(clients, attack)
            marked = replace(clients, dataset=data)
            self._marked = Samples.of(marked, tests, task.device)

    def receive(self) -> Arrivals:
        """What arrived, with what attackers send in the place of theirs."""
        arrivals = self.fleet.receive()
        if not self.attack.changes_uploads or arrivals.uploads is None:
            return arrivals
        lies = torch.isin(arrivals.uploaders, self.attackers)
        if not bool(lies.any()) or bool(lies.all()):
            return arrivals  # nobody is there to lie, or to be lied to
        return replace(arrivals, uploads=self._attacked(arrivals.uploads, lies))

    def _attacked(self, uploads: Any, lies: Tensor) -> Any:
        """Summands of which attackers replace the changes of parameters.

        How much they count stays as it was.
        """
        kinds = bounds(type(uploads))
        fields = []
        for name, rows in zip(uploads._fields, uploads, strict=True):
            if kinds[name].kind != "vector":
                fields.append(rows)
                continue
            flat = rows.reshape(len(rows), -1)
            changed = flat.clone()
            changed[lies] = self.attack.rows(flat[lies], flat[~lies])
            fields.append(changed.reshape(rows.shape))
        return rebuild(uploads, fields)

    def score(self, request: ScoreRequest) -> dict[str, Sums]:
        """The sums of all who are asked; of the part `BACKDOOR` on marked images."""
        if self._marked is None or request.part != BACKDOOR:
            return self.fleet.score(request)
        samples, task = self._marked.only(request.clients), self._task
        by_kind = {}
        if request.shared is not None:
            by_kind["shared"] = sums_of_shared(task, request.shared, samples)
        by_kind["personal"] = sums_of_own(
            task,
            self._runner,
            samples,
            lambda rows: self.fleet.personal(request.only(rows)),
        )
        return by_kind
