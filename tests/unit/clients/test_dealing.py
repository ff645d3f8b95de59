from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.clients.dealing import deal_groups, deal_rows
from fedloom.core.streams import generator


@settings(deadline=None, max_examples=50)
@given(
    labels=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    parts=st.integers(2, 7),
    seed=st.integers(0, 5),
)
def test_rows_are_dealt_evenly_label_by_label(
    labels: list[int], parts: int, seed: int
) -> None:
    values = np.array(labels)
    place = deal_rows(values, parts, generator(seed, "split"))
    for rows in (values >= 0, *(values == label for label in range(4))):
        counts = np.bincount(place[rows], minlength=parts)
        assert counts.max() - counts.min() <= 1


@settings(deadline=None, max_examples=50)
@given(
    groups=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    parts=st.integers(2, 5),
    seed=st.integers(0, 5),
)
def test_groups_are_dealt_in_one_piece(
    groups: list[int], parts: int, seed: int
) -> None:
    values = np.array(groups)
    labels = np.arange(len(values)) % 2
    place = deal_groups(values, labels, np.ones(parts), generator(seed, "split"))
    for group in set(groups):
        assert len(set(place[values == group])) == 1
    if len(set(groups)) > 1:
        assert len(set(place)) > 1


def test_groups_of_one_size_are_dealt_evenly_and_by_label() -> None:
    groups = np.repeat(np.arange(20), 3)
    labels = np.repeat(np.arange(20) % 2, 3)
    place = deal_groups(groups, labels, np.ones(5), generator(0, "split"))
    for label in (0, 1):
        assert np.bincount(place[labels == label]).tolist() == [6] * 5


def test_parts_may_have_unequal_shares() -> None:
    groups = np.repeat(np.arange(16), 5)
    draw = generator(0, "split")
    place = deal_groups(groups, np.zeros_like(groups), np.array([3, 1]), draw)
    assert np.bincount(place).tolist() == [60, 20]
