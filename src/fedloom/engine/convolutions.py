"""Convolutions with weights of each client's own, on a GPU.

Over clients `conv2d` becomes one convolution with as many groups as there are clients,
which libraries for large images do slowly. Here it is a product with gathered patches,
a program for some pixels of one client; so are both of its gradients. They take the
places of the grouped convolutions in the graph of a compiled step, so that modules need
not know. Strides, dilations and types other than float32 are left to the library.
"""

from __future__ import annotations

import importlib.util
import math
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fedloom.engine.graphs import args_of, call, value_of
from fedloom.engine.precision import own_precision

aten = torch.ops.aten

_SWAPPED = [1, 0, 2, 3, 4]
_PIXELS = 64
"""Pixels that are looked at together."""
_SLICE = 640
"""Pixels that one program of a weight's gradient goes through."""
_TERMS = 32
"""Most numbers of a patch that are looked at together."""


def per_client(graph: Graph) -> None:
    """Replace the grouped convolutions of a graph on a GPU, forwards and backwards."""
    if not _has_triton():
        return
    for node in list(graph.nodes):
        if node.target is aten.convolution.default:
            _replace_forward(graph, node)
        elif node.target is aten.convolution_backward.default:
            _replace_backward(graph, node)


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _is_plain(x: Node, weight: Node, settings: tuple[Any, ...]) -> bool:
    """Whether a convolution is one of the kind that is done here."""
    stride, padding, dilation, is_transposed, _, groups = settings
    taps = value_of(weight).shape[2:]
    return (
        _is_at_home(value_of(x))
        and value_of(weight).dim() == 4
        and groups > 1
        and not is_transposed
        and list(stride) == [1, 1]
        and list(dilation) == [1, 1]
        and all(room < side for room, side in zip(padding, taps, strict=True))
    )


def _is_at_home(images: Tensor) -> bool:
    """Whether the kernels take such numbers where they are."""
    return images.device.type == "cuda" and images.dtype == torch.float32


def _replace_forward(graph: Graph, node: Node) -> None:
    x, weight, bias, *settings = args_of(node)
    if bias is not None or not _is_plain(x, weight, tuple(settings)):
        return
    padding, clients = settings[1], settings[5]
    with graph.inserting_before(node):
        result = call(
            graph,
            torch.ops.fedloom.correlate.default,
            _by_client(graph, x, clients),
            _of_clients(graph, weight, clients),
            list(padding),
            False,
        )
        joined = _by_sample(graph, result)
    node.replace_all_uses_with(joined)
    graph.erase_node(node)


def _replace_backward(graph: Graph, node: Node) -> None:
    error, x, weight, _, *settings, wanted = args_of(node)
    if wanted[2] or not _is_plain(x, weight, tuple(settings)):
        return
    padding, clients = settings[1], settings[5]
    rows, columns = value_of(weight).shape[2:]
    with graph.inserting_before(node):
        own_error = _by_client(graph, error, clients)
        own_weight = _of_clients(graph, weight, clients)
        gradients: list[Node | None] = [None, None, None]
        if wanted[0]:
            sides = list(value_of(x).shape[2:])
            result = _to_inputs(graph, own_error, own_weight, padding, sides)
            gradients[0] = _by_sample(graph, result)
        if wanted[1]:
            parts = call(
                graph,
                torch.ops.fedloom.weight_gradient.default,
                _by_client(graph, x, clients),
                own_error,
                [rows, columns],
                list(padding),
            )
            total = call(graph, aten.sum.dim_IntList, parts, [1])
            shape = list(value_of(weight).shape)
            gradients[1] = call(graph, aten.reshape.default, total, shape)
    for user in list(node.users):
        gradient = gradients[args_of(user)[1]]
        if gradient is not None:
            user.replace_all_uses_with(gradient)
        graph.erase_node(user)
    graph.erase_node(node)


def _to_inputs(
    graph: Graph, error: Node, weight: Node, padding: list[int], sides: list[int]
) -> Node:
    """The errors of the inputs: of all patches in one product, then added up.

    A patch is as large as the weights; where patches lie over each other, each pixel
    takes the sum of what it is in them. Sums of shifted images are fused with what
    follows.
    """
    clients, to, channels, rows, columns = value_of(weight).shape
    batch, _, *old = value_of(error).shape[1:]
    flat = [clients, to, channels * rows * columns, 1, 1]
    patches = call(
        graph,
        torch.ops.fedloom.correlate.default,
        error,
        call(graph, aten.reshape.default, weight, flat),
        [0, 0],
        True,
    )
    shape = [clients, batch, channels, rows * columns, *old]
    patches = call(graph, aten.reshape.default, patches, shape)
    total: Node | None = None
    for tap in range(rows * columns):
        down, right = tap // columns - padding[0], tap % columns - padding[1]
        images = call(graph, aten.select.int, patches, 3, tap)
        room = [right, sides[1] - old[1] - right, down, sides[0] - old[0] - down]
        shifted = call(graph, aten.constant_pad_nd.default, images, room, 0.0)
        if total is None:
            total = shifted
        else:
            total = call(graph, aten.add.Tensor, total, shifted)
    assert total is not None
    return total


def _by_client(graph: Graph, images: Node, clients: int) -> Node:
    """(B, C * channels, ...) as (C, B, channels, ...), or what it was made from."""
    source = images
    while source.target in (aten.reshape.default, aten.clone.default):
        source = args_of(source)[0]
    if source.target is aten.permute.default and args_of(source)[1] == _SWAPPED:
        whole: Node = args_of(source)[0]
        batch, channels, *sides = value_of(images).shape
        shape = [clients, batch, channels // clients, *sides]
        if list(value_of(whole).shape) == shape:
            return whole
    batch, channels, *sides = value_of(images).shape
    apart = [batch, clients, channels // clients, *sides]
    parts = call(graph, aten.reshape.default, images, apart)
    return call(graph, aten.permute.default, parts, _SWAPPED)


def _by_sample(graph: Graph, images: Node) -> Node:
    """(C, B, channels, ...) as (B, C * channels, ...)."""
    clients, batch, channels, *sides = value_of(images).shape
    turned = call(graph, aten.permute.default, images, _SWAPPED)
    shape = [batch, clients * channels, *sides]
    return call(graph, aten.reshape.default, turned, shape)


def _of_clients(graph: Graph, weight: Node, clients: int) -> Node:
    """(C * to, from, ...) as (C, to, from, ...)."""
    to, *rest = value_of(weight).shape
    return call(graph, aten.reshape.default, weight, [clients, to // clients, *rest])


@torch.library.custom_op("fedloom::correlate", mutates_args=())
def correlate(x: Tensor, weight: Tensor, padding: list[int], is_turned: bool) -> Tensor:
    """Each client's images with its own weights.

    Args:
        x: (C, B, from, H, W).
        weight: (C, to, from, rows, columns).
        padding: rows and columns of zeros on each side.
        is_turned: with the channels of the weights exchanged, from `to` to `from`.
    """
    from fedloom.engine import convolution_kernels as kernels  # needs Triton

    out: Tensor = _correlated(x, weight, padding, is_turned)
    to, channels = out.shape[2], _wide(out.shape[2])
    terms = x.shape[2] * math.prod(weight.shape[3:])
    w_client, w_to, w_from, *taps = weight.stride()
    if is_turned:
        w_to, w_from = w_from, w_to
    grid = (_parts(_pixels(out), _PIXELS), len(x), _parts(to, channels))
    kernels.correlate[grid](
        x,
        weight,
        out,
        *x.stride(),
        w_client,
        w_to,
        w_from,
        *taps,
        **_sizes(x, out, list(weight.shape[3:]), padding),
        PIXELS=_PIXELS,
        CHANNELS=channels,
        # All of a small patch at once; large ones in halves, for more programs to fit.
        TERMS=_TERMS if 16 < terms <= _TERMS else 16,
        PRECISION=own_precision(),
        num_warps=2,
    )
    return out


@correlate.register_fake
def _correlated(
    x: Tensor, weight: Tensor, padding: list[int], is_turned: bool
) -> Tensor:
    """Room for the result."""
    clients, batch, _, *sides = x.shape
    to = weight.shape[2 if is_turned else 1]
    taps = weight.shape[3:]
    new = [n + 2 * p - t + 1 for n, p, t in zip(sides, padding, taps, strict=True)]
    return x.new_empty((clients, batch, to, *new))


@torch.library.custom_op("fedloom::weight_gradient", mutates_args=())
def weight_gradient(
    x: Tensor, error: Tensor, taps: list[int], padding: list[int]
) -> Tensor:
    """Parts of the gradients of each client's weights, which add up along the second.

    Args:
        x: (C, B, from, H, W).
        error: (C, B, to, H', W').
        taps: rows and columns of the weights.
        padding: as for `correlate`.
    """
    from fedloom.engine import convolution_kernels as kernels  # needs Triton

    out: Tensor = _weight_gradients(x, error, taps, padding)
    clients, slices, to, total = out.shape
    channels = _wide(to)
    blocks = _parts(total, _TERMS) * _parts(to, channels)
    kernels.weight_gradient[(slices, clients, blocks)](
        x,
        error,
        out,
        *x.stride(),
        *error.stride(),
        **_sizes(x, error, taps, padding),
        PIXELS=_PIXELS,
        CHANNELS=channels,
        TERMS=_TERMS,
        SLICE=_SLICE,
        PRECISION=own_precision(),
        num_warps=2 if total <= _TERMS else 4,
    )
    return out


@weight_gradient.register_fake
def _weight_gradients(
    x: Tensor, error: Tensor, taps: list[int], padding: list[int]
) -> Tensor:
    """Room for the parts."""
    slices = _parts(_pixels(error), _SLICE)
    total = x.shape[2] * taps[0] * taps[1]
    return x.new_empty((len(x), slices, error.shape[2], total))


def _sizes(
    x: Tensor, out: Tensor, taps: list[int], padding: list[int]
) -> dict[str, int]:
    """What both kernels are compiled for."""
    return {
        "BATCH": x.shape[1],
        "FROM": x.shape[2],
        "HEIGHT": x.shape[3],
        "WIDTH": x.shape[4],
        "TO": out.shape[2],
        "OUT_HEIGHT": out.shape[3],
        "OUT_WIDTH": out.shape[4],
        "ROWS": taps[0],
        "COLUMNS": taps[1],
        "PAD_ROWS": padding[0],
        "PAD_COLUMNS": padding[1],
    }


def _pixels(images: Tensor) -> int:
    """Of one client's images of one channel, all together."""
    return images.shape[1] * images.shape[3] * images.shape[4]


def _parts(total: int, size: int) -> int:
    return -(-total // size)


def _wide(channels: int) -> int:
    """Channels that a program computes: a power of two that tensor cores take."""
    return min(max(16, 1 << (channels - 1).bit_length()), 32)
