from __future__ import annotations

import numpy as np
import pytest

from fedloom.core.client_streams import ClientStreams
from fedloom.core.streams import generator


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 5, 2**70])
def test_streams_side_by_side_give_what_each_generator_gives(seed: int) -> None:
    draw = np.random.default_rng(1)
    clients = np.array([0, 1, 5, 2**20, 2**32 - 1, *range(10, 40)])
    streams = ClientStreams(seed, "split", clients)
    generators = [generator(seed, "split", int(client)) for client in clients]
    # Several draws one after another, some of nothing, some beyond one block.
    for largest in (3, 20, 2, 70):
        sizes = draw.integers(0, largest, len(clients))
        values = draw.integers(0, 1000, sizes.sum())
        lists = np.split(values, np.cumsum(sizes)[:-1])
        expected = [
            g.permutation(own) for g, own in zip(generators, lists, strict=True)
        ]
        shuffled = streams.permutation(values, sizes)
        assert shuffled.tolist() == np.concatenate(expected).tolist()


def test_the_lists_that_were_given_are_not_changed() -> None:
    values = np.arange(10)
    ClientStreams(0, "split", np.arange(2)).permutation(values, np.array([4, 6]))
    assert values.tolist() == list(range(10))
