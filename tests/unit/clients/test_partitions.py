from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.clients import (
    PARTITIONS,
    Assignment,
    Consecutive,
    Dirichlet,
    DrawnSizes,
    Given,
    Iid,
    LabelSkew,
    Natural,
    Partition,
    PowerLaw,
    Ragged,
    Slices,
    partitions,
)
from fedloom.core.errors import ConfigError, DataError
from fedloom.core.settings import build, settings_of
from fedloom.data import Dataset, from_arrays


def labelled(*counts: int) -> Dataset:
    """A dataset with so many samples of class 0, 1, ..."""
    y = np.repeat(np.arange(len(counts)), counts)
    return from_arrays(np.zeros((len(y), 1)), y, classes=len(counts))


def classes_of(dataset: Dataset, assignment: Assignment) -> list[set[int]]:
    return [set(dataset.targets[held].tolist()) for held in assignment.members]


def check_laws(partition: Partition, dataset: Dataset, seed: int, clients: int) -> None:
    """Disjoint, complete, nobody empty, the same again from the same seed."""
    assignment = partition.assign(dataset, seed)
    assert len(assignment.members) == len(assignment.names) == clients
    assert min(len(held) for held in assignment.members) >= 1
    joined = np.sort(np.concatenate(assignment.members))
    assert joined.tolist() == list(range(len(dataset)))
    again = partition.assign(dataset, seed)
    for one, other in zip(assignment.members, again.members, strict=True):
        assert one.dtype == np.int64
        assert one.tolist() == other.tolist()


@settings(deadline=None, max_examples=40)
@given(clients=st.integers(1, 30), extra=st.integers(0, 50), seed=st.integers(0, 99))
def test_iid_keeps_the_laws(clients: int, extra: int, seed: int) -> None:
    dataset = labelled(clients, extra + 1)
    check_laws(Iid(clients=clients), dataset, seed, clients)
    sizes = [len(m) for m in Iid(clients=clients).assign(dataset, seed).members]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=40)
@given(
    clients=st.integers(1, 40),
    extra=st.integers(0, 500),
    law=st.sampled_from(["lognormal", "power"]),
    size=st.floats(1e-3, 1e6),
    least=st.integers(1, 4),
)
def test_power_law_keeps_the_laws(
    clients: int, extra: int, law: str, size: float, least: int
) -> None:
    partition = PowerLaw(
        clients=clients,
        law=law,  # type: ignore[arg-type]
        spread=size,
        exponent=size,
        least=least,
    )
    dataset = labelled(clients * least + extra)
    check_laws(partition, dataset, 0, clients)
    sizes = [len(m) for m in partition.assign(dataset, 0).members]
    assert min(sizes) >= least


@settings(deadline=None, max_examples=60)
@given(
    clients=st.integers(1, 60),
    alpha=st.one_of(
        st.floats(1e-3, 1e3), st.sampled_from([5e-324, 1e-200, 1e-12, 1e200, 1.7e308])
    ),
    least=st.integers(1, 5),
    extra=st.integers(0, 100),
    seed=st.integers(0, 99),
)
def test_dirichlet_keeps_the_laws_and_always_returns(
    clients: int, alpha: float, least: int, extra: int, seed: int
) -> None:
    half = (clients * least + extra) // 2
    dataset = labelled(half, clients * least + extra - half)
    partition = Dirichlet(clients=clients, alpha=alpha, least=least)
    check_laws(partition, dataset, seed, clients)
    sizes = [len(m) for m in partition.assign(dataset, seed).members]
    assert min(sizes) >= least


def test_dirichlet_is_more_uneven_when_alpha_is_small() -> None:
    dataset = labelled(*[200] * 10)

    def largest_share(alpha: float) -> float:
        members = Dirichlet(clients=10, alpha=alpha).assign(dataset, 0).members
        counts = [np.bincount(dataset.targets[held]).max() for held in members]
        return float(sum(counts)) / len(dataset)

    assert largest_share(0.05) > 0.5 > 0.2 > largest_share(100.0)


@pytest.mark.parametrize("clients", [100, 500])
def test_dirichlet_of_fedacs_leaves_nobody_below_the_least(clients: int) -> None:
    dataset = labelled(*[7000] * 10)
    for seed in range(3):
        found = Dirichlet(clients=clients, alpha=0.5, least=20).assign(dataset, seed)
        sizes = np.array([len(held) for held in found.members])
        assert sizes.sum() == 70_000
        assert sizes.min() >= 20
        # Ten shares with variance 2 / clients^2 each: sqrt(0.2) of the mean or so.
        assert abs(sizes.std() / sizes.mean() - np.sqrt(0.2)) < 0.12


def test_a_cap_gives_nothing_more_to_clients_with_their_fair_share() -> None:
    dataset = labelled(*[600] * 10)
    partition = Dirichlet(clients=20, alpha=0.1, cap=True)
    check_laws(partition, dataset, 0, 20)
    fair = 6000 / 20
    for held in partition.assign(dataset, 0).members:
        counts = np.bincount(dataset.targets[held], minlength=10)
        last = np.flatnonzero(counts)[-1]
        assert counts[:last].sum() < fair
    plain = Dirichlet(clients=20, alpha=0.1).assign(dataset, 0).members
    capped = partition.assign(dataset, 0).members
    assert max(map(len, capped)) < max(map(len, plain))


@settings(deadline=None, max_examples=40)
@given(
    clients=st.integers(1, 60),
    alpha=st.sampled_from([5e-324, 1e-12, 0.01, 0.5, 1e200]),
    seed=st.integers(0, 99),
)
def test_a_capped_dirichlet_keeps_the_laws(
    clients: int, alpha: float, seed: int
) -> None:
    dataset = labelled(31, 40, 29)
    check_laws(
        Dirichlet(clients=clients, alpha=alpha, cap=True), dataset, seed, clients
    )


def test_the_pathological_split_of_fedacs_has_two_classes_to_a_client() -> None:
    dataset = labelled(*[7000] * 10)
    found = LabelSkew(clients=100, classes=2).assign(dataset, 0)
    assert {len(classes) for classes in classes_of(dataset, found)} == {2}
    assert {len(held) for held in found.members} == {700}


def test_dirichlet_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"4 clients with at least 3 .* 12, .*has 11"):
        Dirichlet(clients=4, least=3).assign(labelled(5, 6), 0)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_label_skew_gives_exactly_k_classes_in_balance(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 12), "classes")
    each = data.draw(st.integers(1, total), "classes per client")
    fewest = -(-total // each)
    clients = data.draw(st.integers(fewest, fewest + 20), "clients")
    dataset = labelled(*[data.draw(st.integers(40, 60)) for _ in range(total)])
    partition = LabelSkew(
        clients=clients,
        classes=each,
        sizes=data.draw(st.sampled_from(["equal", "random"])),
        spread=data.draw(st.floats(0.01, 100.0)),
    )
    check_laws(partition, dataset, 3, clients)
    held = classes_of(dataset, partition.assign(dataset, 3))
    assert {len(classes) for classes in held} == {each}
    holders = np.bincount([c for classes in held for c in classes], minlength=total)
    assert holders.min() >= 1
    assert np.ptp(holders) <= 1


def test_label_skew_divides_a_class_equally_or_at_random() -> None:
    dataset = labelled(100, 100)

    def sizes(kind: str) -> list[int]:
        partition = LabelSkew(clients=10, classes=1, sizes=kind, least=5)  # type: ignore[arg-type]
        return [len(held) for held in partition.assign(dataset, 0).members]

    assert sizes("equal") == [20] * 10
    assert min(sizes("random")) >= 5
    assert max(sizes("random")) > 30


def test_label_skew_ignores_classes_that_do_not_occur() -> None:
    dataset = labelled(10, 0, 10)
    held = classes_of(dataset, LabelSkew(clients=2, classes=2).assign(dataset, 0))
    assert held == [{0, 2}, {0, 2}]


@pytest.mark.parametrize("partition", [LabelSkew, Slices])
def test_more_classes_than_exist_are_refused(partition: type[LabelSkew]) -> None:
    with pytest.raises(ConfigError, match="cannot hold 4 classes: arrays has 3"):
        partition(clients=3, classes=4).assign(labelled(5, 5, 5), 0)


def test_label_skew_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"2 clients with 1 classes .* all 3"):
        LabelSkew(clients=2, classes=1).assign(labelled(5, 5, 5), 0)
    with pytest.raises(ConfigError, match="class 1 has 2 samples for 4 clients"):
        LabelSkew(clients=4, classes=2).assign(labelled(50, 2), 0)


@settings(deadline=None, max_examples=40)
@given(
    each=st.sampled_from([1, 2, 3, 6, None]),
    groups=st.integers(1, 30),
    counts=st.lists(st.integers(30, 90), min_size=6, max_size=6),
    seed=st.integers(0, 99),
)
def test_slices_keep_the_laws(
    each: int | None, groups: int, counts: list[int], seed: int
) -> None:
    dataset = labelled(*counts)
    clients = groups * 6 // (each or 6)
    partition = Slices(clients=clients, classes=each)
    check_laws(partition, dataset, seed, clients)
    held = classes_of(dataset, partition.assign(dataset, seed))
    assert {len(classes) for classes in held} == {each or 6}


def test_slices_of_equal_classes_make_paired_clients_equal_and_balanced() -> None:
    dataset = labelled(*[500] * 10)
    members = Slices(clients=50, classes=5).assign(dataset, 1).members
    sizes = [len(held) for held in members]
    assert sizes[::2] == sizes[1::2]
    assert len(set(sizes)) > 10
    for held in members:
        counts = np.bincount(dataset.targets[held])
        assert set(counts[counts > 0].tolist()) == {len(held) // 5}


def test_slices_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="share out 6 classes, 4 to each"):
        Slices(clients=6, classes=4).assign(labelled(*[9] * 6), 0)
    with pytest.raises(ConfigError, match="5 clients do not form such groups"):
        Slices(clients=5, classes=3).assign(labelled(*[9] * 6), 0)
    with pytest.raises(ConfigError, match="smallest class has 3 samples for 4"):
        Slices(clients=4).assign(labelled(9, 3), 0)


def test_natural_clients_are_those_of_the_dataset() -> None:
    x, who = np.zeros((5, 1)), ["bo", "al", "bo", "cy", "al"]
    dataset = from_arrays(x, [0, 1, 0, 1, 0], clients=who)
    assignment = Natural().assign(dataset, 0)
    assert assignment.names == ("al", "bo", "cy")
    assert [held.tolist() for held in assignment.members] == [[1, 4], [0, 2], [3]]
    assert Natural(least=2).assign(dataset, 0).names == ("al", "bo")
    with pytest.raises(DataError, match="no client has 3 samples, the largest has 2"):
        Natural(least=3).assign(dataset, 0)


def test_natural_clients_must_be_known_and_comparable() -> None:
    with pytest.raises(DataError, match=r"no natural clients.*clients=.*dirichlet"):
        Natural().assign(labelled(3), 0)
    who = np.array([1, "a"], dtype=object)
    with pytest.raises(DataError, match="mix types"):
        Natural().assign(from_arrays(np.zeros(2), [0, 1], clients=who), 0)


def test_given_lists_are_taken_as_they_are() -> None:
    members = Given(members=((3, 1), np.array([0]))).assign(labelled(9), 0).members  # type: ignore[arg-type]
    assert [held.tolist() for held in members] == [[3, 1], [0]]
    assert build(Given, {"members": [[0], [1, 2]]}, "[partition]").members


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (((0,), (1, 9)), r"client 1 has index 9, .*0\.\.8"),
        (((0,), (-1,)), "client 1 has index -1"),
        (((0, 1), (1,)), "sample 1 is held by clients 0 and 1"),
        (((2, 2),), "client 0 holds sample 2 twice"),
        (((0,), ()), "client 1 has no samples"),
    ],
)
def test_given_lists_are_checked(
    members: tuple[tuple[int, ...], ...], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Given(members=members).assign(labelled(9), 0)


def test_no_given_list_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="members is empty"):
        Given(members=())
    with pytest.raises(ConfigError, match="members must be a list of list of whole"):
        Given(members=((0.5,),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "partition", [Iid(clients=4), PowerLaw(clients=4), Dirichlet(clients=4)]
)
def test_more_clients_than_samples_are_refused(partition: Partition) -> None:
    with pytest.raises(ConfigError, match=r"4 clients .* need 4, .* has 3"):
        partition.assign(labelled(1, 2), 0)


@pytest.mark.parametrize(
    "partition",
    [
        LabelSkew(clients=2),
        Slices(clients=2),
        Dirichlet(clients=2),
        Consecutive(clients=2),
        DrawnSizes(clients=2),
    ],
)
def test_a_regression_cannot_be_divided_by_class(partition: Partition) -> None:
    with pytest.raises(ConfigError, match="is a regression and has no classes"):
        partition.assign(from_arrays(np.zeros(4), np.zeros(4)), 0)


def test_another_seed_gives_other_clients() -> None:
    dataset = labelled(50, 50)
    for partition in (Iid(clients=4), Dirichlet(clients=4), Slices(clients=4)):
        one, other = (partition.assign(dataset, seed).members[0] for seed in (0, 1))
        assert one.tolist() != other.tolist()


def test_every_setting_of_every_partition_is_documented() -> None:
    for partition in PARTITIONS.values():
        assert dataclasses.is_dataclass(partition)
        assert all(setting.doc for setting in settings_of(partition))


@settings(deadline=None, max_examples=40)
@given(
    classes=st.integers(1, 12),
    of_a_client=st.integers(1, 12),
    clients=st.integers(1, 60),
    seed=st.integers(0, 99),
)
def test_classes_are_dealt_at_once_as_one_client_after_another(
    classes: int, of_a_client: int, clients: int, seed: int
) -> None:
    """The specification: each client takes the classes with fewest holders."""
    of_a_client = min(of_a_client, classes)
    holders: list[list[int]] = [[] for _ in range(classes)]
    draw = np.random.default_rng(seed)
    for client in range(clients):
        keys = draw.permutation(classes)
        rank = np.lexsort((keys, [len(held) for held in holders]))
        for chosen in rank[:of_a_client]:
            holders[chosen].append(client)
    partition = LabelSkew(clients=clients, classes=of_a_client)
    with pytest.MonkeyPatch.context() as patch:
        # Some clients at a time, not all of them in one go.
        patch.setattr(partitions, "_KEYS", 7 * classes)
        dealt = partition._holders(classes, np.random.default_rng(seed))
    assert [held.tolist() for held in dealt] == holders


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=30),
    least=st.integers(1, 6),
)
def test_repairs_at_once_are_those_one_sample_after_another(
    sizes: list[int], least: int
) -> None:
    """The specification: whoever is largest at the moment gives its last sample."""
    sizes[0] += max(0, least * len(sizes) - sum(sizes))
    members = Ragged.cut(np.arange(sum(sizes)), np.array(sizes))
    lists = [held.tolist() for held in members]
    for poor in [held for held in lists if len(held) < least]:
        while len(poor) < least:
            poor.append(max(lists, key=len).pop())
    assert [held.tolist() for held in partitions._repair(members, least)] == lists


@pytest.mark.parametrize("name", sorted(set(PARTITIONS) - {"given", "natural"}))
def test_more_clients_than_samples_are_refused_before_any_work(name: str) -> None:
    """A hundred million would take minutes and gigabytes to deal to."""
    y = np.repeat(np.arange(10), 20)
    dataset = from_arrays(np.zeros((200, 1)), y, classes=10)
    partition = build(PARTITIONS[name], {"clients": 100_000_000}, "partition")
    with pytest.raises(ConfigError, match=r"100000000 clients .*has 200"):
        partition.assign(dataset, 0)
