"""How the seconds of a round grow with cohort, parameters and steps.

    python benchmarks/growth.py > benchmarks/growth-2-cores.json

Random images as large as Fashion-MNIST's, 400 clients with 100 each, batches of 10; an
MLP with 100 hidden units, 50 clients and one epoch a round, unless that is what grows.
FedAvg runs in C code of our own, Ditto in plain PyTorch, vmapped. The fastest of five
rounds.
"""

from __future__ import annotations

import json
import sys

import torch

from fedloom.algorithms import Ditto, FedAvg
from fedloom.bench.engine import best, random_images
from fedloom.clients import Iid, Sampling, Split, divide
from fedloom.core import streams
from fedloom.core.task import Task
from fedloom.engine.choice import EngineSettings, choose
from fedloom.models import MLP
from fedloom.server.simulation import Simulation

COHORTS, UNITS, EPOCHS = (10, 50, 100, 200, 400), (25, 50, 100, 200, 400), (1, 2, 4, 8)
CPU = torch.device("cpu")


def measure(method: type, cohort: int, units: int, epochs: int) -> dict[str, object]:
    """Seconds of a round."""
    dataset = random_images(40_000)
    clients = divide(dataset, Iid(clients=400), Split(test=0.0), seed=0)
    with streams.seeded(0, "growth"):
        module = MLP(hidden=(units,)).build(dataset.input_shape, dataset.outputs)
    task = Task(module, scale=dataset.scale)
    algorithm, sampling = (
        method(batch_size=10, epochs=epochs),
        Sampling(rate=cohort / 400),
    )
    engine = EngineSettings(device="cpu", compile="off")
    runner = choose(engine, algorithm, task, clients, sampling, rounds=1).runner
    simulation = Simulation(algorithm, task, clients, runner, sampling=sampling)
    seconds = best(simulation.run_exchange, 1, 5, CPU)
    return {
        "method": algorithm.name,
        "cohort": cohort,
        "parameters": task.d,
        "steps": 10 * epochs,
        "seconds": seconds,
    }


def main() -> None:
    """Measure all and print the rows."""
    rows = []
    for method in (FedAvg, Ditto):
        rows += [measure(method, cohort, 100, 1) for cohort in COHORTS]
        rows += [measure(method, 50, units, 1) for units in UNITS]
        rows += [measure(method, 50, 100, epochs) for epochs in EPOCHS]
    json.dump(rows, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
