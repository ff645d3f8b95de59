"""A federation of parabolas, for problems that can be solved with pen and paper.

The model is y = theta x without a bias, the loss (theta x - z)^2. All inputs of client
k are the same number a_k and its targets have the mean zbar_k, so that the gradient on
all of its data is

    2 a_k (a_k theta - zbar_k) = h_k (theta - m_k),   h_k = 2 a_k^2, m_k = zbar_k / a_k

h_k is the client's curvature and m_k its optimum. One step of size eta is affine:

    theta <- theta - eta h_k (theta - m_k) = m_k + (1 - eta h_k) (theta - m_k)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

SIZES = (4, 9, 2, 6)
INPUTS = (1.0, 0.5, 1.5, 0.8)
START = 0.25
"""theta_0, the same for all."""
PLAIN = Weave(3, native=False)
"""Steps as methods write them: one method's can be another's to the last bit."""


def _targets() -> list[np.ndarray[Any, Any]]:
    draw = np.random.default_rng(4)
    return [draw.normal(n, 0.5, size) for n, size in enumerate(SIZES)]


CURVATURES = torch.tensor([2.0 * a * a for a in INPUTS], dtype=torch.float64)
"""h_k."""
OPTIMA = torch.tensor(
    [z.mean() / a for z, a in zip(_targets(), INPUTS, strict=True)],
    dtype=torch.float64,
)
"""m_k."""
SHARES = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
"""p_k = n_k / n."""


def parabolas() -> Federation:
    cuts = np.cumsum([0, *SIZES])
    none = [np.arange(0)] * len(SIZES)
    return Federation(
        dataset=Dataset(
            name="parabolas",
            inputs=(torch.tensor(np.repeat(INPUTS, SIZES))[:, None],),
            targets=torch.tensor(np.concatenate(_targets())),
        ),
        train=Ragged.of(np.split(np.arange(cuts[-1]), cuts[1:-1])),
        validation=Ragged.of(none),
        test=Ragged.of(none),
        names=tuple("abcd"),
        teams=np.zeros(len(SIZES), dtype=np.int64),
    )


def line() -> Task:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, START)
    return Task(model, "squared-error", dtype=torch.float64)


def weave_of(algorithm: Any, runner: Any = None, **sampling: Any) -> Simulation:
    """A run on the parabolas, before its first round."""
    runner = Loop() if runner is None else runner
    return Simulation(
        algorithm, line(), parabolas(), runner, sampling=Sampling(**sampling)
    )


def rounds(simulation: Simulation, count: int) -> Simulation:
    for _ in range(count):
        simulation.run_exchange()
    return simulation


def personal(simulation: Simulation) -> Tensor:
    """(clients,) the one parameter of every personal model."""
    return simulation.personal(torch.arange(len(SIZES)))[:, 0]


def shared(simulation: Simulation) -> Tensor:
    """The one parameter of the shared model."""
    theta = simulation.shared()
    assert theta is not None
    return theta[0]


def assert_exact(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
