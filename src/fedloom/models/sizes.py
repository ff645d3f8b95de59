"""How large a model would be, before it is made."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.memory import refuse_beyond_memory


def foresee(make: Callable[[], nn.Module], what: str) -> dict[str, torch.Size]:
    """The shapes of a model's state dict, without the memory that it takes.

    Args:
        make: makes the model.
        what: how messages call it.

    Raises:
        ConfigError: it would not fit in memory.
    """
    advice = "Make it narrower or shallower."
    try:
        with torch.device("meta"):
            state = make().state_dict()
    except (RuntimeError, OverflowError) as error:
        raise ConfigError(
            f"{what} would have more parameters than can be counted ({error}). {advice}"
        ) from error
    size = sum(values.nbytes for values in state.values())
    count = sum(values.numel() for values in state.values())
    refuse_beyond_memory(size, f"{what} has {count:,} parameters, which", advice)
    return {name: values.shape for name, values in state.items()}
