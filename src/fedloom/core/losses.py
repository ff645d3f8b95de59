"""What training makes small: one loss per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fedloom.core.errors import ContractError
from fedloom.core.measures import Outcome

Loss = Callable[[Tensor, Tensor], Tensor]
"""`(outputs, targets) -> one loss per sample`, each with a leading batch dimension."""


def loss_per_sample(loss: Any) -> Loss:
    """The loss of a name, or a function of the user's that is held to its contract.

    Raises:
        ContractError: There is no such loss; or, when it is called, the function did
            not return one value per sample.
    """
    if loss == "cross-entropy":
        return cross_entropy
    if loss == "squared-error":
        return squared_error
    if not callable(loss):
        raise ContractError(
            "loss: expected 'cross-entropy', 'squared-error' or a function of "
            f"(outputs, targets) with one value per sample; found {loss!r}."
        )

    def per_sample(outputs: Tensor, targets: Tensor) -> Tensor:
        values: Tensor = loss(outputs, targets)
        if values.shape != targets.shape[:1]:
            raise ContractError(
                "loss: your function must return one value per sample, shape "
                f"({targets.shape[0]},); it returned {tuple(values.shape)}. "
                "Use reduction='none' and average over the other dimensions."
            )
        return values

    return per_sample


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """That of every sample's class."""
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """That of every sample's target."""
    errors = outputs.reshape(targets.shape) - targets
    return Outcome.over_outputs(errors.square())
