"""Attacks on what clients send: what attackers send in the place of their rows.

Every attack takes `honest` (n - f, d), the rows of the others, or `own` (f, d), those
that the attackers would have sent. Attackers who know all others' rows are the worst
case that robust rules are judged by; no attacker of a real federation knows them.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from torch import Tensor


def sign_flip(own: Tensor, factor: float) -> Tensor:
    """(f, d) each attacker's own row, turned round: `- factor * x`."""
    return -factor * own


def inner_product(honest: Tensor, factor: float) -> Tensor:
    """(d,) against the mean of the others, so that the sum points the wrong way.

    Inner product manipulation. Xie, Koyejo, Gupta. UAI 2019. arXiv:1903.03936:
    `- epsilon * mean of the honest`, epsilon being `factor`.
    """
    return -factor * honest.mean(0)


def little_is_enough(honest: Tensor, factor: float) -> Tensor:
    """(d,) the mean of the others, off by some of their standard deviations.

    Baruch, Baruch, Goldberg. NeurIPS 2019. arXiv:1902.06156: `mu - z sigma`, z being
    `factor`. With a single honest row the deviation is 0.
    """
    spread = honest.std(0) if len(honest) > 1 else honest[0] * 0.0
    return honest.mean(0) - factor * spread


def unseen_factor(count: int, attackers: int) -> float:
    """The z of `little_is_enough` with which the attackers still pass for ordinary.

    Of the same paper: `s = floor(n / 2 + 1) - m` honest clients have to be further out
    than the m attackers for these to hold the majority, and z is the largest with
    `Phi(z) < (n - m - s) / (n - m)`. 0 where attackers are too few for that.
    """
    supporters = math.floor(count / 2 + 1) - attackers
    share = (count - attackers - supporters) / (count - attackers)
    return max(NormalDist().inv_cdf(share), 0.0) if 0.0 < share < 1.0 else 0.0
