"""Laws of newcomers: one is a client that was always there and never sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from variants import (
    COUNT,
    NORMALISED,
    assert_identical,
    over_methods,
    over_variants_in_time,
    small_federation,
    small_task,
    standing,
)

from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ContractError, DataError
from fedloom.core.records import named
from fedloom.engine.loop import Loop
from fedloom.privacy.private import Private
from fedloom.server.simulation import Simulation
from fedloom.server.visit import Visit

LAST = COUNT - 1
COUNTS_EVERYBODY = {"scaffold", "fedamp", "fedfomo", "pfedhn"}
"""Methods whose server depends on how many clients there are, sampled or not: it
divides by their number, weighs them all, or draws for each."""


class Absent(Sampling):
    """Everybody takes part but the last client."""

    def draw(self, population: int, seed: int, round: int) -> NDArray[np.int64]:
        return np.arange(population - 1, dtype=np.int64)


def trained(
    algorithm: AnyAlgorithm, federation: Federation, sampling: Sampling
) -> Simulation:
    task = small_task(is_normalised=algorithm.name in NORMALISED)
    simulation = Simulation(
        algorithm, task, federation, Loop(), sampling=sampling, seed=3
    )
    for _ in range(2 * algorithm.exchanges):
        simulation.run_exchange()
    return simulation


def host_and_visit(algorithm: AnyAlgorithm) -> tuple[Simulation, Visit]:
    whole = small_federation()
    host = trained(algorithm, whole.only(range(LAST)), Sampling())
    return host, Visit(host, whole.only([LAST]), team=int(whole.teams[LAST]))


@over_variants_in_time
def test_a_newcomer_is_met_like_a_client_that_was_never_sampled(
    algorithm: AnyAlgorithm,
) -> None:
    _, visit = host_and_visit(algorithm)
    there = trained(algorithm, small_federation(), Absent())
    there.state.server = visit.coordinator.state.server
    # Where everybody trains in every round, the last client forgets that it did.
    there.clients.memory.seen[LAST] = False
    everybody = torch.arange(COUNT)
    for exchange in range(algorithm.exchanges):
        there.state.exchange = exchange
        there.fleet.send(there.coordinator.order(everybody, everybody < 0))
        arrivals = there.fleet.receive()
    visit.train()
    report = named(visit.clients.client_log(everybody[LAST:]))
    assert_identical(report, named(there.fleet.client_log(everybody[LAST:])))
    assert int(arrivals.reports.steps[LAST]) > 0
    table = there.clients.memory
    for name, column in visit.clients.memory.columns.items():
        kept = table.columns[name][table.places[LAST]]
        assert torch.equal(column[0], kept), name


@over_variants_in_time
def test_a_server_has_room_as_if_the_visit_had_always_been_there(
    algorithm: AnyAlgorithm,
) -> None:
    host, visit = host_and_visit(algorithm)
    # A private sum is divided by what everybody weighs, there or not.
    if algorithm.name not in COUNTS_EVERYBODY and not isinstance(algorithm, Private):
        there = trained(algorithm, small_federation(), Absent())
        assert_identical(
            named(visit.coordinator.state.server), named(there.state.server)
        )
    for name, kept in named(host.state.server).items():
        place = tuple(slice(side) for side in kept.shape)
        assert torch.equal(named(visit.coordinator.state.server)[name][place], kept)


@over_methods
def test_a_visit_leaves_the_host_as_it_was(algorithm: AnyAlgorithm) -> None:
    host, visit = host_and_visit(algorithm)
    before = {name: tensor.clone() for name, tensor in standing(host).items()}
    assert visit.train() > 0
    visit.adapt()
    assert_identical(standing(host), before)


@over_methods
def test_the_model_of_a_visit_is_the_one_that_is_scored(
    algorithm: AnyAlgorithm,
) -> None:
    _, visit = host_and_visit(algorithm)
    visit.train()
    theta, _ = visit.adapt()
    chosen = torch.as_tensor(visit.federation.test[0])
    data = visit.federation.dataset
    inputs = tuple(x[chosen] for x in data.inputs)
    met = visit.task.measure(theta, inputs, data.targets[chosen])
    scores = {found.kind: found for found in visit.evaluate()}
    assert scores["personal"].of("loss")[0] == pytest.approx(
        float(met.loss.mean()), rel=1e-12
    )
    assert len(scores["personal"].samples) == 1


def test_a_server_that_cannot_grow_says_so() -> None:
    from fedloom.algorithms import FedAvg

    class Odd(FedAvg):
        def init_server(self, population: Any) -> Any:
            server = super().init_server(population)
            return server._replace(shared=server.shared.repeat(population.count * 2))

    host, _ = host_and_visit(FedAvg())
    host.coordinator.algorithm = Odd()
    host.state.server = host.state.server._replace(shared=torch.zeros(5))
    with pytest.raises(ContractError, match="cannot be added to a trained run"):
        Visit(host, small_federation().only([LAST]))


def test_a_visit_is_one_client_of_a_known_team() -> None:
    from fedloom.algorithms import FedAvg

    host, _ = host_and_visit(FedAvg())
    with pytest.raises(DataError, match="one client, found 2"):
        Visit(host, small_federation().only([0, 1]))
    with pytest.raises(DataError, match="teams 0 to 4"):
        Visit(host, small_federation().only([LAST]), team=5)
