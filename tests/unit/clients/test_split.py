from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.clients import Ragged, Split
from fedloom.clients.counts import round_share
from fedloom.clients.split import _by_size
from fedloom.core.errors import ConfigError, DataError
from fedloom.data import Dataset, from_arrays


def one_client(y: list[int], split: Split, seed: int = 0) -> list[list[int]]:
    dataset = from_arrays(np.zeros((len(y), 1)), y, classes=10)
    parts = split.apply(dataset, Ragged.of([np.arange(len(y))]), ["ann"], seed)
    return [part[0].tolist() for part in parts]


@settings(deadline=None, max_examples=100)
@given(
    y=st.lists(st.integers(0, 9), min_size=1, max_size=80),
    test=st.floats(0.0, 0.9),
    validation=st.floats(0.0, 0.9),
    stratified=st.booleans(),
    seed=st.integers(0, 9),
)
def test_a_split_loses_nothing_and_keeps_a_training_sample(
    y: list[int], test: float, validation: float, stratified: bool, seed: int
) -> None:
    split = Split(test=test, validation=validation, stratified=stratified)
    tested = round_share(test, len(y))
    rest = len(y) - tested
    if rest - round_share(validation, rest) < 1:
        with pytest.raises(DataError, match=f"client ann has {len(y)} sample"):
            one_client(y, split, seed)
        return
    parts = one_client(y, split, seed)
    assert sorted(i for part in parts for i in part) == list(range(len(y)))
    assert len(parts[2]) == tested
    assert len(parts[1]) == round_share(validation, rest)
    assert all(part == sorted(part) for part in parts)
    assert parts == one_client(y, split, seed)


@settings(deadline=None, max_examples=50)
@given(y=st.lists(st.integers(0, 9), min_size=4, max_size=80))
def test_a_stratified_split_takes_from_every_class_in_proportion(y: list[int]) -> None:
    test = one_client(y, Split(test=0.25))[2]
    taken = np.bincount(np.array(y)[test], minlength=10)
    exact = np.bincount(y, minlength=10) * len(test) / len(y)
    assert np.abs(taken - exact).max() < 1


def test_equal_claims_are_settled_at_random() -> None:
    y = list(range(8))
    tests = {tuple(one_client(y, Split(test=0.25), seed)[2]) for seed in range(20)}
    assert len(tests) > 5


def test_a_regression_is_split_without_strata() -> None:
    dataset = from_arrays(np.zeros(8), np.arange(8.0))
    train, _, test = Split().apply(dataset, Ragged.of([np.arange(8)]), ["0"], 0)
    assert (train.sizes.tolist(), test.sizes.tolist()) == ([6], [2])


def test_a_client_without_training_samples_is_named_with_its_size() -> None:
    dataset = from_arrays(np.zeros(5), [0, 1, 0, 1, 0])
    members = Ragged.of([np.arange(4), np.array([4])])
    with pytest.raises(DataError, match=r"client bob has 1 sample .* 1 for testing"):
        Split(test=0.5).apply(dataset, members, ["ann", "bob"], 0)


def fixed_dataset(fixed: list[bool]) -> Dataset:
    return Dataset(
        "toy",
        (torch.zeros(len(fixed), 1),),
        torch.zeros(len(fixed), dtype=torch.int64),
        classes=1,
        fixed_test=np.array(fixed),
    )


def test_fixed_test_samples_are_tested_and_nothing_else() -> None:
    dataset = fixed_dataset([False, False, False, True, False, True])
    members = Ragged.of([np.array([0, 3, 1, 2]), np.array([4, 5])])
    split = Split(fixed=True, validation=0.3)
    train, validation, test = split.apply(dataset, members, ["0", "1"], 0)
    assert [held.tolist() for held in test] == [[3], [5]]
    assert (train.sizes.tolist(), validation.sizes.tolist()) == ([2, 1], [1, 0])


def test_fixed_test_samples_must_exist_and_leave_some_for_training() -> None:
    plain = from_arrays(np.zeros(2), [0, 1])
    with pytest.raises(DataError, match=r"does not designate test.*fixed = false"):
        Split(fixed=True).apply(plain, Ragged.of([np.arange(2)]), ["0"], 0)
    dataset = fixed_dataset([True, True])
    with pytest.raises(DataError, match="client ann has 2 samples and none is left"):
        Split(fixed=True).apply(dataset, Ragged.of([np.arange(2)]), ["ann"], 0)


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="test must be a number at least 0 and at most"
    ):
        Split(test=1.5)


def shared_dataset() -> Dataset:
    """Classes 0, 1, 2 with 10 samples each to train on and 4 each to test on."""
    y = torch.tensor([0, 1, 2] * 14)
    return Dataset(
        "toy",
        (torch.zeros(42, 1),),
        y,
        classes=3,
        fixed_test=np.arange(42) >= 30,
    )


def test_shared_test_samples_are_those_of_the_classes_that_a_client_trains_on() -> None:
    dataset = shared_dataset()
    members = Ragged.of([np.array([0, 3, 1]), np.array([2, 5, 8])])
    split = Split(fixed=True, shared=True)
    train, validation, test = split.apply(dataset, members, ["0", "1"], 0)
    assert train.sizes.tolist() == [3, 3]
    assert validation.sizes.tolist() == [0, 0]
    assert test[0].tolist() == [30, 31, 33, 34, 36, 37, 39, 40]
    assert test[1].tolist() == [32, 35, 38, 41]


def test_shared_test_samples_go_by_subclass_where_there_are_any() -> None:
    finer = np.arange(42) // 3 % 2
    dataset = dataclasses.replace(shared_dataset(), subclass=finer)
    members = Ragged.of([np.array([0, 6]), np.array([0, 3])])
    test = Split(fixed=True, shared=True).apply(dataset, members, ["0", "1"], 0)[2]
    assert test[0].tolist() == [30, 36]
    assert test[1].tolist() == [30, 33, 36, 39]


def test_only_designated_samples_can_be_shared() -> None:
    with pytest.raises(ConfigError, match="so fixed must be true as well"):
        Split(shared=True)


def test_the_pool_is_everything_unless_told_otherwise() -> None:
    dataset = shared_dataset()
    assert Split().pool(dataset).tolist() == list(range(42))
    assert Split(fixed=True).pool(dataset).tolist() == list(range(42))
    assert Split(fixed=True, shared=True).pool(dataset).tolist() == list(range(30))


def test_limited_data_are_the_first_samples_of_each_class() -> None:
    dataset = shared_dataset()
    shared = Split(fixed=True, shared=True, per_class=2)
    assert shared.pool(dataset).tolist() == [0, 1, 2, 3, 4, 5]
    # Designated test samples are neither counted nor lost.
    fixed = Split(fixed=True, per_class=1).pool(dataset)
    assert fixed.tolist() == [0, 1, 2, *range(30, 42)]
    assert Split(per_class=11).pool(dataset).tolist() == list(range(33))
    assert len(Split(per_class=99).pool(dataset)) == 42


def test_limits_that_make_no_sense_are_refused() -> None:
    plain = from_arrays(np.zeros(4), np.zeros(4))
    with pytest.raises(ConfigError, match="per_class is set, but arrays is a regress"):
        Split(per_class=1).pool(plain)
    with pytest.raises(DataError, match="designates all samples for testing"):
        Split(fixed=True, shared=True).pool(fixed_dataset([True, True]))


def test_fewer_training_samples_leave_test_and_validation_as_they_were() -> None:
    y = [0] * 60 + [1] * 30 + [2] * 10
    whole = one_client(y, Split(validation=0.2))
    few = one_client(y, Split(validation=0.2, most=20))
    assert few[1:] == whole[1:]
    assert set(few[0]) < set(whole[0])
    assert np.bincount(np.array(y)[few[0]]).tolist() == [12, 6, 2]
    assert one_client(y, Split(validation=0.2, most=60))[0] == whole[0]


def test_a_small_client_keeps_what_it_has_when_others_are_cut() -> None:
    dataset = from_arrays(np.zeros((12, 1)), [0] * 12)
    members = Ragged.of([np.arange(8), np.arange(8, 12)])
    train, _, test = Split(most=5).apply(dataset, members, ["0", "1"], 0)
    assert train.sizes.tolist() == [5, 3]
    assert test.sizes.tolist() == [2, 1]


def test_a_client_of_one_class_is_split_like_any_other() -> None:
    train, validation, test = one_client([4] * 8, Split(validation=0.5))
    assert (len(train), len(validation), len(test)) == (3, 3, 2)


def tagged(
    groups: dict[str, list[object]], y: list[int] | None = None, count: int = 0
) -> Dataset:
    count = count or len(next(iter(groups.values())))
    labels = y if y is not None else [0, 1] * (count // 2) + [0] * (count % 2)
    return from_arrays(np.zeros((count, 1)), labels, classes=2, groups=groups)  # type: ignore[arg-type]


def divided(dataset: Dataset, split: Split, seed: int = 0) -> list[list[int]]:
    parts = split.apply(dataset, Ragged.of([np.arange(len(dataset))]), ["ann"], seed)
    return [part[0].tolist() for part in parts]


def test_a_column_says_what_is_tested() -> None:
    words = ["train", "Test", "train", "validation", "test ", "train"]
    split = Split(test_column="for", validation=0.9)
    assert divided(tagged({"for": words}), split) == [[0, 2, 5], [3], [1, 4]]
    for marks in ([0, 1, 0, 0, 1, 0], [False, True, False, False, True, False]):
        split = Split(test_column="for", validation=0.5)
        train, validation, test = divided(tagged({"for": marks}), split)  # type: ignore[dict-item]
        assert test == [1, 4]
        assert (len(train), len(validation)) == (2, 2)


def test_a_column_of_other_words_is_refused() -> None:
    with pytest.raises(DataError, match=r"'for' .*expected train, .*found dev\. Ren"):
        divided(tagged({"for": ["train", "dev"]}), Split(test_column="for"))
    with pytest.raises(DataError, match=r"found 2\. Rename"):
        divided(tagged({"for": [0, 2]}), Split(test_column="for"))
    with pytest.raises(DataError, match=r"split\.time: unknown column 'day'.*: for\."):
        divided(tagged({"for": [0, 1]}), Split(time="day"))


def test_the_last_part_of_a_client_is_its_test() -> None:
    days = [5, 3, 8, 1, 2, 7, 4, 6]
    split = Split(time="day", test=0.25, validation=0.5)
    assert divided(tagged({"day": days}), split) == [[1, 3, 4], [0, 6, 7], [2, 5]]  # type: ignore[dict-item]
    dates = [np.datetime64(f"2024-01-0{day}") for day in days]
    assert divided(tagged({"day": dates}), split)[2] == [2, 5]
    for count in (1, 2, 3, 4, 5):
        few = tagged({"day": list(range(count))})
        train, validation, test = divided(few, Split(time="day", validation=0.5))
        assert train
        assert sorted(train + validation + test) == train + validation + test
    mixed = tagged({"day": np.array([1, "a"], dtype=object)})  # type: ignore[dict-item]
    with pytest.raises(DataError, match="mixes types that cannot be ordered"):
        divided(mixed, Split(time="day"))


@settings(deadline=None, max_examples=60)
@given(
    groups=st.lists(st.integers(0, 9), min_size=4, max_size=60),
    time=st.booleans(),
    seed=st.integers(0, 3),
)
def test_groups_are_never_torn_apart(groups: list[int], time: bool, seed: int) -> None:
    tags = {"visit": groups, "day": list(range(len(groups)))}
    split = Split(group="visit", time="day" if time else None, validation=0.3)
    parts = divided(tagged(tags), split, seed)  # type: ignore[arg-type]
    assert sorted(i for part in parts for i in part) == list(range(len(groups)))
    held = [{groups[i] for i in part} for part in parts]
    assert not held[0] & held[1]
    assert not held[0] & held[2]
    assert not held[1] & held[2]
    assert parts[0]


def test_groups_of_one_size_come_to_the_share() -> None:
    tags = {"visit": [n // 5 for n in range(100)]}
    train, validation, test = divided(
        tagged(tags),  # type: ignore[arg-type]
        Split(group="visit", validation=0.2),
    )
    assert (len(train), len(validation), len(test)) == (60, 15, 25)


def all_folds(
    dataset: Dataset, folds: int, **settings: object
) -> list[list[list[int]]]:
    return [
        divided(dataset, Split(fold=n, folds=folds, **settings))  # type: ignore[arg-type]
        for n in range(folds)
    ]


@settings(deadline=None, max_examples=80)
@given(
    y=st.lists(st.integers(0, 1), min_size=1, max_size=60),
    folds=st.integers(2, 6),
    validation=st.floats(0.0, 0.9),
    by_group=st.booleans(),
)
def test_folds_test_every_sample_once(
    y: list[int], folds: int, validation: float, by_group: bool
) -> None:
    groups: list[object] = [n // 2 for n in range(len(y))]
    dataset = tagged({"visit": groups}, y)
    splits = all_folds(
        dataset, folds, validation=validation, group="visit" if by_group else None
    )
    units = (len(y) + 1) // 2 if by_group else len(y)
    tested = sorted(i for parts in splits for i in parts[2])
    assert tested == (list(range(len(y))) if units > 1 else [])
    for n, (train, valid, test) in enumerate(splits):
        assert train
        assert sorted(train + valid + test) == list(range(len(y)))
        assert set(valid) <= set(splits[(n + 1) % folds][2])
        if by_group:
            held = [{groups[i] for i in part} for part in (train, valid, test)]
            assert not held[0] & held[1]
            assert not held[0] & held[2]
            assert not held[1] & held[2]
        else:
            counts = [np.bincount(np.array(y)[p[2]], minlength=2) for p in splits]
            if units > 1:
                assert np.ptp(np.stack(counts), axis=0).max() <= 1


def test_folds_have_the_shares_that_were_asked_for() -> None:
    dataset = tagged({}, count=100)
    for train, validation, test in all_folds(dataset, 5, validation=0.2):
        assert (len(train), len(validation), len(test)) == (64, 16, 20)
    # No more than the next fold can be validated on.
    for train, validation, test in all_folds(dataset, 5, validation=0.5):
        assert (len(train), len(validation), len(test)) == (60, 20, 20)
    assert all_folds(dataset, 5) == all_folds(dataset, 5)
    other_seed = divided(dataset, Split(fold=0, folds=5), seed=1)
    assert other_seed == divided(dataset, Split(fold=0, folds=5))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_tiny_clients_have_a_training_sample_in_every_fold(count: int) -> None:
    for validation in (0.0, 0.5, 1.0):
        for train, _, _ in all_folds(tagged({}, count=count), 5, validation=validation):
            assert train


def test_settings_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(ConfigError, match="test_column and time are set"):
        Split(test_column="a", time="b")
    with pytest.raises(ConfigError, match="time and folds are set"):
        Split(time="b", fold=0, folds=2)
    with pytest.raises(ConfigError, match="fixed and test_column are set"):
        Split(fixed=True, test_column="a")
    for fold, folds in ((5, 5), (0, None), (None, 5)):
        with pytest.raises(ConfigError, match="fold and folds go together"):
            Split(fold=fold, folds=folds)
    with pytest.raises(ConfigError, match="folds must be a whole number at least 2"):
        Split(fold=0, folds=1)


@pytest.mark.parametrize(
    "split",
    [
        Split(test=0.3, validation=0.2),
        Split(test=0.5, validation=0.4, stratified=False),
        Split(test=0.0, validation=0.3, most=3),
        Split(test=0.25, most=2),
        Split(test_column="for", validation=0.5),
        Split(test_column="all", validation=0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, 2**40])
def test_clients_divided_together_have_the_samples_of_clients_alone(
    split: Split, seed: int
) -> None:
    draw = np.random.default_rng(5)
    count = 900
    y = draw.integers(0, 4, count)
    columns = {
        "for": np.where(draw.random(count) < 0.3, "test", "train"),
        "all": draw.choice(["train", "validation", "test"], count),
    }
    dataset = from_arrays(np.zeros((count, 1)), y, classes=4, groups=columns)
    sizes = draw.integers(1, 14, 100)
    held = Ragged.cut(draw.permutation(count)[: sizes.sum()], sizes).ascending()
    clients = np.arange(100) + 3
    marks = split._marks(dataset)
    together = split._apply_together(marks, held, clients, seed)
    for n, client in enumerate(clients.tolist()):
        alone = split._apply_alone(marks, client, held[n], seed)
        for part, own in zip(together, alone, strict=True):
            assert part[n].tolist() == own.tolist()


def test_the_largest_clients_are_divided_alone_and_the_rest_together() -> None:
    sizes = np.array([4, 5000, 3, *[4] * 400, 900])
    alone, together = _by_size(sizes)
    assert alone.tolist() == [1, len(sizes) - 1]
    assert len(together) == len(sizes) - 2
    draw = np.random.default_rng(2)
    y = draw.integers(0, 3, sizes.sum())
    dataset = from_arrays(np.zeros((len(y), 1)), y, classes=3)
    members = Ragged.cut(draw.permutation(len(y)), sizes)
    split, names = Split(validation=0.2), [str(n) for n in range(len(sizes))]
    parts = split.apply(dataset, members, names, 1)
    marks = split._marks(dataset)
    for n in (0, 1, 2, 200, len(sizes) - 1):
        own = split._apply_alone(marks, n, members[n], 1)
        assert [part[n].tolist() for part in parts] == [o.tolist() for o in own]
