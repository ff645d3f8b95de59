"""A task as one local step sees it: what it meets is counted, and may be hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedloom.core import streams
from fedloom.core.clip import PerSample
from fedloom.core.errors import ConfigError
from fedloom.core.measures import Outcome
from fedloom.core.scaling import Scaling
from fedloom.core.task import PARTS, Batch, Models, Task

T = TypeVar("T")

_SAMPLE_NOISE = 1 << 33
"""Which stream below a batch's key noise on gradients comes from; see
`fedloom.core.gaussians`."""


def watch(
    task: Task,
    scaling: Scaling | None = None,
    clip: float | None = None,
    per_sample: PerSample | None = None,
) -> WatchedTask:
    """A twin of a task that keeps the losses its gradients met, for one step.

    Args:
        task: the task.
        scaling: that of one client, where clients of several runs are together.
        clip: the largest norm of its gradients; None leaves them as they are.
        per_sample: how gradients hide single samples; None hides none.
    """
    if per_sample is not None:
        return PrivateTask(task, scaling, per_sample)
    return WatchedTask(task, scaling, clip)


class WatchedTask(Task):
    """A task that keeps the losses its gradients met.

    Made inside a compiled step, so it is put together from parts one by one:
    `copy.copy` cannot be traced.
    """

    def __init__(self, task: Task, scaling: Scaling | None, clip: float | None) -> None:
        for part in PARTS:
            setattr(self, part, getattr(task, part))
        if scaling is not None:
            self.scaling = scaling
        self.clip = clip
        self._losses: list[Tensor] = []
        self._samples: list[Tensor] = []

    @property
    def has_met_loss(self) -> bool:
        """Whether a gradient was taken at all; a step may only look at the data."""
        return len(self._losses) > 0

    def met_loss(self) -> Tensor:
        """The mean loss that the gradients met; 0 if there were none."""
        if not self._losses:
            return torch.zeros((), dtype=self.dtype, device=self.device)
        return sum(self._losses[1:], self._losses[0]) / len(self._losses)

    @property
    def met_gradients(self) -> int:
        """How many gradients were taken."""
        return len(self._losses)

    def met_samples(self) -> Tensor:
        """How many samples entered the gradients, each as often as it entered."""
        if not self._samples:
            return torch.zeros((), dtype=self.dtype, device=self.device)
        return sum(self._samples[1:], self._samples[0])

    def _meet(self, loss: Tensor, samples: Tensor) -> None:
        self._losses.append(loss)
        self._samples.append(samples)


class PrivateTask(WatchedTask):
    """A watched task whose gradients hide single samples, and which shows no more.

    The gradient of each sample is shortened, and noise is added to their sum before it
    is divided by their number. Noise comes from the batch's key, which a fleet draws
    from the client's own secret then; or from a source to which that key is the name of
    a stream.
    """

    def __init__(
        self, task: Task, scaling: Scaling | None, per_sample: PerSample
    ) -> None:
        super().__init__(task, scaling, None)
        self.per_sample = per_sample

    def grad(self, theta: Tensor, batch: Batch) -> Tensor:
        """The mean gradient of a batch, (d,), with noise in it."""
        params = self.unflatten(theta)

        def of_sample(single: Batch) -> tuple[Tensor, Tensor]:
            def loss(params: dict[str, Tensor]) -> Tensor:
                return self._losses_at(params, single)[0]

            gradient, value = grad_and_value(loss)(params)
            return self.flatten(gradient), value

        gradient, loss = self._hidden(of_sample, batch)
        self._meet(loss, batch.mask.sum())
        return gradient

    def grad_through(
        self,
        models: Callable[[Tensor], Models],
        at: Tensor,
        batch: Batch,
        *,
        passes: int = 1,
    ) -> Tensor:
        """The same of models that are made from a tensor; a penalty has no noise."""

        def of_sample(single: Batch) -> tuple[Tensor, Tensor]:
            def loss(at: Tensor) -> Tensor:
                base, head, _ = models(at)
                return self._mean_losses(base, head, single)[0]

            gradient, value = grad_and_value(loss)(at)
            row: Tensor = gradient.reshape(-1)
            return row, value

        def penalty(at: Tensor) -> Tensor:
            found = models(at).penalty
            return found if found is not None else at.new_zeros(())

        flat, loss = self._hidden(of_sample, batch)
        slope, price = grad_and_value(penalty)(at)
        self._meet(loss + price, passes * batch.mask.sum())
        gradient: Tensor = flat.reshape(at.shape) + slope
        return gradient

    def _hidden(
        self, of_sample: Callable[[Batch], tuple[Tensor, Tensor]], batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """The mean of shortened gradients, with noise; and the mean loss, without.

        Args:
            of_sample: gradient, as one vector, and loss of a batch of one sample.
            batch: the samples.
        """

        def of_row(inputs: tuple[Tensor, ...], target: Tensor) -> tuple[Tensor, Tensor]:
            one = tuple(x[None] for x in inputs)
            return of_sample(batch._replace(inputs=one, targets=target[None]))

        rows, losses = vmap(of_row)(batch.inputs, batch.targets)
        key = streams.fold(batch.key, _SAMPLE_NOISE + len(self._losses))
        gradient = self.per_sample.mean(rows, batch.mask, key)
        return gradient, batch.mean(losses)

    def grad_of(
        self, objective: Callable[[T], Tensor], at: T, batch: Batch, *, passes: int = 1
    ) -> T:
        """Refused: nobody knows what one sample does to it; see `grad_through`."""
        raise self._refusal("a gradient of its own making")

    def losses(self, theta: Tensor, batch: Batch) -> Tensor:
        """Refused: there is no noise in them."""
        raise self._refusal("losses of samples")

    def losses_of(self, base: Tensor, head: Tensor, batch: Batch) -> Tensor:
        """Refused: there is no noise in them."""
        raise self._refusal("losses of samples")

    def measure(
        self, theta: Tensor, inputs: tuple[Tensor, ...], targets: Tensor
    ) -> Outcome:
        """Refused: there is no noise in it."""
        raise self._refusal("scores of samples")

    def _refusal(self, what: str) -> ConfigError:
        return ConfigError(
            'privacy: unit = "sample" hides samples in gradients of the mean loss, and '
            f"a step of this method also takes {what}. Take a method whose steps do "
            "not, such as fedavg, ditto, fedper, pfedvem or self-fl."
        )
