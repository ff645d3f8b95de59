"""Dividing a dataset is quick and copies nothing; the limits are generous."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time

import pytest
import torch
from labels import MNIST, labelled

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


MILLION = """
import json, resource, time
import numpy as np, torch, fedloom

class Clock:
    def start(self, *_): self.seconds = time.process_time()
    def round(self, row): pass

x = np.random.default_rng(0).standard_normal((4_000_000, 20), dtype=np.float32)
owners = np.random.default_rng(1).permutation(np.repeat(np.arange(1_000_000), 4))
clients = fedloom.federation(x, (x[:, 0] > 0).astype(int), clients=owners)
clock, few = Clock(), fedloom.Sampling(rate=1e-4)
result = fedloom.run(
    "fedavg", torch.nn.Linear(20, 2), clients, rounds=1, sampling=few,
    evaluate_clients=100, progress=clock,
)
kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
trained = result.history.rounds[-1].participants
print(json.dumps([clients.count, trained, clock.seconds, kibibytes / 2**20]))
"""


@pytest.mark.slow
def test_a_million_clients_are_ready_to_train_in_ten_seconds_and_three_gibibytes() -> (
    None
):
    """From the start of the process, its imports and the making of data included."""
    ended = subprocess.run(
        [sys.executable, "-c", MILLION], capture_output=True, text=True, check=True
    )
    count, trained, seconds, gibibytes = json.loads(ended.stdout)
    assert (count, trained) == (1_000_000, 100)
    assert seconds < 10.0
    assert gibibytes < 3.0
