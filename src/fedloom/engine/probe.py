"""A first look at model, loss and data together, so that errors come early."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch
from torch import Tensor
from torch.func import vmap

from fedloom.core.attention import batched_attention
from fedloom.core.errors import ContractError, FedloomError
from fedloom.core.task import Batch, Task
from fedloom.core.watched import watch
from fedloom.data.dataset import Dataset

_VALUES_DECIDE = ("data-dependent", ".item()", "Boolean value of Tensor")
"""What PyTorch says where a program asks for the values of tensors."""
_BY_VALUES = (
    "model: its forward(), or the loss, decides by the values of a tensor{place}: an "
    "`if` or `while` on it, bool(), float() or .item(). That cannot be done for many "
    "clients at once, whose values differ. Choose between values with "
    "torch.where(condition, a, b), or train client by client, which is slower: "
    "engine.runner=loop (--set engine.runner=loop, or "
    "engine=fedloom.EngineSettings(runner='loop'))."
)

_DRAWS = "called random operation"
"""What PyTorch says where a program draws while many clients are trained at once."""
_AT_RANDOM = (
    "model: its forward() draws from PyTorch's global generator{place}, so that no two "
    "runs would be alike. Use nn.Dropout or nn.MultiheadAttention(dropout=...), which "
    "are drawn from each client's own stream, or set the model's dropout to 0."
)


def probe(task: Task, dataset: Dataset, *, is_woven: bool) -> None:
    """Run the model on two samples the way training will.

    Raises:
        ContractError: the model cannot take the inputs, its outputs do not fit the
            targets, or it cannot be batched over clients.
    """
    inputs = tuple(x[:2].to(task.device) for x in dataset.inputs)
    targets = dataset.targets[:2].to(task.device)
    shapes = ", ".join(f"{tuple(x.shape[1:])} {x.dtype}" for x in inputs)
    try:
        outputs = task.predict(task.start, inputs)
    except FedloomError:
        raise
    except Exception as error:
        raise ContractError(
            f"model: it cannot take the inputs of {dataset.name} (one sample: "
            f"{shapes}){_place_of(error)}: {error}"
        ) from error
    if dataset.classes is not None and task.metric == "accuracy":
        expected = (len(targets), dataset.classes)
        if outputs.dim() != 2 or outputs.shape[1] < dataset.classes:
            raise ContractError(
                f"model: {dataset.name} has {dataset.classes} classes, so outputs of "
                f"shape {expected} were expected for two samples; found "
                f"{tuple(outputs.shape)}."
            )
    elif outputs.numel() != targets.numel():
        raise ContractError(
            f"model: outputs of shape {tuple(outputs.shape)} do not fit targets of "
            f"shape {tuple(targets.shape)}."
        )
    if not is_woven:
        return
    zero = torch.zeros((), dtype=torch.int64, device=task.device)
    mask = torch.ones(len(targets), dtype=task.dtype, device=task.device)
    batch = Batch(inputs, targets, mask, zero, zero, zero > 0, zero)

    def gradient(
        theta: Tensor, inputs: tuple[Tensor, ...], targets: Tensor, mask: Tensor
    ) -> Tensor:
        own = batch._replace(inputs=inputs, targets=targets, mask=mask)
        return watch(task).grad(theta, own)

    # As in training, every client has samples of its own, too.
    clients = [torch.stack([value, value]) for value in (task.start, targets, mask)]
    of_clients = tuple(torch.stack([x, x]) for x in inputs)
    try:
        with batched_attention():
            vmap(gradient)(clients[0], of_clients, *clients[1:])
    except FedloomError:
        raise
    except Exception as error:
        if _DRAWS in str(error):
            raise ContractError(_AT_RANDOM.format(place=_place_of(error))) from error
        if any(sign in str(error) for sign in _VALUES_DECIDE):
            raise ContractError(_BY_VALUES.format(place=_place_of(error))) from error
        raise ContractError(
            f"model: its gradient cannot be taken for many clients at once: {error} "
            "Avoid `.item()`, `if` on values and in-place changes in forward(), or run "
            "it client by client with engine.runner=loop."
        ) from error


def _place_of(error: BaseException) -> str:
    """Where in the user's own code something went wrong, in brackets."""
    libraries = (Path(torch.__file__).parent, Path(__file__).parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not any(map(path.is_relative_to, libraries)):
            line = f": {frame.line}" if frame.line else ""
            return f" ({path.name}, line {frame.lineno}{line})"
    return ""
