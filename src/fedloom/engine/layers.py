"""The layers of a network that is nothing but layers, one after another.

Kernels of our own work on such networks; whatever is not recognised here is left to
PyTorch.
"""

from __future__ import annotations

from itertools import chain

from torch import nn

from fedloom.models.mlr import LogisticRegression
from fedloom.models.networks import LayeredNetwork


def layers_of(module: nn.Module) -> list[nn.Module] | None:
    """What a module applies one after another; None if it is of another kind.

    Layers that do nothing are left out. A module is known by its exact class, since a
    subclass may do anything, and only where no hook changes what it does.
    """
    if _has_hooks(module) or "forward" in vars(module):
        return None
    parts: list[nn.Module]
    if type(module) is nn.Sequential:
        parts = list(module)
    elif type(module) is LogisticRegression:
        parts = [nn.Flatten(), module.head]
    elif isinstance(module, LayeredNetwork) and _runs_as(module, LayeredNetwork):
        parts = [module.features, nn.Flatten(), module.body, module.head]
    elif type(module) is nn.Identity or (type(module) is nn.Dropout and not module.p):
        return []
    else:
        return [module]
    found = [layers_of(part) for part in parts]
    known = [layers for layers in found if layers is not None]
    return list(chain(*known)) if len(known) == len(found) else None


def _runs_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module's `forward` is that of the class it is derived from."""
    return type(module).forward is kind.forward


def _has_hooks(module: nn.Module) -> bool:
    return any(
        (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
    )
