"""Who starts a round of Self-FL beyond the shared model: Eq. (10) where it is stable.

Chen, Ding, Tramel, Wu, Sahu, Avestimehr, Zhang. NeurIPS 2022. Section 3.1.

Eq. (10) takes a client's last model out of the shared one. With few clients in a round
that model left the shared one long ago, and the start is pushed away from it all the
same. Let n clients arrive in a round, of M who ever did, and let k precisions of equal
size make the sums of Eq. (10). Without any training the shared model follows

    theta^t = (1 + c) theta^{t-1} - c theta^{t-tau},    c = 1 / (k - 1)

where tau is M / n on average. With clients drawn at random it grows by k / (k - 1) (1 -
n / M) a round, which is above 1 exactly when n k < M. In Algorithms 1 and 2 the sums
run over the clients of the round: k = n, and n^2 < M. Over the population k is M, and
the start is always stable. Over clusters k is their number; representatives that stay
from round to round then slow the growth, so that the rule is on the safe side.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedloom.core import client_models
from fedloom.core.algorithm import Cohort

StaleInit = Literal["correct", "skip", "recent"]
"""What becomes of Eq. (10) where the clients' models may be stale."""

_NEVER = -1
"""In the place of a round: the client's model was never taken in."""


def no_rounds(count: int, device: torch.device) -> Tensor:
    """(M,) that no model of `count` clients was taken in yet."""
    return torch.full((count,), _NEVER, device=device)


def with_round(last: Tensor, cohort: Cohort) -> Tensor:
    """(M,) the same after the models of a cohort were taken in."""
    now = torch.full_like(cohort.clients, cohort.round)
    return client_models.with_rows(last, now, cohort)


def corrects(
    stale_init: StaleInit,
    last: Tensor,
    cohort: Cohort,
    terms: Tensor,
    *,
    is_foreseen: bool = False,
) -> Tensor:
    """(n,) whether each client of a cohort starts beyond the shared model.

    Args:
        stale_init: the setting.
        last: (M,) the round in which each client's model was last taken in.
        cohort: the clients of this round.
        terms: k, how many precisions make the sums of Eq. (10).
        is_foreseen: count as many as arrive on average, of all there are: what one
            client is sent then says nothing of who else was there.
    """
    own = last[cohort.clients]
    if stale_init == "correct":
        return torch.ones_like(own, dtype=torch.bool)
    if stale_init == "recent":
        return own == cohort.round - 1
    if is_foreseen:
        count = cohort.population.count
        is_stable = cohort.population.rate * count * terms >= count
        return is_stable.expand(len(own))
    # Some who are called get lost. As many are taken to arrive as did the last time.
    arriving = (last == last.max()).sum()
    is_stable = arriving * terms >= (last > _NEVER).sum()
    return is_stable.expand(len(own))
