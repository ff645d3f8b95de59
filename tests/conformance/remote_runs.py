"""Small federations whose messages are bytes, all in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from variants import NORMALISED, small_federation, small_task

from fedloom.clients import Sampling
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.records import named
from fedloom.core.secure_sums import SecureSums
from fedloom.engine.weave import Weave
from fedloom.fleet import LocalFleet, ShardedFleet
from fedloom.remote import (
    Channel,
    InProcessChannel,
    Node,
    Policy,
    RemoteFleet,
    enrol,
    greeting_for,
)
from fedloom.remote.codec import settings_digest
from fedloom.remote.wire import WireMessage
from fedloom.server.coordinator import Coordinator
from fedloom.server.simulation import Simulation
from fedloom.server.training import Training

SEED = 3
RUN = "law"
CLIENTS = [0, 3, 6]
"""Of the small federation, in three teams."""
SOME = small_federation().only(CLIENTS)
EVERYONE = torch.arange(len(CLIENTS))
HASTY = Policy(deadline_s=0.05, retry_s=100.0, patience_s=0.2, quorum=0.3)
"""Goes on soon without those who do not answer."""


def task_for(algorithm: AnyAlgorithm) -> Any:
    return small_task(is_normalised=algorithm.name in NORMALISED)


def make_node(algorithm: AnyAlgorithm, n: int, folder: Path, **settings: Any) -> Node:
    """One of the clients; its secret follows from the seed, as in a simulation."""
    return Node(
        small_federation().only([CLIENTS[n]]),
        algorithm,
        lambda _: task_for(algorithm),
        folder / f"home-{n}",
        seed=SEED,
        **{"secret": SEED} | settings,
    )


class RemoteRun(Training):
    """A server, and nodes in this process that answer bytes with bytes."""

    def __init__(
        self,
        algorithm: AnyAlgorithm,
        folder: Path,
        *,
        channel: Callable[[dict[Any, Any]], Channel] = InProcessChannel,
        policy: Policy | None = None,
        session: int = 0,
        rate: float = 1.0,
        restarts: bool = False,
        secure: SecureSums | None = None,
    ) -> None:
        policy = policy if policy is not None else Policy()
        own = {"secure": secure}
        self.nodes = [
            make_node(algorithm, n, folder, **own) for n in range(len(CLIENTS))
        ]
        answers: dict[Any, Callable[[WireMessage], WireMessage]] = {
            f"address {n}": (
                (lambda m, n=n: make_node(algorithm, n, folder, **own).answer(m))
                if restarts
                else node.answer
            )
            for n, node in enumerate(self.nodes)
        }
        self.channel: Any = channel(answers)
        task = task_for(algorithm)
        settings = settings_digest(algorithm, task, SEED, secure)
        enrolled = enrol(
            self.channel,
            greeting_for(algorithm, run=RUN, seed=SEED, session=session, secure=secure),
            len(CLIENTS),
            policy,
            lambda _: settings,
        )
        fleet = RemoteFleet(
            algorithm,
            task,
            enrolled,
            self.channel,
            run=RUN,
            seed=SEED,
            policy=policy,
            session=session,
            secure=secure,
        )
        sampling = Sampling(rate=rate)
        coordinator = Coordinator(
            fleet.method, task, enrolled.roster, sampling=sampling, seed=SEED
        )
        super().__init__(coordinator, fleet)

    def models(self, n: int) -> Tensor:  # type: ignore[override]
        """What client `n` has at home after an evaluation."""
        return self.nodes[n].models(RUN)


def simulated(algorithm: AnyAlgorithm, **settings: Any) -> Simulation:
    """The same run in a simulation."""
    return Simulation(
        algorithm, task_for(algorithm), SOME, Weave(len(CLIENTS)), seed=SEED, **settings
    )


def of_one_each(algorithm: AnyAlgorithm) -> Training:
    """The same run with a local fleet for each client, and no bytes."""
    shards = [
        LocalFleet(
            algorithm,
            task_for(algorithm),
            small_federation().only([client]),
            Weave(1),
            seed=SEED,
            numbers=EVERYONE[n : n + 1],
            can_lose=True,
            secret=SEED,
        )
        for n, client in enumerate(CLIENTS)
    ]
    fleet = ShardedFleet(shards, [EVERYONE[n : n + 1] for n in range(len(CLIENTS))])
    coordinator = Coordinator(algorithm, task_for(algorithm), fleet.roster, seed=SEED)
    return Training(coordinator, fleet)


def rounds(training: Training, count: int) -> None:
    for _ in range(count * training.algorithm.exchanges):
        training.run_exchange()


def standing_of(training: Training) -> dict[str, Tensor]:
    """What a run has come to: the server, every client's model, every score."""
    found = {f"server.{name}": t for name, t in named(training.state.server).items()}
    found |= {"taken": training.state.taken, "work": training.state.work}
    for part in ("train", "test"):
        for scores in training.evaluate(part).scores:
            for name, values in scores.values.items():
                has_value = ~torch.from_numpy(values).isnan()
                number = torch.from_numpy(values).nan_to_num()
                found[f"{scores.kind}.{part}.{name}"] = number
                found[f"{scores.kind}.{part}.{name} is there"] = has_value
    if isinstance(training, RemoteRun):
        models = [training.models(n) for n in range(len(CLIENTS))]
        found["models"] = torch.stack(models)
    elif training.algorithm.has_posterior:
        found["models"] = training.draws(EVERYONE)
    else:
        found["models"] = training.personal(EVERYONE)[:, None]
    return found
