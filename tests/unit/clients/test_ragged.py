from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.clients import Ragged
from fedloom.core.errors import DataError


@given(st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=8))
def test_lists_come_back_as_stored(lists: list[list[int]]) -> None:
    ragged = Ragged.of([np.array(one, dtype=np.int64) for one in lists])
    assert [one.tolist() for one in ragged] == lists
    assert len(ragged) == len(lists)
    assert ragged.sizes.tolist() == [len(one) for one in lists]


def test_a_list_that_is_not_there_is_an_index_error() -> None:
    ragged = Ragged.of([np.arange(2)])
    for i in (-1, 1):
        with pytest.raises(IndexError):
            ragged[i]


def test_offsets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="rise from 0 to the number of indices, 3"):
        Ragged(np.arange(3), np.array([0, 2]))
    with pytest.raises(DataError, match="rise"):
        Ragged(np.arange(3), np.array([0, 4, 3]))
    with pytest.raises(DataError, match="flat int64"):
        Ragged(np.zeros(3), np.array([0, 3]))  # type: ignore[arg-type]


def test_lists_are_chosen_sorted_thinned_and_joined() -> None:
    ragged = Ragged.of([np.array([3, 1]), np.arange(0), np.array([9, 8, 2])])
    assert [own.tolist() for own in ragged.only([2, 0, 2])] == [
        [9, 8, 2],
        [3, 1],
        [9, 8, 2],
    ]
    assert [own.tolist() for own in ragged.ascending()] == [[1, 3], [], [2, 8, 9]]
    is_kept = ragged.indices > 2
    assert [own.tolist() for own in ragged.only_where(is_kept)] == [[3], [], [9, 8]]
    assert ragged.owners.tolist() == [0, 0, 2, 2, 2]
    joined = ragged.followed_by(Ragged.of([np.array([7])]))
    assert [own.tolist() for own in joined] == [[3, 1], [], [9, 8, 2], [7]]
    assert len(ragged.only([])) == 0
