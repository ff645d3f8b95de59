"""Clients that the data name: small ones dropped or pooled, a share of them drawn."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.clients import Natural, Split, divide
from fedloom.core.errors import ConfigError, DataError
from fedloom.data import Dataset, from_arrays

SIZES = {"ann": 40, "bob": 3, "cy": 31, "dan": 5, "eve": 30, "fay": 2, "gus": 4}


def tweets(sizes: dict[str, int] = SIZES) -> Dataset:
    who = np.repeat(list(sizes), list(sizes.values()))
    return from_arrays(np.zeros((len(who), 1)), np.arange(len(who)) % 2, clients=who)


def test_users_with_more_than_thirty_tweets_are_kept() -> None:
    found = Natural(least=31).assign(tweets(), 0)
    assert found.names == ("ann", "cy")
    assert [len(held) for held in found.members] == [40, 31]


def test_small_clients_are_pooled_in_order_up_to_the_least() -> None:
    found = Natural(least=7, small="pool").assign(tweets(), 0)
    assert found.names == ("ann", "cy", "eve", "pool 0")
    # bob and dan make 8; fay and gus are too few for a pool and join it.
    assert [len(held) for held in found.members] == [40, 31, 30, 14]
    owner = tweets().owner
    assert owner is not None
    assert set(owner[found.members[3]]) == {"bob", "dan", "fay", "gus"}
    found = Natural(least=6, small="pool").assign(tweets(), 0)
    assert [len(held) for held in [*found.members][3:]] == [8, 6]


def test_small_clients_that_fill_no_pool_are_left_out() -> None:
    found = Natural(least=20, small="pool").assign(tweets(), 0)
    assert found.names == ("ann", "cy", "eve")
    with pytest.raises(DataError, match=r"no client has 200 .* largest has 40"):
        Natural(least=200, small="pool").assign(tweets(), 0)


def test_dropping_everybody_names_both_remedies() -> None:
    with pytest.raises(DataError, match='Lower least, or set small = "pool"'):
        Natural(least=41).assign(tweets(), 0)


def test_a_share_takes_whole_clients_until_they_hold_it() -> None:
    dataset = tweets({f"{n:02}": 10 for n in range(50)})
    found = Natural(share=0.3).assign(dataset, 1)
    assert len(found.names) == 15
    assert {len(held) for held in found.members} == {10}
    assert list(found.names) == sorted(found.names)
    assert found.names == Natural(share=0.3).assign(dataset, 1).names
    assert found.names != Natural(share=0.3).assign(dataset, 2).names
    with pytest.raises(ConfigError, match="share must be a number above 0"):
        Natural(share=0.0)


def test_pooled_clients_are_split_like_any_other() -> None:
    fed = divide(tweets(), Natural(least=7, small="pool"), Split(test=0.2), seed=0)
    assert fed.test.sizes.tolist() == [8, 6, 6, 3]
