"""The recipes of FedProx, FEMNIST and pFedMe, against the numbers they are known by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labels import MNIST, check_disjoint, classes_of, labelled, real, sizes_of

from fedloom.clients import Consecutive, DrawnSizes, Partition, Split, divide
from fedloom.core.errors import ConfigError
from fedloom.data import Dataset

FEDPROX = Consecutive(clients=1000, classes=2, first=5)
PFEDME_CIFAR = Consecutive(
    clients=20, classes=3, first=10, thinning=10, extra=(300, 600), times=2
)
PFEDME_MNIST = Consecutive(clients=20, classes=2, first=0, law="broken")
FEMNIST = DrawnSizes(clients=200, classes=5)


def check_fedprox(dataset: Dataset) -> None:
    """69,0xx samples, mean 69, 10 at least; a heavy tail."""
    found = FEDPROX.assign(dataset, 0)
    check_disjoint(found, dataset)
    sizes = sizes_of(found)
    assert 69_000 <= sizes.sum() < 69_100
    assert round(sizes.mean()) == 69
    assert sizes.min() == 10
    assert 1000 < sizes.max() < 6000
    assert 90 < sizes.std() < 250
    held = classes_of(dataset, found)
    assert held == [{u % 10, (u + 1) % 10} for u in range(1000)]


def test_mnist_by_a_power_law_has_the_published_size() -> None:
    check_fedprox(labelled(*MNIST))


def test_the_real_mnist_by_a_power_law_has_the_published_size() -> None:
    check_fedprox(real("mnist"))


def test_mnist_by_a_power_law_is_tested_on_a_tenth_of_each_client() -> None:
    split = Split(test=0.1, stratified=False)
    fed = divide(labelled(*MNIST), FEDPROX, split, seed=0)
    whole = fed.sizes + fed.test.sizes
    assert (np.abs(fed.test.sizes - whole / 10) <= 0.5).all()
    assert fed.test.sizes.min() == 1


def test_pfedme_divides_cifar_10_among_twenty() -> None:
    check_pfedme(labelled(*[6000] * 10))


def test_pfedme_divides_the_real_cifar_10_among_twenty() -> None:
    check_pfedme(real("cifar10"))


def check_pfedme(dataset: Dataset) -> None:
    for seed in range(5):
        found = PFEDME_CIFAR.assign(dataset, seed)
        check_disjoint(found, dataset)
        assert classes_of(dataset, found) == [
            {u % 10, (u + 1) % 10, (u + 2) % 10} for u in range(20)
        ]
        for client, held in enumerate(found.members):
            counts = np.bincount(dataset.targets[held], minlength=10)
            for label in ((client + j) % 10 for j in range(3)):
                # Ten, then nothing if the class is exhausted, else twice 300 or more.
                assert counts[label] == 10 or counts[label] >= 10 + 2 * 300
        # Six holders of a class would take 6656 of 6000 on average; 4/5 or more fit.
        assert 48_000 < sizes_of(found).sum() <= 60_000


def test_pfedme_divides_all_of_mnist_among_twenty() -> None:
    dataset = labelled(*MNIST)
    for seed in range(5):
        found = PFEDME_MNIST.assign(dataset, seed)
        check_disjoint(found, dataset)
        assert sizes_of(found).sum() == 70_000
        assert classes_of(dataset, found) == [{u % 10, (u + 1) % 10} for u in range(20)]
        for label, total in enumerate(MNIST):
            parts = [
                int((dataset.targets[held] == label).sum())
                for client, held in enumerate(found.members)
                if label in (client % 10, (client + 1) % 10)
            ]
            left = total
            for part in parts[:-1]:
                assert left // 5 <= part < left // 2
                left -= part
            assert parts[-1] == left


def check_femnist(dataset: Dataset) -> None:
    """About 18,345 samples, mean 92; from 10 on; all classes of a client equal."""
    totals = []
    for seed in range(10):
        found = FEMNIST.assign(dataset, seed)
        check_disjoint(found, dataset)
        assert classes_of(dataset, found) == [
            {(u + j) % 10 for j in range(5)} for u in range(200)
        ]
        sizes = sizes_of(found)
        assert sizes.min() >= 10
        for held in found.members:
            counts = np.bincount(dataset.targets[held])
            assert set(counts[counts > 0].tolist()) == {len(held) // 5}
        totals.append(sizes.sum())
    # The mean is exp(4.5) + 5, less about 2 by rounding down to a multiple of 5; a
    # total's standard deviation is 118 sqrt(200) = 1670.
    assert abs(np.mean(totals) - 200 * (np.exp(4.5) + 3)) < 4 * 1670 / np.sqrt(10)


def test_femnist_has_the_published_size() -> None:
    check_femnist(labelled(*[4000] * 10))


def test_real_letters_are_divided_as_femnist() -> None:
    check_femnist(real("emnist-letters-aj"))


def test_no_femnist_test_image_is_anybody_elses_training_image() -> None:
    """The source's wrap-around gives every holder of a class its first images again."""
    split = Split(test=0.1, stratified=False)
    dataset = labelled(*[4000] * 10)
    fed = divide(dataset, FEMNIST, split, seed=3)
    everything = np.concatenate([fed.train.indices, fed.test.indices])
    assert len(np.unique(everything)) == len(everything)
    assert not np.isin(fed.test.indices, fed.train.indices).any()
    # Far more different images are in use than the largest client has of a class.
    used = np.bincount(dataset.targets[everything], minlength=10)
    assert used.min() > 2 * (fed.sizes + fed.test.sizes).max() / 5


def test_where_a_class_runs_short_later_holders_still_find_the_least() -> None:
    dataset = labelled(*[30] * 4)
    partition = DrawnSizes(clients=8, classes=2, centre=6.0, least=3)
    found = partition.assign(dataset, 0)
    check_disjoint(found, dataset)
    # Four holders share 30; the first takes all but three for each of the others.
    assert sizes_of(found).sum() == 120
    for held in found.members:
        assert np.bincount(dataset.targets[held]).max() <= 21
        counts = np.bincount(dataset.targets[held])
        assert counts[counts > 0].min() >= 3


def test_a_size_beyond_all_numbers_takes_what_there_is() -> None:
    partition = DrawnSizes(clients=2, classes=1, centre=1e300)
    assert sizes_of(partition.assign(labelled(9, 8), 0)).tolist() == [9, 8]


@settings(deadline=None, max_examples=40)
@given(
    clients=st.integers(1, 40),
    classes=st.integers(1, 4),
    first=st.integers(1, 3),
    law=st.sampled_from(["lognormal", "broken"]),
    spread=st.floats(1e-3, 1e3),
    thinning=st.integers(1, 5),
    extra=st.tuples(st.integers(0, 5), st.integers(5, 50)),
    seed=st.integers(0, 9),
)
def test_consecutive_classes_keep_the_laws(
    clients: int,
    classes: int,
    first: int,
    law: str,
    spread: float,
    thinning: int,
    extra: tuple[int, int],
    seed: int,
) -> None:
    dataset = labelled(150, 121, 200, 137)
    partition = Consecutive(
        clients=clients,
        classes=classes,
        first=first,
        law=law,  # type: ignore[arg-type]
        spread=spread,
        thinning=thinning,
        extra=extra,
    )
    found = partition.assign(dataset, seed)
    check_disjoint(found, dataset)
    expected = [{(u + j) % 4 for j in range(classes)} for u in range(clients)]
    assert classes_of(dataset, found) == expected
    again = partition.assign(dataset, seed)
    for one, other in zip(found.members, again.members, strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    ("partition", "words"),
    [
        (Consecutive(clients=9, classes=2, first=5), r"class 0 has 40 samples for 9"),
        (DrawnSizes(clients=50, classes=2), r"least is 2, but class 0 .*50 clients"),
        (Consecutive(clients=4, classes=3), "cannot hold 3 classes"),
        (DrawnSizes(clients=4, classes=3), "cannot hold 3 classes"),
        (Consecutive(clients=80, classes=1, first=0, law="broken"), "gets no sample"),
    ],
)
def test_what_cannot_be_dealt_is_refused(partition: Partition, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        partition.assign(labelled(40, 60), 0)


@pytest.mark.parametrize("extra", [(1,), (5, 4), (1, 2, 3)])
def test_a_range_that_is_none_is_refused(extra: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="extra must be two numbers, least and most"):
        Consecutive(extra=extra)
