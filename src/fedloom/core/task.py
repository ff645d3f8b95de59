"""A task: a model and a loss as pure functions of one parameter vector.

`theta` has shape `(d,)`: the base parameters in the module's order, then the head's, so
that base and head are two slices. Any `nn.Module` will do; `functional_call` runs it
with the views of `theta` in place of its own parameters.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from fedloom.core import streams
from fedloom.core.attention import without_fused_layers
from fedloom.core.clip import clip_factor, clipped
from fedloom.core.layout import ParameterLayout
from fedloom.core.losses import (
    Loss,
    cross_entropy,
    loss_per_sample,
    squared_error,
)
from fedloom.core.measures import Outcome, log_probabilities
from fedloom.core.modules import key_dropouts, refuse_unfit, without_head
from fedloom.core.pretrained import (
    output_of,
    padding_token,
    sharing_copy,
    with_batched_attention,
)
from fedloom.core.reprs import without_values
from fedloom.core.scaling import Levels, Scaling, along, give_units, in_units

T = TypeVar("T")


@without_values
class Batch(NamedTuple):
    """Some of one client's training samples, padded to a common width."""

    inputs: tuple[Tensor, ...]
    """The model's arguments, each (B, ...)."""
    targets: Tensor
    """(B,) classes, or (B, ...) numbers."""
    mask: Tensor
    """(B,) 1 for a sample, 0 for padding, in the run's floating type."""
    key: Tensor
    """A random stream of this step's own; see `fedloom.core.streams`."""
    step: Tensor
    """Position in the phase, from 0."""
    ends_epoch: Tensor
    """Whether this batch is the last of a pass over the data."""
    round: Tensor
    """The round, from 0."""

    def mean(self, values: Tensor) -> Tensor:
        """The mean over real samples of one value per sample."""
        return (self.mask * values).sum() / self.mask.sum().clamp(min=1.0)

    def total(self, values: Tensor) -> Tensor:
        """The sum over real samples of one value per sample."""
        return (self.mask * values).sum()


class Models(NamedTuple):
    """One model or several, as `Task.grad_through` trains them."""

    base: Tensor
    """(base_d,), or (K, base_d) where each has its own."""
    head: Tensor
    """(h,), or (K, h)."""
    penalty: Tensor | None = None
    """What is added to the mean loss, such as a divergence from a prior; it must not
    look at samples."""


class Task(ParameterLayout):
    """Model and loss as functions of `theta`; what every algorithm trains.

    Args:
        model: any module without batch statistics; it is copied, never changed.
            Parameters with `requires_grad=False` stay as they are and are not sent.
        loss: "cross-entropy", "squared-error", or your own function that returns one
            loss per sample.
        head: name of the module that is the head (its parameters end `theta`); by
            default the last `nn.Linear`.
        metric: what evaluation scores; by default "mse" for squared error and
            "accuracy" for every other loss.
        shift: with `scale`, how a uint8 input becomes a number: `(x - shift) / scale`;
            one number, or one per channel of an input (B, channels, ...). A tensor,
            one number per feature, holds for floating inputs too.
        scale: see `shift`.
        target_shift: with `target_scale`, how a number to predict is learned:
            `(y - target_shift) / target_scale`. Tensors, one number per output; the
            loss is that of the standardised numbers, while predictions and all other
            scores are in the target's own units. Without them numbers are learned as
            they are.
        target_scale: see `target_shift`.
        dtype: the floating type of parameters and inputs.
        device: where everything lives.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: str | Loss = "cross-entropy",
        *,
        head: str | None = None,
        metric: Literal["accuracy", "mse"] | None = None,
        shift: Levels | Tensor = 0.0,
        scale: Levels | Tensor = 1.0,
        target_shift: float | Tensor = 0.0,
        target_scale: float | Tensor = 1.0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        refuse_unfit(model)
        super().__init__(model, head)
        self.dtype = dtype
        self.device = torch.device(device)
        self.scales_floats = isinstance(shift, Tensor)
        self.scales_targets = isinstance(target_shift, Tensor)
        levels = shift, scale, target_shift, target_scale
        self.scaling = Scaling(*map(self._level, levels))
        self.module = copy.deepcopy(model).to(self.device, dtype).eval()
        self.padding = padding_token(self.module)
        self._evaluator = with_batched_attention(self.module)
        self._trainer = sharing_copy(self._evaluator).train()
        self._dropouts = key_dropouts(self._trainer)
        self._prefix = ""
        self._loss = loss_per_sample(loss)
        is_number = metric == "mse" or (metric is None and loss == "squared-error")
        self.metric = "mse" if is_number else "accuracy"
        self.start = self.flatten(dict(self.module.named_parameters())).detach()
        self.clip: float | None = None

    @property
    def shift(self) -> float | Tensor:
        """What is taken from an input before it is divided by `scale`."""
        return self.scaling.shift

    @property
    def scale(self) -> float | Tensor:
        """What an input is divided by, less `shift`."""
        return self.scaling.scale

    def initial(self, seed: int, index: int) -> Tensor:
        """A start: the module's own parameters for 0, freshly drawn ones after that."""
        if index == 0:
            return self.start.clone()
        # Drawn on the CPU, so that a GPU starts from the same numbers.
        fresh = copy.deepcopy(self.module).cpu()
        with streams.seeded(seed, "initial", index):
            for part in fresh.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
        drawn = self.flatten(dict(fresh.named_parameters())).detach()
        return drawn.to(self.device)

    def prepare(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Raw inputs as the model takes them: bytes scaled, floats cast, ints kept.

        Floats are scaled too where every feature has its own shift and scale.
        """
        ready = []
        for x in inputs:
            if x.dtype == torch.uint8 or (self.scales_floats and x.is_floating_point()):
                shift, scale = along(self.shift, x), along(self.scale, x)
                numbers = x.to(self.dtype)
                if isinstance(shift, Tensor) or shift:
                    numbers = numbers - shift
                ready.append(numbers / scale)
            else:
                ready.append(x.to(self.dtype) if x.is_floating_point() else x)
        return tuple(ready)

    def predict(self, theta: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """The model's outputs, dropout off; numbers in the target's own units."""
        return self.in_units(self._outputs(theta, inputs))

    def in_units(self, outputs: Tensor) -> Tensor:
        """What the module puts out, in the units of the targets."""
        if not self.scales_targets:
            return outputs
        return in_units(outputs, self.scaling.target_shift, self.scaling.target_scale)

    def losses(self, theta: Tensor, batch: Batch) -> Tensor:
        """(B,) the training loss of each sample, padding included."""
        return self._losses_at(self.unflatten(theta), batch)

    def losses_of(self, base: Tensor, head: Tensor, batch: Batch) -> Tensor:
        """`losses` of a model given in two parts, cut between any two parameters.

        The parts are never joined: under `vmap` over heads alone the base runs once.
        """
        cut = base.shape[-1]
        params = {
            b.name: base[b.start : b.stop].view(b.shape)
            if b.stop <= cut
            else head[b.start - cut : b.stop - cut].view(b.shape)
            for b in self.layout
        }
        return self._losses_at(params, batch)

    def loss(self, theta: Tensor, batch: Batch) -> Tensor:
        """The mean training loss over the batch's samples."""
        return batch.mean(self.losses(theta, batch))

    def grad(self, theta: Tensor, batch: Batch) -> Tensor:
        """The gradient of `loss`, (d,).

        Taken with respect to the dict of views and concatenated once, which is faster
        than differentiating through the slices of `theta`.
        """

        def objective(params: dict[str, Tensor]) -> Tensor:
            return batch.mean(self._losses_at(params, batch))

        gradient = self._grad_of(objective, self.unflatten(theta), batch)
        flat = self.flatten(gradient)
        if self.clip is None:
            return flat
        # The vector is new and nobody else's: in place, it stays in the cache.
        return flat.mul_(clip_factor(gradient.values(), self.clip))

    def grad_of(
        self, objective: Callable[[T], Tensor], at: T, batch: Batch, *, passes: int = 1
    ) -> T:
        """The gradient of any scalar function of tensors, of the shape of `at`.

        The engine reads the value as this step's training loss, counts the samples as
        work, and has the gradient shortened to the method's `clip`: the function
        should be of the size of a loss per sample.

        Args:
            objective: what is differentiated.
            at: where, a tensor or a record of tensors.
            batch: the samples that enter.
            passes: how often each enters, such as the draws of a Monte-Carlo mean.
        """
        return clipped(self._grad_of(objective, at, batch, passes=passes), self.clip)

    def grad_through(
        self,
        models: Callable[[Tensor], Models],
        at: Tensor,
        batch: Batch,
        *,
        passes: int = 1,
    ) -> Tensor:
        """The gradient of the mean loss of models that are made from a tensor.

        It can hide single samples, which `grad_of` cannot: it knows what each one does.

        Args:
            models: makes them; they must follow from its argument alone.
            at: where, of any shape.
            batch: the samples that enter.
            passes: how many models there are.
        """

        def objective(at: Tensor) -> Tensor:
            base, head, penalty = models(at)
            loss = batch.mean(self._mean_losses(base, head, batch))
            return loss if penalty is None else loss + penalty

        return self.grad_of(objective, at, batch, passes=passes)

    def _mean_losses(self, base: Tensor, head: Tensor, batch: Batch) -> Tensor:
        """(B,) the loss of each sample, as the mean over models."""
        several = tuple(0 if part.dim() > 1 else None for part in (base, head))
        if several == (None, None):
            return Task.losses_of(self, base, head, batch)
        each = vmap(lambda b, h: Task.losses_of(self, b, h, batch), in_dims=several)
        losses: Tensor = each(base, head).mean(0)
        return losses

    def _grad_of(
        self, objective: Callable[[T], Tensor], at: T, batch: Batch, *, passes: int = 1
    ) -> T:
        gradient, value = grad_and_value(objective)(at)
        samples = batch.mask.sum()
        self._meet(value, samples if passes == 1 else passes * samples)
        return gradient  # type: ignore[no-any-return]

    def measure(
        self, theta: Tensor, inputs: tuple[Tensor, ...], targets: Tensor
    ) -> Outcome:
        """What one model says of samples, beside what is true."""
        return self.compare(self._outputs(theta, inputs), targets)

    def measure_average(
        self, thetas: Tensor, inputs: tuple[Tensor, ...], targets: Tensor
    ) -> Outcome:
        """The same for the average prediction of several models, (k, d)."""
        return self.compare(self._average(thetas, inputs), targets)

    def predict_average(self, thetas: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """Outputs of several models, (k, d), as one: log of the mean probabilities.

        Without classes, the mean of the predicted numbers.
        """
        return self.in_units(self._average(thetas, inputs))

    def _outputs(self, theta: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        return self._outputs_of(theta, self.prepare(inputs))

    def _outputs_of(self, theta: Tensor, prepared: tuple[Tensor, ...]) -> Tensor:
        params = self._params_of(self.unflatten(theta))
        # The compiler cannot trace this, and what a runner compiles is inside it.
        is_compiling = torch.compiler.is_compiling()
        with nullcontext() if is_compiling else without_fused_layers():
            return self._call(self._evaluator, params, prepared)

    def _call(
        self, module: nn.Module, params: dict[str, Tensor], inputs: tuple[Tensor, ...]
    ) -> Tensor:
        """What a module with these parameters gives; padding is hidden from it."""
        named = {}
        if self.padding is not None and len(inputs) == 1:
            named["attention_mask"] = (inputs[0] != self.padding).long()
        return output_of(functional_call(module, params, inputs, named))

    def _params_of(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the module itself has of all parameters, by its own names."""
        prefix = self._prefix
        if not prefix:
            return params
        own = (name for name in params if name.startswith(prefix))
        return {name.removeprefix(prefix): params[name] for name in own}

    def _average(self, thetas: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        prepared = self.prepare(inputs)
        return self.average([self._outputs_of(theta, prepared) for theta in thetas])

    def average(self, outputs: Sequence[Tensor]) -> Tensor:
        """What several models say of the same samples, (B, ...) each, as one."""
        together = torch.stack(tuple(outputs))
        if self.metric != "accuracy":
            return together.mean(0)
        logs = together.log_softmax(-1).logsumexp(0)
        return logs - math.log(len(together))

    def compare(self, outputs: Tensor, targets: Tensor) -> Outcome:
        """What a module put out for samples, beside what is true."""
        if self._loss is cross_entropy and outputs.dim() == 2:
            logs = log_probabilities(outputs)
            loss = F.nll_loss(logs, targets, reduction="none")
            outcome = Outcome(outputs, targets, loss)
            outcome.log_probabilities = logs  # for the metrics that need them
            return outcome
        loss = self._loss(outputs, self._learned(targets))
        return Outcome(self.in_units(outputs), self._cast(targets), loss)

    def constant_losses(self, targets: Tensor) -> Tensor | None:
        """(N,) the loss of each sample if a model said the same of all of them.

        The best that it could say: how often each class occurs, or the mean number.
        None if the loss is the caller's own function.

        Args:
            targets: (N,) classes, or (N, ...) numbers.
        """
        learned = self._learned(targets.to(self.device))
        if self._loss is cross_entropy and learned.dim() == 1:
            shares = torch.bincount(learned).to(self.dtype) / len(learned)
            return -shares.log()[learned]
        if self._loss is squared_error:
            return self._loss(learned.mean(0, keepdim=True).expand_as(learned), learned)
        return None

    def has_constants_of(self, other: Task) -> bool:
        """Whether both tasks differ in trained parameters and in scaling at most.

        Frozen parameters and buffers are not part of `theta`, so they must be equal.
        Scaling is data, but of the same kind in both: `scaling_of` several tasks.
        """
        if self.scaling_shapes != other.scaling_shapes:
            return False
        trained = {block.name for block in self.layout}
        mine, theirs = self.module.state_dict(), other.module.state_dict()
        return mine.keys() == theirs.keys() and all(
            name in trained or torch.equal(value, theirs[name])
            for name, value in mine.items()
        )

    def fresh_module(self) -> nn.Module:
        """A copy of the model, as the user's own class, as it is trained.

        Neither the scaling of inputs nor that of targets is part of it.
        """
        return copy.deepcopy(self.module)

    @property
    def scaling_shapes(self) -> tuple[Any, ...]:
        """The shapes of all levels, and what they hold for."""
        shapes = [torch.as_tensor(level).shape for level in self.scaling]
        return (*shapes, self.scales_floats, self.scales_targets)

    def ordinary_module(self, theta: Tensor) -> nn.Module:
        """A module of the user's own class with these parameters.

        It takes inputs as `prepare` gives them, and gives numbers in the target's own
        units.
        """
        module = self.fresh_module()
        params = {name: p.detach().clone() for name, p in self.unflatten(theta).items()}
        module.load_state_dict(params, strict=False)
        if self.scales_targets:
            shift, scale = self.scaling.target_shift, self.scaling.target_scale
            give_units(module, shift, scale)
        return module

    def above_base(self, inputs: tuple[Tensor, ...]) -> HeadTask | None:
        """The same task on features, the numbers that its head takes.

        None where the model is not a base and a head above it, or draws at random.

        Args:
            inputs: those of some samples, to see what becomes of them.
        """
        if not self.head_name or self.base_d in (0, self.d) or self._dropouts:
            return None
        below = without_head(self._trainer, self.head_name, self.prepare(inputs))
        if below is None:
            return None
        # A parameter of both would be given to one of them only.
        own = {name for name, p in below.named_parameters() if p.requires_grad}
        if own != {b.name for b in self.layout if b.stop <= self.base_d}:
            return None
        task = HeadTask(self, below)
        own = {name for name, p in task._trainer.named_parameters() if p.requires_grad}
        if own != task._params_of(self.unflatten(self.start)).keys():
            return None
        features = task.features(self.split(self.start)[0], inputs)
        task.feature_shape = features.shape[1:]
        return task if features.dtype == self.dtype else None

    def _level(self, values: Levels | Tensor) -> float | Tensor:
        if isinstance(values, tuple | Tensor):
            return torch.as_tensor(values, dtype=self.dtype, device=self.device)
        return values

    def _meet(self, loss: Tensor, samples: Tensor) -> None:
        """A gradient met this loss on so many samples; a watched task keeps both."""

    def _cast(self, targets: Tensor) -> Tensor:
        return targets.to(self.dtype) if targets.is_floating_point() else targets

    def _learned(self, targets: Tensor) -> Tensor:
        """Targets as the loss takes them."""
        targets = self._cast(targets)
        if not self.scales_targets:
            return targets
        return (targets - self.scaling.target_shift) / self.scaling.target_scale

    def _losses_at(self, params: dict[str, Tensor], batch: Batch) -> Tensor:
        streams_of = {
            f"{name}.key": streams.fold(batch.key, place)
            for place, name in enumerate(self._dropouts)
        }
        inputs = self.prepare(batch.inputs)
        params = self._params_of(params) | streams_of
        outputs = self._call(self._trainer, params, inputs)
        return self._loss(outputs, self._learned(batch.targets))


PARTS = (
    "dtype",
    "device",
    "scales_floats",
    "scales_targets",
    "scaling",
    "module",
    "_evaluator",
    "_trainer",
    "padding",
    "_dropouts",
    "_prefix",
    "head_name",
    "layout",
    "base_d",
    "d",
    "_loss",
    "metric",
    "start",
)
"""What a task is made of; a watched twin shares it all."""


class HeadTask(Task):
    """A task whose inputs are features: what the head of another task takes.

    Parameters are laid out as in the other; those of the base play no part.

    Args:
        task: the other.
        below: its model without the head.
    """

    feature_shape: torch.Size
    """Of the features of one sample."""

    def __init__(self, task: Task, below: nn.Module) -> None:
        for part in PARTS:
            setattr(self, part, getattr(task, part))
        assert task.head_name is not None
        self.module = task.module.get_submodule(task.head_name)
        self._evaluator = self.module
        self._trainer = task._trainer.get_submodule(task.head_name)
        self.padding = None
        self._prefix = f"{task.head_name}."
        self.scales_floats = False
        self.clip = None
        self._whole, self._below = task, below

    def features(self, base: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        """(B, ...) what the head takes of samples; no gradient goes through it.

        Args:
            base: (base_d,) the parameters below the head.
            inputs: as the other task takes them.
        """
        params = {
            b.name: base[b.start : b.stop].view(b.shape)
            for b in self.layout
            if b.stop <= self.base_d
        }
        with torch.no_grad():
            features: Tensor = functional_call(
                self._below, params, self._whole.prepare(inputs)
            )
        return features


def scaling_of(tasks: Sequence[Task]) -> Scaling | None:
    """The scaling of several tasks, one row each; None if all have the same.

    Args:
        tasks: all of the same kind, see `Task.has_constants_of`.
    """
    columns = zip(*(task.scaling for task in tasks), strict=True)
    first = tasks[0]
    levels = [
        torch.stack(
            [torch.as_tensor(x, dtype=first.dtype, device=first.device) for x in column]
        )
        for column in columns
    ]
    if all(torch.equal(level, level[:1].expand_as(level)) for level in levels):
        return None
    return Scaling(*levels)
