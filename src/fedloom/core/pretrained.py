"""Models of Hugging Face's transformers, with or without adapters of PEFT.

They take a mask beside their tokens, give a record that has logits, and look at values
when they make masks. They are known by what they have: nothing of theirs is imported.
"""

from __future__ import annotations

import copy
import inspect
import sys
from typing import Any

from torch import Tensor, nn

from fedloom.core.errors import ContractError

_NAME = "fedloom"
"""What their attention is called that can be batched over clients."""


def output_of(outputs: Any) -> Tensor:
    """The tensor that a model gives, or the logits of the record that it gives.

    Raises:
        ContractError: it gives something else.
    """
    if isinstance(outputs, Tensor):
        return outputs
    logits = getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise ContractError(
        "model: forward() must return one tensor with a row per sample, or a record "
        f"with such a tensor called logits; found {type(outputs).__name__}. Return the "
        "outputs alone."
    )


def padding_token(model: nn.Module) -> int | None:
    """The token that a model's `config.pad_token_id` names, if it takes a mask."""
    token = getattr(getattr(model, "config", None), "pad_token_id", None)
    if not isinstance(token, int):
        return None
    base = getattr(model, "get_base_model", lambda: model)()
    takes_mask = "attention_mask" in inspect.signature(base.forward).parameters
    return token if takes_mask else None


def sharing_copy(model: nn.Module) -> nn.Module:
    """A copy with trained parameters and buffers of its own; frozen ones are shared."""
    known: dict[int, Any] = {
        id(p): p for p in model.parameters() if not p.requires_grad
    }
    return copy.deepcopy(model, known)


def with_batched_attention(model: nn.Module) -> nn.Module:
    """A model of transformers with attention that looks at no values.

    Theirs leaves masks out that hide nothing, which differs from client to client. Any
    other model is given back as it is.
    """
    transformers: Any = sys.modules.get("transformers")
    choose = getattr(model, "set_attn_implementation", None)
    if transformers is None or not callable(choose):
        return model
    transformers.AttentionInterface.register(_NAME, _attention)
    transformers.AttentionMaskInterface.register(_NAME, _mask)
    converted: Any = sharing_copy(model)
    converted.set_attn_implementation(_NAME)
    ready: nn.Module = converted
    return ready


def _attention(
    module: nn.Module, *args: Any, dropout: float = 0.0, **named: Any
) -> Any:
    if dropout > 0:
        config = getattr(module, "config", object)
        names = [n for n in vars(config) if "att" in n and "drop" in n]
        raise ContractError(
            f"model: {type(module).__name__} has dropout of attention, which is drawn "
            "from PyTorch's global generator, so that no two runs would be alike. Set "
            f"it to 0 in the model's config: {', '.join(names)}."
        )
    from_theirs: Any = sys.modules["transformers"].integrations.sdpa_attention
    return from_theirs.sdpa_attention_forward(module, *args, **named)


def _mask(*args: Any, **named: Any) -> Any:
    theirs: Any = sys.modules["transformers"].masking_utils
    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return theirs.sdpa_mask(*args, **{**named, **skips})
