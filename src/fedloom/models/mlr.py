"""Multinomial logistic regression; with one output, linear regression."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fedloom.core.settings import check


class LogisticRegression(nn.Module):
    """One linear layer on the flattened input; all of it is the head."""

    def __init__(self, features: int, outputs: int, *, bias: bool, zero: bool) -> None:
        super().__init__()
        self.head = nn.Linear(features, outputs, bias=bias)
        if zero:
            for parameter in self.head.parameters():
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) to (B, outputs)."""
        out: Tensor = self.head(x.flatten(1))
        return out


@dataclass(frozen=True, kw_only=True)
class MLR:
    """Logistic regression."""

    start: Literal["zeros", "random"] = "zeros"
    """Initial parameters: all zero, as in the papers, or PyTorch's default."""
    bias: bool = True
    """Whether there is a constant term."""

    def __post_init__(self) -> None:
        check(self)

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The model for one sample of this shape."""
        return LogisticRegression(
            math.prod(input_shape),
            outputs,
            bias=self.bias,
            zero=self.start == "zeros",
        )
