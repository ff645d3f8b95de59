"""A random split that may tear groups apart is said so; others are not accused."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest

import fedloom
from fedloom.clients import (
    Federation,
    Natural,
    Split,
    divide,
    federation,
    leaks,
    torn_groups,
)
from fedloom.data import from_arrays

CLIENTS, VISITS, ROWS = 6, 8, 5
NOISE = (0.3, 0.5, 0.7, 1.0)
"""Within a visit, of the deviation between visits."""
VISIT = np.repeat(np.arange(CLIENTS * VISITS), ROWS)
WHO = VISIT // VISITS


def visits(seed: int, noise: float = 0.4) -> tuple[np.ndarray, np.ndarray]:
    """Rows of one visit are alike, in the order of the file."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(CLIENTS * VISITS, 5))[VISIT]
    x = (x + draw.normal(scale=noise, size=x.shape)).astype("float32")
    return x, (x[:, 0] > 0).astype(np.int64)


def table(values: np.ndarray, name: str, y: np.ndarray | None = None) -> Federation:
    """A table of noise with one column of this name."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(len(values), 3)).astype("float32")
    x = np.column_stack([x, values]).astype("float32")
    target = (x[:, 0] > 0).astype(np.int64) if y is None else y
    dataset = from_arrays(x, target, clients=WHO)
    named = dataclasses.replace(dataset, features=("a", "b", "c", name))
    return divide(named, Natural(), Split(), seed=0)


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_are_like_their_neighbours_are_noticed(seed: int) -> None:
    x, y = visits(seed)
    with pytest.warns(UserWarning, match=r"follow one another.*split\.group"):
        federation(x, y, clients=WHO)
    with pytest.warns(UserWarning, match="follow one another"):
        federation(x, x[:, 1], clients=WHO)


@pytest.mark.parametrize("split", [{"groups": VISIT}, {"time": np.arange(len(VISIT))}])
def test_groups_and_times_that_are_named_are_not_warned_of(
    split: dict[str, Any],
) -> None:
    x, y = visits(0)
    assert torn_groups(federation(x, y, clients=WHO, **split)) == ""


def test_rows_without_order_are_not_accused() -> None:
    draw = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for trial in range(100):
            rows, width = int(draw.integers(60, 400)), int(draw.integers(1, 12))
            clients = int(draw.integers(2, 10))
            who = np.sort(draw.integers(clients, size=rows))
            x = (
                draw.normal(size=(rows, width))
                + draw.normal(size=(clients, width))[who]
            )
            x = np.round(x) if trial % 3 == 0 else x
            y = (x[:, 0] + draw.normal(size=rows) > 0).astype(np.int64)
            # As many files are: sorted by class, or by one of the features.
            keys = [np.arange(rows), y, x[:, 0]][trial % 3]
            order = np.lexsort((keys, who))
            federation(x[order].astype("float32"), y[order], clients=who[order])


def test_a_file_sorted_by_its_target_is_not_accused() -> None:
    draw = np.random.default_rng(0)
    y = np.sort(draw.normal(size=len(WHO)))
    x = y[:, None] + draw.normal(scale=0.1, size=(len(WHO), 4))
    assert torn_groups(federation(x.astype("float32"), y, clients=WHO)) == ""


@pytest.mark.parametrize("seed", range(3))
def test_a_file_sorted_by_a_score_that_is_no_column_is_not_accused(seed: int) -> None:
    """As detections are listed: the likeliest first, every feature follows."""
    draw = np.random.default_rng(seed)
    who = np.repeat(np.arange(10), 80)
    score = draw.gamma(1.0, size=len(who))
    x = score[:, None] ** 2 + draw.normal(scale=0.5, size=(len(who), 5))
    y = (draw.random(len(who)) < 0.2).astype(np.int64)
    order = np.lexsort((-score, who))
    sorted_ = federation(x[order].astype("float32"), y[order], clients=who[order])
    assert torn_groups(sorted_) == ""


def test_every_nth_client_of_a_large_table_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, _ = visits(0)
    # Only the rows of every fourth client have an order: all together show nothing.
    calm = np.random.default_rng(0).normal(size=(3 * len(x), 5)).astype("float32")
    both = np.r_[x, calm]
    who = np.r_[4 * WHO, 4 * (np.arange(len(calm)) // 120) + 1]
    who[len(x) :] += np.arange(len(calm)) % 120 // 40
    made = federation(both, (both[:, 0] > 0).astype(np.int64), clients=who)
    assert torn_groups(made) == ""
    monkeypatch.setattr(leaks, "_MOST_ROWS", len(x))
    assert "follow one another" in torn_groups(made)


def test_days_in_a_row_are_noticed_though_all_clients_go_up() -> None:
    draw = np.random.default_rng(0)
    who = np.repeat(np.arange(8), 60)
    walk = np.concatenate([draw.normal(size=(60, 4)).cumsum(axis=0) for _ in range(8)])
    x = walk + np.tile(np.arange(60.0), 8)[:, None] / 10
    y = (draw.random(len(who)) < 0.5).astype(np.int64)
    with pytest.warns(UserWarning, match="follow one another"):
        federation(x.astype("float32"), y, clients=who)


def test_shuffled_twins_are_noticed_and_rows_of_codes_are_not() -> None:
    draw = np.random.default_rng(0)
    shuffled = draw.permutation(len(WHO))
    x, y = visits(0, noise=0.0)
    with pytest.warns(UserWarning, match="of the test rows are training rows"):
        federation(x[shuffled], y[shuffled], clients=WHO[shuffled])
    codes = np.round(x)
    assert torn_groups(federation(codes[shuffled], y, clients=WHO[shuffled])) == ""


def test_a_feature_that_is_called_and_behaves_like_a_time_is_noticed() -> None:
    rising = np.concatenate([np.arange(VISITS * ROWS)] * CLIENTS)
    assert "'test_time' looks like the time" in torn_groups(table(rising, "test_time"))
    assert "'testTime'" in torn_groups(table(rising, "testTime"))
    assert torn_groups(table(rising, "lifetime")) == ""
    drawn = np.random.default_rng(0).permutation(rising)
    assert torn_groups(table(drawn, "reaction_time")) == ""


def test_a_feature_that_is_called_and_behaves_like_a_group_is_noticed() -> None:
    assert "'visit_id' looks like" in torn_groups(table(VISIT, "visit_id"))
    assert torn_groups(table(np.arange(len(VISIT)), "id")) == ""
    assert torn_groups(table(VISIT, "dose")) == ""


def test_only_tables_that_are_split_at_random_are_looked_at() -> None:
    x, y = visits(0)
    images = x.reshape(-1, 5, 1)
    assert torn_groups(federation(images, y, clients=WHO)) == ""
    whole = dataclasses.replace(federation(images, y, clients=WHO), split=None)
    assert torn_groups(whole) == ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*belong together")
def test_how_often_it_speaks() -> None:
    """The numbers of docs/how-to/split-data.md."""
    draw = np.random.default_rng(2024)

    def mixed(x: np.ndarray) -> np.ndarray:
        width = x.shape[1]
        mix = draw.normal(size=(width, width)) * (draw.random((width, width)) < 0.4)
        return x @ (mix + np.eye(width))

    def without_groups(order: int) -> bool:
        rows, width, clients = draw.integers([80, 3, 2], [1500, 20, 20])
        who = np.sort(draw.integers(clients, size=rows))
        means = 0.7 * draw.normal(size=(clients, width))
        x = mixed(draw.normal(size=(rows, width)) + means[who])
        y = (x[:, 0] + x[:, 0].std() * draw.normal(size=rows) > 0).astype(np.int64)
        score = x @ draw.normal(size=width) + x.std() * draw.normal(size=rows)
        at = np.lexsort(([np.arange(rows), y, x[:, 1], score][order], who))
        made = federation(x[at].astype("float32"), y[at], clients=who[at])
        return torn_groups(made) != ""

    def of_visits(size: int, noise: float) -> bool:
        visits, width, clients = draw.integers([40, 3, 3], [200, 20, 12])
        visit = np.repeat(np.arange(visits), size)
        x = draw.normal(size=(visits, width))[visit]
        x = mixed(x + noise * draw.normal(size=x.shape)).astype("float32")
        y = (x[:, 0] > 0).astype(np.int64)
        made = federation(x, y, clients=visit * clients // visits)
        return torn_groups(made) != ""

    assert sum(without_groups(n % 4) for n in range(400)) == 0
    by_noise = [sum(of_visits(5, noise) for _ in range(50)) for noise in NOISE]
    assert by_noise == [50, 45, 22, 0]
    assert sum(of_visits(2, 0.3) for _ in range(200)) == 5


def test_random_rows_flatter_where_groups_do_not() -> None:
    """Half of each client's visits end well, whichever: there is nothing to learn."""
    scores = []
    for seed in range(3):
        draw = np.random.default_rng(seed)
        visit = np.repeat(np.arange(200), 6)
        x = draw.normal(size=(200, 40))[visit]
        x = (x + draw.normal(scale=0.3, size=x.shape)).astype("float32")
        ends = np.concatenate([draw.permutation(20) % 2 for _ in range(10)])
        y, who = ends[visit], visit // 20
        with pytest.warns(UserWarning, match="follow one another"):
            torn = federation(x, y, clients=who)
        kept = federation(x, y, clients=who, groups=visit)
        scores.append(
            [
                fedloom.run("local", "mlr", clients, rounds=10).scores().mean()
                for clients in (torn, kept)
            ]
        )
    at_random, by_visit = np.array(scores).T
    assert (at_random > 0.95).all()
    assert by_visit.mean() == pytest.approx(0.5, abs=0.1)
