"""Rewrites of a compiled step's graph: written for one vector, run on its pieces.

Methods see one parameter vector. Compiled naively, the gradients of a network's layers
are put together to that vector, the method's formula runs over it, and the new vector
is cut into layers again: three passes over memory for nothing.

- *Split*: a piece cut from the result of elementwise operations is computed from the
  pieces of what went in; of `torch.cat([a, b])` the piece is `a` or `b` itself. The
  numbers are the same to the last bit.
- *Products*: the gradient of a weight over a small batch, a product of (M, K) and
  (K, N) with small K, becomes a sum of K elementwise products. It is then fused with
  the method's update and never stored.
- *Limits*: the norm that such a gradient is clipped by comes from its two factors.
- *Pools*: what went into a maximum gets its error by a comparison, entry by entry,
  instead of being written to a place that is looked up.
- *Convolutions* on a GPU (`fedloom.engine.convolutions`).

All work on inductor's graph of the whole step, so modules and methods need not know.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._inductor import inductor_prims
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from fedloom.engine import convolutions
from fedloom.engine.graphs import args_of, call, value_of

aten, prims = torch.ops.aten, torch.ops.prims

_SLICE = aten.slice.Tensor
_CAT = aten.cat.default
_RESHAPES = (aten.reshape.default, aten.view.default, aten._unsafe_view.default)
_OFFSETS = inductor_prims._low_memory_max_pool_offsets_to_indices
_CONVERT = prims.convert_element_type.default

_SMALL_BATCH = 16
"""Most products that are written out one by one."""
_LARGE = 2048
"""Fewest entries of a product per client for which it pays not to store it."""


class StepPass(CustomGraphPass):
    """All rewrites, as inductor takes them; its caches know them by this file."""

    def __call__(self, graph: Graph) -> None:
        """Rewrite a graph in place."""
        split(graph)
        drop_idle_copies(graph)
        limit_by_factors(graph)
        write_out_products(graph)
        spread_over_pools(graph)
        convolutions.per_client(graph)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        """What compiled code depends on beside the graph."""
        return get_hash_for_files((__file__, convolutions.__file__))


def split(graph: Graph) -> None:
    """Compute pieces of vectors from the pieces of what the vectors are made of."""
    cutter = _Cutter(graph)
    for node in list(graph.nodes):
        if node.target is not _SLICE or not _is_plain_slice(node):
            continue
        source, dim, start, stop = _slice_of(node)
        if start >= stop or not cutter.reaches_cat(source, dim):
            continue
        with graph.inserting_before(node):
            piece = cutter.cut(source, dim, start, stop)
        node.replace_all_uses_with(piece)
        graph.erase_node(node)
    graph.eliminate_dead_code()


def drop_idle_copies(graph: Graph) -> None:
    """What a step leaves as it was is not written to the place where it is."""
    for node in list(graph.nodes):
        if node.target is aten.copy.default:
            place, value = args_of(node)[:2]
            if _is_alike(place, value):
                node.replace_all_uses_with(value)
                graph.erase_node(node)
        elif node.target is aten.copy_.default and not node.users:
            place, value = args_of(node)[:2]
            if place is value:
                graph.erase_node(node)
    graph.eliminate_dead_code()


def limit_by_factors(graph: Graph) -> None:
    """The norm that a gradient is shortened by, from what the gradient is a product of.

    The squared norm of `L @ R` is the sum over `(L.T @ L) * (R @ R.T)`, two small
    matrices. Rounding is worse where the product nearly cancels, so norms are left as
    they are unless a limit, `min(clip / norm, 1)`, is all that they are for.
    """
    for node in list(graph.nodes):
        product = _square_sum_of(node)
        if product is None or not _is_outer(product) or not _only_limits(node):
            continue
        left, right = args_of(product)
        with graph.inserting_before(node):
            turned = [
                call(graph, aten.permute.default, part, [0, 2, 1])
                for part in (left, right)
            ]
            lefts = call(graph, aten.bmm.default, turned[0], left)
            rights = call(graph, aten.bmm.default, right, turned[1])
            entries = call(graph, aten.mul.Tensor, lefts, rights)
            total = call(graph, aten.sum.dim_IntList, entries, [1, 2])
            total = call(graph, aten.clamp_min.default, total, 0.0)
        node.replace_all_uses_with(total)
        graph.erase_node(node)
    graph.eliminate_dead_code()


def write_out_products(graph: Graph) -> None:
    """Batched products over a small inner dimension as sums of elementwise products.

    Not those that are added up to one gradient, as the steps of a recurrence are: all
    together they have many terms, which are slower to compute so and to compile.
    """
    products = [
        node
        for node in graph.nodes
        if node.target is aten.bmm.default and _is_outer(node)
    ]
    summed = {node for node in products if _is_added_to(node, set(products) - {node})}
    for node in products:
        if node in summed:
            continue
        left, right = args_of(node)
        with graph.inserting_before(node):
            total: Node | None = None
            for k in range(value_of(left).shape[2]):
                column = call(graph, aten.select.int, left, 2, k)
                row = call(graph, aten.select.int, right, 1, k)
                product = call(
                    graph,
                    aten.mul.Tensor,
                    call(graph, aten.unsqueeze.default, column, 2),
                    call(graph, aten.unsqueeze.default, row, 1),
                )
                if total is None:
                    total = product
                else:
                    total = call(graph, aten.add.Tensor, total, product)
        assert total is not None
        node.replace_all_uses_with(total)
        graph.erase_node(node)


def spread_over_pools(graph: Graph) -> None:
    """Errors of maxima go to where the maxima were, window by window, on a GPU.

    Windows lie side by side and fill the images; others are left as they are.
    """
    for node in list(graph.nodes):
        pool = _pool_of(node)
        if pool is None:
            continue
        offsets, (rows, columns), (height, width) = pool
        zeros, _, _, errors = args_of(node)
        count = value_of(zeros).shape[0]
        windows = [count, height // rows, 1, width // columns, 1]
        with graph.inserting_before(node):
            at = call(graph, aten.reshape.default, offsets, windows)
            source = call(graph, aten.reshape.default, errors, windows)
            places = call(
                graph,
                prims.iota.default,
                rows * columns,
                start=0,
                step=1,
                dtype=value_of(offsets).dtype,
                device=value_of(offsets).device,
                requires_grad=False,
            )
            shape = [1, 1, rows, 1, columns]
            places = call(graph, aten.reshape.default, places, shape)
            is_there = call(graph, aten.eq.Tensor, at, places)
            kind = {"dtype": value_of(zeros).dtype, "device": value_of(zeros).device}
            nothing = call(graph, aten.full.default, [], 0.0, **kind)
            spread = call(graph, aten.where.self, is_there, source, nothing)
            shape = list(value_of(zeros).shape)
            result = call(graph, aten.reshape.default, spread, shape)
        node.replace_all_uses_with(result)
        graph.erase_node(node)


def _pool_of(
    node: Node,
) -> tuple[Node, tuple[int, int], tuple[int, int]] | None:
    """Where the maxima were, the sides of a window and those of an image."""
    if node.target is not aten.scatter_add.default or not _is_on_gpu(node):
        return None
    zeros, dim, index, _ = args_of(node)
    if dim != 1 or zeros.target is not aten.full.default or args_of(zeros)[1] != 0:
        return None
    while index.target in (*_RESHAPES, aten.permute.default):
        if index.target is aten.permute.default and args_of(index)[1] != sorted(
            args_of(index)[1]
        ):
            return None
        index = args_of(index)[0]
    if index.target is not _OFFSETS:
        return None
    offsets, window, image, stride, padding, dilation = args_of(index)
    fills = all(side % w == 0 for side, w in zip(image, window, strict=True))
    is_plain = list(stride) == list(window) and not any(padding)
    if len(window) != 2 or not fills or not is_plain or set(dilation) != {1}:
        return None
    return offsets, tuple(window), tuple(image)


class _Cutter:
    """Cuts pieces out of values of a graph without computing the whole."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._pieces: dict[tuple[Node, int, int, int], Node] = {}
        self._reaches: dict[tuple[Node, int], bool] = {}

    def reaches_cat(self, node: Node, dim: int) -> bool:
        """Whether a value is made of a `cat` along this dimension, entry by entry."""
        key = node, dim
        if key not in self._reaches:
            self._reaches[key] = self._look(node, dim)
        return self._reaches[key]

    def _look(self, node: Node, dim: int) -> bool:
        if node.target is _CAT:
            return _cat_dim(node) == dim
        if node.target is _SLICE and _is_plain_slice(node):
            source, other, _, _ = _slice_of(node)
            return other == dim and self.reaches_cat(source, dim)
        return _is_elementwise(node) and any(
            self.reaches_cat(arg, own) for arg, own in _tensors_along(node, dim)
        )

    def cut(self, node: Node, dim: int, start: int, stop: int) -> Node:
        """The piece from `start` to `stop` along a dimension."""
        if (start, stop) == (0, value_of(node).shape[dim]):
            return node
        key = node, dim, start, stop
        if key not in self._pieces:
            self._pieces[key] = self._cut(node, dim, start, stop)
        return self._pieces[key]

    def _cut(self, node: Node, dim: int, start: int, stop: int) -> Node:
        if self.reaches_cat(node, dim):
            if node.target is _CAT:
                return self._cut_cat(node, dim, start, stop)
            if node.target is _SLICE:
                source, _, first, _ = _slice_of(node)
                return self.cut(source, dim, first + start, first + stop)
            pieces = {
                arg: self.cut(arg, own, start, stop)
                for arg, own in _tensors_along(node, dim)
            }
            args = torch.fx.map_arg(args_of(node), lambda arg: pieces.get(arg, arg))
            return self._place(node.target, *args, **node.kwargs)
        return self._place(_SLICE, node, dim, start, stop)

    def _cut_cat(self, node: Node, dim: int, start: int, stop: int) -> Node:
        parts, at = [], 0
        for part in args_of(node)[0]:
            size = value_of(part).shape[dim]
            low, high = max(start - at, 0), min(stop - at, size)
            if low < high:
                parts.append(self.cut(part, dim, low, high))
            at += size
        return parts[0] if len(parts) == 1 else self._place(_CAT, parts, dim)

    def _place(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return call(self.graph, target, *args, **kwargs)


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _has_tensor(node: object) -> bool:
    return isinstance(node, Node) and _is_tensor(node.meta.get("val"))


def _is_on_gpu(node: Node) -> bool:
    return bool(value_of(node).device.type == "cuda")


def _is_alike(one: Node, other: Node) -> bool:
    """Whether two tensors have the same shape, type and place."""
    a, b = value_of(one), value_of(other)
    return bool(a.shape == b.shape and a.dtype == b.dtype and a.device == b.device)


def _is_plain_slice(node: Node) -> bool:
    """Whether a slice goes from place to place in steps of 1."""
    args = args_of(node)
    return not node.kwargs and _has_tensor(args[0]) and (len(args) < 5 or args[4] == 1)


def _slice_of(node: Node) -> tuple[Node, int, int, int]:
    """What is cut, along which dimension, from where to where."""
    args = args_of(node)
    source, dim, start, stop = (*args, *(None, 0, None, None)[len(args) :])[:4]
    shape = value_of(source).shape
    dim %= len(shape)
    first, last, _ = slice(start, stop).indices(shape[dim])
    return source, dim, first, last


def _cat_dim(node: Node) -> int:
    args: Any = (*args_of(node), *node.kwargs.values(), 0)
    dim: int = args[1] % value_of(node).dim()
    return dim


def _is_elementwise(node: Node) -> bool:
    if not _has_tensor(node) or node.op != "call_function" or node.kwargs:
        return False
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags or node.target is _CONVERT


def _tensors_along(node: Node, dim: int) -> list[tuple[Node, int]]:
    """Tensors of an elementwise operation that are not the same all along `dim`."""
    back = value_of(node).dim() - dim
    along = []
    for arg in node.all_input_nodes:
        if _has_tensor(arg):
            shape = value_of(arg).shape
            if len(shape) >= back and shape[-back] != 1:
                along.append((arg, len(shape) - back))
    return along


def _is_outer(node: Node) -> bool:
    """Whether a batched product is large and over few terms."""
    left, right = (value_of(arg).shape for arg in args_of(node))
    size: int = left[1] * right[2]
    return bool(left[2] <= _SMALL_BATCH) and size >= _LARGE


_VIEWS = {
    aten.transpose.int,
    aten.permute.default,
    aten.reshape.default,
    aten.view.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
}


def _is_added_to(node: Node, products: set[Node]) -> bool:
    """Whether a value, or a view of it, is a summand beside one of some products."""
    for user in node.users:
        if user.target in _VIEWS and _is_added_to(user, products):
            return True
        if user.target is aten.add.Tensor and any(
            _has_summand(arg, products) for arg in args_of(user)[:2] if arg is not node
        ):
            return True
    return False


def _has_summand(node: object, products: set[Node]) -> bool:
    """Whether a value is one of some products, or a sum that has one, or a view."""
    if not isinstance(node, Node):
        return False
    if node.target is aten.add.Tensor:
        return any(_has_summand(arg, products) for arg in args_of(node)[:2])
    if node.target in _VIEWS:
        return _has_summand(args_of(node)[0], products)
    return node in products


def _square_sum_of(node: Node) -> Node | None:
    """The batched product whose squares are summed here, client by client."""
    if node.target is not aten.sum.dim_IntList or list(args_of(node)[1]) != [1, 2]:
        return None
    square = args_of(node)[0]
    if square.target is not aten.pow.Tensor_Scalar or args_of(square)[1] != 2:
        return None
    product = args_of(square)[0]
    return product if product.target is aten.bmm.default else None


def _only_limits(node: Node) -> bool:
    """Whether a value is for nothing but the bound of a factor of at most 1."""
    through = {
        aten.pow.Tensor_Scalar,
        aten.permute.default,
        aten.unsqueeze.default,
        aten.cat.default,
        aten.sum.dim_IntList,
        aten.reciprocal.default,
        aten.mul.Tensor,
        aten.div.Tensor,
        aten.reshape.default,
    }
    for user in node.users:
        if user.target is aten.clamp_max.default:
            if args_of(user)[1] != 1.0:
                return False
        elif user.target not in through or not _only_limits(user):
            return False
    return bool(node.users)
