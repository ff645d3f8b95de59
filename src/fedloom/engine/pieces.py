"""Parameter vectors as separate tensors, one per parameter of the network.

Inside a compiled phase a vector (C, d) is a list of pieces (C, *shape), each in a place
of its own and updated there: products of matrices read and write them as they are.
Any cut gives the same numbers; this one is the network's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.layout import Block, ParameterLayout


def cut(vectors: Tensor, layout: ParameterLayout) -> list[Tensor]:
    """Pieces of some vectors, (C, d) or a part of it.

    Anything else stays as it is, in one piece; so does a vector of one parameter.
    """
    blocks = _blocks_of(vectors, layout)
    if len(blocks) < 2:
        return [vectors.clone(memory_format=torch.contiguous_format)]
    first = blocks[0].start
    return [
        vectors[:, b.start - first : b.stop - first]
        .reshape(len(vectors), *b.shape)
        .clone(memory_format=torch.contiguous_format)
        for b in blocks
    ]


def joined(pieces: list[Tensor]) -> Tensor:
    """The vectors that pieces were cut from."""
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat([piece.flatten(1) for piece in pieces], dim=1)


def write(vectors: Tensor, pieces: list[Tensor]) -> None:
    """Put vectors into the places of their pieces."""
    if len(pieces) == 1:
        pieces[0].copy_(vectors)
        return
    start = 0
    for piece in pieces:
        stop = start + piece[0].numel()
        piece.copy_(vectors[:, start:stop].reshape(piece.shape))
        start = stop


def _blocks_of(vectors: Tensor, layout: ParameterLayout) -> list[Block]:
    """The parameters that make up vectors: all, those of the base, or of the head."""
    if vectors.dim() != 2:
        return []
    base, all_blocks = layout.base_d, layout.layout
    blocks = {
        layout.d - base: [b for b in all_blocks if b.start >= base],
        base: [b for b in all_blocks if b.stop <= base],
        layout.d: all_blocks,
    }
    return blocks.get(vectors.shape[1], [])
