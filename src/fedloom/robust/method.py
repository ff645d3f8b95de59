"""A method whose server uses a robust rule in the place of its sums."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.core.algorithm import AnyAlgorithm, Client, Cohort
from fedloom.core.errors import ConfigError
from fedloom.core.records import Logged, leaves, rebuild
from fedloom.core.rounding import Rounding, norm_before_rounding
from fedloom.core.summed import Leaving, Summed
from fedloom.core.sums import bounds
from fedloom.robust import rules
from fedloom.robust.attack import Attack
from fedloom.robust.settings import Robust


class RobustLog(NamedTuple):
    """What became of the rule in a round."""

    left_out: Tensor
    """Number of totals, one or one of each team, that the server went without since
    fewer clients were there than the rule needs."""


@dataclass(frozen=True)
class RobustSum:
    """What stands for the sum of some summands: what a rule makes of them, times n.

    A `Reduce` of `fedloom.core.summed`. The fields of a summand are one row of numbers
    to the rule, so that it takes or drops all that a client says; `norm-bound` shortens
    each field by itself, to its bound if its type has one. Fewer clients than the rule
    needs count as nobody: the total is zero, as if none of them had come.
    """

    robust: Robust
    limits: tuple[float | None, ...]
    """As `norm_limits` gives them."""

    def __call__(self, rows: Any, cohort: Cohort, key: Tensor) -> Any:
        """The total of rows, (n, ...) each."""
        n = len(cohort.clients)
        fields = [field.reshape(n, -1) for field in leaves(rows)]
        if self.robust.shortage(n):
            centres = [torch.zeros_like(field[0]) for field in fields]
        elif self.robust.rule == "norm-bound":
            centres = [
                rules.norm_bound(field, limit)
                for field, limit in zip(fields, self.limits, strict=True)
            ]
        else:
            centre = self.robust.centre(torch.cat(fields, 1))
            widths = [field.shape[1] for field in fields]
            centres = list(torch.split(centre, widths))
        return rebuild(
            rows,
            [
                (n * centre).to(field.dtype).reshape(field.shape[1:])
                for centre, field in zip(centres, leaves(rows), strict=True)
            ],
        )


@dataclass(frozen=True)
class ClientNormBound:
    """The norm bound where the server sees totals alone: a client keeps it by itself.

    A `Leave` of `fedloom.core.summed`. What a client keeps is what it keeps in the
    clear, where it does not hear that the server has shortened what it sent.
    """

    limits: tuple[float | None, ...]
    """As `norm_limits` gives them; a field without one is left as it is."""
    steps: tuple[float, ...]
    """What the numbers of each field are rounded to multiples of when they have left,
    which the bound leaves room for."""

    def __call__(self, summand: Any, client: Client) -> Leaving:
        """The summand, and the same with every field shortened, which is sent."""
        fields = zip(leaves(summand), self.limits, self.steps, strict=True)
        sent = [self._shortened(*field) for field in fields]
        return Leaving(summand, rebuild(summand, sent))

    def _shortened(self, value: Tensor, limit: float | None, step: float) -> Tensor:
        if limit is None:
            return value
        limit = norm_before_rounding(limit, step, value.numel())
        return rules.shortened(value.reshape(1, -1), limit).reshape(value.shape)


def norm_limits(algorithm: AnyAlgorithm, robust: Robust) -> tuple[float | None, ...]:
    """The norm that each field of a summand is shortened to by `norm-bound`.

    None is the median of the norms in a round: of vectors where the rule has no bound,
    and of numbers that a setting of the method would bound where it is not set.
    """
    return tuple(
        robust.bound
        if bound.kind == "vector"
        else None
        if bound.setting is not None and getattr(algorithm, bound.setting) is None
        else 1.0
        for bound in bounds(algorithm.summand_record).values()
    )


class RobustMethod(Summed):
    """A method with a robust rule in the place of its sums.

    Every client counts once, whatever number of samples it says it has.

    Args:
        algorithm: the method.
        robust: the rule.
        options: as for `Summed`: what becomes of summands and of totals.

    Raises:
        ConfigError: The method needs more than sums.
    """

    robust: Robust

    def __init__(self, algorithm: AnyAlgorithm, robust: Robust, **options: Any) -> None:
        reason = algorithm.why_not_robust
        if algorithm.needs == "single models":
            reason = f"its server needs single models: {algorithm.why_single}"
        if reason:
            raise ConfigError(
                f"robust: {robust.rule} takes the place of a sum, and none can with "
                f"{algorithm.name}: {reason}. Take a method such as ditto, apfl or "
                "fedper, or set robust.rule = 'none'."
            )
        reduce = RobustSum(robust, norm_limits(algorithm, robust))
        super().__init__(
            algorithm, **{**options, "reduce": reduce, "most_samples": 1.0}
        )
        vars(self)["robust"] = robust

    def with_secure_sums(self, rounding: Rounding | None = None) -> RobustMethod:
        """The same with a norm bound that clients keep by themselves.

        Args:
            rounding: how the sum rounds what they add; None if that is not known.

        Raises:
            ConfigError: The rule needs single uploads, or rounding is too coarse for
                the bound.
        """
        self.robust.refuse_secure_sums()
        made = copy.copy(self)
        limits = norm_limits(self.algorithm, self.robust)
        kinds = [bound.kind for bound in bounds(self.algorithm.summand_record).values()]
        steps = tuple(0.0 if rounding is None else rounding.step(k) for k in kinds)
        for limit, step in zip(limits, steps, strict=True):
            if limit is not None:
                norm_before_rounding(limit, step, 1)
        vars(made)["leave"] = ClientNormBound(limits, steps)
        return made

    def aggregate(self, server: Any, uploads: Any, cohort: Cohort) -> Any:
        """Take in the rows, and say whether they were enough."""
        groups = (
            torch.bincount(cohort.teams[cohort.sizes > 0])
            if self.algorithm.needs == "sums per team"
            else (cohort.sizes > 0).sum()[None]
        )
        left_out = sum(
            bool(self.robust.shortage(count)) for count in groups.tolist() if count
        )
        log = RobustLog(cohort.sizes.new_tensor(float(left_out)))
        return Logged(super().aggregate(server, uploads, cohort), log)


def around(method: AnyAlgorithm, robust: Robust, attack: Attack) -> AnyAlgorithm:
    """A method as it is trained with a rule, or against attacks on what is sent.

    Raises:
        ConfigError: it does not go by sums.
    """
    if method.needs == "nothing":
        return method
    if robust:
        return RobustMethod(method, robust)
    if not attack.changes_uploads:
        return method
    if method.needs == "single models":
        raise ConfigError(
            f"attack: {attack.kind} changes what clients add to sums, and there are "
            f"none with {method.name}: its server needs single models: "
            f"{method.why_single}. Choose an attack on data, label-flip or backdoor, "
            "or a method that goes by sums, such as ditto, apfl or fedper."
        )
    return Summed(method)


def refuse_with_privacy(robust: Robust, attack: Attack) -> None:
    """Refuse what takes the place of the sums that privacy is accounted for.

    Raises:
        ConfigError: there is such a rule or attack.
    """
    if robust:
        already = "privacy.clip bounds norms already"
        if robust.rule != "norm-bound":
            already = (
                "one client may move its result further than a sum, and the noise of "
                "[privacy] is made for a sum"
            )
        raise ConfigError(
            f"robust: {robust.rule} and [privacy] exclude each other: {already}. Leave "
            "out one of the two sections."
        )
    if attack.changes_uploads:
        raise ConfigError(
            f"attack: {attack.kind} and [privacy] exclude each other: what attackers "
            "send would not have the noise that is accounted for. Choose an attack on "
            "data, label-flip or backdoor, or leave out one of the two sections."
        )
