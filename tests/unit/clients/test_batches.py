from __future__ import annotations

from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.clients.batches import (
    Plan,
    permutations,
    plan_batches,
    plan_passes,
    steps_per_epoch,
)
from fedloom.core.streams import fold

sizes_of = st.lists(st.integers(1, 40), min_size=1, max_size=6)
batch_sizes = st.integers(1, 16)
keys = st.integers(-(2**63), 2**63 - 1)

quick = settings(max_examples=60, deadline=None)


def streams(root: int, count: int) -> torch.Tensor:
    return fold(torch.tensor(root), torch.arange(count))


def own(plan: Plan, client: int, steps: int) -> list[list[int]]:
    """The samples of each step of one client."""
    return [
        plan.positions[client, s][plan.mask[client, s]].tolist() for s in range(steps)
    ]


@quick
@given(root=keys, sizes=sizes_of, batch_size=batch_sizes, epochs=st.integers(1, 3))
def test_every_sample_is_met_once_in_every_epoch(
    root: int, sizes: list[int], batch_size: int, epochs: int
) -> None:
    n = torch.tensor(sizes)
    steps = epochs * steps_per_epoch(n, batch_size)
    plan = plan_batches(streams(root, len(sizes)), n, steps, batch_size)
    for client, size in enumerate(sizes):
        per_epoch = -(-size // batch_size)
        batches = own(plan, client, int(steps[client]))
        assert len(batches) == epochs * per_epoch
        for epoch in range(epochs):
            met = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
            assert sorted(chain(*met)) == list(range(size))
            # As equal as can be, the larger batches first.
            widths = [len(batch) for batch in met]
            assert widths == sorted(widths, reverse=True)
            assert widths[0] - widths[-1] <= 1
            assert widths[0] <= batch_size
        ends = plan.ends_epoch[client, : int(steps[client])].nonzero()[:, 0]
        assert ends.tolist() == [(e + 1) * per_epoch - 1 for e in range(epochs)]


@quick
@given(
    root=keys,
    sizes=sizes_of,
    batch_size=batch_sizes,
    steps=st.lists(st.integers(0, 12), min_size=6, max_size=6),
)
def test_masks_say_where_there_is_a_sample(
    root: int, sizes: list[int], batch_size: int, steps: list[int]
) -> None:
    n, wanted = torch.tensor(sizes), torch.tensor(steps[: len(sizes)])
    plan = plan_batches(streams(root, len(sizes)), n, wanted, batch_size)
    longest = max(steps[: len(sizes)])
    shape = (len(sizes), longest, batch_size)
    assert plan.positions.shape == plan.mask.shape == shape
    assert plan.ends_epoch.shape == shape[:2]
    assert not plan.positions[~plan.mask].any()
    assert bool((plan.positions < n[:, None, None]).all())
    for client in range(len(sizes)):
        filled = plan.mask[client].any(1)
        assert filled.sum() == wanted[client]
        assert not filled[int(wanted[client]) :].any()
        # Padding comes last in a batch, never between samples.
        mask = plan.mask[client].int()
        assert bool((mask.diff(dim=1) <= 0).all())


@quick
@given(
    root=keys,
    sizes=sizes_of,
    batch_size=batch_sizes,
    steps=st.lists(st.integers(1, 12), min_size=6, max_size=6),
)
def test_a_client_is_planned_alone_as_it_is_in_company(
    root: int, sizes: list[int], batch_size: int, steps: list[int]
) -> None:
    n, wanted = torch.tensor(sizes), torch.tensor(steps[: len(sizes)])
    stream = streams(root, len(sizes))
    together = plan_batches(stream, n, wanted, batch_size)
    for c in range(len(sizes)):
        one = slice(c, c + 1)
        alone = plan_batches(stream[one], n[one], wanted[one], batch_size)
        count = int(wanted[c])
        assert own(together, c, count) == own(alone, 0, count)
        assert torch.equal(together.ends_epoch[c, :count], alone.ends_epoch[0])


@quick
@given(
    root=keys, size=st.integers(1, 40), batch_size=batch_sizes, more=st.integers(1, 9)
)
def test_a_longer_plan_begins_like_a_shorter_one(
    root: int, size: int, batch_size: int, more: int
) -> None:
    stream, n = streams(root, 1), torch.tensor([size])
    short = plan_batches(stream, n, torch.tensor([4]), batch_size)
    long = plan_batches(stream, n, torch.tensor([4 + more]), batch_size)
    assert own(short, 0, 4) == own(long, 0, 4)


def test_steps_beyond_an_epoch_go_on_into_the_next_shuffled_one() -> None:
    plan = plan_batches(streams(1, 1), torch.tensor([7]), torch.tensor([8]), 3)
    batches = own(plan, 0, 8)
    epochs = [list(chain(*batches[0:3])), list(chain(*batches[3:6]))]
    assert [sorted(epoch) for epoch in epochs] == [list(range(7))] * 2
    assert epochs[0] != epochs[1]
    assert [len(batch) for batch in batches[6:]] == [3, 2]
    assert plan.ends_epoch[0].tolist() == [False, False, True] * 2 + [False, False]


@pytest.mark.parametrize(
    ("size", "batch_size", "widths"),
    [
        (11, 10, [6, 5]),
        (21, 10, [7, 7, 7]),
        (20, 10, [10, 10]),
        (23, 10, [8, 8, 7]),
        (5, 2, [2, 2, 1]),
        (1, 10, [1]),
    ],
)
def test_no_batch_is_what_the_others_left_over(
    size: int, batch_size: int, widths: list[int]
) -> None:
    steps = torch.tensor([2 * len(widths)])
    plan = plan_batches(streams(1, 1), torch.tensor([size]), steps, batch_size)
    assert [len(batch) for batch in own(plan, 0, int(steps))] == 2 * widths


def test_a_client_smaller_than_a_batch_takes_all_it_has_every_step() -> None:
    plan = plan_batches(streams(1, 1), torch.tensor([3]), torch.tensor([4]), 10)
    assert [sorted(batch) for batch in own(plan, 0, 4)] == [[0, 1, 2]] * 4
    assert plan.ends_epoch.all()


def test_no_steps_make_an_empty_plan() -> None:
    plan = plan_batches(streams(1, 2), torch.tensor([3, 4]), torch.tensor([0, 0]), 2)
    assert plan.positions.shape == (2, 0, 2)
    assert plan_passes(torch.tensor([3]), torch.tensor([0])).positions.shape == (
        1,
        0,
        4,
    )


def test_epochs_and_clients_are_shuffled_apart() -> None:
    orders = permutations(streams(2, 3), torch.tensor([30, 30, 30]), 4)
    assert len({tuple(row) for row in orders.flatten(0, 1).tolist()}) == 12


def test_every_order_of_three_samples_comes_up_equally_often() -> None:
    count = 6000
    orders = permutations(streams(3, count), torch.full((count,), 3), 1)[:, 0]
    code = orders[:, 0] * 3 + orders[:, 1]
    frequencies = torch.bincount(code, minlength=9)
    met = frequencies[frequencies > 0]
    assert len(met) == 6
    # 1000 expected, standard deviation 29.
    assert int((met - 1000).abs().max()) < 150


@quick
@given(sizes=sizes_of, steps=st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_a_pass_is_all_of_a_clients_data(sizes: list[int], steps: list[int]) -> None:
    n, wanted = torch.tensor(sizes), torch.tensor(steps[: len(sizes)])
    plan = plan_passes(n, wanted)
    for client, size in enumerate(sizes):
        count = int(wanted[client])
        assert own(plan, client, count) == [list(range(size))] * count
        assert not plan.mask[client, count:].any()
    width = plan.mask.shape[2]
    assert max(sizes) <= width < 2 * max(sizes)
    assert width & (width - 1) == 0
    assert plan.ends_epoch.all()


def test_a_plan_for_one_seed_is_pinned() -> None:
    """A change here changes every run: it belongs under Numerics in the CHANGELOG."""
    plan = plan_batches(streams(0, 1), torch.tensor([5]), torch.tensor([4]), 2)
    assert own(plan, 0, 4) == [[4, 3], [1, 0], [2], [1, 3]]
