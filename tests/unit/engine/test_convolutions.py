"""Grouped convolutions become products with patches, and what they compute stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from fedloom.engine import convolutions
from fedloom.engine.convolutions import per_client

OWN = (torch.ops.fedloom.correlate.default, torch.ops.fedloom.weight_gradient.default)


def correlated(x: Tensor, w: Tensor, padding: list[int], is_turned: bool) -> Tensor:
    """What the kernel for GPUs computes, by the library."""
    w = w.transpose(1, 2) if is_turned else w
    return vmap(lambda x, w: F.conv2d(x, w, padding=padding))(x, w).contiguous()


def weight_gradients(
    x: Tensor, error: Tensor, taps: list[int], padding: list[int]
) -> Tensor:
    weight = x.new_zeros(len(x), error.shape[2], x.shape[2], *taps)

    def product(weight: Tensor, x: Tensor, error: Tensor) -> Tensor:
        return (F.conv2d(x, weight, padding=padding) * error).sum()

    whole = vmap(grad(product))(weight, x, error).flatten(2)
    parts = -(-error[0, :, 0].numel() // convolutions._SLICE)
    return torch.stack([whole / parts] * parts, dim=1)


@pytest.fixture(autouse=True)
def on_this_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass without a GPU: the library computes in the kernels' place."""
    monkeypatch.setattr(convolutions, "_is_at_home", lambda value: True)
    monkeypatch.setattr(convolutions, "_has_triton", lambda: True)
    for op, kernel in (
        (convolutions.correlate, correlated),
        (convolutions.weight_gradient, weight_gradients),
    ):
        op.register_kernel("cpu")(kernel)


def step(x: Tensor, weight: Tensor, **settings: Any) -> tuple[Tensor, ...]:
    """A convolution of every client's own and both its gradients."""

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return (F.conv2d(x, weight, **settings) ** 3).sum()

    both = vmap(grad(loss, argnums=(0, 1)))(x, weight)
    return (*both, vmap(lambda x, w: F.conv2d(x, w, **settings))(x, weight))


@pytest.mark.parametrize(
    ("sides", "weights", "padding"),
    [
        ((1, 12, 12), (6, 5, 5), (0, 0)),
        ((6, 9, 7), (20, 3, 5), (1, 2)),
        ((3, 8, 8), (40, 5, 5), (2, 2)),
        ((2, 40, 40), (3, 1, 1), (0, 0)),
    ],
)
def test_forwards_and_backwards_are_the_same(
    sides: tuple[int, ...], weights: tuple[int, ...], padding: tuple[int, int]
) -> None:
    x = torch.randn(3, 4, *sides, dtype=torch.float64)
    to, *taps = weights
    weight = torch.randn(3, to, sides[0], *taps, dtype=torch.float64)

    def function(x: Tensor, weight: Tensor) -> Any:
        return step(x, weight, padding=padding)

    module = make_fx(function, tracing_mode="fake")(x, weight)
    per_client(module.graph)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()
    targets = [node.target for node in module.graph.nodes]
    assert all(target in targets for target in OWN)
    assert torch.ops.aten.convolution.default not in targets
    assert torch.ops.aten.convolution_backward.default not in targets
    for new, old in zip(module(x, weight), function(x, weight), strict=True):
        assert new.shape == old.shape
        torch.testing.assert_close(new, old, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("settings", [{"stride": 2}, {"dilation": 2}, {"padding": 4}])
def test_other_convolutions_are_left_to_the_library(settings: dict[str, int]) -> None:
    x, weight = torch.randn(3, 4, 2, 9, 9), torch.randn(3, 5, 2, 3, 3)

    def function(x: Tensor, weight: Tensor) -> Any:
        return step(x, weight, **settings)

    module = make_fx(function, tracing_mode="fake")(x, weight)
    per_client(module.graph)
    targets = [node.target for node in module.graph.nodes]
    assert not any(target in targets for target in OWN)
