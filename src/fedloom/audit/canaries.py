"""Planted clients that take part by the toss of a coin, and who of them is found.

The runs of an audit have the run's own clients and some planted ones. Whether a planted
client ever answers is decided by its coin, once. Then the attacker, who sees the shared
model after every round and knows what each planted client holds, but no coin, guesses.

A planted client stands for any client: its samples are put together of the features of
others, each feature of another sample, with the target of yet another. What it teaches
is like nobody else's, so that the worst case is not far.

The guess: what a round moved the shared model by is written as a sum of the gradients
of all planted clients at the model as it was sent, and of the others' mean gradient, by
least squares. A client with a large coefficient, over all rounds, took part. All of it
follows from what was seen, so that whatever the guess is worth, the bound holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

from fedloom.audit.epsilon import lower_bound
from fedloom.audit.promise import DELTA, Promise
from fedloom.audit.subject import Subject, standardised_like, train_bundle
from fedloom.clients import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core import streams
from fedloom.core.messages import Arrivals, Order
from fedloom.core.task import Batch, Task
from fedloom.fleet.around import FleetAround
from fedloom.fleet.protocol import Fleet
from fedloom.results.audit import Planted
from fedloom.results.statistics import LEVEL
from fedloom.server.simulation import Simulation

_MOST_SHARE = 0.5
"""Planted clients of a run are at most this share of its own clients."""

_OTHERS = 1024
"""Samples of the run's own clients whose mean gradient is known to the attacker."""


def bound_epsilon(
    subject: Subject,
    count: int,
    seed: int,
    *,
    promise: Promise | None = None,
    after_round: Callable[[int], None] | None = None,
) -> Planted | None:
    """A lower bound of epsilon at client level; None for a method without shared model.

    Args:
        subject: the run.
        count: number of planted clients in all.
        seed: seed of coins, samples and runs.
        promise: what the run promises, if anything.
        after_round: is told of every round that is over.
    """
    if subject.simulation.shared() is None:
        return None
    shares = shares_of(count, subject.federation.count)
    plants = [plant(subject.federation, n, seed, r) for r, n in enumerate(shares)]
    scores, coins = [], []
    place = 0
    for bundle in subject.again([p.federation for p in plants], seed, "audit-planted"):
        watched = plants[place : place + len(bundle.simulations)]
        place += len(watched)
        trails = []
        for simulation, own in zip(bundle.simulations, watched, strict=True):
            simulation.fleet = WithoutSome(simulation.fleet, own.absent)
            trails.append(Trail(simulation, own, subject.federation))

        def look(round_: int, trails: list[Trail] = trails) -> None:
            for trail in trails:
                trail.look()
            if after_round is not None:
                after_round(round_)

        train_bundle(bundle, subject.rounds, look)
        scores += [trail.scores.cpu().numpy() for trail in trails]
        coins += [own.coins for own in watched]
    delta = promise.delta if promise is not None else DELTA
    guessed = np.concatenate(scores) > threshold(np.concatenate(scores))
    right = int((guessed == np.concatenate(coins)).sum())
    return Planted(
        clients=count,
        runs=len(shares),
        right=right,
        epsilon=lower_bound(count, right, delta=delta, level=LEVEL),
        level=LEVEL,
        delta=delta,
        ledger=promise.client_epsilon if promise is not None else None,
    )


def shares_of(count: int, clients: int) -> list[int]:
    """How many clients are planted in each run: so few that it stays much as it was.

    Args:
        count: in all runs together.
        clients: of the run itself.
    """
    most = max(1, int(_MOST_SHARE * clients))
    runs = -(-count // most)
    return [count // runs + (n < count % runs) for n in range(runs)]


@dataclass(frozen=True, eq=False)
class Plants:
    """The clients of a run, and planted ones after them."""

    federation: Federation
    coins: NDArray[np.bool_]
    """(k,) whether each planted client takes part."""

    @property
    def first(self) -> int:
        """The number of the first planted client."""
        return self.federation.count - len(self.coins)

    @property
    def absent(self) -> Tensor:
        """Numbers of those who do not."""
        return torch.from_numpy(self.first + np.flatnonzero(~self.coins))


def plant(federation: Federation, count: int, seed: int, run: int) -> Plants:
    """Add clients whose samples nobody holds.

    Args:
        federation: the clients that are there.
        count: how many are added, each with as many samples as most clients have.
        seed: seed of samples and coins.
        run: number of the run that they are planted in.
    """
    data, size = federation.dataset, int(np.median(federation.sizes))
    draw = streams.generator(seed, "audit-plants", run)
    sources = federation.train.indices
    inputs = tuple(_shuffled(x, sources, count * size, draw) for x in data.inputs)
    targets = data.targets[torch.from_numpy(draw.choice(sources, count * size))]
    larger = replace(
        data,
        inputs=tuple(map(torch.cat, zip(data.inputs, inputs, strict=True))),
        targets=torch.cat([data.targets, targets]),
        owner=None,
        fixed_test=None,
        subclass=None,
        groups={},
    )
    nothing = Ragged.of([np.empty(0, dtype=np.int64)] * (federation.count + count))
    planted = Ragged.cut(
        len(data) + np.arange(count * size), np.full(count, size, dtype=np.int64)
    )
    taken = set(federation.names)
    names = (f"planted {n}" for n in range(len(taken) + count))
    new = [name for name in names if name not in taken][:count]
    teams = draw.choice(federation.teams, count)
    extended = replace(
        federation,
        dataset=larger,
        train=federation.train.followed_by(planted),
        validation=nothing,
        test=nothing,
        names=(*federation.names, *new),
        teams=np.concatenate([federation.teams, teams]),
        shares_test=False,
        transform="",
        split=None,
        groups=None,
    )
    return Plants(standardised_like(extended, federation), draw.random(count) < 0.5)


def _shuffled(
    x: Tensor, sources: NDArray[np.int64], count: int, draw: np.random.Generator
) -> Tensor:
    """Samples each of whose features is that of another sample."""
    some = torch.from_numpy(draw.choice(sources, count))
    flat = x[some].reshape(count, -1)
    order = draw.random((count, flat.shape[1])).argsort(0)
    return flat.gather(0, torch.from_numpy(order)).reshape(count, *x.shape[1:])


def threshold(scores: NDArray[np.float64]) -> float:
    """What parts scores into two groups, each as alike as can be (Otsu 1979)."""
    ordered = np.sort(scores)
    if len(ordered) < 2:
        return 0.0
    low = np.cumsum(ordered)[:-1]
    count = np.arange(1, len(ordered))
    high = ordered.sum() - low
    between = np.square(low / count - high / (len(ordered) - count))
    best = int((between * count * (len(ordered) - count)).argmax())
    return float((ordered[best] + ordered[best + 1]) / 2)


class Trail:
    """What an attacker makes of the shared model's way.

    Args:
        simulation: the run.
        plants: who was planted in it.
        clients: the clients without them.
    """

    def __init__(
        self, simulation: Simulation, plants: Plants, clients: Federation
    ) -> None:
        self.simulation = simulation
        self.scores = torch.zeros(len(plants.coins), dtype=torch.float64)
        """(k,) how much of what each planted client would teach was learnt."""
        task, train = simulation.task, plants.federation.train
        lists = [train[plants.first + n] for n in range(len(plants.coins))]
        self._planted = _batches(task, plants.federation, np.stack(lists))
        draw = streams.generator(simulation.seed, "audit-others")
        known = clients.train.indices
        few = draw.choice(known, min(_OTHERS, len(known)), replace=False)
        self._others = _batches(task, plants.federation, few[None])
        self._before = self._model()

    def look(self) -> None:
        """Take in the model after one more round."""
        task, now = self.simulation.task, self._model()
        at = self._before.to(task.dtype)
        gradient = vmap(task.grad, in_dims=(None, 0))
        columns = torch.cat([gradient(at, b) for b in (self._planted, self._others)])
        columns = columns.detach().double()
        lengths = columns.norm(dim=1, keepdim=True)
        columns = columns / torch.where(lengths > 0, lengths, 1.0)
        moved = (now - self._before)[:, None]
        solved = torch.linalg.lstsq(columns.T.cpu(), moved.cpu(), driver="gelsd")
        # A model follows gradients downwards.
        self.scores -= solved.solution[:-1, 0]
        self._before = now

    def _model(self) -> Tensor:
        shared = self.simulation.shared()
        assert shared is not None
        return shared.detach().double().clone()


def _batches(task: Task, federation: Federation, rows: NDArray[np.int64]) -> Batch:
    """Batches of samples, one for each row of numbers."""
    data, places = federation.dataset, torch.from_numpy(rows)
    count = torch.zeros(len(rows), dtype=torch.int64, device=task.device)
    return Batch(
        inputs=tuple(x[places].to(task.device) for x in data.inputs),
        targets=data.targets[places].to(task.device),
        mask=torch.ones(rows.shape, dtype=task.dtype, device=task.device),
        key=count,
        step=count,
        ends_epoch=count == 0,
        round=count,
    )


class WithoutSome(FleetAround):
    """A fleet some of whose clients never answer: no order reaches them.

    Args:
        fleet: the clients.
        absent: numbers of those who do not answer.
    """

    def __init__(self, fleet: Fleet, absent: Tensor) -> None:
        super().__init__(fleet)
        self.absent = absent
        self._sent: Order | None = None

    def send(self, order: Order) -> None:
        """Pass the order on to the others."""
        is_absent = torch.isin(order.clients, self.absent.to(order.clients.device))
        self._sent = order.only(~is_absent)
        if len(self._sent.clients):
            self.fleet.send(self._sent)

    def receive(self) -> Arrivals:
        """What came of it."""
        assert self._sent is not None, "receive before send"
        if not len(self._sent.clients):
            return Arrivals.nobody(self._sent.clients)
        return self.fleet.receive()
