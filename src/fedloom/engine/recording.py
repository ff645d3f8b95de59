"""Local work that comes again as it was: one CUDA graph from beginning to end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedloom.core.records import map_record


class Recording:
    """A function of tensors on a GPU, recorded once and replayed with other values.

    Args:
        function: a list of tensors to a record. All it does is done on the GPU, in
            the same order and shapes whatever the values are, and it was called before.
        values: tensors of the shapes that it will be called with.
    """

    def __init__(
        self, function: Callable[[list[Tensor]], Any], values: list[Tensor]
    ) -> None:
        self._function = function  # the graph reads tensors that it holds
        self._places = [value.clone() for value in values]
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._results = function(self._places)

    def __call__(self, values: list[Tensor]) -> Any:
        """What the function gives for these values, in tensors of its own."""
        torch._foreach_copy_(self._places, values)
        self._graph.replay()
        return map_record(torch.clone, self._results)
