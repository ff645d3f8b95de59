"""Flower by its public interface: ServerApp, ClientApp, FedAvg, simulated with Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import peer_script
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peer_script import Record, Workload


class GivenCohorts(FedAvg):
    """FedAvg whose cohorts are given, and in which each node is told who it is.

    Args:
        workload: what is to be done.
        record: where it is noted.
    """

    def __init__(self, workload: Workload, record: Record) -> None:
        super().__init__(fraction_evaluate=1.0 if workload.scores_clients else 0.0)
        self.workload, self.record = workload, record

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to the cohort, the longest work first."""
        sizes = [len(samples) for samples in self.workload.train]
        cohort = self.workload.cohorts[server_round - 1]
        order = sorted(cohort, key=lambda client: -sizes[client])
        return self._messages("train", order, arrays, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to everybody, if clients are to be scored."""
        if not self.workload.scores_clients:
            return []
        return self._messages("evaluate", range(len(self.workload.test)), arrays, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average, and note what was done; without scores the round ends here."""
        answers = list(replies)
        for answer in answers:
            samples = _content(answer)["metrics"]["num-examples"]
            self.record.gradients += int(samples)
        averaged = super().aggregate_train(server_round, answers)
        if not self.workload.scores_clients:
            self.record.end_round()
        return averaged

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Note the scores."""
        if not self.workload.scores_clients:
            return None
        metrics = [_content(answer)["metrics"] for answer in replies]
        self.record.scored += sum(int(m["num-examples"]) for m in metrics)
        scores = [float(m["accuracy"]) for m in metrics]
        self.record.client_accuracy = sum(scores) / len(scores)
        self.record.end_round()
        return None

    def _messages(
        self, what: str, clients: Iterable[int], arrays: ArrayRecord, grid: Grid
    ) -> list[Message]:
        while len(nodes := sorted(grid.get_node_ids())) < len(self.workload.train):
            time.sleep(0.01)  # simulated nodes come one by one
        folder = str(self.workload.folder)
        return [
            Message(
                RecordDict(
                    {
                        "arrays": arrays,
                        "config": ConfigRecord({"client": client, "folder": folder}),
                    }
                ),
                dst_node_id=nodes[client],
                message_type=what,
            )
            for client in clients
        ]


def _content(message: Message) -> Any:
    """What a message holds; which kind of record each is, only its sender knows."""
    return message.content


def _received(
    message: Message,
) -> tuple[Workload, int, torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Who a message is for, and the model that it brings."""
    torch.set_num_threads(1)
    content = _content(message)
    config = content["config"]
    workload = peer_script.read(config["folder"])
    network = workload.network()
    network.load_state_dict(content["arrays"].to_torch_state_dict())
    return workload, int(config["client"]), network, *workload.tensors()


client_app = ClientApp()


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train one client."""
    workload, client, network, inputs, labels = _received(message)
    samples = peer_script.train_client(network, inputs, labels, workload, client)
    content = RecordDict(
        {
            "arrays": ArrayRecord(network.state_dict()),
            "metrics": MetricRecord({"num-examples": samples}),
        }
    )
    return Message(content, reply_to=message)


@client_app.evaluate()
def score_client(message: Message, context: Context) -> Message:
    """Score the shared model on one client's test samples."""
    workload, client, network, inputs, labels = _received(message)
    samples = workload.test[client]
    share = peer_script.accuracy(network, inputs[samples], labels[samples])
    metrics = {"num-examples": len(samples), "accuracy": share}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def train(workload: Workload) -> Record:
    """All rounds, with as many actors as processes are allowed."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    record = Record(version=version("flwr"))
    network = workload.network()
    server_app = ServerApp()

    @server_app.main()
    def run(grid: Grid, context: Context) -> None:
        strategy = GivenCohorts(workload, record)
        start = ArrayRecord(network.state_dict())
        result = strategy.start(grid, start, num_rounds=workload.rounds)
        network.load_state_dict(result.arrays.to_torch_state_dict())

    share_of_gpu = 0.0 if workload.device == "cpu" else 1.0 / workload.processes
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=len(workload.train),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": share_of_gpu},
            "init_args": {"num_cpus": workload.processes, "logging_level": "ERROR"},
        },
    )
    record.accuracy = peer_script.final_accuracy(workload, network)
    return record


if __name__ == "__main__":
    peer_script.main(train)
