"""What a model said of samples, and what a client tells the server about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedloom.core.reprs import without_values

_FEW_CLASSES = 16
"""Classes that do not fill the vectors of a processor."""


class Sums(NamedTuple):
    """Client to server after an evaluation: sums and counts, never a sample.

    A fleet holds one row per client. Which sums there are follows from the metrics.
    """

    samples: Tensor
    """(M,) how many samples each client was scored on."""
    values: tuple[Tensor, ...]
    """(M,) or (M, k) in float64 for each of `fedloom.core.metrics.statistics()`; (M, 0)
    if the task does not have it. Zeros for a client without a sample."""


@without_values
class PersonalOutcomes(NamedTuple):
    """What personal models said of every sample; only a simulation collects it."""

    rows: Tensor
    """(N,) number of each sample in the dataset."""
    clients: Tensor
    """(N,) number of the client whose model it was, ascending."""
    values: Tensor
    """(N,) the task's metric of the sample: 1 or 0 for accuracy, the squared error for
    mse; float64."""
    work: Tensor
    """(n,) gradient-samples that adapting the model took each client that was asked;
    0 for one without a sample of the part."""


def log_probabilities(outputs: Tensor) -> Tensor:
    """(B, classes) of every class, of logits (B, classes)."""
    if outputs.shape[1] > _FEW_CLASSES or outputs.is_cuda:
        return outputs.log_softmax(1)
    # On a CPU the same numbers, by vectors of samples and not one by one.
    return outputs.t().log_softmax(0).t()


@without_values
@dataclass(eq=False)
class Outcome:
    """What a model said of some samples and what is true, for metrics to compare.

    Each property is computed when a metric asks for it, and once.
    """

    outputs: Tensor
    """(B, classes) logits, or (B, ...) numbers."""
    targets: Tensor
    """(B,) classes, or (B, ...) numbers."""
    loss: Tensor
    """(B,) the task's loss."""

    @cached_property
    def log_probabilities(self) -> Tensor:
        """(B, classes) of every class."""
        return log_probabilities(self.outputs)

    @cached_property
    def probabilities(self) -> Tensor:
        """(B, classes) of every class."""
        return self.log_probabilities.exp()

    @cached_property
    def truth(self) -> Tensor:
        """(B, classes) 1 for the true class, 0 for the others."""
        return F.one_hot(self.targets, self.outputs.shape[1]).to(self.outputs.dtype)

    @cached_property
    def is_right(self) -> Tensor:
        """(B,) 1 where the largest output is the true class, else 0."""
        return (self.outputs.argmax(dim=1) == self.targets).to(self.outputs.dtype)

    @cached_property
    def confidence(self) -> Tensor:
        """(B,) the probability of the most probable class."""
        return self.probabilities.amax(1)

    @cached_property
    def margin(self) -> Tensor:
        """(B,) log-odds of class 1 against class 0, which rank samples of two classes.

        Written with a sum, since there may be one class only.
        """
        logs = self.log_probabilities
        return logs[:, 1:2].sum(1) - logs[:, 0]

    @cached_property
    def is_called(self) -> Tensor:
        """(B,) whether the model says class 1 rather than class 0."""
        return self.margin > 0

    @cached_property
    def is_positive(self) -> Tensor:
        """(B,) whether the true class is class 1."""
        return self.targets == 1

    @cached_property
    def errors(self) -> Tensor:
        """(B, ...) outputs minus targets, for numbers."""
        return self.outputs.reshape(self.targets.shape) - self.targets

    @staticmethod
    def over_outputs(values: Tensor) -> Tensor:
        """(B,) the mean over a sample's outputs, where it has several."""
        return values if values.dim() == 1 else values.flatten(1).mean(1)

    @staticmethod
    def columns(*values: Tensor) -> Tensor:
        """(B, k) numbers of each sample, of k vectors (B,)."""
        return torch.stack([v.to(values[0].dtype) for v in values], dim=1)
