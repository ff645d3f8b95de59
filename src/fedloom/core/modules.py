"""Modules that can be trained as one vector per client, each on its own stream."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from fedloom.core import streams
from fedloom.core.attention import KeyedAttention
from fedloom.core.errors import ContractError


class KeyedDropout(nn.Module):
    """Dropout whose mask comes from a stream given with the parameters."""

    key: Tensor

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.register_buffer("key", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Zero each value with probability `p` and scale up the rest."""
        kept = streams.uniform(self.key, x.shape) >= self.p
        return x * kept.to(x.dtype) / (1.0 - self.p)


class _NoDropout(nn.Identity):
    """Dropout of nothing, which draws nothing."""

    p = 0.0


def refuse_unfit(model: nn.Module) -> None:
    """Refuse what cannot be one vector per client, and say how to convert it."""
    for name, part in model.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise ContractError(
                f"model: {name or 'the model'} is {type(part).__name__}, whose "
                "statistics mix the samples of a batch and belong to no client's "
                "parameters. Replace it, for instance by "
                f"nn.GroupNorm({_groups(part)}, {part.num_features})."
            )
        if isinstance(part, nn.RNNBase):
            raise ContractError(
                f"model: {name or 'the model'} is {type(part).__name__}, which cannot "
                "be batched over clients. Write the recurrence with nn.LSTMCell, "
                "nn.GRUCell or linear layers and a Python loop over time."
            )
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            if isinstance(part, nn.Dropout):
                continue
            raise ContractError(
                f"model: {name or 'the model'} is {type(part).__name__}, which draws "
                "from PyTorch's global generator, so that no two runs would be alike. "
                "Use nn.Dropout, which is drawn from each client's own stream."
            )
    if not any(p.requires_grad for p in model.parameters()):
        raise ContractError(
            "model: it has no parameters that require a gradient, so there is nothing "
            "to train."
        )


def without_head(
    model: nn.Module, head: str, inputs: tuple[Tensor, ...]
) -> nn.Module | None:
    """A copy of a model that puts out what its head takes; None if there is no such.

    The head must be called once, with one tensor, and its output be the model's.

    Args:
        model: any module.
        head: name of its head.
        inputs: some samples to try it on.
    """
    calls: list[tuple[Any, ...]] = []

    def note(_: nn.Module, args: tuple[Any, ...], named: Any, output: Any) -> None:
        calls.append((*args, *named.values(), output, getattr(output, "_version", 0)))

    with torch.no_grad():
        with model.get_submodule(head).register_forward_hook(note, with_kwargs=True):
            outputs = model(*inputs)
        if len(calls) != 1 or len(calls[0]) != 3:
            return None
        features, output, version = calls[0]
        # The same tensor, and nothing was done to it in place.
        if output is not outputs or output._version != version:
            return None
        below = copy.deepcopy(model)
        parent, _, child = head.rpartition(".")
        setattr(below.get_submodule(parent), child, nn.Identity())
        try:
            again = below(*inputs)
        except Exception:  # whatever a user's model makes of it
            return None  # it looks into its head, or at what that puts out
    is_same = isinstance(features, Tensor) and torch.equal(features, again)
    return below if is_same else None


def _groups(part: nn.modules.batchnorm._BatchNorm) -> int:
    return math.gcd(part.num_features, 32)


def key_dropouts(trainer: nn.Module) -> list[str]:
    """Put keyed dropout in the place of PyTorch's, whose generator is global.

    Gives the names of the modules that take a key.
    """
    names = []
    for name, part in list(trainer.named_modules(remove_duplicate=False)):
        if type(part) is nn.MultiheadAttention and part.dropout > 0:
            KeyedAttention.convert(part, name or "the model")
            names.append(name)
        if not isinstance(part, nn.Dropout):
            continue
        parent, _, child = name.rpartition(".")
        owner = trainer.get_submodule(parent)
        if not isinstance(getattr(owner, child), nn.Dropout):
            continue  # replaced already, under another name of its owner
        if part.p > 0:
            names.append(name)
        setattr(owner, child, KeyedDropout(part.p) if part.p > 0 else _NoDropout())
    return names
