"""A loop written by hand and tuned: PyTorch, one client after another, two processes.

The processes share the model and their sums in memory, clients are dealt so that both
have about as much to do, and each process trains on one thread.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

import peer_script
import torch
import torch.multiprocessing as mp
from peer_script import Record, Workload
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class Worker:
    """One process's half of every round.

    Args:
        workload: what is to be done.
        shared: (d,) the shared model, which all processes see.
        total: (d,) where the process leaves its sum of models, weighted by samples.
    """

    def __init__(
        self, workload: Workload, shared: torch.Tensor, total: torch.Tensor
    ) -> None:
        torch.set_num_threads(1)
        self.workload, self.shared, self.total = workload, shared, total
        self.network = workload.network()
        self.parameters = list(self.network.parameters())
        self.inputs, self.labels = workload.tensors()

    def train(self, clients: list[int]) -> int:
        """Train some clients; the samples that entered a gradient."""
        self.total.zero_()
        gradients = 0
        for client in clients:
            vector_to_parameters(self.shared.clone(), self.parameters)
            samples = peer_script.train_client(
                self.network, self.inputs, self.labels, self.workload, client
            )
            with torch.no_grad():
                self.total.add_(parameters_to_vector(self.parameters), alpha=samples)
            gradients += samples
        return gradients

    def score(self, clients: list[int]) -> list[float]:
        """Accuracy of the shared model on each of some clients' own test samples."""
        vector_to_parameters(self.shared.clone(), self.parameters)
        return [
            peer_script.accuracy(
                self.network, self.inputs[samples], self.labels[samples]
            )
            for samples in (self.workload.test[client] for client in clients)
        ]


def help_out(
    folder: str, shared: torch.Tensor, total: torch.Tensor, orders: Connection
) -> None:
    """Do what the first process asks for, until it asks for nothing."""
    worker = Worker(peer_script.read(folder), shared, total)
    while (order := orders.recv()) is not None:
        task, clients = order
        orders.send(worker.train(clients) if task == "train" else worker.score(clients))


def train(workload: Workload) -> Record:
    """All rounds; this process takes the first share of each."""
    start = parameters_to_vector(workload.network().parameters()).detach()
    shared = start.clone().share_memory_()
    # One process alone where a GPU does the work.
    count = workload.processes if workload.device == "cpu" else 1
    totals = [torch.zeros_like(shared).share_memory_() for _ in range(count)]
    pipes, helpers = [], []
    for total in totals[1:]:
        ours, theirs = mp.Pipe()
        helper = mp.Process(
            target=help_out, args=(str(workload.folder), shared, total, theirs)
        )
        helper.start()
        pipes.append(ours)
        helpers.append(helper)
    worker = Worker(workload, shared, totals[0])
    sizes = [len(samples) for samples in workload.train]
    tests = [len(samples) for samples in workload.test]
    record = Record(version=torch.__version__)
    for cohort in workload.cohorts:
        own, *others = peer_script.share_out(cohort, sizes, count)
        for pipe, clients in zip(pipes, others, strict=True):
            pipe.send(("train", clients))
        gradients = worker.train(own) + sum(pipe.recv() for pipe in pipes)
        shared.copy_(torch.stack(totals).sum(0) / gradients)
        record.gradients += gradients
        if workload.scores_clients:
            own, *others = peer_script.share_out(range(len(tests)), tests, count)
            for pipe, clients in zip(pipes, others, strict=True):
                pipe.send(("score", clients))
            scores = worker.score(own)
            for pipe in pipes:
                scores += pipe.recv()
            record.scored += sum(tests)
            record.client_accuracy = sum(scores) / len(scores)
        record.end_round()
    for pipe in pipes:
        pipe.send(None)
    for helper in helpers:
        helper.join()
    vector_to_parameters(shared.clone(), worker.parameters)
    record.accuracy = peer_script.final_accuracy(workload, worker.network)
    return record


if __name__ == "__main__":
    peer_script.main(train)
