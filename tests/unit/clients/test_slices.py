"""pFedVEM's partitions, against the client sizes that its recipe is known to give."""

from __future__ import annotations

import numpy as np
import pytest
from labels import check_disjoint, classes_of, labelled, real, sizes_of

from fedloom.clients import ConceptDrift, Partition, Slices, Split, divide
from fedloom.core.errors import ConfigError
from fedloom.data import Dataset

SHARED = Split(fixed=True, shared=True)
CIFAR10 = labelled(*[5000] * 10, tests=(1000,) * 10)
CIFAR100 = labelled(*[2500] * 20, tests=(500,) * 20, subclasses=5)


def check_sizes(
    dataset: Dataset, partition: Partition, expected: tuple[int, int, int], step: int
) -> None:
    """Least, median and most, which were means over 5 other seeds.

    Sizes are multiples of a step, so that the least of them may hardly vary.
    """
    found = []
    for seed in range(12):
        sizes = sizes_of(partition.assign(dataset, seed))
        assert sizes.sum() == len(dataset)
        found.append([sizes.min(), np.median(sizes), sizes.max()])
    mean, deviation = np.mean(found, axis=0), np.std(found, axis=0, ddof=1)
    error = deviation * np.sqrt(1 / 5 + 1 / 12)
    assert (np.abs(mean - expected) < 4 * error + step / 2).all(), (mean, error)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(50, (40, 846, 3117)), (100, (11, 347, 1960)), (200, (5, 182, 1182))],
)
def test_label_skew_of_cifar_10_has_the_known_sizes(
    clients: int, expected: tuple[int, int, int]
) -> None:
    check_sizes(labelled(*[5000] * 10), Slices(clients=clients, classes=5), expected, 5)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(50, (48, 1016, 3741)), (100, (25, 423, 2349)), (200, (5, 222, 1419))],
)
def test_label_skew_of_fashion_mnist_has_the_known_sizes(
    clients: int, expected: tuple[int, int, int]
) -> None:
    check_sizes(labelled(*[6000] * 10), Slices(clients=clients, classes=5), expected, 5)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(50, (92, 718, 3052)), (100, (40, 434, 1340)), (200, (24, 178, 852))],
)
def test_concept_drift_of_cifar_100_has_the_known_sizes(
    clients: int, expected: tuple[int, int, int]
) -> None:
    dataset = labelled(*[2500] * 20, subclasses=5)
    check_sizes(dataset, ConceptDrift(clients=clients), expected, 20)


def test_label_skew_of_the_real_fashion_mnist_is_that_of_its_labels() -> None:
    dataset = real("fashion-mnist")
    fed = divide(dataset, Slices(clients=50, classes=5), SHARED, seed=0)
    assert fed.sizes.sum() == 60_000
    pairs = fed.sizes.reshape(-1, 2)
    assert (pairs[:, 0] == pairs[:, 1]).all()
    assert (fed.test.sizes == 5000).all()


def test_sizes_can_be_made_equal() -> None:
    fed = divide(CIFAR10, Slices(clients=50, classes=5, sizes="equal"), SHARED, seed=0)
    assert set(fed.sizes.tolist()) == {1000}
    fed = divide(CIFAR100, ConceptDrift(clients=50, sizes="equal"), SHARED, seed=0)
    assert set(fed.sizes.tolist()) == {1000}


def kinds_of(dataset: Dataset, held: np.ndarray) -> list[set[int]]:
    """The subclasses of each class that occur among these samples."""
    assert dataset.subclass is not None
    y, finer = dataset.targets.numpy()[held], dataset.subclass[held]
    return [set(finer[y == c].tolist()) for c in range(dataset.classes or 0)]


def test_under_concept_drift_a_client_has_one_subclass_of_every_class() -> None:
    found = ConceptDrift(clients=30).assign(CIFAR100, 1)
    check_disjoint(found, CIFAR100)
    assert sizes_of(found).sum() == len(CIFAR100)
    kinds = [kinds_of(CIFAR100, held) for held in found.members]
    assert {len(one) for client in kinds for one in client} == {1}
    for group in range(0, 30, 5):
        # Five clients have, between them, all five subclasses of every class.
        together = [
            set.union(*each) for each in zip(*kinds[group : group + 5], strict=True)
        ]
        assert {len(one) for one in together} == {5}
        assert len(set(sizes_of(found)[group : group + 5].tolist())) == 1
    # Which subclasses go together is dealt anew in every group and for every class.
    assert len({str(client) for client in kinds}) == 30


def test_a_client_of_the_real_cifar_100_has_a_subclass_of_every_class() -> None:
    dataset = real("cifar100", labels="coarse")
    fed = divide(dataset, ConceptDrift(clients=50), SHARED, seed=0)
    assert fed.sizes.sum() == 50_000
    for held in (fed.train[7], fed.test[7]):
        assert [len(kinds) for kinds in kinds_of(dataset, held)] == [1] * 20
    assert kinds_of(dataset, fed.train[7]) == kinds_of(dataset, fed.test[7])
    assert set(fed.test.sizes.tolist()) == {2000}


def test_without_drift_everybody_has_all_subclasses() -> None:
    found = ConceptDrift(clients=10, subclasses=None).assign(CIFAR100, 0)
    check_disjoint(found, CIFAR100)
    assert classes_of(CIFAR100, found) == [set(range(20))] * 10
    assert {len(k) for held in found.members for k in kinds_of(CIFAR100, held)} == {5}


def test_subclasses_may_be_numbered_within_their_class() -> None:
    dataset = labelled(30, 30, subclasses=3)
    assert dataset.subclass is not None
    dataset.subclass[:] %= 3
    found = ConceptDrift(clients=6).assign(dataset, 0)
    assert [[len(k) for k in kinds_of(dataset, held)] for held in found.members] == [
        [1, 1]
    ] * 6


@pytest.mark.parametrize(
    ("dataset", "partition", "words"),
    [
        (labelled(9, 9), ConceptDrift(clients=3), "labels has no subclasses"),
        (CIFAR100, ConceptDrift(clients=7), r"groups of 5 clients .* multiple of 5"),
        (CIFAR100, ConceptDrift(clients=5, subclasses=2), r"has \[5\] to a class"),
        (
            labelled(2, 9, subclasses=3),
            ConceptDrift(clients=3),
            r"has \[2, 3\] to a class",
        ),
        (
            labelled(9, 9, subclasses=3),
            ConceptDrift(clients=12),
            "smallest subclass has 3 samples for 4 clients",
        ),
    ],
)
def test_drift_that_cannot_be_is_refused(
    dataset: Dataset, partition: Partition, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        partition.assign(dataset, 0)
