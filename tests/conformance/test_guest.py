"""Laws of newcomers: a guest is a client that was always there and never sampled."""

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
    over_variants,
    small_federation,
    small_task,
    standing,
)

from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.errors import ContractError, DataError
from fedloom.core.records import named, take
from fedloom.engine.evaluate import evaluate
from fedloom.engine.guest import Guest
from fedloom.engine.job import AnyAlgorithm
from fedloom.engine.loop import Loop
from fedloom.engine.rounds import Simulation

LAST = COUNT - 1
COUNTS_EVERYBODY = {"scaffold", "fedamp", "fedfomo", "pfedhn"}
"""Methods whose server depends on how many clients there are, sampled or not: it
divides by their number, weighs them all, or draws for each."""


class Absent(Sampling):
    """Everybody takes part but the last client."""

    def draw(self, population: int, seed: int, round: int) -> NDArray[np.int64]:
        return np.arange(population - 1, dtype=np.int64)


def part_of(whole: Federation, clients: list[int]) -> Federation:
    """Some clients of a federation, on the same data."""
    lists = [
        Ragged.of([part[n] for n in clients])
        for part in (whole.train, whole.validation, whole.test)
    ]
    names = tuple(whole.names[n] for n in clients)
    return Federation(whole.dataset, *lists, names, whole.teams[clients])


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


def host_and_guest(algorithm: AnyAlgorithm) -> tuple[Simulation, Guest]:
    whole = small_federation()
    host = trained(algorithm, part_of(whole, list(range(LAST))), Sampling())
    return host, Guest(host, part_of(whole, [LAST]), team=int(whole.teams[LAST]))


@over_variants
def test_a_guest_is_met_like_a_client_that_was_never_sampled(
    algorithm: AnyAlgorithm,
) -> None:
    _, guest = host_and_guest(algorithm)
    there = trained(algorithm, small_federation(), Absent())
    there.state.server = guest.state.server
    everybody = torch.arange(COUNT)
    _, down, crew = there._assemble(everybody, everybody < LAST, "train")
    expected = take(there.runner.run(there.job, down, crew), slice(LAST, None))
    turn = guest.prepare()
    found = guest.runner.run(guest.job, turn.down, turn.crew)
    assert_identical(named(found), named(expected))


@over_variants
def test_a_server_has_room_as_if_the_guest_had_always_been_there(
    algorithm: AnyAlgorithm,
) -> None:
    host, guest = host_and_guest(algorithm)
    if algorithm.name not in COUNTS_EVERYBODY:
        there = trained(algorithm, small_federation(), Absent())
        assert_identical(named(guest.state.server), named(there.state.server))
    for name, kept in named(host.state.server).items():
        place = tuple(slice(side) for side in kept.shape)
        assert torch.equal(named(guest.state.server)[name][place], kept)


@over_methods
def test_a_visit_leaves_the_host_as_it_was(algorithm: AnyAlgorithm) -> None:
    host, guest = host_and_guest(algorithm)
    before = {name: tensor.clone() for name, tensor in standing(host).items()}
    assert guest.visit() > 0
    guest.adapt()
    assert_identical(standing(host), before)


@over_methods
def test_the_model_of_a_guest_is_the_one_that_is_scored(
    algorithm: AnyAlgorithm,
) -> None:
    _, guest = host_and_guest(algorithm)
    guest.visit()
    theta = guest.adapt().result[0]
    chosen = torch.as_tensor(guest.federation.test[0])
    data = guest.federation.dataset
    inputs = tuple(x[chosen] for x in data.inputs)
    met = guest.task.measure(theta, inputs, data.targets[chosen])
    scores = {found.kind: found for found in evaluate(guest, "test")}
    assert scores["personal"].loss[0] == pytest.approx(
        float(met.loss.mean()), rel=1e-12
    )
    assert len(scores["personal"].loss) == 1


def test_a_server_that_cannot_grow_says_so() -> None:
    from fedloom.algorithms import FedAvg

    class Odd(FedAvg):
        def init_server(self, population: Any) -> Any:
            server = super().init_server(population)
            return server._replace(shared=server.shared.repeat(population.count * 2))

    host, _ = host_and_guest(FedAvg())
    host.algorithm = Odd()
    host.state.server = host.state.server._replace(shared=torch.zeros(5))
    with pytest.raises(ContractError, match="cannot be added to a trained run"):
        Guest(host, part_of(small_federation(), [LAST]))


def test_a_guest_is_one_client_of_a_known_team() -> None:
    from fedloom.algorithms import FedAvg

    host, _ = host_and_guest(FedAvg())
    with pytest.raises(DataError, match="one client, found 2"):
        Guest(host, part_of(small_federation(), [0, 1]))
    with pytest.raises(DataError, match="teams 0 to 4"):
        Guest(host, part_of(small_federation(), [LAST]), team=5)
