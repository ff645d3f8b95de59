"""What a run of Self-FL shows of its step rule and its start, once it is over."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedloom.core.remarks import LogColumns, Remark
from fedloom.core.wording import percent

_FEW = 0.5
"""Share of the ordinary work below which a client has trained too little."""
_LATE = 10
"""How many of the last rounds show where the step rule has settled."""
_HELD = 0.25
"""Share of the cases held up by the floor from which on it matters."""
_FALL = 0.03
"""Relative fall of the training loss from which on clients are still learning."""
_MOST = 0.9
"""Share of the computed steps at an end of their range that counts as all of them."""


def on_steps(
    log: LogColumns, floors: NDArray[np.int64], most_steps: int
) -> Iterator[Remark]:
    """Whether clients trained enough, or else whether the step rule decided anything.

    At most one remark: what matters most.

    Args:
        log: the client log.
        floors: the fewest steps that each entry of it could have.
        most_steps: the most.
    """
    computed, ordinary = log["computed"], log["ordinary"]
    is_computed = computed > 0
    taken = np.where(is_computed, computed, ordinary).mean()
    if taken < _FEW * ordinary.mean():
        yield Remark(
            topic="local steps: few",
            text=(
                f"The step rule gave clients {taken:.1f} local steps a round on "
                f"average; their ordinary work is {ordinary.mean():.1f}. Models "
                "trained so little are often worse than training alone. Set "
                'least_steps = "ordinary", or raise most_steps if that is below the '
                "ordinary work."
            ),
            is_warning=True,
        )
        return
    if not is_computed.any():
        return
    held = (np.round(log["wanted"]) < floors)[is_computed].mean()
    fall = _fall(log)
    if held >= _HELD and fall >= _FALL:
        yield Remark(
            topic="local steps: below their floor",
            text=(
                f"In {percent(held)} of the cases the step rule asked for fewer local "
                "steps than least_steps allows, so that the latter decided, and the "
                f"training loss was still falling at the end (by {percent(fall)}): "
                "clients may have trained too little. Train for more rounds, raise lr, "
                'since a smaller one asks for fewer steps, or set target = "posterior".'
            ),
            is_warning=True,
        )
        return
    is_late = is_computed & (log["round"] > log["round"].max() - _LATE)
    if not is_late.any():
        return
    at_cap = (computed >= most_steps)[is_late].mean()
    at_end = ((computed >= most_steps) | (computed <= floors))[is_late].mean()
    if at_end >= _MOST:
        rounds = min(_LATE, int(log["round"].max()))
        yield Remark(
            topic="local steps: at the ends of their range",
            text=(
                f"The step rule hardly decided how long clients train: in the last "
                f"{rounds} rounds {percent(at_end)} of the steps that it computed were "
                "at the fewest that least_steps allows or at the most (most_steps = "
                f"{most_steps}: {percent(at_cap)}). To let it decide, "
                f"{_wider(at_cap, at_end)}, or do without it (use_steps = false)."
            ),
        )


def _wider(at_cap: float, at_end: float) -> str:
    """What to change so that fewer steps are at an end of their range."""
    if at_cap >= at_end / 2:
        return "raise most_steps"
    return "set least_steps to a smaller number"


def _fall(log: LogColumns) -> float:
    """By how much of itself the training loss fell, late rounds against those before.

    0 in a run of fewer than two rounds.
    """
    last = int(log["round"].max())
    width = min(_LATE, last // 2)
    is_late = log["round"] > last - width
    is_before = ~is_late & (log["round"] > last - 2 * width)
    if not is_before.any() or not is_late.any():
        return 0.0
    before, late = (log["train_loss"][rows].mean() for rows in (is_before, is_late))
    return float(1 - late / before) if before > 0 else 0.0


def on_start(log: LogColumns) -> Iterator[Remark]:
    """In how many rounds clients did not start beyond the shared model."""
    could = log["computed"] > 0
    rounds = set(log["round"][could].tolist())
    used = set(log["round"][could & (log["correction"] > 0)].tolist())
    if len(used) < len(rounds):
        yield Remark(
            topic="start at the shared model",
            text=(
                f"In {len(rounds - used)} of {len(rounds)} rounds clients started at "
                "the shared model, not beyond it as Eq. (10) has it: with so few "
                "clients in a round that start is unstable. stale_init says who "
                "starts where."
            ),
        )
