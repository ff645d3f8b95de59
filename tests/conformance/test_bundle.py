"""Laws of runs that go on together: each comes to what it comes to alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from variants import (
    COUNT,
    assert_identical,
    assert_same,
    over_methods,
    over_variants_in_time,
    set_up,
    small_federation,
    standing,
)

from fedloom.algorithms import FedAvg
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ContractError, NumericalError
from fedloom.core.scaling import Scaling
from fedloom.engine.job import Samples
from fedloom.engine.weave import Weave
from fedloom.privacy import private
from fedloom.server.simulation import Simulation, SimulationBundle


def simulations(algorithm: AnyAlgorithm, rate: float = 0.5) -> list[Simulation]:
    """Two runs that differ in seed, start and labels."""
    return [
        set_up(
            algorithm,
            Weave(COUNT),
            seed=seed,
            rate=rate,
            federation=small_federation(relabelled=seed),
            model_seed=seed,
        )
        for seed in (3, 4)
    ]


def advance(bundle: SimulationBundle, rounds: int) -> None:
    for _ in range(rounds * bundle.simulations[0].algorithm.exchanges):
        bundle.run_exchange()


@over_variants_in_time
def test_runs_in_a_bundle_come_to_what_they_come_to_alone(
    algorithm: AnyAlgorithm,
) -> None:
    bundle = SimulationBundle(simulations(algorithm), Weave(7))
    advance(bundle, 2)
    for together, alone in zip(bundle.simulations, simulations(algorithm), strict=True):
        for _ in range(2 * algorithm.exchanges):
            alone.run_exchange()
        assert_same(standing(together), standing(alone))


@pytest.mark.parametrize("change", [{"clip": 0.3}, {"clip": 0.1, "most_samples": 5.0}])
def test_runs_whose_clients_bound_differently_are_no_bundle(
    change: dict[str, Any],
) -> None:
    first, other, same = (
        set_up(private(FedAvg(), noise=noise, delta=1e-3, **bound), Weave(COUNT))
        for noise, bound in ((1.0, {"clip": 0.1}), (1.0, change), (9.0, {"clip": 0.1}))
    )
    with pytest.raises(ContractError, match="bundles of their own"):
        SimulationBundle([first, other], Weave(COUNT))
    with pytest.raises(ContractError, match="bundles of their own"):
        SimulationBundle([first, set_up(FedAvg(), Weave(COUNT))], Weave(COUNT))
    # Noise is the server's.
    advance(SimulationBundle([first, same], Weave(COUNT)), 1)


def standardised(algorithm: AnyAlgorithm) -> list[Simulation]:
    """The same two runs, whose inputs are standardised by constants of their own."""
    pair = simulations(algorithm)
    for n, simulation in enumerate(pair):
        task = simulation.task
        task.scales_floats = True
        features = simulation.federation.dataset.inputs[0].shape[1:]
        shift = torch.full(features, 0.3 * n, dtype=task.dtype)
        task.scaling = Scaling(shift, 1.0 + shift)
    return pair


@over_methods
def test_runs_with_constants_of_their_own_come_to_what_they_come_to_alone(
    algorithm: AnyAlgorithm,
) -> None:
    bundle = SimulationBundle(standardised(algorithm), Weave(7))
    first, second = bundle.simulations
    assert second.task.has_constants_of(first.task)
    advance(bundle, 1)
    for together, alone, plain in zip(
        bundle.simulations,
        standardised(algorithm),
        simulations(algorithm),
        strict=True,
    ):
        for _ in range(algorithm.exchanges):
            alone.run_exchange()
            plain.run_exchange()
        assert_same(standing(together), standing(alone))
    with pytest.raises(AssertionError):
        assert_same(standing(together), standing(plain))


@over_methods
def test_a_round_of_a_bundle_has_the_cost_of_each_run(algorithm: AnyAlgorithm) -> None:
    bundle = SimulationBundle(simulations(algorithm), Weave(7))
    for _ in range(algorithm.exchanges):
        closed = bundle.run_exchange()
    for n, alone in enumerate(simulations(algorithm)):
        for _ in range(algorithm.exchanges):
            cost = alone.run_exchange()
        assert cost is not None
        assert closed[n].bytes_down == cost.bytes_down
        assert closed[n].bytes_up == cost.bytes_up
        assert closed[n].steps == cost.steps
        assert closed[n].loss == pytest.approx(cost.loss, rel=1e-10)


def test_a_run_that_diverges_stops_alone_and_is_named() -> None:
    """Its server is made to send numbers that overflow; the other run goes on."""
    pair = simulations(FedAvg())
    bundle = SimulationBundle(pair, Weave(7))
    server = pair[0].state.server
    pair[0].state.server = server._replace(shared=torch.full_like(server.shared, 1e308))
    before = standing(pair[0])
    assert list(bundle.run_exchange()) == [1]
    assert isinstance(bundle.failures[0], NumericalError)
    assert bundle.going == [1]
    assert_identical(standing(pair[0]), before)
    assert pair[0].clients.prepared is None  # it is not trained again
    bundle.run_exchange()
    assert pair[1].state.round == 2


def test_equal_data_are_held_once() -> None:
    same = [set_up(FedAvg(), seed=seed).clients.samples for seed in (1, 2)]
    joined = Samples.joined(same)
    assert joined.targets is same[0].targets
    other = set_up(FedAvg(), federation=small_federation(relabelled=1)).clients.samples
    joined = Samples.joined([same[0], other])
    assert len(joined.targets) == 2 * len(other.targets)
    at = int(joined.offsets[COUNT + 1])
    assert torch.equal(
        joined.targets[joined.indices[at : at + 3]],
        other.targets[other.indices[1:4]],
    )
