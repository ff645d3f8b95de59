"""The settings of robust rules: section [robust] of a run's file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.settings import Count, Interval, Positive, check, refuse_idle
from fedloom.robust import rules

Rule = Literal[
    "none",
    "norm-bound",
    "trimmed-mean",
    "median",
    "geometric-median",
    "krum",
    "multi-krum",
    "bulyan",
]

_ROUND_OFF = 1e-9


@dataclass(frozen=True, kw_only=True)
class Robust:
    """How the server adds up what clients send, if some of them may lie."""

    rule: Rule = "none"
    """What takes the place of the sum. `none` adds everything up as it is sent; with
    all others every client counts once, however many samples it says it has."""
    attackers: Annotated[float, Interval(least=0.0, below=0.5)] | Count = 0.2
    """Share of a round's clients, or their number if it is a whole one, that may send
    anything at all. Of a share, the number in a round is rounded up."""
    bound: Positive | None = None
    """Largest norm of what a client sends, for `norm-bound`; the median of the norms
    in the round by default. With `[secure]` it must be given, and each client keeps it
    by itself."""

    def __post_init__(self) -> None:
        share = self.attackers
        if isinstance(share, float) and share >= 0.5:
            raise ConfigError(
                f"Robust: attackers must be below 0.5, found {share:g}: no rule tells "
                "a lie from the truth where half of the clients lie. Lower it."
            )
        check(self)
        if self.bound is not None and self.rule != "norm-bound":
            raise ConfigError(
                f"Robust: bound is for the rule norm-bound, found {self.rule!r}. Leave "
                "bound out, or set rule = 'norm-bound'."
            )
        if not self:
            refuse_idle(
                self,
                ("attackers",),
                "without a rule",
                label="Robust",
                advice="set rule",
            )

    def __bool__(self) -> bool:
        return self.rule != "none"

    def liars(self, count: int) -> int:
        """f, how many of so many clients may send anything."""
        if isinstance(self.attackers, int):
            return self.attackers
        return math.ceil(self.attackers * count - _ROUND_OFF)

    def needed(self, count: int) -> int:
        """How many clients the rule needs in a round of so many."""
        least = rules.least_rows(self.rule, self.liars(count))
        if isinstance(self.attackers, int):  # a share is below a half
            least = max(least, 2 * self.attackers + 1)
        return least

    def shortage(self, count: int) -> str:
        """What a round of so many clients is too small for; empty if it is not."""
        f, needed = self.liars(count), self.needed(count)
        if count >= needed:
            return ""
        formula = {"bulyan": "4 f + 3", "krum": "2 f + 3", "multi-krum": "2 f + 3"}
        spelled = formula.get(self.rule, "2 f + 1")
        return (
            f"{self.rule} needs {spelled} = {needed} clients against f = {f} "
            f"attackers, found {count}"
        )

    def refuse_small_rounds(self, count: int, whose: str) -> None:
        """Refuse rounds that are expected to be too small for the rule.

        Args:
            count: how many clients a round is expected to have.
            whose: what the message calls the round.

        Raises:
            ConfigError: they are.
        """
        shortage = self.shortage(count) if self else ""
        if shortage:
            raise ConfigError(
                f"robust: {shortage} in {whose}. Lower robust.attackers, sample more "
                "clients, or choose another rule."
            )

    def refuse_secure_sums(self) -> None:
        """Refuse a rule that has to see every client's part of a sum by itself.

        Raises:
            ConfigError: it does.
        """
        if self and self.rule != "norm-bound":
            raise ConfigError(
                f"robust: {self.rule} compares what single clients send, and with "
                "secure sums the server sees their total alone. Set robust.rule = "
                "'norm-bound' with a bound, or leave out secure sums."
            )
        if self and self.bound is None:
            raise ConfigError(
                "robust: norm-bound takes the median of the clients' norms, which the "
                "server does not see with secure sums. Give robust.bound."
            )

    def centre(self, rows: Tensor) -> Tensor:
        """(d,) what the rule makes of the rows of clients, (n, d)."""
        f = self.liars(len(rows))
        match self.rule:
            case "norm-bound":
                return rules.norm_bound(rows, self.bound)
            case "trimmed-mean":
                return rules.trimmed_mean(rows, f)
            case "median":
                return rules.median(rows)
            case "geometric-median":
                return rules.geometric_median(rows)
            case "krum":
                return rules.krum(rows, f)
            case "multi-krum":
                return rules.multi_krum(rows, f)
            case "bulyan":
                return rules.bulyan(rows, f)
            case "none":
                return rows.mean(0)
