"""pfl-research by its public interface: FederatedAveraging in two processes.

The script starts itself once more for every further process, as its guide to
distributed simulations says.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import peer_script
import torch
from peer_script import Record, Workload
from torch.nn.functional import cross_entropy


def start_others(count: int) -> list[subprocess.Popen[bytes]]:
    """Start the other processes; says in the environment who this one is."""
    if "PFL_WORKER_RANK" in os.environ or count == 1:
        return []
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join(addresses)
    others = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env=os.environ | {"PFL_WORKER_RANK": str(rank)},
        )
        for rank in range(1, count)
    ]
    os.environ["PFL_WORKER_RANK"] = "0"
    return others


def train(workload: Workload) -> Record:
    """This process's share of all rounds."""
    on_cpu = workload.device == "cpu"
    others = start_others(workload.processes if on_cpu else 1)
    # Which process this is must be known before pfl is imported.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.common_types import Population
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDatasetBase
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops.selector import get_default_framework_module
    from pfl.metrics import Metrics, Weighted, user_average
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    inputs, labels = workload.tensors()
    record = Record(version=version("pfl"))

    def distributed() -> Any:
        return get_default_framework_module().distributed

    class Users(FederatedDatasetBase):
        """Clients of given cohorts, the same amount of work for every process."""

        def __init__(
            self, samples: list[Any], cohorts: list[list[int]], shuffles: bool
        ) -> None:
            super().__init__()
            self.samples, self.cohorts = samples, iter(cohorts)
            self.sizes, self.shuffles = [len(own) for own in samples], shuffles

        def __next__(self) -> Any:
            raise NotImplementedError("Users come by cohort.")

        def get_cohort(self, cohort_size: int) -> Iterator[Any]:
            cohort, world = next(self.cohorts), distributed()
            shares = peer_script.share_out(cohort, self.sizes, world.world_size)
            for client in shares[world.global_rank]:
                samples = torch.from_numpy(self.samples[client])
                if self.shuffles:
                    samples = samples[torch.randperm(len(samples))]
                data = inputs[samples], labels[samples]
                yield Dataset(data, user_id=str(client)), client

    class Averaging(FederatedAveraging):
        """Without the scores on training data that come with those on test data."""

        def get_next_central_contexts(self, *args: Any, **settings: Any) -> Any:
            contexts, model, metrics = super().get_next_central_contexts(
                *args, **settings
            )
            if contexts is not None:
                contexts = tuple(
                    dataclasses.replace(context, do_evaluation=False)
                    if context.population == Population.TRAIN
                    else context
                    for context in contexts
                )
            return contexts, model, metrics

    class Follower(TrainingProcessCallback):
        """Notes when rounds end and how much was done in them."""

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> Any:
            for name, value in aggregate_metrics:
                if str(name) == "train population | number of data points":
                    record.gradients += round(value.weighted_value)
                elif str(name).startswith("val population | accuracy"):
                    record.client_accuracy = float(value.overall_value)
                elif str(name) == "val population | number of data points":
                    record.scored += round(value.weighted_value)
            record.end_round()
            return False, Metrics()

    class Network(torch.nn.Module):
        """The network with the two functions that pfl asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.network = workload.network()

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return cross_entropy(self.network(x), y)

        @torch.no_grad()
        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            right = int((self.network(x).argmax(1) == y).sum())
            return {"accuracy": (Weighted(right, len(y)), user_average)}

    network = Network()
    everybody = list(range(len(workload.test)))
    Averaging().run(
        NNAlgorithmParams(
            central_num_iterations=workload.rounds,
            evaluation_frequency=1 if workload.scores_clients else workload.rounds + 1,
            train_cohort_size=len(workload.cohorts[0]),
            val_cohort_size=len(everybody) if workload.scores_clients else 0,
        ),
        backend=SimulatedBackend(
            training_data=Users(workload.train, workload.cohorts, shuffles=True),
            val_data=Users(
                workload.test, [everybody] * workload.rounds, shuffles=False
            ),
            postprocessors=[WeightByDatapoints()],
        ),
        model=PyTorchModel(
            model=network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), 1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=workload.lr,
            local_num_epochs=1,
            local_batch_size=workload.batch_size,
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Follower()],
        send_metrics_to_platform=False,
    )
    if os.environ.get("PFL_WORKER_RANK", "0") != "0":
        sys.exit()
    for other in others:
        other.wait()
    record.accuracy = peer_script.final_accuracy(workload, network.network)
    return record


if __name__ == "__main__":
    peer_script.main(train)
