"""Batch plans: which samples each client meets at each step, from its stream alone.

An epoch is a permutation of the client's samples: the order of SplitMix64 values of
the stream (client key, epoch), so it is the same in whatever chunk, order or width the
client is planned, on the host or on the GPU. It is cut into batches whose sizes differ
by at most one: no step is taken on the few samples that are left over.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.core.reprs import without_values
from fedloom.core.streams import fold

_MOST_KEYS = 1 << 20
"""Shuffled positions that are held at once, before clients are planned in halves."""
_LAST = torch.iinfo(torch.int64).max


@without_values
class Plan(NamedTuple):
    """For C clients, S steps and batches of width B, padded to the longest client."""

    positions: Tensor
    """(C, S, B) which of the client's own samples, from 0; 0 where there is none."""
    mask: Tensor
    """(C, S, B) whether there is a sample."""
    ends_epoch: Tensor
    """(C, S) whether the step ends a pass over the client's data."""


def steps_per_epoch(sizes: Tensor, batch_size: int) -> Tensor:
    """The fewest batches that hold all samples once: what one pass takes."""
    return (sizes + batch_size - 1) // batch_size


class Extents(NamedTuple):
    """Sizes and steps of C clients on the host, to see there how much room they need.

    To look at a number on a GPU is to wait until it has done all that it was given.
    """

    sizes: Tensor
    steps: Tensor


def permutations(
    keys: Tensor, sizes: Tensor, epochs: int, longest: int | None = None
) -> Tensor:
    """(C, epochs, longest) each client's samples in shuffled order, then padding."""
    longest = int(sizes.max()) if longest is None else longest
    epoch_keys = fold(keys[:, None], torch.arange(epochs, device=keys.device))
    place = torch.arange(longest, device=keys.device)
    values = fold(epoch_keys[..., None], place)
    beyond = place >= sizes[:, None, None]
    return torch.where(beyond, _LAST, values).argsort(dim=-1, stable=True)


def plan_batches(
    keys: Tensor,
    sizes: Tensor,
    steps: Tensor,
    batch_size: int,
    extents: Extents | None = None,
) -> Plan:
    """Consecutive batches of shuffled epochs, `steps` of them for each client.

    The batches of an epoch are as equal as they can be: their sizes differ by at most
    one, the larger ones first.

    Args:
        keys: (C,) one stream per client.
        sizes: (C,) training samples per client, at least one.
        steps: (C,) how many batches each client takes.
        batch_size: the most samples in a batch.
        extents: `sizes` and `steps` on the host, where they are elsewhere.
    """
    extents = extents or Extents(sizes, steps)
    longest = int(extents.steps.max())
    return _plan(keys, sizes, steps, batch_size, longest, extents)


def _plan(
    keys: Tensor,
    sizes: Tensor,
    steps: Tensor,
    batch_size: int,
    longest: int,
    extents: Extents,
) -> Plan:
    """The same, padded to `longest` steps; small and large clients apart."""
    most = steps_per_epoch(extents.sizes, batch_size)
    epochs = max(int(((extents.steps + most - 1) // most).max()), 1)
    largest = int(extents.sizes.max())
    if len(keys) > 1 and len(keys) * epochs * largest > _MOST_KEYS:
        # Many epochs of the smallest times the samples of the largest: divide. Both
        # orders are the same; one is computed where the numbers lie.
        order, host_order = (
            values.argsort(stable=True) for values in (sizes, extents.sizes)
        )
        halves = []
        for half, host_half in zip(
            torch.tensor_split(order, 2), torch.tensor_split(host_order, 2), strict=True
        ):
            own = Extents(*(values[host_half] for values in extents))
            halves.append(
                _plan(keys[half], sizes[half], steps[half], batch_size, longest, own)
            )
        back = order.argsort()
        return Plan(*(torch.cat(parts)[back] for parts in zip(*halves, strict=True)))
    per_epoch = steps_per_epoch(sizes, batch_size)
    order = permutations(keys, sizes, epochs, largest)
    step = torch.arange(longest, device=keys.device)
    epoch = step // per_epoch[:, None]
    within = step % per_epoch[:, None]
    smaller = (sizes // per_epoch)[:, None]
    larger_count = (sizes % per_epoch)[:, None]
    first = within * smaller + torch.minimum(within, larger_count)
    width = smaller + (within < larger_count)
    column = torch.arange(batch_size, device=keys.device)
    place = first[..., None] + column
    is_planned = step < steps[:, None]
    mask = (column < width[..., None]) & is_planned[..., None]
    flat = epoch.clamp(max=order.shape[1] - 1)[..., None] * order.shape[2] + place
    flat = torch.where(mask, flat, 0)
    positions = order.flatten(1).gather(1, flat.flatten(1)).view_as(flat)
    return Plan(
        positions=torch.where(mask, positions, 0),
        mask=mask,
        ends_epoch=within == per_epoch[:, None] - 1,
    )


def plan_passes(sizes: Tensor, steps: Tensor, extents: Extents | None = None) -> Plan:
    """Steps whose batch is all of the client's data; nothing to shuffle.

    The width is a power of two, so that clients of many sizes meet few shapes.
    """
    extents = extents or Extents(sizes, steps)
    longest = int(extents.steps.max())
    width = 1 << (int(extents.sizes.max()) - 1).bit_length()
    place = torch.arange(width, device=sizes.device)
    is_planned = torch.arange(longest, device=sizes.device) < steps[:, None]
    mask = (place < sizes[:, None])[:, None, :] & is_planned[..., None]
    return Plan(
        positions=torch.where(mask, place, 0),
        mask=mask,
        ends_epoch=torch.ones_like(is_planned),
    )
