"""Nodes of a compiler's graph, and how one is put in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node


def call(graph: Graph, target: Any, *args: Any, **kwargs: Any) -> Node:
    """Put an operation into a graph, with the shape of its value."""
    node = graph.call_function(target, args, kwargs)
    values = torch.fx.map_arg((args, kwargs), value_of)
    known = (other.meta.get("val") for other in graph.nodes)
    example: Any = next(value for value in known if isinstance(value, Tensor))
    with example.fake_mode:
        node.meta["val"] = target(*values[0], **values[1])
    return node


def args_of(node: Any) -> tuple[Any, ...]:
    """What an operation is given."""
    args: tuple[Any, ...] = node.args
    return args


def value_of(node: Any) -> Any:
    """A tensor without numbers, of the shape and type of the node's value."""
    return node.meta["val"]
