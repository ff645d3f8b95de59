"""BlazeFL by its public interface: its own FedAvg, with a pool of processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import peer_script
import torch
import torch._dynamo  # optimizers import it when first used: not in every new process
from blazefl.contrib.fedavg import (
    FedAvgBaseServerHandler,
    FedAvgProcessPoolClientTrainer,
)
from blazefl.core import IPCMode
from peer_script import Record, Workload


class Network:
    """Selects the network of the workload.

    Args:
        folder: where the workload lies.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def select_model(self, model_name: str) -> torch.nn.Module:
        """The network with the common start."""
        return peer_script.read(self.folder).network()


class Batches:
    """The shuffled batches of one client, cut from one tensor.

    Args:
        folder: where the workload lies.
        client: whose.
        generator: what shuffles.
    """

    dataset = None

    def __init__(self, folder: str, client: int, generator: torch.Generator) -> None:
        workload = peer_script.read(folder)
        inputs, labels = workload.tensors()
        samples = torch.from_numpy(workload.train[client])
        order = torch.randperm(len(samples), generator=generator)
        self.x = inputs[samples[order]].split(workload.batch_size)
        self.y = labels[samples[order]].split(workload.batch_size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return zip(self.x, self.y, strict=True)


class Clients:
    """The partitioned dataset; processes read it for themselves.

    Args:
        folder: where the workload lies.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def get_dataloader(
        self, type_: str, cid: int, batch_size: int, generator: torch.Generator
    ) -> Batches:
        """The training batches of a client."""
        return Batches(self.folder, cid, generator)

    def set_dataset(self, type_: str, cid: int, dataset: None) -> None:
        """Data do not change."""


class Trainer(FedAvgProcessPoolClientTrainer):
    """Without a progress bar."""

    def progress_fn(self, it: list[Any]) -> list[Any]:
        """The jobs as they are."""
        return it


def train(workload: Workload) -> Record:
    """All rounds, as in its quick start."""
    torch.set_num_threads(1)
    record, folder = Record(version=version("blazefl")), str(workload.folder)
    sizes = [len(samples) for samples in workload.train]
    inputs, labels = workload.tensors()
    common = {
        "model_selector": Network(folder),
        "model_name": workload.settings["model"],
        "dataset": Clients(folder),
        "device": workload.device,
        "num_clients": len(sizes),
        "batch_size": workload.batch_size,
        "seed": 0,
    }
    server = FedAvgBaseServerHandler(
        **common,
        global_round=workload.rounds,
        sample_ratio=len(workload.cohorts[0]) / len(sizes),
    )
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            **common,
            share_dir=Path(scratch, "share"),
            state_dir=Path(scratch, "state"),
            epochs=1,
            lr=workload.lr,
            num_parallels=workload.processes,
            ipc_mode=IPCMode.SHARED_MEMORY,
        )
        for cohort in workload.cohorts:
            order = sorted(cohort, key=lambda client: -sizes[client])
            trainer.local_process(server.downlink_package(), order)
            for package in trainer.uplink_package():
                record.gradients += package.data_size
                server.load(package)
            if workload.scores_clients:
                scores = []
                for samples in workload.test:
                    batch = [(inputs[samples], labels[samples])]
                    scores.append(
                        server.evaluate(server.model, batch, workload.device)[1]
                    )
                    record.scored += len(samples)
                record.client_accuracy = sum(scores) / len(scores)
            record.end_round()
    record.accuracy = peer_script.final_accuracy(workload, server.model)
    return record


if __name__ == "__main__":
    peer_script.main(train)
