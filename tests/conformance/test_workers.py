"""Laws of fleets in workers: losing one, whenever it happens, changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_fleets import EVERYONE, SHARDS, models, outcome, rounds, shard_of, sharded
from variants import COUNT, VARIANTS, assert_identical, describe, set_up

from fedloom.algorithms import Ditto, FedAvg
from fedloom.cluster import WorkerLost
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import FedloomError, MessageError
from fedloom.core.messages import Order, Roster
from fedloom.core.records import take
from fedloom.engine.memory import cut_saved, join_saved
from fedloom.engine.weave import Weave
from fedloom.fleet import Faults, LocalFleet, WorkerFleet
from fedloom.fleet.ray import deal, own_samples
from fedloom.server.simulation import Simulation

NAMES = ("fedavg", "self-fl", "scaffold", "fedacs", "pfedmt", "ditto")
over_a_few = pytest.mark.parametrize(
    "algorithm", [VARIANTS[name][0] for name in NAMES], ids=describe
)


class Here:
    """A worker in this process, which is lost at some of its calls."""

    place = "here"

    def __init__(self, fleet: LocalFleet, is_lost: Callable[[str], bool]) -> None:
        self.fleet, self.is_lost, self.has_ended = fleet, is_lost, False

    def exchange(self, order: Order) -> Any:
        self.fleet.send(order)
        arrivals = self.fleet.receive()
        return arrivals, self.fleet.client_log(arrivals.clients)

    def call(self, name: str, *values: Any) -> Callable[[], Any]:
        try:
            # Whatever it did before it was lost is lost with it.
            function = getattr(self if name == "exchange" else self.fleet, name)
            answer = function(*values)
        except FedloomError as raised:
            answer = raised
        if self.is_lost(name):
            self.has_ended = True

        def wait() -> Any:
            if self.has_ended:
                raise WorkerLost("its process ended")
            if isinstance(answer, FedloomError):
                raise answer
            return answer

        return wait

    def end(self) -> None:
        self.has_ended = True


class Losses:
    """Which calls of the middle workers, counted over all of them, are fatal."""

    def __init__(self, *fatal: int, only: str = "") -> None:
        self.fatal, self.only, self.calls = fatal, only, 0
        self.told: list[str] = []

    def __call__(self, name: str) -> bool:
        if self.only and name != self.only:
            return False
        self.calls += 1
        return self.calls in self.fatal


def in_workers(
    algorithm: AnyAlgorithm, losses: Losses, *, can_lose: bool = False, every: int = 2
) -> Simulation:
    """A run in three workers, of which the middle one may be lost."""
    simulation = set_up(algorithm, Weave(COUNT), rate=0.7)
    roster = simulation.fleet.roster
    fleets = []
    for n, numbers in enumerate(SHARDS):

        def place(n: int = n, numbers: torch.Tensor = numbers) -> Here:
            fleet = shard_of(algorithm, numbers, can_lose=can_lose)
            return Here(fleet, losses if n == 1 else Losses())

        names = tuple(roster.names[k] for k in numbers.tolist())
        own = Roster(names, take(roster.enrolments, numbers))
        fleets.append(
            WorkerFleet(place, own, snapshot_every=every, tell=losses.told.append)
        )
    return sharded(simulation, fleets)


def plain(algorithm: AnyAlgorithm) -> Simulation:
    shards = [shard_of(algorithm, numbers, can_lose=False) for numbers in SHARDS]
    return sharded(set_up(algorithm, Weave(COUNT), rate=0.7), shards)


def trained(simulation: Simulation, count: int = 5) -> dict[str, torch.Tensor]:
    """What a run comes to, with a score and a model asked for on the way."""
    for _ in range(count):
        rounds(simulation, 1)
        last = simulation.last
        assert last is not None
        simulation.evaluate("test")
    return models(simulation) | simulation.fleet.save()


@over_a_few
@pytest.mark.parametrize("fatal", [(1,), (4,), (5, 6), (3, 9)])
def test_a_lost_worker_changes_nothing(
    algorithm: AnyAlgorithm, fatal: tuple[int, ...]
) -> None:
    losses = Losses(*fatal)
    found = trained(in_workers(algorithm, losses))
    assert len(losses.told) >= 1
    assert_identical(found, trained(plain(algorithm)))


def test_another_worker_repeats_no_more_than_it_must() -> None:
    losses = Losses(6, only="exchange")
    algorithm = Ditto(lr=0.1)
    simulation = in_workers(algorithm, losses)
    rounds(simulation, 5)
    assert losses.told == []
    rounds(simulation, 1)
    (line,) = losses.told
    assert "4 clients on here was lost (its process ended)" in line
    assert line.endswith("repeats 1 exchange.")
    assert losses.calls == 8  # six, the one that is repeated, and the sixth again


def test_a_worker_lost_while_it_is_saved_or_restored_changes_nothing() -> None:
    algorithm = Ditto(lr=0.1)
    expected = plain(algorithm)
    rounds(expected, 2)
    saved, at = expected.fleet.save(), expected.state.round
    assert at == 2
    rounds(expected, 1)
    for name, fatal in (("restore", 1), ("save", 2), ("save", 1)):
        losses = Losses(fatal, only=name)
        simulation = in_workers(algorithm, losses, every=1)
        rounds(simulation, 2)
        request = simulation.coordinator.model_request(EVERYONE)
        simulation.fleet.restore(saved, request, "here")
        rounds(simulation, 1)
        assert_identical(outcome(simulation), outcome(expected))
        assert_identical(simulation.fleet.save(), expected.fleet.save())


def test_workers_that_are_lost_again_and_again_end_the_run() -> None:
    simulation = in_workers(FedAvg(), Losses(*range(1, 9)))
    with pytest.raises(
        FedloomError, match="3 workers of 4 clients were lost one after"
    ):
        rounds(simulation, 1)


def test_what_a_worker_refuses_is_no_loss() -> None:
    losses = Losses()
    simulation = in_workers(Ditto(lr=0.1), losses)
    rounds(simulation, 1)
    saved = simulation.fleet.save() | {"memory.personal": torch.zeros(1)}
    request = simulation.coordinator.model_request(EVERYONE)
    with pytest.raises(MessageError, match="personal"):
        simulation.fleet.restore(saved, request, "here")
    assert losses.told == []


@over_a_few
@pytest.mark.parametrize("lost", [0.0, 0.4])
def test_shards_save_what_one_fleet_saves(algorithm: AnyAlgorithm, lost: float) -> None:
    """So that whatever a run was saved with, it goes on with anything else."""
    faults = Faults(lost=lost)
    one = set_up(algorithm, Weave(COUNT), rate=0.4, faults=faults)
    rounds(one, 2)
    whole = one.fleet.save()
    parts = [cut_saved(whole, numbers) for numbers in SHARDS]
    assert_identical(join_saved(parts, SHARDS), whole)
    shards = [shard_of(algorithm, numbers, can_lose=lost > 0) for numbers in SHARDS]
    cut = sharded(set_up(algorithm, Weave(COUNT), rate=0.4), shards)
    request = one.coordinator.model_request(EVERYONE)
    cut.fleet.restore(whole, request, "here")
    assert_identical(cut.fleet.save(), whole)
    for shard, part in zip(shards, parts, strict=True):
        assert_identical(shard.save(), part)


def test_a_client_that_no_shard_has_is_refused() -> None:
    cut = plain(Ditto(lr=0.1))
    rounds(cut, 1)
    saved = cut.fleet.save() | {"seen": torch.tensor([COUNT])}
    request = cut.coordinator.model_request(EVERYONE)
    with pytest.raises(MessageError, match=f"names client {COUNT}, and there are"):
        cut.fleet.restore(saved, request, "here")


def test_clients_that_go_away_come_home_with_what_they_keep() -> None:
    algorithm = Ditto(lr=0.1)
    away, here = (set_up(algorithm, Weave(COUNT)) for _ in range(2))
    for simulation in (away, here):
        rounds(simulation, 1)
    home = away.fleet
    shards = [shard_of(algorithm, numbers, can_lose=False) for numbers in SHARDS]
    with away.trained_by(sharded(set_up(algorithm), shards).fleet):
        rounds(away, 2)
    assert away.fleet is home
    rounds(here, 2)
    rounds(away, 1)
    rounds(here, 1)
    for name, tensor in outcome(here).items():
        torch.testing.assert_close(outcome(away)[name], tensor)


def test_clients_are_dealt_out_evenly() -> None:
    sizes = torch.arange(1, 12).numpy() ** 2
    dealt = deal(sizes, 3)
    assert sorted(torch.cat(dealt).tolist()) == list(range(11))
    assert [len(own) for own in dealt] == [3, 4, 4]
    for own in dealt:
        assert own.tolist() == sorted(own.tolist())
        assert int(sizes[own.numpy()].sum()) == pytest.approx(sizes.sum() / 3, rel=0.2)


def test_a_shard_has_the_samples_of_its_own_clients_alone() -> None:
    simulation = set_up(FedAvg())
    whole = simulation.federation
    own, samples = own_samples(whole.only([4, 1]))
    assert len(own.dataset) == len(samples) == sum(len(p.indices) for p in own.parts)
    for part, found in zip(whole.only([4, 1]).parts, own.parts, strict=True):
        assert samples[found.indices].tolist() == part.indices.tolist()
    rows = torch.from_numpy(samples)
    assert torch.equal(own.dataset.targets, whole.dataset.targets[rows])
    assert own.names == (whole.names[4], whole.names[1])
