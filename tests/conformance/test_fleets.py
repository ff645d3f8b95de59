"""Laws of fleets: it does not matter where clients are, nor who fails to arrive."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from variants import (
    COUNT,
    NORMALISED,
    assert_identical,
    assert_same,
    over_methods,
    over_variants_in_time,
    set_up,
    small_federation,
    small_task,
    standing,
)

from fedloom.algorithms import Ditto, FedAvg
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import MessageError
from fedloom.core.messages import (
    Arrivals,
    CohortDownload,
    ModelRequest,
    Order,
    ScoreRequest,
)
from fedloom.core.records import named, take, without_log
from fedloom.engine.weave import Weave
from fedloom.fleet import Faults, FaultyFleet, LocalFleet, ShardedFleet
from fedloom.server.history import History
from fedloom.server.simulation import Simulation

EVERYONE = torch.arange(COUNT)
MISSING = torch.tensor([2, 6])
PRESENT = ~torch.isin(EVERYONE, MISSING)
SHARDS = [torch.tensor([1, 4, 7]), torch.tensor([0, 2, 3, 9]), torch.tensor([5, 6, 8])]
COMPANY_MATTERS = {"self-fl", "self-fl-augmented", "fedacs"}
"""Methods that send a client something about who else was called in the same round."""


class Scripted(FaultyFleet):
    """`MISSING` fail in the way that is named, whenever they are called."""

    def __init__(self, fleet: Any, how: str) -> None:
        super().__init__(fleet, Faults())
        self.how = how

    def _fails(self, how: str, chance: float, clients: Tensor, *at: int) -> Tensor:
        return torch.isin(clients, MISSING) & (how == self.how)


def trained(algorithm: AnyAlgorithm, *, can_lose: bool = False) -> Simulation:
    """A run after its first round, in which nobody failed."""
    faults = Faults(lost=1e-12) if can_lose else None
    simulation = set_up(algorithm, Weave(COUNT), faults=faults)
    simulation.fleet = simulation.clients
    rounds(simulation, 1)
    return simulation


def rounds(simulation: Simulation, count: int) -> None:
    for _ in range(count * simulation.algorithm.exchanges):
        simulation.run_exchange()


def outcome(simulation: Simulation) -> dict[str, Tensor]:
    """All that a run has come to, once every client knows what became of its upload."""
    simulation.personal(EVERYONE)
    return standing(simulation)


def chosen_round(
    simulation: Simulation, clients: Tensor, uploads: Tensor, kept: Tensor
) -> None:
    """A round of one's own making; `kept` are those of the called who are told."""
    for _ in range(simulation.algorithm.exchanges):
        order = simulation.coordinator.order(clients, uploads).only(kept)
        simulation.fleet.send(order)
        simulation.coordinator.apply_results(order, simulation.fleet.receive())


@over_variants_in_time
def test_absent_is_as_if_the_order_had_been_for_the_others_alone(
    algorithm: AnyAlgorithm,
) -> None:
    absent, others = trained(algorithm), trained(algorithm)
    absent.fleet = Scripted(absent.clients, "absent")
    rounds(absent, 1)
    everybody = torch.ones(COUNT, dtype=torch.bool)
    chosen_round(others, EVERYONE, everybody, PRESENT)
    assert_identical(outcome(absent), outcome(others))
    absent.fleet = absent.clients
    rounds(absent, 1)
    rounds(others, 1)
    assert_identical(outcome(absent), outcome(others))


@over_variants_in_time
def test_absent_equals_not_sampled(algorithm: AnyAlgorithm) -> None:
    """Where what a client is sent does not tell it who else was called."""
    absent, others = trained(algorithm), trained(algorithm)
    everybody, few = (
        CohortDownload.of(without_log(algorithm.download(server, cohort))[0])
        for server, cohort in (
            (absent.state.server, absent.coordinator.cohort(EVERYONE)),
            (others.state.server, others.coordinator.cohort(EVERYONE[PRESENT])),
        )
    )
    sent = named(everybody.take(PRESENT).record)
    if not all(torch.allclose(sent[n], t) for n, t in named(few.record).items()):
        assert algorithm.name in COMPANY_MATTERS
        return
    absent.fleet = Scripted(absent.clients, "absent")
    rounds(absent, 1)
    present = EVERYONE[PRESENT]
    uploads = torch.ones_like(present, dtype=torch.bool)
    chosen_round(others, present, uploads, uploads)
    assert_same(outcome(absent), outcome(others))


@over_variants_in_time
def test_lost_equals_trained_without_uploading(algorithm: AnyAlgorithm) -> None:
    lost, unheard = trained(algorithm, can_lose=True), trained(algorithm)
    everybody = torch.ones(COUNT, dtype=torch.bool)
    lost.fleet = Scripted(lost.clients, "lost")
    for _ in range(2):
        rounds(lost, 1)
        chosen_round(unheard, EVERYONE, PRESENT, everybody)
        assert_identical(named(lost.state.server), named(unheard.state.server))
    assert_identical(outcome(lost), outcome(unheard))
    lost.fleet = lost.clients
    rounds(lost, 1)
    rounds(unheard, 1)
    assert_identical(outcome(lost), outcome(unheard))


@over_methods
def test_a_round_in_which_nobody_arrives_leaves_the_server_as_it_was(
    algorithm: AnyAlgorithm,
) -> None:
    simulation = trained(algorithm)
    before = named(simulation.state.server)
    simulation.fleet = FaultyFleet(simulation.clients, Faults(absent=1.0))
    for _ in range(algorithm.exchanges):
        cost = simulation.run_exchange()
    assert cost is not None
    missing = COUNT * algorithm.exchanges
    assert (cost.participants, cost.missing, cost.steps) == (0, missing, 0)
    assert simulation.state.round == 2
    assert_identical(named(simulation.state.server), before)


@over_methods
def test_faults_are_survived_and_resumed(algorithm: AnyAlgorithm) -> None:
    """A client that does not know yet whether its upload arrived is saved as such."""
    faults = Faults(absent=0.2, lost=0.4)

    def fresh() -> Simulation:
        return set_up(algorithm, Weave(COUNT), rate=0.8, faults=faults)

    straight, before, after = fresh(), fresh(), fresh()
    rounds(straight, 3)
    rounds(before, 2)
    request = after.coordinator.model_request(EVERYONE)
    after.fleet.restore(before.fleet.save(), request, "here")
    after.coordinator.state = before.state
    rounds(after, 1)
    assert_identical(outcome(after), outcome(straight))
    assert all(torch.isfinite(t).all() for t in named(straight.state.server).values())


@over_variants_in_time
def test_a_model_download_does_not_depend_on_who_else_is_asked(
    algorithm: AnyAlgorithm,
) -> None:
    simulation = trained(algorithm)
    everybody = simulation.coordinator.model_request(EVERYONE).download
    for n in (0, 6):
        alone = simulation.coordinator.model_request(EVERYONE[n : n + 1]).download
        assert_same(named(alone.take(0).record), named(everybody.take(n).record), 1e-12)


@over_methods
def test_a_score_does_not_depend_on_who_is_scored_beside_the_client(
    algorithm: AnyAlgorithm,
) -> None:
    simulation = trained(algorithm)
    whole = small_federation()
    (request,) = simulation.coordinator.score_requests("test")
    together = simulation.fleet.score(request)
    for n in (1, 6):
        alone = LocalFleet(
            algorithm,
            simulation.task,
            whole.only([n]),
            Weave(1),
            seed=simulation.seed,
            numbers=EVERYONE[n : n + 1],
        )
        kept = simulation.clients.memory
        row = {f"memory.{k}": t[n : n + 1] for k, t in kept.columns.items()}
        seen = {"seen": torch.zeros(1, dtype=torch.int64)}
        asked = request.only(n == EVERYONE)
        alone.restore(row | seen, asked, "here")
        for kind, sums in alone.score(asked).items():
            expected = named(take(together[kind], slice(n, n + 1)))
            assert_same(named(sums), expected, 1e-9)


def sharded(simulation: Simulation, shards: list[Any]) -> Simulation:
    simulation.fleet = ShardedFleet(shards, SHARDS)
    return simulation


def shard_of(algorithm: AnyAlgorithm, numbers: Tensor, *, can_lose: bool) -> LocalFleet:
    return LocalFleet(
        algorithm,
        small_task(is_normalised=algorithm.name in NORMALISED),
        small_federation().only(numbers.tolist()),
        Weave(COUNT),
        seed=3,
        numbers=numbers,
        can_lose=can_lose,
    )


def models(simulation: Simulation) -> dict[str, Tensor]:
    """What can be seen of a run from the server's side, and everybody's model."""
    (request,) = simulation.coordinator.score_requests("test")
    scores = simulation.fleet.score(request)
    return (
        {f"server.{n}": t for n, t in named(simulation.state.server).items()}
        | {"taken": simulation.state.taken, "personal": simulation.personal(EVERYONE)}
        | {f"{k}.{n}": t for k, sums in scores.items() for n, t in named(sums).items()}
    )


def worker(pipe: Connection) -> None:
    """A process with a shard of the clients, which does what it is told."""
    torch.set_num_threads(1)
    fleet: Any = None
    while True:
        name, values = pickle.loads(pipe.recv_bytes())
        if name == "shard":
            fleet = shard_of(*values, can_lose=False)
            answer: Any = fleet.roster
        else:
            answer = getattr(fleet, name)(*values)
        pipe.send_bytes(pickle.dumps(answer))


class ProcessFleet:
    """A fleet in another process: what crosses is bytes."""

    def __init__(self, pipe: Connection, algorithm: AnyAlgorithm, numbers: Tensor):
        self.pipe, self.numbers = pipe, numbers
        self.roster = self._call("shard", algorithm, numbers)

    def send(self, order: Order) -> None:
        self._call("send", order)

    def receive(self) -> Arrivals:
        arrivals: Arrivals = self._call("receive")
        return arrivals

    def client_log(self, clients: Tensor) -> Any:
        return self._call("client_log", clients)

    def score(self, request: ScoreRequest) -> Any:
        return self._call("score", request)

    def personal(self, request: ModelRequest) -> Any:
        return self._call("personal", request)

    def _call(self, name: str, *values: Any) -> Any:
        self.pipe.send_bytes(pickle.dumps((name, values)))
        return pickle.loads(self.pipe.recv_bytes())


@pytest.fixture(scope="module")
def pipes() -> Iterator[list[Connection]]:
    """Three processes that wait for a shard."""
    context = multiprocessing.get_context("spawn")
    ours, workers = [], []
    for _ in SHARDS:
        mine, theirs = context.Pipe()
        process = context.Process(target=worker, args=(theirs,), daemon=True)
        process.start()
        ours.append(mine)
        workers.append(process)
    yield ours
    for process in workers:
        process.terminate()
        process.join()


@over_variants_in_time
def test_three_fleets_give_what_one_gives(algorithm: AnyAlgorithm) -> None:
    alone = set_up(algorithm, Weave(COUNT), rate=0.7)
    shards = [shard_of(algorithm, numbers, can_lose=False) for numbers in SHARDS]
    cut = sharded(set_up(algorithm, Weave(COUNT), rate=0.7), shards)
    rounds(alone, 2)
    rounds(cut, 2)
    assert_same(models(cut), models(alone))
    assert cut.fleet.roster.names == alone.fleet.roster.names


@pytest.mark.slow
@over_variants_in_time
def test_three_fleets_in_three_processes_give_what_one_gives(
    algorithm: AnyAlgorithm, pipes: list[Connection]
) -> None:
    alone = set_up(algorithm, Weave(COUNT), rate=0.7)
    shards = [
        ProcessFleet(pipe, algorithm, numbers)
        for pipe, numbers in zip(pipes, SHARDS, strict=True)
    ]
    cut = sharded(set_up(algorithm, Weave(COUNT), rate=0.7), shards)
    rounds(alone, 2)
    rounds(cut, 2)
    assert_same(models(cut), models(alone))


def test_a_secret_is_the_clients_own() -> None:
    """Other noise than any that follows from the seed, and none that depends on it."""

    def streams(seed: int, secret: int | None) -> dict[str, list[int]]:
        fleet = LocalFleet(
            FedAvg(),
            small_task(),
            small_federation(),
            Weave(1),
            seed=seed,
            secret=secret,
        )
        purposes = ("secret", "client", "train")
        keys = fleet._keys(purposes, EVERYONE, 4, 0)
        return dict(zip(purposes, keys.tolist(), strict=True))

    own, other_seed = streams(1, secret=2**200 + 7), streams(2, secret=2**200 + 7)
    assert own["secret"] == other_seed["secret"]
    assert own["client"] != other_seed["client"]
    assert own["secret"] != streams(1, secret=2**200 + 8)["secret"]
    derived = streams(1, None)
    assert len({*derived["secret"], *derived["client"], *derived["train"]}) == 3 * COUNT


@over_methods
def test_fleets_around_fleets_come_to_the_same(algorithm: AnyAlgorithm) -> None:
    """Who fails is drawn by the client's number, wherever the faults are put."""
    faults = Faults(absent=0.3, lost=0.3)

    def shards() -> list[Any]:
        return [shard_of(algorithm, numbers, can_lose=True) for numbers in SHARDS]

    outside = set_up(algorithm, Weave(COUNT))
    outside.fleet = FaultyFleet(ShardedFleet(shards(), SHARDS), faults, seed=3)
    inside = set_up(algorithm, Weave(COUNT))
    faulty = [FaultyFleet(shard, faults, seed=3) for shard in shards()]
    inside.fleet = ShardedFleet(faulty, SHARDS)
    one = set_up(algorithm, Weave(COUNT), faults=faults)
    for simulation in (outside, inside, one):
        rounds(simulation, 2)
    for simulation in (outside, inside, one):
        (request,) = simulation.coordinator.score_requests("test")
        simulation.fleet.score(request)  # of one model perhaps, whoever holds it
    assert_same(outside.fleet.save(), one.fleet.save())
    assert_same(models(outside), models(one))
    assert_same(models(inside), models(one))


def test_outcomes_of_three_fleets_are_those_of_one() -> None:
    """In the order of the clients' numbers, with what adaptation took each of them."""
    algorithm = FedAvg(tuning=2)
    one = trained(algorithm)
    shards = [shard_of(algorithm, numbers, can_lose=False) for numbers in SHARDS]
    three = sharded(set_up(algorithm, Weave(COUNT)), shards)
    rounds(three, 1)
    for clients in (None, torch.tensor([1, 2, 8])):
        expected = one.outcomes("test", clients)
        found = three.outcomes("test", clients)
        assert expected is not None
        assert found is not None
        assert len(expected.rows)
        assert int(expected.work.sum()) > 0
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.equal(mine, theirs)


def test_models_are_adapted_once_for_all_parts_and_anew_after_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = trained(FedAvg(tuning=2))
    adapted = []
    adapt = simulation.clients.adapt

    def counted(request: ModelRequest) -> Any:
        adapted.append(len(request.clients))
        return adapt(request)

    monkeypatch.setattr(simulation.clients, "adapt", counted)
    first = simulation.evaluate("test").scores[-1]
    simulation.evaluate("train")
    simulation.outcomes("test")
    assert adapted == [COUNT]
    few = simulation.evaluate("test", torch.tensor([1, 4])).scores[-1]
    assert few.of().tolist() == first.of()[[1, 4]].tolist()
    rounds(simulation, 1)
    simulation.evaluate("test")
    assert adapted == [COUNT, 2, COUNT]
    again = trained(FedAvg(tuning=2))
    rounds(again, 1)
    expected = again.evaluate("test").scores[-1].of("loss")
    numpy.testing.assert_array_equal(
        simulation.evaluate("test").scores[-1].of("loss"), expected
    )


def test_outcomes_stay_at_home_where_one_fleet_keeps_them() -> None:
    class Reserved(FaultyFleet):
        def outcomes(self, request: ScoreRequest) -> None:
            return None

    algorithm = FedAvg()
    shards = [shard_of(algorithm, numbers, can_lose=False) for numbers in SHARDS]
    fleets = [Reserved(shards[0], Faults()), *shards[1:]]
    simulation = sharded(set_up(algorithm, Weave(COUNT)), fleets)
    assert simulation.outcomes("test") is None
    history = History(simulation)
    history.record_outcomes(is_last=True)
    assert history.outcomes == {}


def test_a_fleet_of_fleets_may_have_nobody_who_arrives() -> None:
    simulation = set_up(FedAvg(), Weave(COUNT))
    shards = [shard_of(FedAvg(), numbers, can_lose=True) for numbers in SHARDS]
    simulation.fleet = FaultyFleet(ShardedFleet(shards, SHARDS), Faults(lost=1.0))
    cost = simulation.run_exchange()
    assert cost is not None
    assert (cost.participants, cost.missing) == (0, COUNT)


@pytest.mark.slow
@over_methods
def test_a_score_does_not_depend_on_how_many_are_asked_at_a_time(
    algorithm: AnyAlgorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = trained(algorithm)
    together = simulation.evaluate("test")
    monkeypatch.setattr("fedloom.server.coordinator._REQUEST_BYTES", 1)
    apart = simulation.evaluate("test")
    for expected, scores in zip(together.scores, apart.scores, strict=True):
        for name, values in expected.values.items():
            numpy.testing.assert_allclose(scores.values[name], values, rtol=1e-9)
    assert (apart.bytes_down, apart.bytes_up) == (
        together.bytes_down,
        together.bytes_up,
    )


def test_shards_are_restored_all_or_none() -> None:
    algorithm = Ditto(lr=0.1)
    shards = [shard_of(algorithm, numbers, can_lose=False) for numbers in SHARDS]
    cut = sharded(set_up(algorithm, Weave(COUNT)), shards)
    rounds(cut, 1)
    early = cut.fleet.save()
    rounds(cut, 1)
    late = cut.fleet.save()
    damaged = early | {"memory.personal": torch.zeros(1)}
    request = cut.coordinator.model_request(EVERYONE)
    with pytest.raises(MessageError, match="personal"):
        cut.fleet.restore(damaged, request, "here")
    assert_identical(cut.fleet.save(), late)
    cut.fleet.restore(early, request, "here")
    assert_identical(cut.fleet.save(), early)


def test_a_fleet_refuses_clients_that_it_does_not_hold() -> None:
    shard = shard_of(FedAvg(), SHARDS[2], can_lose=False)
    order = set_up(FedAvg()).coordinator.next_order()
    with pytest.raises(MessageError, match=r"clients \[3\] were called"):
        shard.send(order.only(EVERYONE == 3))
    for numbers in ([4, 1, 7], [1, 1, 2], [1, 2]):
        with pytest.raises(ValueError, match="needs as many numbers, ascending"):
            LocalFleet(
                FedAvg(),
                small_task(),
                small_federation().only([1, 2, 3]),
                Weave(1),
                numbers=torch.tensor(numbers),
            )


def test_uploads_that_may_get_lost_need_clients_that_keep_both_memories() -> None:
    shard = shard_of(FedAvg(), SHARDS[0], can_lose=False)
    with pytest.raises(ValueError, match="can_lose=True"):
        FaultyFleet(shard, Faults(lost=0.1))
