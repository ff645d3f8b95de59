from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.clients import (
    BlockTeams,
    Dirichlet,
    Federation,
    Given,
    Iid,
    LabelTeams,
    Natural,
    Ragged,
    Sensor,
    Split,
    divide,
    federation,
    load_split,
)
from fedloom.core.errors import ConfigError, DataError, MessageError
from fedloom.data import Digits, Gaussian, from_arrays

X, Y = np.zeros((12, 2)), np.tile([0, 1, 2], 4)
WHO = np.repeat(["ann", "bob", "cy"], 4)
HASH = "178978da5d0ac58456c9453445624e9b6bcd6f033b8a17615d8116251a1083ed"


def ragged(*lists: list[int]) -> Ragged:
    return Ragged.of([np.array(one, dtype=np.int64) for one in lists])


def test_arrays_with_client_ids_become_a_federation() -> None:
    fed = federation(X, Y, clients=WHO)
    assert isinstance(fed, Federation)
    assert fed.names == ("ann", "bob", "cy")
    assert fed.count == 3
    assert fed.sizes.tolist() == [3, 3, 3]
    assert fed.test.sizes.tolist() == [1, 1, 1]
    assert fed.teams.tolist() == [0, 0, 0]
    for client in range(3):
        held = np.concatenate([fed.train[client], fed.test[client]])
        assert sorted(held) == list(range(4 * client, 4 * client + 4))


def test_arrays_with_a_partition_become_a_federation() -> None:
    fed = federation(
        (X, torch.zeros(12)), Y, partition=Iid(clients=2), test=0.0, validation=0.5
    )
    assert len(fed.dataset.inputs) == 2
    assert fed.sizes.tolist() == fed.validation.sizes.tolist() == [3, 3]
    assert fed.test.sizes.tolist() == [0, 0]


def test_clients_or_a_partition_must_be_given_not_both() -> None:
    with pytest.raises(ConfigError, match=r"either clients .* found neither"):
        federation(X, Y)
    with pytest.raises(ConfigError, match="found both"):
        federation(X, Y, clients=WHO, partition=Iid(clients=2))


def test_teams_may_be_a_rule_or_a_list() -> None:
    assert federation(X, Y, clients=WHO, teams=[1, 0, 1]).teams.tolist() == [1, 0, 1]
    fed = federation(X, Y, clients=WHO, teams=np.array([0, 1, 1]))  # type: ignore[arg-type]
    assert fed.teams.tolist() == [0, 1, 1]
    fed = federation(X, Y, clients=WHO, teams=BlockTeams(teams=3))
    assert fed.teams.tolist() == [0, 1, 2]


def test_labels_are_counted_per_client() -> None:
    fed = federation(X, Y, partition=Given(members=((0, 3, 1), (2, 5))), test=0.0)
    assert fed.label_counts().tolist() == [[2, 1, 0], [0, 0, 2]]
    assert fed.label_counts("test").tolist() == [[0, 0, 0], [0, 0, 0]]


def test_a_regression_has_no_labels_to_count() -> None:
    dataset = Gaussian(clients=3).load(None, 0)
    fed = divide(dataset, Natural(), Split(), seed=0)
    assert fed.label_counts().shape == (3, 0)
    with pytest.raises(ConfigError, match="no labels"):
        divide(dataset, Natural(), Split(), LabelTeams(teams=2), seed=0)


def test_the_same_seed_gives_the_same_hash_and_another_seed_another() -> None:
    dataset = Digits().load(None, 0)

    def hash_of(seed: int, alpha: float = 0.5) -> str:
        partition = Dirichlet(clients=10, alpha=alpha, least=5)
        return divide(dataset, partition, Split(), seed=seed).hash

    assert hash_of(0) == hash_of(0)
    assert len({hash_of(0), hash_of(1), hash_of(0, 1.0)}) == 3


def test_the_hash_is_the_one_it_has_always_been() -> None:
    fed = federation(X, Y, partition=Given(members=((0, 1), (2,))), test=0.0)
    assert fed.hash == HASH


def test_the_hash_sees_teams_and_targets() -> None:
    plain = federation(X, Y, clients=WHO)
    assert federation(X + 1, Y, clients=WHO).hash == plain.hash
    assert federation(X, Y, clients=WHO, teams=[0, 0, 1]).hash != plain.hash
    assert federation(X, 2 - Y, clients=WHO).hash != plain.hash


def test_a_client_without_training_sample_is_named() -> None:
    dataset = from_arrays(X, Y)
    none, zeros = ragged([], []), np.zeros(2, dtype=np.int64)
    with pytest.raises(DataError, match="client bob has no training sample"):
        Federation(dataset, ragged([1], []), none, none, ("ann", "bob"), zeros)


def test_a_sample_used_twice_or_out_of_range_is_refused() -> None:
    dataset = from_arrays(X, Y)
    none, zero = ragged([]), np.zeros(1, dtype=np.int64)
    with pytest.raises(DataError, match="sample 3 is used 2 times"):
        Federation(dataset, ragged([3]), none, ragged([3]), ("a",), zero)
    with pytest.raises(DataError, match=r"indices 1\.\.12 for samples 0\.\.11"):
        Federation(dataset, ragged([1, 12]), none, none, ("a",), zero)
    with pytest.raises(DataError, match=r"one entry per client.*names 2"):
        Federation(dataset, ragged([1]), none, none, ("a", "b"), zero)


def test_a_saved_split_comes_back(tmp_path: Path) -> None:
    fed = federation(X, Y, clients=WHO, validation=0.3, teams=[0, 1, 1], seed=4)
    path = tmp_path / "new" / "split.npz"
    fed.save(path)
    fed.save(path)
    loaded = load_split(path, fed.dataset)
    assert loaded.hash == fed.hash
    assert loaded.names == fed.names
    for field in dataclasses.fields(fed):
        if field.type == "Ragged":
            one, other = getattr(fed, field.name), getattr(loaded, field.name)
            assert [a.tolist() for a in one] == [b.tolist() for b in other]
    assert [entry.name for entry in path.parent.iterdir()] == ["split.npz"]


def test_groups_and_the_column_of_times_are_saved_with_the_split(
    tmp_path: Path,
) -> None:
    """Visits are counted from 1 at every client, so that there are six of them."""
    path, visits = tmp_path / "split.npz", [1, 1, 2, 2] * 3
    fed = federation(X, Y, clients=WHO, groups=visits, time=np.arange(12))
    expected = np.repeat(np.arange(6), 2).tolist()
    assert fed.groups is not None
    assert fed.groups.tolist() == expected
    assert fed.only([2, 0]).groups is fed.groups
    fed.save(path)
    loaded = load_split(path, fed.dataset)
    assert loaded.groups is not None
    assert loaded.groups.tolist() == expected
    with np.load(path) as archive:
        arrays = dict(archive)
    assert str(arrays["time"]) == "time"
    np.savez(path, **{**arrays, "groups": arrays["groups"][:5]})
    with pytest.raises(DataError, match=r"one number for each of the 12 .*\(5,\)"):
        load_split(path, fed.dataset)
    federation(X, Y, clients=WHO).save(path)
    with np.load(path) as archive:
        assert not {"groups", "time"} & set(archive.files)


def test_a_group_is_of_those_who_owned_its_samples_whoever_is_dealt_them() -> None:
    dataset = from_arrays(X, Y, clients=WHO, groups={"visit": [1, 1, 2, 2] * 3})
    split = Split(group="visit")
    for seed in (0, 1):
        groups = divide(dataset, Iid(clients=2), split, seed=seed).groups
        assert groups is not None
        assert groups.tolist() == np.repeat(np.arange(6), 2).tolist()
    nobody = from_arrays(X, Y, groups={"visit": ["b", "b", "a", "a"] * 3})
    groups = divide(nobody, Iid(clients=2), split, seed=0).groups
    assert groups is not None
    assert groups.tolist() == [1, 1, 0, 0] * 3


def test_a_saved_split_is_refused_for_other_data(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    federation(X, Y, clients=WHO).save(path)
    with pytest.raises(DataError, match=r"hash.*targets differ"):
        load_split(path, from_arrays(X, 2 - Y))
    with pytest.raises(DataError, match="made from 12 samples, but arrays has 6"):
        load_split(path, from_arrays(X[:6], Y[:6]))
    with pytest.raises(DataError, match="no such file"):
        load_split(tmp_path / "gone.npz", from_arrays(X, Y))


def test_a_changed_or_broken_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    fed = federation(X, Y, clients=WHO)
    fed.save(path)
    with np.load(path) as archive:
        arrays = dict(archive)
    np.savez(path, **{**arrays, "teams": np.array([0, 1, 0])})
    with pytest.raises(DataError, match="the file was changed"):
        load_split(path, fed.dataset)
    arrays.pop("train_offsets")
    np.savez(path, **arrays)
    with pytest.raises(MessageError, match="not a whole saved split"):
        load_split(path, fed.dataset)
    path.write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(MessageError, match="not a whole saved split"):
        load_split(path, fed.dataset)


def shared_federation(**changes: object) -> Federation:
    y = np.tile([0, 1], 6)
    dataset = dataclasses.replace(
        from_arrays(np.zeros((12, 1)), y), fixed_test=np.arange(12) >= 8
    )
    split = Split(fixed=True, shared=True, **changes)  # type: ignore[arg-type]
    return divide(dataset, Iid(clients=3), split, seed=0)


def test_shared_test_samples_are_dealt_to_nobody_and_tested_by_many(
    tmp_path: Path,
) -> None:
    fed = shared_federation()
    assert fed.shares_test
    assert sorted(fed.train.indices.tolist()) == list(range(8))
    assert all(set(held.tolist()) <= {8, 9, 10, 11} for held in fed.test)
    assert fed.test.sizes.sum() > 4
    fed.save(tmp_path / "split.npz")
    loaded = load_split(tmp_path / "split.npz", fed.dataset)
    assert loaded.shares_test
    assert loaded.hash == fed.hash


def test_a_shared_test_sample_is_still_nobodys_training_sample() -> None:
    dataset, none = from_arrays(X, Y), ragged([], [])
    zeros = np.zeros(2, dtype=np.int64)
    train, names = ragged([1], [2]), ("a", "b")
    Federation(dataset, train, none, ragged([3], [3]), names, zeros, True)
    with pytest.raises(DataError, match="sample 3 is used 2 times"):
        Federation(dataset, train, none, ragged([3], [3]), names, zeros)
    with pytest.raises(DataError, match=r"sample 2 is used 2 times. Only test samples"):
        Federation(dataset, train, none, ragged([2], [3]), names, zeros, True)
    with pytest.raises(DataError, match="a client tests a sample twice"):
        Federation(dataset, train, none, ragged([3, 3], [3]), names, zeros, True)


def test_limited_data_are_dealt_by_their_own_numbers() -> None:
    fed = shared_federation(per_class=2)
    assert sorted(fed.train.indices.tolist()) == [0, 1, 2, 3]
    y = fed.dataset.targets[fed.train.indices]
    assert y.bincount().tolist() == [2, 2]


def test_given_lists_already_say_which_samples_are_used() -> None:
    split, lists = Split(per_class=1), Given(members=((0, 1),))
    with pytest.raises(ConfigError, match="lists already say"):
        divide(from_arrays(X, Y), lists, split, seed=0)


def test_owners_and_subclasses_of_limited_data_are_those_of_the_samples() -> None:
    dataset = dataclasses.replace(
        from_arrays(X, Y, clients=WHO), subclass=np.arange(12) % 2
    )
    fed = divide(dataset, Natural(), Split(per_class=2, test=0.0), seed=0)
    assert fed.names == ("ann", "bob")
    assert [held.tolist() for held in fed.train] == [[0, 1, 2, 3], [4, 5]]


def test_more_clients_than_samples_of_limited_data_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"7 clients .* need 7, .* has 6"):
        divide(from_arrays(X, Y), Iid(clients=7), Split(per_class=2), seed=0)


def test_clients_of_one_sample_train_and_have_nothing_to_test_on() -> None:
    fed = federation(X, Y, partition=Iid(clients=12), test=0.25)
    assert fed.sizes.tolist() == [1] * 12
    assert fed.test.sizes.tolist() == [0] * 12


def test_a_saved_split_tells_label_counts_to_those_without_the_data(
    tmp_path: Path,
) -> None:
    fed = federation(X, Y, clients=WHO)
    fed.save(tmp_path / "split.npz")
    with np.load(tmp_path / "split.npz") as arrays:
        counts = arrays["train_labels"]
        assert np.array_equal(counts, fed.label_counts())
        assert counts.dtype == np.uint8
        first = str(arrays["targets"])
    other = federation(X, Y[::-1].copy(), clients=WHO)
    other.save(tmp_path / "split.npz")
    with np.load(tmp_path / "split.npz") as arrays:
        assert str(arrays["targets"]) != first


def test_some_clients_of_a_federation_are_a_federation_on_the_same_data() -> None:
    fed = federation(X, Y, clients=WHO, validation=0.3, teams=[0, 1, 2])
    part = fed.only([2, 0])
    assert part.dataset is fed.dataset
    assert part.names == ("cy", "ann")
    assert part.teams.tolist() == [2, 0]
    for name in ("train", "validation", "test"):
        lists, of_all = getattr(part, name), getattr(fed, name)
        assert [indices.tolist() for indices in lists] == [
            of_all[2].tolist(),
            of_all[0].tolist(),
        ]
    assert part.only([1]).names == ("ann",)


def test_clients_that_are_not_there_are_no_part_of_a_federation() -> None:
    fed = federation(X, Y, clients=WHO)
    for clients in ([0, 3], [-1], [1, 1]):
        with pytest.raises(DataError, match=r"different clients of 0\.\.2, found"):
            fed.only(clients)
    with pytest.raises(DataError, match="one entry per client"):
        fed.only([])


def test_a_part_keeps_the_standardising_constants_of_all(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float64).reshape(12, 2)
    fed = federation(x, Y, clients=WHO, standardise=True)
    path = tmp_path / "split.npz"
    part = fed.only([1, 2]).only([1])
    part.save(path)
    for clients in (part, load_split(path, fed.dataset)):
        for ours, all_clients in zip(clients.scaling(), fed.scaling(), strict=True):
            assert torch.equal(torch.as_tensor(ours), torch.as_tensor(all_clients))
    assert not torch.equal(part.moments()[0], fed.moments()[0])


def test_a_part_of_transformed_clients_comes_back_as_it_was(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(12, 2))
    fed = federation(x, Y, clients=WHO, transform=Sensor())
    path = tmp_path / "split.npz"
    part = fed.only([2, 1]).only([1])
    part.save(path)
    loaded = load_split(path, from_arrays(x, Y, clients=WHO))
    held = torch.from_numpy(np.concatenate([part.train[0], part.test[0]]))
    assert torch.equal(loaded.dataset.inputs[0][held], fed.dataset.inputs[0][held])


def test_a_federation_and_its_dataset_are_shown_by_their_counts() -> None:
    fed = federation(np.full((12, 2), 7.125), Y, clients=WHO)
    assert repr(fed.dataset) == (
        "Dataset('arrays', samples=12, classes=3, inputs=[torch.float64 (2,)])"
    )
    assert repr(fed) == (
        f"Federation(clients=3, train=9, validation=0, test=3, dataset={fed.dataset!r})"
    )


def test_arrays_may_say_what_is_tested_and_what_belongs_together() -> None:
    marks = np.tile([0, 1, 0, 0], 3)
    fed = federation(X, Y, clients=WHO, test=marks)
    assert fed.test.indices.tolist() == [1, 5, 9]
    words = np.tile(["train", "test", "validation", "train"], 3)
    fed = federation(X, Y, clients=WHO, test=words.tolist())
    assert fed.validation.indices.tolist() == [2, 6, 10]
    fed = federation(X, Y, clients=WHO, time=-np.arange(12))
    assert fed.test.indices.tolist() == [0, 4, 8]
    fed = federation(X, Y, clients=WHO, groups=torch.arange(12) // 2, test=0.5)
    assert all(part[0] + 1 == part[1] for part in fed.test)
    with pytest.raises(ConfigError, match="test_column and time are set"):
        federation(X, Y, clients=WHO, test=marks, time=np.arange(12))
    with pytest.raises(DataError, match=r"groups\['time'\] has 3"):
        federation(X, Y, clients=WHO, time=[1, 2, 3])


def test_folds_of_a_federation_test_every_sample_once() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), rng.normal(size=60)
    who = np.repeat(["ann", "bob", "cy"], [5, 25, 30])
    fed = federation(x, y, clients=who, validation=0.2, teams=[0, 1, 0])
    assert fed.split is not None
    folds = [
        fed.resplit(dataclasses.replace(fed.split, fold=n, folds=4), 7)
        for n in range(4)
    ]
    tested = np.concatenate([fold.test.indices for fold in folds])
    assert sorted(tested) == list(range(60))
    for fold in folds:
        assert fold.names == fed.names
        assert fold.teams.tolist() == [0, 1, 0]
        assert fold.dataset is fed.dataset
        for client in range(3):
            held = np.concatenate([part[client] for part in fold.parts])
            assert sorted(held) == sorted(np.flatnonzero(who == fed.names[client]))
        rows = y[fold.train.indices]
        assert float(fold.target_moments()[0]) == pytest.approx(rows.mean())
        (mean, _) = fold.target_scaling()
        assert float(mean) == pytest.approx(rows.mean())
    assert folds[0].hash != folds[1].hash


def test_only_a_random_split_is_divided_again() -> None:
    fold = Split(fold=0, folds=2)
    drawn = federation(X, Y, clients=WHO)
    assert drawn.can_resplit
    for clients in (
        federation(X, Y, clients=WHO, time=np.arange(12)),
        federation(X, Y, clients=WHO, test=np.tile([0, 1], 6)),
        dataclasses.replace(drawn, split=None),
        federation(X, Y, clients=WHO, standardise=True).only([0, 1]),
    ):
        assert not clients.can_resplit
        with pytest.raises(ConfigError, match="resplit: expected clients whose"):
            clients.resplit(fold, 0)
    with pytest.raises(ConfigError, match="resplit: expected a split at random"):
        drawn.resplit(Split(time="day"), 0)
    grouped = federation(X, Y, clients=WHO, groups=np.arange(12) // 2)
    with pytest.raises(ConfigError, match="with the group 'groups'"):
        grouped.resplit(fold, 0)


def test_a_part_of_a_regression_keeps_the_constants_of_all(tmp_path: Path) -> None:
    y = np.arange(12.0)
    fed = federation(np.eye(12), y, clients=WHO, task="regression")
    part = fed.only([2])
    assert part.target_scaling() == fed.target_scaling()
    assert part.target_moments() != fed.target_moments()
    part.save(tmp_path / "split.npz")
    loaded = load_split(tmp_path / "split.npz", fed.dataset)
    assert loaded.target_scaling() == fed.target_scaling()
