"""Dividing a dataset is quick and copies nothing; the limits are generous."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch
from labels import MNIST, labelled

from fedloom.bench.scale import measure
from fedloom.clients import (
    Consecutive,
    Dirichlet,
    LabelSkew,
    Partition,
    Rotation,
    Slices,
    Split,
    divide,
)


@pytest.mark.slow
def test_a_thousand_clients_of_mnist_are_made_in_two_seconds() -> None:
    images = torch.zeros(sum(MNIST), 1, 28, 28, dtype=torch.uint8)
    dataset = dataclasses.replace(labelled(*MNIST), inputs=(images,))
    began = time.process_time()
    fed = divide(dataset, Consecutive(clients=1000), Split(test=0.1), seed=0)
    assert len(fed.hash) == 64
    assert time.process_time() - began < 2.0
    assert fed.count == 1000
    assert fed.dataset.inputs[0] is images


@pytest.mark.slow
@pytest.mark.parametrize(
    ("partition", "split"),
    [
        (Slices(clients=200, classes=5), Split(fixed=True, shared=True)),
        (Dirichlet(clients=500, alpha=0.5, least=10), Split(validation=0.1, most=50)),
    ],
)
def test_data_of_the_size_of_cifar_10_are_divided_in_five_seconds(
    partition: Partition, split: Split
) -> None:
    images = torch.zeros(60_000, 3, 32, 32, dtype=torch.uint8)
    dataset = labelled(*[5000] * 10, tests=(1000,) * 10)
    dataset = dataclasses.replace(dataset, inputs=(images,))
    began = time.process_time()
    fed = divide(dataset, partition, split, seed=0)
    assert len(fed.hash) == 64
    assert time.process_time() - began < 5.0
    assert fed.dataset.inputs[0] is images


@pytest.mark.slow
def test_the_images_of_cifar_10_are_turned_in_ten_seconds_and_stay_bytes() -> None:
    images = torch.zeros(60_000, 3, 32, 32, dtype=torch.uint8)
    images[:, :, 0, 0] = 255
    dataset = dataclasses.replace(labelled(*[6000] * 10), inputs=(images,))
    turn = Rotation(angles=(0, 90, 45))
    began = time.process_time()
    fed = divide(dataset, Slices(clients=100), Split(), transform=turn, seed=0)
    assert time.process_time() - began < 10.0
    assert fed.dataset.inputs[0].dtype == torch.uint8


@pytest.mark.slow
@pytest.mark.parametrize(
    "partition",
    [
        LabelSkew(clients=1_000_000, classes=3, sizes="random"),
        Dirichlet(clients=1_000_000),
    ],
)
def test_a_million_clients_are_made_up_in_eight_seconds(partition: Partition) -> None:
    dataset = labelled(*[400_000] * 10)
    began = time.process_time()
    assignment = partition.assign(dataset, 0)
    assert time.process_time() - began < 8.0
    assert len(assignment.members) == 1_000_000
    assert assignment.members.sizes.min() >= 1


@pytest.mark.timing
def test_a_round_among_a_million_takes_as_long_as_among_ten_thousand() -> None:
    """In less than 3 GiB, the mapped data included; the best of three tries counts."""
    ratios = []
    for _ in range(3):
        few, many = measure(["self-fl"], [10_000, 1_000_000])
        assert (few.steps, few.ratio) == (many.steps, 1.0)
        assert many.peak_gib < 3.0
        assert many.round_bytes < 1.1 * few.round_bytes
        assert many.start_bytes < 120 * many.clients
        ratios.append(many.ratio)
        if many.ratio < 1.3:
            return
    raise AssertionError(f"a million over ten thousand: {ratios}")
