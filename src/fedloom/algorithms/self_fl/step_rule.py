"""How far a client of Self-FL trains on its own: Eq. (8), with what goes into it.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang. NeurIPS 2022. Sections 3.1, 4.1.

    paper      here
    sigma_0^2  Download.between, Balance.between
    S_m        Download.others, by `others`
    sigma_m^2  Balance.within
    l_m        Balance.computed

All variants share what is here: what a client is sent for it, the settings, and the
schedule. Where its uncertainty is measured, where it starts and what the server makes
of the uploads is in the file of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fedloom.algorithms.self_fl.remarks import on_start, on_steps
from fedloom.algorithms.self_fl.stale_start import StaleInit
from fedloom.algorithms.self_fl.uncertainty import (
    TINY,
    Normalise,
    Past,
    Report,
    is_warm,
    precision,
    precisions,
    report,
)
from fedloom.core.algorithm import (
    Algorithm,
    Client,
    Cohort,
    Phase,
    Server,
    Upload,
    Work,
)
from fedloom.core.records import PerClient, take
from fedloom.core.remarks import LogColumns, Remark
from fedloom.core.settings import Count
from fedloom.core.task import Task

Scope = Literal["active", "all"]
"""Whose precisions are summed: the clients of the round, or of the population."""
_ALL = 1 << 62
"""Longer than any phase: take all of its steps."""


class Download(NamedTuple):
    """Server to client: the shared model, two scalars and a yes or no."""

    shared: Tensor
    between: Tensor
    others: PerClient[Tensor]
    corrects: PerClient[Tensor]
    """Whether the client starts beyond the shared model, Eq. (10)."""
    within: Tensor
    """Mean variance of the clients, (1,), where they weigh themselves by it
    (`weigh_by = "last"`); empty, as in all other cases, costs nothing."""


class ModelDownload(NamedTuple):
    """Server to client, to use its model: where it starts if it was never here."""

    shared: Tensor


class Balance(NamedTuple):
    """How a client weighs the others against its own data; 0 while it cannot."""

    within: Tensor
    """Variance of this client's models over its past rounds (sigma_m^2). Large when
    its data are few or noisy, or while it still moves from round to round."""
    between: Tensor
    """Variance of the clients' models in the round before (sigma_0^2). Large when
    clients differ, which calls for more personal training."""
    correction: Tensor
    """How far beyond the shared model the client starts, away from its own last one, as
    a multiple of their distance (w_m / S_m, at most 1). Near 1 / (n - 1) for n clients
    of the same uncertainty, so that it starts at the mean of the others. 0 where this
    is switched off."""
    ordinary: Tensor
    """Local steps that the settings give this client, as in every method."""
    computed: Tensor
    """Local steps computed from both variances, rounded, at least `least_steps` and at
    most `most_steps` (l_m). 0 means that the client is cold or alone and does the
    ordinary local work."""
    wanted: Tensor
    """The same number before rounding, floor and cap. Below the floor or above the cap
    these decide, and not the uncertainty. 0, the limit of Eq. (8), where the learning
    rate exceeds the variance; the ordinary work of a client that is cold or alone."""
    moved: Tensor
    """How much of the way to its own optimum the client means to go, from 0 to 1. 1
    would be training alone, 0 would be keeping the others' model."""
    gain: Tensor
    """Estimated factor by which the federation shrinks this client's variance (GAIN_m).
    1 means that the others have nothing to tell it."""


class Remembers(Protocol):
    """What the memory of a client has in every variant."""

    @property
    def past(self) -> Past: ...


class Summands(NamedTuple):
    """The sum over k != m of Eqs. (8) and (10)."""

    others: Tensor
    """(n,) S_m of every client of the cohort: the precisions of all but itself."""
    terms: Tensor
    """How many precisions there are, the client's own among them."""


def summands(
    between: Tensor, reports: Report, cohort: Cohort, scope: Scope
) -> Summands:
    """What the clients in scope add up to, for every client of the cohort."""
    sizes = cohort.population.sizes
    if scope == "active":
        reports, sizes = take(reports, cohort.clients), cohort.sizes
    present = sizes > 0
    each = precisions(between, reports, present)
    rest = each.sum() - each
    others = rest if scope == "active" else rest[cohort.clients]
    return Summands(others, present.sum())


def foreseen_summands(
    between: Tensor, reports: Report, cohort: Cohort, scope: Scope
) -> Summands:
    """The same for as many clients as a round calls on average.

    Where clients are hidden, what one of them is sent must not tell who else is there.
    The reports are then the same for everybody (`lagged.pooled`).
    """
    everyone = cohort.population
    present = everyone.sizes > 0
    each = precisions(between, reports, present)
    share = everyone.rate if scope == "active" else 1.0
    others = (share * each.sum() - each).clamp(min=0.0)
    return Summands(others[cohort.clients], share * present.sum())


Memory = TypeVar("Memory", bound=Remembers)
Down = TypeVar("Down", bound=Download)


@dataclass(frozen=True, kw_only=True)
class StepRule(Algorithm[Server, Memory, Down, Work, Upload]):
    """The steps of a client follow from its uncertainty and that of the others."""

    most_steps: Count = 40
    """Cap on the computed number of local steps (l_max)."""
    least_steps: Count | Literal["ordinary"] = "ordinary"
    """Floor of the computed number of local steps: the client's ordinary work, `steps`
    or `epochs`, or a number; 1 is the paper's. The cap wins over the floor."""
    stale_init: StaleInit = "skip"
    """Who starts beyond the shared model: every client (correct, as the paper has it),
    nobody in a round with too few clients for that to be stable (skip), or those whose
    models the round before took in (recent)."""
    step_scale: Literal["size", "one", "batch"] = "size"
    """Scale of the loss in the step rule: 1/N_m (size), 1 (one) or 1/B_m (batch)."""
    target: Literal["paper", "posterior"] = "paper"
    """What the steps aim at: theta^(FL) as printed, or the proper posterior mean."""
    normalise: Normalise = "n"
    """Divisor of the empirical variances; sum is no divisor, as section 3.2 prints."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (
            replace(self.local_phase("step"), length="ordinary"),
            Phase(step="step", steps=self.most_steps, length="computed"),
        )

    def ordinary(
        self, down: Down, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """All of the ordinary local work, or none for a client that can compute."""
        return torch.where(self.balance(down, memory, client).computed > 0, 0, _ALL)

    def computed(
        self, down: Down, memory: Memory, client: Client, task: Task
    ) -> Tensor:
        """The steps of Eq. (8), or none for a client that cannot compute them yet."""
        return self.balance(down, memory, client).computed

    def client_log(
        self, work: Work, down: Down, memory: Memory, client: Client, task: Task
    ) -> Balance:
        return self.balance(down, memory, client)

    def remarks(self, log: LogColumns) -> Iterator[Remark]:
        if self.phases[0].length is not None:
            floors = self.floor(torch.as_tensor(log["ordinary"])).numpy()
            yield from on_steps(log, floors, self.most_steps)
        if self.stale_init == "skip":
            yield from on_start(log)

    def balance(self, down: Down, memory: Memory, client: Client) -> Balance:
        """What follows for a client from its past and the precision of the others.

        S_m is 0 or less if the client is alone.
        """
        can = is_warm(memory.past.seen) & (down.others > 0)
        own = report(memory.past, self.normalise).within
        within, rest = own.clamp(min=TINY), torch.where(can, down.others, 1.0)
        is_posterior = self.target == "posterior"
        aim = 1.0 / (down.between + 1.0 / rest) if is_posterior else rest
        pace = self._pace(client)
        # Eq. (8): the real number ell with (1 - eta / s_m)^ell = S / (1 / s_m + S). As
        # eta / s_m rises to 1, ell falls to 0; beyond, it stays there.
        is_slow = pace < within
        ratio = torch.where(is_slow, pace / within, 0.5)
        ell = -torch.log1p(1.0 / (within * aim)) / torch.log1p(-ratio)
        wanted = torch.where(is_slow, ell, 0.0)
        ordinary = self._ordinary_steps(client)
        steps = torch.maximum(wanted.round().to(torch.int64), self.floor(ordinary))
        correction = (precision(down.between, within, can) / rest).clamp(max=1.0)
        return Balance(
            within=own,
            between=down.between,
            correction=torch.where(down.corrects, correction, 0.0),
            ordinary=ordinary,
            computed=torch.where(can, steps.clamp(max=self.most_steps), 0),
            wanted=torch.where(can, wanted, ordinary.double()),
            # 1 - q with q = S / (1 / s_m + S), the right side of Eq. (8)
            moved=torch.where(can, 1.0 / (1.0 + within * aim), 0.0),
            gain=torch.where(can, 1.0 + within * rest, 0.0),
        )

    def floor(self, ordinary: Tensor) -> Tensor:
        """The fewest steps that a client computes, given its ordinary steps."""
        least = self.least_steps
        floor = ordinary if least == "ordinary" else torch.full_like(ordinary, least)
        return floor.clamp(max=self.most_steps)

    def _ordinary_steps(self, client: Client) -> Tensor:
        if self.steps is not None:
            return torch.full_like(client.round, self.steps)
        epoch = torch.ceil(client.size.double() / self.batch_size)
        return (self.epochs * epoch).to(torch.int64)

    def _pace(self, client: Client) -> Tensor:
        """The learning rate eta times the scale of the loss, as Eq. (8) takes it.

        Momentum lengthens the steps by 1 / (1 - momentum) once they are many, which
        only an ordinary floor makes sure of.
        """
        lr = self.lr * self.lr_decay ** client.round.double()
        if self.least_steps == "ordinary":
            lr = lr / (1.0 - self.momentum)
        if self.step_scale == "one":
            return lr
        size = client.size.double().clamp(min=1.0)
        is_batch = self.step_scale == "batch"
        return lr / (size.clamp(max=self.batch_size) if is_batch else size)
