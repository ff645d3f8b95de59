"""How the parameters of a module lie in one vector."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedloom.core.errors import ContractError

_NORMALISATION = (
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.modules.instancenorm._InstanceNorm,
)
"""Layers whose parameters scale and shift what they normalise, sample by sample."""


@dataclass(frozen=True)
class Block:
    """Where one parameter of the module lies in `theta`."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    is_normalisation: bool = False
    """Whether it scales or shifts what a normalisation layer normalised."""


class ParameterLayout:
    """The trained parameters of a module as one vector: the base's, then the head's.

    Args:
        model: the module; parameters that require no gradient have no place.
        head: name of the module that is the head; by default the last `nn.Linear` that
            has trained parameters.
    """

    def __init__(self, model: nn.Module, head: str | None = None) -> None:
        self.head_name = head if head is not None else _last_linear(model)
        self.layout, self.base_d = _lay_out(model, self.head_name)
        self.d = self.layout[-1].stop if self.layout else 0

    @property
    def head(self) -> slice:
        """The coordinates of the head in `theta`; empty if the model has none."""
        return slice(self.base_d, self.d)

    def split(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """`theta` as (base, head)."""
        return theta[..., : self.base_d], theta[..., self.base_d :]

    def join(self, base: Tensor, head: Tensor) -> Tensor:
        """(base, head) as `theta`."""
        return torch.cat([base, head], dim=-1)

    @property
    def ordinary_d(self) -> int:
        """How many parameters do not belong to normalisation layers."""
        return sum(b.stop - b.start for b in self.layout if not b.is_normalisation)

    def split_normalisation(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """`theta` as (ordinary, normalisation), each in the order of the layout.

        The second is the parameters of group, layer, instance and RMS normalisation.
        """
        ordinary, normalisation = [theta[..., :0]], [theta[..., :0]]
        for b in self.layout:
            parts = normalisation if b.is_normalisation else ordinary
            parts.append(theta[..., b.start : b.stop])
        return torch.cat(ordinary, dim=-1), torch.cat(normalisation, dim=-1)

    def join_normalisation(self, ordinary: Tensor, normalisation: Tensor) -> Tensor:
        """(ordinary, normalisation) as `theta`."""
        parts = []
        for b in self.layout:
            size = b.stop - b.start
            if b.is_normalisation:
                part, normalisation = (
                    normalisation[..., :size],
                    normalisation[..., size:],
                )
            else:
                part, ordinary = ordinary[..., :size], ordinary[..., size:]
            parts.append(part)
        return torch.cat(parts, dim=-1)

    def flatten(self, params: dict[str, Tensor]) -> Tensor:
        """Named parameters as one vector."""
        return torch.cat([params[b.name].reshape(-1) for b in self.layout])

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """One vector as named parameters; views, not copies."""
        return {b.name: theta[b.start : b.stop].view(b.shape) for b in self.layout}


def _last_linear(model: nn.Module) -> str | None:
    linear = [
        name
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear)
        and any(p.requires_grad for p in part.parameters())
    ]
    return linear[-1] if linear else None


def _lay_out(model: nn.Module, head: str | None) -> tuple[list[Block], int]:
    """The order of parameters in `theta`, and where the head begins."""
    shapes = {
        name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad
    }
    if head is not None:
        in_head = [n for n in shapes if head == "" or n.startswith(f"{head}.")]
        if not in_head:
            modules = [n for n, _ in model.named_modules() if n]
            raise ContractError(
                f"model: no parameters under the head {head!r}. "
                f"Modules: {', '.join(modules)}."
            )
    else:
        in_head = []
    ordered = [n for n in shapes if n not in in_head] + in_head
    normalise = _in_normalisation(model)
    blocks, start, base_d = [], 0, 0
    for name in ordered:
        stop = start + math.prod(shapes[name])
        blocks.append(Block(name, shapes[name], start, stop, name in normalise))
        start = stop
        if name not in in_head:
            base_d = stop
    return blocks, base_d


def _in_normalisation(model: nn.Module) -> set[str]:
    """Names of the parameters that normalisation layers own."""
    return {
        f"{path}.{name}" if path else name
        for path, part in model.named_modules()
        if isinstance(part, _NORMALISATION)
        for name, _ in part.named_parameters(recurse=False)
    }
