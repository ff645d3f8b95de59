"""fluke by its public interface: clients, a server and CentralizedFL in one process.

It trains clients in parallel on several GPUs only. PyTorch's threads do not help with
batches of 10, so it has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import peer_script
import torch
from peer_script import Record, Workload

try:
    import torchvision  # noqa: F401  # fluke imports it; nothing here uses it
except RuntimeError:
    # Built for a GPU, beside a PyTorch that is not: it misses operators of its own.
    for name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor a, Tensor b, float c) -> Tensor"
        )

from fluke import DDict, FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import Server
from fluke.utils import ServerObserver
from torchmetrics import Accuracy


class GivenCohorts(Server):
    """A server whose cohorts are given."""

    cohorts: list[list[int]]

    def get_eligible_clients(self, eligible_perc: float) -> Sequence[Client]:
        """The next cohort."""
        return [self.clients[client] for client in self.cohorts.pop(0)]


def train(workload: Workload) -> Record:
    """All rounds, one client after another."""
    torch.set_num_threads(1)
    record = Record(version=version("fluke-fl"))
    environment = FlukeENV()
    environment.set_device(workload.device)
    environment.set_inmemory(True)
    evaluator = ClassificationEval(
        eval_every=1,
        n_classes=10,
        accuracy=Accuracy(task="multiclass", num_classes=10, top_k=1),
    )
    environment.set_evaluator(evaluator)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
    inputs, labels = workload.tensors()

    def loader(samples: Any, batch_size: int, shuffle: bool) -> FastDataLoader:
        return FastDataLoader(
            inputs[samples],
            labels[samples],
            num_labels=10,
            batch_size=batch_size,
            shuffle=shuffle,
            skip_singleton=False,
        )

    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=workload.lr))
    clients = [
        Client(
            index=number,
            train_set=loader(train_samples, workload.batch_size, shuffle=True),
            test_set=loader(test_samples, len(test_samples), shuffle=False),
            optimizer_cfg=optimizer,
            loss_fn=torch.nn.CrossEntropyLoss(),
            local_epochs=1,
            persistency=False,
        )
        for number, (train_samples, test_samples) in enumerate(
            zip(workload.train, workload.test, strict=True)
        )
    ]
    server = GivenCohorts(workload.network(), None, clients, weighted=True)
    server.cohorts = [list(cohort) for cohort in workload.cohorts]

    class Follower(ServerObserver):
        """Notes when rounds end and how much was done in them."""

        def selected_clients(self, round: int, clients: Any) -> None:
            record.gradients += sum(client.n_examples for client in clients)

        def end_round(self, round: int) -> None:
            if workload.scores_clients:
                scores = [
                    evaluator.evaluate(round, server.model, client.test_set)["accuracy"]
                    for client in clients
                ]
                record.scored += sum(len(samples) for samples in workload.test)
                record.client_accuracy = float(sum(scores) / len(scores))
            record.end_round()

    federation = CentralizedFL(len(clients), None, DDict(), clients, server)
    federation.attach(Follower())
    share = len(workload.cohorts[0]) / len(clients)
    federation.run(workload.rounds, share, finalize=False)
    record.accuracy = peer_script.final_accuracy(workload, server.model)
    return record


if __name__ == "__main__":
    peer_script.main(train)
