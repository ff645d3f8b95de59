"""The workloads that Fedloom and its peers are timed on, and how they are handed over.

A workload is written to a folder of plain arrays, which is all that the script of a
peer reads: the same images, clients, cohorts and start for everybody. FedAvg weighted
by samples with plain SGD, batches of 10, one epoch.

    workload.json   settings
    images.npy      (samples, channels, height, width) bytes
    inputs.npy      the same between 0 and 1, float32
    labels.npy      (samples,)
    clients.npz     train, test: sample numbers of all clients, end to end, and where
                    each client's end; everyones_test; cohorts: (rounds, clients)
    start.npz       p0, p1, ...: the common start, in PyTorch's order and shapes
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedloom.clients import (
    Federation,
    Iid,
    LabelSkew,
    Partition,
    Ragged,
    Sampling,
    Split,
    divide,
)
from fedloom.core import streams
from fedloom.core.errors import ConfigError
from fedloom.core.files import write_text
from fedloom.data import SOURCES, Dataset
from fedloom.models import MODELS

SEED = 0
"""Seed of everything that is drawn."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One workload."""

    name: str
    about: str
    """What it is, in a few words."""
    data: str = "fashion-mnist"
    """Name of the source of images; those that it designates are for testing."""
    model: Literal["mlp", "lenet", "cnn"] = "mlp"
    """mlp: one hidden layer of 100. lenet: the built-in one. cnn: two convolutions of 3
    x 3 with 32 and 64 filters and a hidden layer of 128, as in pfl-research."""
    clients: int = 100
    classes: int | None = 5
    """Labels of a client, with unequal sizes; if None, all, with equal sizes."""
    cohort: int = 10
    """Clients that train in a round."""
    rounds: int
    """Rounds, unless the user wants another number."""
    scores_clients: bool = False
    """Whether every client's accuracy of the shared model is wanted every round."""
    test: int = 1000
    """Test samples of a client, with its own labels."""
    lr: float = 0.02
    batch_size: int = 10
    tolerance: float = 0.06
    """How far accuracies may differ between two that did the same work: batches come
    in another order everywhere, and training is short."""


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(name="W1", about="MLP 784-100-10, 10 of 100 clients", rounds=12),
        Workload(
            name="W2", about="MLP 784-100-10, all 100 clients", cohort=100, rounds=5
        ),
        Workload(name="W3", about="LeNet, 10 of 100 clients", model="lenet", rounds=8),
        Workload(
            name="W4",
            about="W1, and every client's accuracy every round",
            scores_clients=True,
            rounds=8,
        ),
        Workload(
            name="W5",
            about="CNN of 1.6 M parameters, 50 of 1000 clients with 50 images each",
            data="cifar10",
            model="cnn",
            clients=1000,
            classes=None,
            cohort=50,
            rounds=4,
        ),
    )
}


def check_rounds(rounds: int) -> None:
    """Refuse fewer rounds than can be timed.

    Raises:
        ConfigError: There are too few.
    """
    if rounds < 3:
        raise ConfigError(
            f"bench peers: rounds must be at least 3, found {rounds}. The first is "
            "start-up, the last ends the run, and those between are timed."
        )


def write_workload(
    workload: Workload,
    folder: Path,
    *,
    rounds: int,
    device: str = "cpu",
    processes: int = 2,
    data_dir: Path | None = None,
) -> int:
    """Write a workload to a new folder.

    Args:
        workload: which.
        folder: where to.
        rounds: how many rounds it has.
        device: where networks are trained.
        processes: how many processes or threads may train on a CPU.
        data_dir: where the files of the dataset lie.

    Returns:
        How many samples enter a gradient in all rounds together.

    Raises:
        ConfigError: There are too few rounds.
    """
    check_rounds(rounds)
    dataset = SOURCES[workload.data]().load(data_dir, SEED)
    clients = make_clients(workload, dataset)
    cohorts = draw_cohorts(workload, rounds)
    folder.mkdir(parents=True)
    settings = asdict(workload) | {
        "rounds": rounds,
        "seed": SEED,
        "device": device,
        "processes": processes,
    }
    write_text(folder / "workload.json", json.dumps(settings, indent=2))
    images = dataset.inputs[0].numpy()
    np.save(folder / "images.npy", images)
    np.save(folder / "inputs.npy", images.astype(np.float32) / 255)
    np.save(folder / "labels.npy", dataset.targets.numpy())
    arrays: dict[str, Any] = {
        **_joined("train", clients.train),
        **_joined("test", clients.test),
        "everyones_test": np.unique(clients.test.indices),
        "cohorts": cohorts,
    }
    np.savez(folder / "clients.npz", **arrays)
    start: dict[str, Any] = dict(_start(workload, dataset))
    np.savez(folder / "start.npz", **start)
    return int(clients.sizes[cohorts].sum())


def make_clients(workload: Workload, dataset: Dataset) -> Federation:
    """Who trains and is tested on what."""
    partition: Partition = Iid(clients=workload.clients)
    if workload.classes is not None:
        partition = LabelSkew(
            clients=workload.clients, classes=workload.classes, sizes="random"
        )
    split = Split(fixed=True, shared=True)
    clients = divide(dataset, partition, split, seed=SEED)
    draw = streams.generator(SEED, "bench-test")
    tests = [
        np.sort(draw.choice(own, min(workload.test, len(own)), replace=False))
        for own in clients.test
    ]
    return Federation(
        dataset,
        clients.train,
        clients.validation,
        Ragged.of(tests),
        clients.names,
        clients.teams,
        shares_test=True,
    )


def draw_cohorts(workload: Workload, rounds: int) -> NDArray[np.int64]:
    """(rounds, cohort) who trains in every round, as a run of Fedloom draws it."""
    sampling = Sampling(rate=workload.cohort / workload.clients)
    drawn = [sampling.draw(workload.clients, SEED, n) for n in range(rounds)]
    return np.stack(drawn)


def _joined(name: str, lists: Ragged) -> dict[str, NDArray[np.int64]]:
    return {name: lists.indices, f"{name}_ends": lists.offsets[1:]}


def _start(workload: Workload, dataset: Dataset) -> Iterator[tuple[str, NDArray[Any]]]:
    """Parameters of a fresh network, named in their order."""
    with streams.seeded(SEED, "bench"):
        network: nn.Module
        if workload.model == "cnn":
            network = nn.Sequential(
                *(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3)),
                *(nn.Linear(64 * 14 * 14, 128), nn.Linear(128, 10)),
            )
        else:
            model = MODELS[workload.model]()
            network = model.build(dataset.input_shape, dataset.outputs)
    for number, parameter in enumerate(network.parameters()):
        yield f"p{number}", parameter.detach().numpy()
