"""Attention that can be batched over clients.

PyTorch's fast kernels of attention cannot be: `vmap` runs them sample by sample, with a
warning. As ordinary products, which is what PyTorch computes where it has no kernel,
attention is batched like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.backends import mha
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedloom.core import streams
from fedloom.core.errors import ContractError


@contextmanager
def without_fused_layers() -> Iterator[None]:
    """Have layers of attention computed as in training, not by the kernel of inference.

    That kernel cannot be batched over clients, and cuts padded sequences short in a way
    that PyTorch warns of.
    """
    was = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(was)


@contextmanager
def batched_attention() -> Iterator[None]:
    """Have all attention computed by products, whatever asks for it."""
    with without_fused_layers(), sdpa_kernel(SDPBackend.MATH):
        yield


class KeyedAttention(nn.MultiheadAttention):
    """Attention whose dropout comes from a stream given with the parameters."""

    key: Tensor
    p: float

    @classmethod
    def convert(cls, part: nn.MultiheadAttention, name: str) -> None:
        """Make this of a layer with dropout, in place; its parameters stay.

        Args:
            part: the layer.
            name: how messages call it.
        """
        if part.bias_k is not None or part.add_zero_attn:
            raise ContractError(
                f"model: {name} has dropout together with add_bias_kv or "
                "add_zero_attn, which is not supported. Set its dropout to 0."
            )
        part.__class__ = cls
        assert isinstance(part, KeyedAttention)
        part.p, part.dropout = part.dropout, 0.0
        part.register_buffer("key", torch.zeros((), dtype=torch.int64))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As PyTorch's; weights are dropped with probability `p`."""
        _, weights = super().forward(
            query,
            key,
            value,
            key_padding_mask=key_padding_mask,
            attn_mask=attn_mask,
            average_attn_weights=False,
            is_causal=is_causal,
        )
        assert weights is not None
        kept = streams.uniform(self.key, weights.shape) >= self.p
        weights = weights * kept.to(weights.dtype) / (1.0 - self.p)
        is_turned = value.dim() == 3 and not self.batch_first
        values = self._values(value.transpose(0, 1) if is_turned else value)
        heads = values.reshape(*values.shape[:-1], self.num_heads, -1)
        heads = heads.transpose(-3, -2)
        out: Tensor = self.out_proj((weights @ heads).transpose(-3, -2).flatten(-2))
        if is_turned:
            out = out.transpose(0, 1)
        if not need_weights:
            return out, None
        return out, weights.mean(-3) if average_attn_weights else weights

    def _values(self, x: Tensor) -> Tensor:
        """(..., embed_dim) what the heads mix."""
        joint, bias = self.in_proj_weight, self.in_proj_bias
        weight = self.v_proj_weight if joint is None else joint.chunk(3)[2]
        return F.linear(x, weight, None if bias is None else bias.chunk(3)[2])
