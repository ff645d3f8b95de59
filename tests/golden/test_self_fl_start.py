"""The start of Self-FL beyond the shared model, Eq. (10): where it is stable.

Without training, and with weights that are all equal, a round with n of M clients and k
precisions in its sums gives, with c = 1 / (k - 1) and p = n / M,

    theta^t = (1 + c) theta^{t-1} - c theta^{t-tau},    P(tau = j) = p (1 - p)^{j-1}

on average over who is drawn. theta^t = z^t solves it if 1 = (1 + c) / z - c p / (z - 1
+ p), that is for z = 1 and for z = (1 + c) (1 - p) = k / (k - 1) (1 - n / M), which is
above 1 exactly when n k < M.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.algorithms import REGISTRY
from fedloom.algorithms.self_fl import stale_start
from fedloom.clients.cohorts import Sampling
from fedloom.clients.federation import Federation
from fedloom.clients.ragged import Ragged
from fedloom.config import parse
from fedloom.core.algorithm import Cohort, Population
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.engine.weave import Weave
from fedloom.runs import run_config
from fedloom.server.simulation import Simulation

variants = pytest.mark.parametrize(
    "name", ["self-fl", "self-fl-augmented", "self-fl-cluster"]
)


def growth(active: int, clients: int, terms: int) -> float:
    """The largest root of the recursion, numerically.

    z (z - 1 + p) = (1 + c) (z - 1 + p) - c p z, as a quadratic in z.
    """
    c, p = 1 / (terms - 1), active / clients
    roots = np.roots([1.0, p - 1 - (1 + c) + c * p, (1 + c) * (1 - p)])
    return float(roots.real.max())


@pytest.mark.parametrize("clients", [20, 50, 99, 200, 1000])
def test_a_root_is_above_one_exactly_when_the_rule_says_so(clients: int) -> None:
    for active in range(2, clients):
        if active**2 != clients:
            is_growing = growth(active, clients, active) > 1 + 1e-9
            assert is_growing == (active**2 < clients), active
        is_growing = growth(active, clients, 5) > 1 + 1e-9
        assert is_growing == (active * 5 < clients), active
        assert growth(active, clients, clients) < 1 + 1e-6


@pytest.mark.parametrize(("active", "root"), [(2, 1.8), (3, 1.275), (4, 1.0667)])
def test_the_growth_of_twenty_clients_by_hand(active: int, root: float) -> None:
    assert growth(active, 20, active) == pytest.approx(root, abs=1e-4)


def cohort(last: Tensor, active: int, round_: int) -> Cohort:
    sizes = torch.ones(len(last), dtype=torch.float64)
    teams = torch.zeros_like(last)
    everyone = Population(None, None, sizes, teams, 1.0)  # type: ignore[arg-type]
    rows = torch.arange(active)
    return Cohort(rows, sizes[rows], teams[rows], round_, 0, everyone)


@pytest.mark.parametrize(
    ("active", "met", "arrived", "terms", "expected"),
    [
        (4, 17, 4, 4, False),
        (4, 16, 4, 4, True),
        (4, 10, 4, 4, True),  # 10 of the 20 were ever there
        (5, 20, 3, 5, False),  # 2 of 5 got lost in the round before
        (2, 20, 2, 20, True),  # the sums run over the population
        (10, 20, 3, 5, False),  # the sums run over clusters
    ],
)
def test_a_round_with_too_few_clients_is_not_corrected(
    active: int, met: int, arrived: int, terms: int, expected: bool
) -> None:
    last = torch.full((20,), -1)
    last[:met] = 6
    last[:arrived] = 8
    here = cohort(last, active, 9)
    count = torch.tensor(terms)
    skip = stale_start.corrects("skip", last, here, count)
    assert skip.tolist() == [expected] * active
    assert stale_start.corrects("correct", last, here, count).all()
    recent = stale_start.corrects("recent", last, here, count)
    assert recent.tolist() == [m < arrived for m in range(active)]


def idle(algorithm: Any, *, clients: int = 20) -> Simulation:
    """Clients whose optima are -1 and 1; the parameter starts at 0."""
    lists = [np.arange(a, b) for a, b in pairwise(range(clients + 1))]
    nothing = [np.arange(0)] * clients
    federation = Federation(
        dataset=Dataset(
            name="constants",
            inputs=(torch.ones((clients, 1), dtype=torch.float64),),
            targets=torch.tensor([-1.0, 1.0] * (clients // 2), dtype=torch.float64),
            classes=None,
        ),
        train=Ragged.of(lists),
        validation=Ragged.of(nothing),
        test=Ragged.of(nothing),
        names=tuple(map(str, range(clients))),
        teams=np.zeros(clients, dtype=np.int64),
    )
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    task = Task(model, "squared-error", dtype=torch.float64)
    return Simulation(
        algorithm, task, federation, Weave(2), sampling=Sampling(rate=0.1), seed=1
    )


def shared_after(rounds: int, name: str, stale_init: str) -> float:
    method = REGISTRY[name](lr=1e-3, steps=1, stale_init=stale_init)
    simulation = idle(method)
    for _ in range(rounds):
        simulation.run_exchange()
    return abs(float(simulation.shared()))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["self-fl", "self-fl-augmented"])
def test_as_the_paper_has_it_two_of_twenty_clients_run_away(name: str) -> None:
    """From 1e-3 on by 1.8 a round, once clients are warm, after about 20 rounds."""
    assert shared_after(60, name, "correct") > 100


@pytest.mark.slow
@variants
@pytest.mark.parametrize("stale_init", ["skip", "recent"])
def test_two_of_twenty_clients_stay_between_their_optima(
    name: str, stale_init: str
) -> None:
    assert shared_after(60, name, stale_init) < 1


def score(algorithm: dict[str, Any]) -> float:
    """Mean accuracy of the clients' own models after 150 rounds with 2 of 20."""
    config = {
        "rounds": 150,
        "evaluate_every": 150,
        "model": {"name": "mlp", "hidden": [32]},
        "partition": {"name": "label-skew", "classes": 5, "sizes": "random"},
        "sampling": {"rate": 0.1},
        "algorithm": algorithm,
    }
    return float(np.nanmean(run_config(parse(config)).scores()))


@pytest.fixture(scope="module")
def tuned_fedavg() -> float:
    return score({"name": "fedavg", "tuning": 1})


@pytest.mark.slow
@variants
def test_two_of_twenty_clients_learn_for_many_rounds(
    name: str, tuned_fedavg: float
) -> None:
    """As the paper has it, numbers are not finite after some 120 rounds."""
    assert score({"name": name}) > tuned_fedavg - 0.02
