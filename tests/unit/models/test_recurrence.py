"""The recurrence of an LSTM as one operation, against the same written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, vmap

from fedloom.models.recurrence import _written_out, recur

BATCH, STEPS, WIDTH = 3, 4, 2


def arguments() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = (BATCH, STEPS, 4 * WIDTH), (4 * WIDTH, WIDTH), (4 * WIDTH,)
    inputs, weight, bias = (
        torch.randn(shape, dtype=torch.float64, generator=draw) for shape in shapes
    )
    is_real = torch.rand(BATCH, STEPS, generator=draw) > 0.3
    assert 0 < is_real.sum() < is_real.numel()
    return inputs, weight, bias, is_real


def test_its_gradients_of_both_orders_are_right() -> None:
    *own, is_real = arguments()
    own = [one.requires_grad_() for one in own]
    states = lambda *own: recur(*own, is_real)  # noqa: E731
    assert gradcheck(states, own)
    assert gradgradcheck(states, own)


@pytest.mark.parametrize("batched", ["weight", "inputs", "everything"])
def test_clients_together_get_what_each_gets_alone(batched: str) -> None:
    *own, is_real = arguments()
    draw = torch.Generator().manual_seed(1)
    names = ("inputs", "weight", "bias")
    dims = [0 if batched in (name, "everything") else None for name in names]
    given = [
        one if dim is None else one + torch.randn(5, *one.shape, generator=draw)
        for one, dim in zip(own, dims, strict=True)
    ]

    def gradients(inputs: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        loss = lambda *own: recur(*own, is_real).pow(2).sum()  # noqa: E731
        return grad(loss, argnums=(0, 1, 2))(inputs, weight, bias)

    together = vmap(gradients, in_dims=tuple(dims))(*given)
    for n in range(5):
        mine = [x if dim is None else x[n] for x, dim in zip(given, dims, strict=True)]
        leaves = [x.clone().requires_grad_() for x in mine]
        _written_out(*leaves, is_real).pow(2).sum().backward()
        for found, leaf in zip(together, leaves, strict=True):
            torch.testing.assert_close(found[n], leaf.grad, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_the_compiler_sees_one_operation_however_long_the_sequence() -> None:
    *own, is_real = arguments()
    seen: list[int] = []

    def count(graph: torch.fx.GraphModule, given: list[Tensor]) -> object:
        seen.append(len(graph.graph.nodes))
        return graph.forward

    for steps in (STEPS, 5 * STEPS):
        longer = own[0].repeat(1, steps // STEPS, 1), *own[1:]
        real = is_real.repeat(1, steps // STEPS)
        loss = lambda w, x, b, real: recur(x, w, b, real).sum()  # noqa: E731
        step = vmap(grad(loss), in_dims=(0, None, None, None))
        compiled = torch.compile(step, backend=count, dynamic=False, fullgraph=True)
        weights = own[1] + torch.arange(3.0).view(3, 1, 1)
        found = compiled(weights, longer[0], longer[2], real)
        expected = step(weights, longer[0], longer[2], real)
        torch.testing.assert_close(found, expected)
    assert seen[0] == seen[1]
