"""Vectors come back from their pieces as they were."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedloom.core.layout import ParameterLayout
from fedloom.engine import pieces

NETWORKS = {
    "two layers": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)),
    "one parameter": nn.Linear(3, 2, bias=False),
    "a head of one": nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_vectors_come_back_as_they_were(name: str) -> None:
    layout = ParameterLayout(NETWORKS[name])
    head = layout.d - layout.base_d
    for shape in ((5, layout.d), (5, layout.base_d), (5, head), (5,), (5, 2, layout.d)):
        vectors = torch.randn(shape)
        parts = pieces.cut(vectors, layout)
        assert torch.equal(pieces.joined(parts), vectors)
        other = torch.randn(shape)
        pieces.write(other, parts)
        assert torch.equal(pieces.joined(parts), other)


def test_each_parameter_of_a_network_has_a_piece_of_its_shape() -> None:
    layout = ParameterLayout(NETWORKS["two layers"])
    parts = pieces.cut(torch.randn(5, layout.d), layout)
    assert [part.shape[1:] for part in parts] == [(4, 3), (4,), (2, 4), (2,)]
    assert all(part.is_contiguous() for part in parts)
