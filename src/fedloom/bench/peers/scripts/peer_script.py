"""What the script of every peer reads and writes.

    python run_flower.py FOLDER RESULT

FOLDER holds a workload as `fedloom.bench.peers.workloads` writes it; RESULT is a JSON
file for what came of it. The scripts run in an environment of their peer's own, where
Fedloom is not installed: this file needs NumPy, and PyTorch for networks and training.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Workload:
    """A workload as it was read from its folder."""

    folder: Path
    settings: dict[str, Any]
    """What workload.json says."""
    labels: NDArray[np.int64]
    train: list[NDArray[np.int64]]
    """Training samples of every client."""
    test: list[NDArray[np.int64]]
    """Test samples of every client."""
    everyones_test: NDArray[np.int64]
    """All samples that nobody trains on."""
    cohorts: list[list[int]]
    """Who trains, round by round."""
    parameters: list[NDArray[np.float32]]
    """The common start, in PyTorch's order and shapes."""

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.cohorts)

    @property
    def lr(self) -> float:
        """Learning rate."""
        return float(self.settings["lr"])

    @property
    def batch_size(self) -> int:
        """Samples of a step."""
        return int(self.settings["batch_size"])

    @property
    def device(self) -> str:
        """Where networks are trained: cpu or cuda."""
        return str(self.settings["device"])

    @property
    def processes(self) -> int:
        """Processes, or threads, that training may keep busy."""
        return int(self.settings["processes"])

    @property
    def scores_clients(self) -> bool:
        """Whether every client's accuracy is wanted after every round."""
        return bool(self.settings["scores_clients"])

    def bytes(self) -> NDArray[np.uint8]:
        """(samples, channels, height, width) images as they came."""
        images: NDArray[np.uint8] = np.load(self.folder / "images.npy", mmap_mode="c")
        return images

    def inputs(self) -> NDArray[np.float32]:
        """The same between 0 and 1, mapped: processes share one copy."""
        inputs: NDArray[np.float32] = np.load(self.folder / "inputs.npy", mmap_mode="c")
        return inputs

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and labels where networks are trained."""
        import torch

        inputs, labels = torch.from_numpy(self.inputs()), torch.from_numpy(self.labels)
        return inputs.to(self.device), labels.to(self.device)

    def network(self) -> torch.nn.Module:
        """The network with the common start."""
        import torch

        network = _NETWORKS[self.settings["model"]]()
        with torch.no_grad():
            for parameter, start in zip(
                network.parameters(), self.parameters, strict=True
            ):
                parameter.copy_(torch.from_numpy(start))
        return network.to(self.device)


@lru_cache(maxsize=1)
def read(folder: str) -> Workload:
    """Read a workload, once in every process."""
    path = Path(folder)
    with np.load(path / "clients.npz") as arrays, np.load(path / "start.npz") as start:
        return Workload(
            folder=path,
            settings=json.loads((path / "workload.json").read_text("utf-8")),
            labels=np.load(path / "labels.npy"),
            train=np.split(arrays["train"], arrays["train_ends"][:-1]),
            test=np.split(arrays["test"], arrays["test_ends"][:-1]),
            everyones_test=arrays["everyones_test"],
            cohorts=[list(map(int, cohort)) for cohort in arrays["cohorts"]],
            parameters=[start[f"p{n}"] for n in range(len(start.files))],
        )


@dataclass
class Record:
    """What came of a workload."""

    version: str
    """Version of what trained."""
    round_ends: list[float] = field(default_factory=list)
    """When each round was finished, seconds since the epoch."""
    gradients: int = 0
    """Samples that entered a gradient, all rounds together."""
    scored: int = 0
    """Test samples that were scored for clients, all rounds together."""
    client_accuracy: float | None = None
    """Mean over clients of the accuracy when they were last scored."""
    accuracy: float = 0.0
    """Accuracy of the last shared model on everyone's test samples."""

    def end_round(self) -> None:
        """Say that a round is finished."""
        self.round_ends.append(time.time())


def main(train: Callable[[Workload], Record]) -> None:
    """Do the workload that the command line names, and write what came of it."""
    folder, result = sys.argv[1:]
    record = train(read(folder))
    Path(result).write_text(json.dumps(vars(record)), "utf-8")


def accuracy(
    network: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor
) -> float:
    """Share of the samples whose label the network finds."""
    import torch

    network.eval()
    with torch.inference_mode():
        right: torch.Tensor = (network(inputs).argmax(1) == labels).float().mean()
    return float(right)


def final_accuracy(workload: Workload, network: torch.nn.Module) -> float:
    """Accuracy on everyone's test samples, a thousand at a time."""
    inputs, labels = workload.tensors()
    shares = []
    for n in range(0, len(workload.everyones_test), 1000):
        samples = workload.everyones_test[n : n + 1000]
        shares.append(
            len(samples) * accuracy(network, inputs[samples], labels[samples])
        )
    return sum(shares) / len(workload.everyones_test)


def train_client(
    network: torch.nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    workload: Workload,
    client: int,
) -> int:
    """One epoch of plain SGD in place, as fast as eager PyTorch does it.

    Returns:
        How many samples entered a gradient.
    """
    import torch
    from torch.nn.functional import cross_entropy

    samples = torch.from_numpy(workload.train[client])
    samples = samples[torch.randperm(len(samples))].to(inputs.device)
    x = inputs[samples].split(workload.batch_size)
    y = labels[samples].split(workload.batch_size)
    network.train()
    parameters: list[torch.Tensor] = list(network.parameters())
    for inputs_of_step, labels_of_step in zip(x, y, strict=True):
        loss = cross_entropy(network(inputs_of_step), labels_of_step)
        gradient = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradient, alpha=-workload.lr)
    return len(samples)


def share_out(clients: Sequence[int], sizes: Sequence[int], parts: int) -> list[Any]:
    """Clients for each of some processes, so that all have about as much to do."""
    shares: list[list[int]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for client in sorted(clients, key=lambda client: -sizes[client]):
        least = loads.index(min(loads))
        shares[least].append(client)
        loads[least] += sizes[client]
    return shares


def _mlp() -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def _lenet() -> torch.nn.Module:
    from torch import nn

    # The maximum and ReLU commute; pooling first leaves ReLU less to do.
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(256, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def _cnn() -> torch.nn.Module:
    from torch import nn

    # That of pfl-research's CIFAR-10 benchmark, without dropout.
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3)),
        *(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


_NETWORKS: dict[str, Callable[[], torch.nn.Module]] = {
    "mlp": _mlp,
    "lenet": _lenet,
    "cnn": _cnn,
}
