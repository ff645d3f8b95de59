"""Optimisers of local steps: SGD, and Adam in both of its forms.

What an optimiser remembers lives during one visit of a client: it starts anew each
round, and is neither kept nor sent.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Optimizer = Literal["sgd", "adam", "adamw"]
"""How a local step follows its gradient."""
SGD: tuple[str, ...] = ("sgd",)
"""What a method allows whose mathematics asks for SGD."""
ANY: tuple[str, ...] = ("sgd", "adam", "adamw")
"""What a method allows whose local steps only have to lower a loss."""

_FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8
"""Adam's beta_1, beta_2 and epsilon, as everywhere."""


def adam_move(
    gradient: Tensor, first: Tensor, second: Tensor, count: Tensor, pace: Tensor | float
) -> tuple[Tensor, Tensor, Tensor]:
    """How far Adam moves, and what it then remembers.

    Kingma, Ba. ICLR 2015. arXiv:1412.6980, Alg. 1.

    Args:
        gradient: of this step.
        first: running mean of the gradients before.
        second: running mean of their squares.
        count: which step it is, from 1.
        pace: the learning rate.

    Returns:
        What is to be subtracted, and both running means.
    """
    first = torch.lerp(gradient, first, _FIRST)
    second = torch.lerp(gradient.square(), second, _SECOND)
    times = count.to(gradient.dtype)
    size = torch.sqrt(second / (1.0 - _SECOND**times)) + _EPSILON
    return pace * first / (1.0 - _FIRST**times) / size, first, second
