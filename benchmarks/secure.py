"""What secure sums cost: seconds of a round, and bytes for each parameter.

    OMP_NUM_THREADS=1 python benchmarks/secure.py

FedAvg on logistic regression with 10^4 and 10^6 parameters, 10 and 50 clients, with and
without, and with a fifth of the clients gone before their summand came. Messages are
bytes and all clients are in this process, one after another; each does one step on two
samples. So the seconds of the server and of one client are those of the sums. They are
seconds of a core, which do not depend on what else the machine does; waiting for a disk
or a network is not in them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.algorithms import FedAvg
from fedloom.clients import Federation
from fedloom.clients.ragged import Ragged
from fedloom.config import RunConfig
from fedloom.core.policy import Policy
from fedloom.core.secure_sums import SecureSums
from fedloom.data.dataset import Dataset
from fedloom.engine.choice import EngineSettings
from fedloom.engine.threads import on_threads
from fedloom.models import MODELS
from fedloom.plan import built_in_module, make_task
from fedloom.remote import InProcessChannel, Node, RemoteFleet, enrol, greeting_for
from fedloom.remote.codec import settings_digest
from fedloom.remote.wire import WireMessage
from fedloom.server.coordinator import Coordinator
from fedloom.server.training import Training

CLASSES = 10
HASTY = Policy(deadline_s=0.01, patience_s=0.01, retry_s=1000.0)
"""Answers are there at once; who has not answered is gone."""


def make_clients(parameters: int, count: int) -> Federation:
    """Clients with two samples each, for a model of so many parameters."""
    features = parameters // CLASSES - 1
    inputs = np.random.default_rng(0).normal(size=(2 * count, features))
    samples = [np.arange(2 * n, 2 * n + 2) for n in range(count)]
    nothing = Ragged.of([np.arange(0)] * count)
    return Federation(
        dataset=Dataset(
            name="noise",
            inputs=(torch.from_numpy(inputs).float(),),
            targets=torch.arange(2 * count) % CLASSES,
            classes=CLASSES,
        ),
        train=Ragged.of(samples),
        validation=nothing,
        test=nothing,
        names=tuple(str(n) for n in range(count)),
        teams=np.zeros(count, dtype=np.int64),
    )


class Timed:
    """A client that counts how long it answers, and may go away."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.seconds = 0.0
        self.bytes_up = 0
        self.gone_at = ""

    def answer(self, message: WireMessage) -> WireMessage:
        """What the client answers."""
        started = time.process_time()
        answer = self.node.answer(message)
        self.seconds += time.process_time() - started
        self.bytes_up += len(answer.to_bytes())
        return answer


class Lossy(InProcessChannel):
    """Reaches nobody who has gone."""

    def __init__(self, clients: dict[Any, Timed]) -> None:
        answers: dict[Any, Callable[[WireMessage], WireMessage]] = {
            address: client.answer for address, client in clients.items()
        }
        super().__init__(answers)
        self.clients = clients

    def send(self, messages: Any) -> None:
        """Have each client answer that is there."""
        super().send(
            (address, message)
            for address, message in messages
            if message.header.kind != self.clients[address].gone_at
        )


def measure(
    parameters: int, count: int, secure: SecureSums | None, gone: int, rounds: int
) -> dict[str, Any]:
    """Seconds of a core and bytes of a round, the median of some after the first."""
    everyone = make_clients(parameters, count)
    algorithm = FedAvg(steps=1, batch_size=2)
    config = RunConfig(
        algorithm=algorithm,
        model=MODELS["mlr"](),
        engine=EngineSettings(device="cpu", compile="off", threads=1),
    )
    module = built_in_module(config, everyone)

    def task(clients: Federation) -> Any:
        return make_task(module, clients, config.engine)

    with tempfile.TemporaryDirectory() as folder, on_threads(1):
        clients: dict[Any, Timed] = {
            n: Timed(
                Node(
                    everyone.only([n]),
                    algorithm,
                    task,
                    Path(folder) / str(n),
                    secure=secure,
                )
            )
            for n in range(count)
        }
        channel, of_server = Lossy(clients), task(everyone)
        digest = settings_digest(algorithm, of_server, 0, secure)
        enrolled = enrol(
            channel,
            greeting_for(algorithm, run="bench", seed=0, secure=secure),
            count,
            Policy(),
            lambda _: digest,
        )
        fleet = RemoteFleet(
            algorithm,
            of_server,
            enrolled,
            channel,
            run="bench",
            policy=HASTY,
            secure=secure,
        )
        coordinator = Coordinator(fleet.method, of_server, enrolled.roster)
        training = Training(coordinator, fleet)
        training.run_exchange()  # the first makes what all others use
        for n in range(gone):
            clients[n].gone_at = "mask"
        staying = list(clients.values())[gone:]
        rows = []
        for _ in range(rounds):
            for client in clients.values():
                client.seconds, client.bytes_up = 0.0, 0
            started = time.process_time()
            training.run_exchange()
            seconds = time.process_time() - started
            of_clients = [client.seconds for client in clients.values()]
            rows.append(
                {
                    "round_s": seconds,
                    "server_s": seconds - sum(of_clients),
                    "client_s": statistics.mean(c.seconds for c in staying),
                    "bytes_up": statistics.mean(c.bytes_up for c in staying),
                }
            )
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    return {
        "parameters": of_server.d,
        "clients": count,
        "secure": secure is not None,
        "gone": gone,
        **medians,
        "bytes_up_per_parameter": medians["bytes_up"] / of_server.d,
    }


def main() -> None:
    """Measure, and print a table in Markdown; the rows as JSON to a file if asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, nargs="*", default=[10**4, 10**6])
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 50])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    print(f"{platform.machine()}, PyTorch {torch.__version__}, one thread")
    print("| parameters | clients | | server, s | one client, s | bytes up each |")
    print("|---|---|---|---|---|---|")
    rows = []
    for parameters in options.parameters:
        for count in options.clients:
            for secure, gone in (
                (None, 0),
                (SecureSums(), 0),
                (SecureSums(), count // 5),
            ):
                row = measure(parameters, count, secure, gone, options.rounds)
                rows.append(row)
                how = "without" if secure is None else f"with, {gone} gone"
                each = f"{row['bytes_up']:.0f}, {row['bytes_up_per_parameter']:.2f}"
                print(
                    f"| {row['parameters']} | {count} | {how} | {row['server_s']:.2f} "
                    f"| {row['client_s']:.3f} | {each} per parameter |",
                    flush=True,
                )
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
