"""Fedloom by its public interface: `fedloom.run` with FedAvg, compiled, two threads."""

from __future__ import annotations

import numpy as np
import peer_script
import torch
from peer_script import Record, Workload

import fedloom
from fedloom.clients import Ragged
from fedloom.models import MODELS
from fedloom.results.rows import Round
from fedloom.server.schedule import Schedule
from fedloom.server.simulation import Simulation


class Follower:
    """Notes when rounds end and how much was done in them.

    Args:
        record: where it is noted.
        scored: test samples that a round scores.
    """

    def __init__(self, record: Record, scored: int) -> None:
        self.record, self.scored = record, scored

    def start(self, simulation: Simulation, schedule: Schedule, reason: str) -> None:
        """Nothing is noted of the start."""

    def round(self, row: Round) -> None:
        """Note a round; the start, which is no round, is row 0."""
        if row.round == 0:
            return
        self.record.end_round()
        self.record.gradients += row.gradients
        self.record.scored += self.scored


def make_network(workload: Workload) -> torch.nn.Module:
    """The built-in network where there is one, with the common start."""
    name = workload.settings["model"]
    if name not in MODELS:
        return workload.network().cpu()
    network = MODELS[name]().build(workload.bytes().shape[1:], 10)
    with torch.no_grad():
        for parameter, start in zip(
            network.parameters(), workload.parameters, strict=True
        ):
            parameter.copy_(torch.from_numpy(start))
    return network


def make_clients(workload: Workload) -> fedloom.Federation:
    """The clients, with images as the bytes that they came as."""
    dataset = fedloom.Dataset(
        name=workload.settings["name"],
        inputs=(torch.from_numpy(workload.bytes()),),
        targets=torch.from_numpy(workload.labels),
        classes=10,
        scale=255.0,
    )
    count = len(workload.train)
    return fedloom.Federation(
        dataset,
        Ragged.of(workload.train),
        Ragged.of([np.empty(0, dtype=np.int64)] * count),
        Ragged.of(workload.test),
        tuple(map(str, range(count))),
        np.zeros(count, dtype=np.int64),
        shares_test=True,
    )


def train(workload: Workload) -> Record:
    """All rounds in one run; cohorts are a function of the seed."""
    record = Record(version=fedloom.__version__)
    tests = sum(len(samples) for samples in workload.test)
    follower = Follower(record, tests if workload.scores_clients else 0)
    result = fedloom.run(
        fedloom.FedAvg(
            lr=workload.lr,
            batch_size=workload.batch_size,
            epochs=1,
            clip=None,
        ),
        make_network(workload),
        make_clients(workload),
        rounds=workload.rounds,
        seed=int(workload.settings["seed"]),
        sampling=fedloom.Sampling(rate=len(workload.cohorts[0]) / len(workload.train)),
        engine=fedloom.EngineSettings(
            compile="on", device=workload.device, threads=workload.processes
        ),
        evaluate_every=1 if workload.scores_clients else workload.rounds,
        progress=follower,
    )
    if workload.scores_clients:
        record.client_accuracy = float(result.scores("shared").mean())
    network = result.shared_model()
    assert network is not None
    record.accuracy = peer_script.final_accuracy(workload, network.to(workload.device))
    return record


if __name__ == "__main__":
    peer_script.main(train)
