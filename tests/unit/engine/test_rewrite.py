"""The graph of a compiled step is rewritten, and what it computes is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import fedloom
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.task import Task
from fedloom.engine import rewrite
from fedloom.engine.rewrite import (
    drop_idle_copies,
    limit_by_factors,
    split,
    spread_over_pools,
    write_out_products,
)
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

aten = torch.ops.aten


def traced(function: Callable[..., Any], *args: Any) -> GraphModule:
    """A function as a graph whose nodes know their shapes, as inductor has it."""
    return make_fx(function, tracing_mode="fake")(*args)


def run(module: GraphModule, *args: Any) -> Any:
    module.graph.lint()
    module.recompile()
    return module(*args)


def targets(module: GraphModule) -> list[Any]:
    return [node.target for node in module.graph.nodes]


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def momentum(a: Tensor, b: Tensor, v: Tensor, rate: Tensor, active: Tensor) -> Any:
    """A method's formula on one vector, cut into layers at the end."""
    theta = torch.cat([a.reshape(3, -1), b], dim=1)
    velocity = 0.9 * v + theta.tanh()
    new = torch.where(active[:, None], theta - rate[:, None] * velocity, theta)
    head = new[:, 6:]
    return new[:, :6].reshape(3, 2, 3), head, head[:, 1:], velocity


def test_pieces_are_computed_from_pieces_bit_for_bit() -> None:
    args = (
        draw(3, 2, 3),
        draw(3, 4),
        draw(3, 10),
        draw(3),
        torch.tensor([1, 0, 1]) > 0,
    )
    module = traced(momentum, *args)
    assert aten.where.self in targets(module)
    split(module.graph)
    assert not any(
        node.target is aten.where.self and node.meta["val"].shape == (3, 10)
        for node in module.graph.nodes
    )
    for new, old in zip(run(module, *args), momentum(*args), strict=True):
        assert torch.equal(new, old)


def test_a_vector_that_is_needed_whole_stays() -> None:
    def normed(a: Tensor, b: Tensor) -> Any:
        theta = torch.cat([a, b], dim=1)
        scaled = theta / theta.norm(dim=1, keepdim=True)
        return scaled[:, :2], scaled[:, 2:]

    args = draw(3, 2), draw(3, 5)
    module = traced(normed, *args)
    split(module.graph)
    assert aten.cat.default in targets(module)
    for new, old in zip(run(module, *args), normed(*args), strict=True):
        assert torch.equal(new, old)


@pytest.mark.parametrize(
    "cut",
    [lambda x: x[:, ::2], lambda x: x[1:], lambda x: x[:, -3:], lambda x: x[:, 9:]],
)
def test_cuts_of_other_kinds_give_what_they_gave(cut: Callable[..., Tensor]) -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return cut(torch.cat([a, b], dim=1) * 2)

    args = draw(3, 2), draw(3, 5)
    module = traced(function, *args)
    split(module.graph)
    assert torch.equal(run(module, *args), function(*args))


def test_what_stays_is_not_written_to_its_place() -> None:
    def step(a: Tensor, b: Tensor) -> None:
        both = torch.cat([a, b], dim=1)
        a.copy_(both[:, :2])
        b.copy_(both[:, 2:] * 2)

    a, b = draw(3, 2), draw(3, 5)
    module = traced(functionalize(step), a.clone(), b.clone())
    split(module.graph)
    drop_idle_copies(module.graph)
    assert targets(module).count(aten.copy_.default) == 1
    old = a.clone(), b.clone()
    run(module, a, b)
    assert torch.equal(a, old[0])
    assert torch.equal(b, old[1] * 2)


def test_products_over_few_terms_are_written_out() -> None:
    args = draw(2, 64, 10), draw(2, 10, 50)
    module = traced(torch.bmm, *args)
    write_out_products(module.graph)
    assert aten.bmm.default not in targets(module)
    torch.testing.assert_close(run(module, *args), torch.bmm(*args))


@pytest.mark.parametrize(("rows", "terms"), [(64, 17), (20, 10)])
def test_long_or_small_products_stay(rows: int, terms: int) -> None:
    args = draw(2, rows, terms), draw(2, terms, 50)
    module = traced(torch.bmm, *args)
    write_out_products(module.graph)
    assert aten.bmm.default in targets(module)


def test_products_that_are_added_up_stay() -> None:
    """The gradient of a recurrence's weight is the sum of one product a step."""
    args = tuple(draw(3, 2, 64, 10)), tuple(draw(3, 2, 50, 10)), draw(2, 64, 50)

    def step(lefts: Any, rights: Any, weight: Tensor) -> Tensor:
        first, *others = (
            torch.bmm(a, b.transpose(1, 2)).transpose(1, 2)
            for a, b in zip(lefts, rights, strict=True)
        )
        return weight - 0.1 * sum(others, first).transpose(1, 2)

    module = traced(step, *args)
    write_out_products(module.graph)
    assert targets(module).count(aten.bmm.default) == 3


def test_products_that_are_added_to_other_things_are_written_out() -> None:
    args = draw(2, 64, 10), draw(2, 10, 50), draw(2, 64, 50)
    module = traced(lambda a, b, w: w - 0.1 * (torch.bmm(a, b) + 0.01 * w), *args)
    write_out_products(module.graph)
    assert aten.bmm.default not in targets(module)


def clip(left: Tensor, right: Tensor, bias: Tensor) -> Any:
    gradient = torch.bmm(left, right)
    norms = [gradient.pow(2).sum([1, 2]).pow(0.5), bias.pow(2).sum([1]).pow(0.5)]
    norm = torch.cat([n.unsqueeze(1) for n in norms], dim=1).pow(2).sum([1]).pow(0.5)
    factor = torch.clamp_max(3.0 * norm.reciprocal(), 1.0)
    return gradient * factor.reshape(-1, 1, 1), norm


@pytest.mark.parametrize("scale", [1.0, 1e-3, 0.0])
def test_a_limit_comes_from_the_factors_of_a_gradient(scale: float) -> None:
    def limited(*args: Tensor) -> Any:
        return clip(*args)[0]

    args = draw(4, 64, 10) * scale, draw(4, 10, 50), draw(4, 64) * scale
    module = traced(limited, *args)
    limit_by_factors(module.graph)
    squares = [
        node
        for node in module.graph.nodes
        if node.target is aten.pow.Tensor_Scalar and node.meta["val"].dim() == 3
    ]
    assert squares == []
    expected = limited(*args)
    torch.testing.assert_close(run(module, *args), expected, equal_nan=True)


def test_a_norm_that_is_used_otherwise_stays_as_it_is() -> None:
    args = draw(4, 64, 10), draw(4, 10, 50), draw(4, 64)
    module = traced(clip, *args)
    before = targets(module)
    limit_by_factors(module.graph)
    assert targets(module) == before


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize(
    "method",
    [
        fedloom.FedAvg(batch_size=6, clip=0.5),
        fedloom.Ditto(batch_size=6, clip=None, momentum=0.5),
        fedloom.FedRep(batch_size=6),
    ],
    ids=lambda method: method.name,
)
def test_networks_of_ordinary_size_are_trained_as_they_were(
    method: AnyAlgorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large enough for every rewrite, which a method's small examples are not."""
    is_outer, outer = rewrite._is_outer, []

    def spy(node: Any) -> bool:
        outer.append(is_outer(node))
        return outer[-1]

    monkeypatch.setattr(rewrite, "_is_outer", spy)
    x, y = torch.randn(60, 70), torch.randint(0, 3, (60,))
    clients = fedloom.federation(x, y, clients=torch.arange(60) % 7, test=0.0)
    network = nn.Sequential(nn.Linear(70, 40), nn.ReLU(), nn.Linear(40, 3))
    ends = []
    for compiled in (False, True):
        task = Task(network, dtype=torch.float64)
        runner = Weave(4, compiled=compiled, unroll=2, native=False)
        simulation = Simulation(method, task, clients, runner)
        with (
            torch._inductor.config.patch(fx_graph_cache=False),
            torch._functorch.config.patch(enable_autograd_cache=False),
        ):
            for _ in range(2):
                simulation.run_exchange()
        ends.append(simulation.personal(torch.arange(7)))
    assert any(outer)
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-10)


def pooled_errors(x: Tensor, errors: Tensor, window: int) -> Tensor:
    """Errors of maxima, taken back to where the maxima were, as inductor has it."""
    prims = torch.ops.prims
    sides, windows = [window, window], list(x.shape[2:])
    _, at = prims._low_memory_max_pool_with_offsets(
        x, sides, sides, [0, 0], [1, 1], False
    )
    index = prims._low_memory_max_pool_offsets_to_indices(
        at, sides, windows, sides, [0, 0], [1, 1]
    )
    count, area = x.shape[0] * x.shape[1], windows[0] * windows[1]
    zeros = torch.full([count, area], 0, dtype=x.dtype)
    index, errors = (values.reshape(count, -1) for values in (index, errors))
    return torch.scatter_add(zeros, 1, index, errors).reshape(x.shape)


@pytest.mark.parametrize(("side", "is_replaced"), [(6, True), (7, False)])
def test_errors_of_maxima_go_where_the_maxima_were(
    side: int, is_replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrite, "_is_on_gpu", lambda node: True)
    x, errors = draw(2, 3, side, side), draw(2, 3, side // 2, side // 2)
    x[0, 0, :2, :2] = 1.0  # the first of equals is the maximum

    def function(x: Tensor, errors: Tensor) -> Tensor:
        return pooled_errors(x, errors, 2)

    module = traced(function, x, errors)
    spread_over_pools(module.graph)
    module.graph.eliminate_dead_code()
    assert (aten.scatter_add.default not in targets(module)) == is_replaced
    assert torch.equal(run(module, x, errors), function(x, errors))
