"""Errors of public implementations that the engine could have: each would fail here.

docs/known-errors.md lists all that we know of, with the test that catches each.
"""

from __future__ import annotations

import pytest
import torch
from quadratic import (
    CURVATURES,
    OPTIMA,
    START,
    assert_exact,
    line,
    parabolas,
    personal,
    rounds,
    weave_of,
)

from fedloom.algorithms import FedAvg, FedProx, Local
from fedloom.clients.cohorts import Sampling
from fedloom.engine.loop import Loop
from fedloom.server.simulation import Simulation


def of_seed(seed: int, rate: float = 1.0) -> Simulation:
    return Simulation(
        FedAvg(lr=0.1, batch_size=1),
        line(),
        parabolas(),
        Loop(),
        sampling=Sampling(rate=rate),
        seed=seed,
    )


def test_training_data_are_shuffled() -> None:
    """In a fixed order the seed would change nothing; SGD's order changes theta."""
    first, second = (rounds(of_seed(seed), 1).shared() for seed in (0, 1))
    assert first is not None
    assert second is not None
    assert not torch.equal(first, second)


def test_cohorts_follow_the_seed_of_the_run() -> None:
    cohorts = []
    for seed in (0, 1):
        simulation, met = of_seed(seed, rate=0.5), []
        for _ in range(8):
            simulation.run_exchange()
            assert simulation.last is not None
            met.append(simulation.last.clients.tolist())
        cohorts.append(met)
    assert cohorts[0] != cohorts[1]


@pytest.mark.parametrize("method", [Local, FedAvg, FedProx])
def test_a_declared_regulariser_is_added_to_the_gradient(method: type) -> None:
    """One full step from theta_0: theta_0 - eta (h_k (theta_0 - m_k) + decay theta_0).

    FedProx's own pull is zero there, at the shared model.
    """
    lr, decay = 0.1, 0.7
    settings = {"lr": lr, "batch_size": 10, "steps": 1, "weight_decay": decay}
    simulation = weave_of(method(**settings))
    after = START - lr * (CURVATURES * (START - OPTIMA) + decay * START)
    simulation.send()
    uploads = simulation.clients.receive().uploads
    moved = personal(simulation) if method is Local else uploads.shared[:, 0]
    assert_exact(moved, after)
