"""pFedMT on quadratics, against its closed form and against Alg. 1 in plain Python.

Client j has f_j(theta) = a/2 ||theta - c_j||^2 with a = 2 and full batches, so that
every map below is linear. L steps of size alpha from w_i leave the fraction
q = (1 - alpha (a + lambda))^L of the way to the proximal point (a c_j + lambda w)/(a +
lambda), hence with s = (1 - q) a / (a + lambda)

    theta_j = w + s (c_j - w)

One team iteration is w <- w - eta [gamma (w - x) + lambda s (w - cbar_i)]. With b =
lambda s and r = 1 - eta (gamma + b), K of them from w = x give

    w_i = x + (1 - r^K) b / (gamma + b) (cbar_i - x)

and a round is x <- x + beta gamma (1 - r^K) b / (gamma + b) (cbar - x): geometric
convergence to the weighted mean cbar of all clients' optima.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedloom.algorithms import Local, PFedMT
from fedloom.algorithms.pfedmt import Server, Upload
from fedloom.clients import Federation, GivenTeams, Natural, Sampling, Split, divide
from fedloom.core.algorithm import Cohort
from fedloom.core.errors import ConfigError
from fedloom.core.task import Task
from fedloom.data.dataset import from_arrays
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

A = 2.0
SIZES = (3, 1, 4, 2, 6)
TEAMS = (0, 0, 1, 1, 1)
Array = NDArray[np.float64]


class Location(nn.Module):
    """A model that is a point; its output is the distance to the input."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.point = nn.Parameter(start)

    def forward(self, x: Tensor) -> Tensor:
        return self.point - x


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * A * outputs.square().sum(1)


def places() -> tuple[Array, NDArray[np.int64]]:
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    draw = np.random.default_rng(4)
    return draw.normal(size=(len(owner), 2)) + owner[:, None], owner


def centres() -> Array:
    x, owner = places()
    return np.stack([x[owner == j].mean(0) for j in range(len(SIZES))])


def small(teams: tuple[int, ...] = TEAMS) -> Federation:
    x, owner = places()
    data = from_arrays(x, np.zeros(len(x)), clients=owner)
    return divide(data, Natural(), Split(test=0.0), GivenTeams(members=teams), seed=0)


def simulation_of(
    algorithm: Any,
    runner: Any = None,
    *,
    teams: tuple[int, ...] = TEAMS,
    rate: float = 1.0,
) -> Simulation:
    start = torch.tensor([5.0, -3.0], dtype=torch.float64)
    task = Task(Location(start), half_square, dtype=torch.float64)
    return Simulation(
        replace(algorithm, clip=None),  # the parabolas are steep at the start
        task,
        small(teams),
        runner if runner is not None else Loop(),
        sampling=Sampling(rate=rate),
        seed=1,
    )


def play(simulation: Simulation, rounds: int) -> Simulation:
    while simulation.state.round < rounds:
        simulation.run_exchange()
    return simulation


def personal(simulation: Simulation) -> Array:
    return simulation.personal(torch.arange(len(SIZES))).numpy()


def alg_1(
    m: PFedMT,
    rounds: int,
    teams: tuple[int, ...] = TEAMS,
    *,
    line_12_as_printed: bool = False,
) -> tuple[Array, Array, Array]:
    """x, w and theta after some rounds: Alg. 1 line by line, in numpy."""
    c, size, team = centres(), np.array(SIZES, float), np.array(teams)
    each = size if m.weights == "size" else np.ones(len(size))
    count = team.max() + 1
    whole = np.array([each[team == i].sum() for i in range(count)])
    tau = whole if m.weights == "size" else np.ones(count)
    tau = tau / tau.sum()
    pull = m.pull if m.device_pull is None else m.device_pull
    x = np.array([5.0, -3.0])
    w = np.tile(x, (count, 1))
    theta = np.tile(x, (len(size), 1))
    for _ in range(rounds):
        w = np.tile(x, (count, 1))
        for _ in range(m.team_iterations):
            near = w[team]
            theta = near if m.restart else theta
            for _ in range(m.steps or 0):
                theta = theta - m.lr * (A * (theta - c) + pull * (theta - near))
            for i in range(count):
                inside = team == i
                mean = (each[inside] / whole[i]) @ theta[inside]
                w[i] = (
                    (1 - m.team_lr * (m.pull + m.team_pull)) * w[i]
                    + m.team_lr * m.team_pull * x
                    + m.team_lr * m.pull * mean
                )
        bg = m.shared_lr * m.team_pull
        last = m.shared_lr if line_12_as_printed else bg
        x = (1 - bg) * x + last * (tau @ w)
    return x, w, theta


TEXT: dict[str, Any] = {"batch_size": 10, "restart": True, "device_pull": None}
"""The text below Eq. (9): theta restarts at w_i, with one lambda everywhere."""
PAPER: dict[str, Any] = {
    **TEXT,
    "lr": 0.01,
    "team_lr": 0.03,
    "pull": 15.0,
    "team_iterations": 30,
    "steps": 20,
}
FEW: dict[str, Any] = {"batch_size": 10, "steps": 4, "team_iterations": 3}
VARIANTS = [
    PFedMT(**FEW),
    PFedMT(**FEW, weights="equal"),
    PFedMT(**FEW, device_pull=None, team_pull=0.1),
    PFedMT(**FEW | TEXT),
    PFedMT(**FEW, restart=True, device_pull=0.0),
    PFedMT(**TEXT, steps=3, team_iterations=1, shared_lr=0.5, pull=3.0),
]
by_variant = pytest.mark.parametrize("algorithm", VARIANTS)


@pytest.mark.parametrize("weights", ["size", "equal"])
def test_a_round_has_its_closed_form(weights: Any) -> None:
    m = PFedMT(**TEXT, steps=7, team_iterations=5, team_pull=0.4, weights=weights)
    simulation = play(simulation_of(m), 4)
    c, size, team = centres(), np.array(SIZES, float), np.array(TEAMS)
    if weights == "equal":
        size = np.ones(len(size))
    mean = np.stack(
        [size[team == i] @ c[team == i] / size[team == i].sum() for i in (0, 1)]
    )
    tau = np.array([size[team == i].sum() for i in (0, 1)]) / size.sum()
    if weights == "equal":
        tau = np.array([0.5, 0.5])
    s = (1 - (1 - m.lr * (A + m.pull)) ** 7) * A / (A + m.pull)
    b = m.pull * s
    r = 1 - m.team_lr * (m.team_pull + b)
    moved = (1 - r**5) * b / (m.team_pull + b)
    before = np.array([5.0, -3.0])
    for _ in range(3):
        before = before + m.team_pull * moved * (tau @ mean - before)
    w = before + moved * (mean - before)
    x = before + m.team_pull * moved * (tau @ mean - before)
    start = before + (1 - r**4) * b / (m.team_pull + b) * (mean - before)
    np.testing.assert_allclose(simulation.state.server.teams, w, atol=1e-10)
    np.testing.assert_allclose(simulation.shared(), x, atol=1e-10)
    # The personal models left from where the teams were one iteration earlier.
    np.testing.assert_allclose(
        personal(simulation), start[team] + s * (c - start[team]), atol=1e-10
    )


@by_variant
@pytest.mark.parametrize("runner", [Loop(), Weave(2)], ids=["loop", "weave"])
def test_every_variant_is_algorithm_1(algorithm: PFedMT, runner: Any) -> None:
    simulation = play(simulation_of(algorithm, runner), 3)
    x, w, theta = alg_1(algorithm, 3)
    np.testing.assert_allclose(simulation.shared(), x, atol=1e-10)
    np.testing.assert_allclose(simulation.state.server.teams, w, atol=1e-10)
    np.testing.assert_allclose(personal(simulation), theta, atol=1e-10)


def test_line_12_as_printed_diverges_where_equation_4_converges() -> None:
    """The paper's convex setting: beta 1, gamma 0.1, lambda 15, K 30, L 20."""
    m = PFedMT(**PAPER, team_pull=0.1)
    size = np.array(SIZES, float)
    goal = size @ centres() / size.sum()
    np.testing.assert_allclose(alg_1(m, 200)[0], goal, atol=1e-4)
    assert np.abs(alg_1(m, 200, line_12_as_printed=True)[0]).max() > 1e6
    # They are one formula when gamma = 1, as in all the paper's non-convex runs.
    both = PFedMT(**PAPER, team_pull=1.0)
    np.testing.assert_array_equal(
        alg_1(both, 5)[0], alg_1(both, 5, line_12_as_printed=True)[0]
    )


def test_many_rounds_reach_the_mean_of_all_optima() -> None:
    m = PFedMT(**TEXT, steps=2, team_iterations=6, lr=0.05)
    size = np.array(SIZES, float)
    simulation = play(simulation_of(m, Weave(5)), 60)
    np.testing.assert_allclose(
        simulation.shared(), size @ centres() / size.sum(), atol=1e-8
    )


def test_one_team_and_one_iteration_is_pfedme_with_one_local_round() -> None:
    """pFedMe with R = 1, server step beta' = beta gamma, and L inner steps of alpha.

    There w_j = x - eta lambda (x - theta_j) on each client and x <- (1 - beta') x +
    beta' mean_j w_j. Here the mean comes first: the same, because both are linear.
    """
    teams = (0,) * len(SIZES)
    m = PFedMT(**TEXT, team_iterations=1, steps=6, weights="equal", team_pull=0.5)
    x, c = np.array([5.0, -3.0]), centres()
    for _ in range(5):
        w = np.empty_like(c)
        for j in range(len(c)):
            theta = x
            for _ in range(6):
                theta = theta - m.lr * (A * (theta - c[j]) + m.pull * (theta - x))
            w[j] = x - m.team_lr * m.pull * (x - theta)
        x = (1 - 0.5) * x + 0.5 * w.mean(0)
    simulation = play(simulation_of(m, teams=teams), 5)
    np.testing.assert_allclose(simulation.shared(), x, atol=1e-10)


def test_without_teams_all_clients_are_one_team() -> None:
    x, owner = places()
    data = from_arrays(x, np.zeros(len(x)), clients=owner)
    federation = divide(data, Natural(), Split(test=0.0), seed=0)
    start = torch.zeros(2, dtype=torch.float64)
    task = Task(Location(start), half_square, dtype=torch.float64)
    simulation = Simulation(PFedMT(**FEW), task, federation, Loop())
    assert simulation.state.server.teams.shape == (1, 2)


def test_only_teams_in_the_cohort_move() -> None:
    m = PFedMT(**FEW)
    simulation = play(simulation_of(m), 1)
    server: Server = simulation.state.server
    cohort = Cohort(
        clients=torch.tensor([0, 1]),
        sizes=torch.tensor([3.0, 1.0], dtype=torch.float64),
        teams=torch.tensor([0, 0]),
        round=1,
        exchange=0,
        population=simulation.coordinator.population,
    )
    uploads = Upload(torch.ones(2, 2, dtype=torch.float64))
    after = m.aggregate(server, uploads, cohort).record
    assert torch.equal(after.teams[1], server.teams[1])
    expected = (1 - m.team_lr * m.pull) * server.shared + m.team_lr * m.pull
    torch.testing.assert_close(after.teams[0], expected, rtol=0, atol=1e-12)
    # gamma = beta = 1: the shared model is the mean of the teams that were there.
    closed = m.end_round(after, cohort)
    torch.testing.assert_close(closed.shared, after.teams[0], rtol=0, atol=1e-12)


def test_teams_carry_the_traffic_of_every_iteration_and_the_rest_of_one() -> None:
    simulation = simulation_of(PFedMT(**FEW))
    cost, least = None, simulation_of(Local()).run_exchange()
    while cost is None:
        cost = simulation.run_exchange()
    assert least is not None
    model = 2 * 8
    assert cost.bytes_down == 3 * (least.bytes_down + len(SIZES) * model)
    assert cost.bytes_up == 3 * (least.bytes_up + len(SIZES) * model)
    assert cost.team_bytes_down == 2 * model
    assert cost.team_bytes_up == 2 * (model + 8)  # and a team's share


def test_the_files_learn_how_far_teams_and_clients_are() -> None:
    simulation = simulation_of(PFedMT(**FEW))
    x = simulation.shared()
    simulation.run_exchange()
    last = simulation.last
    assert last is not None
    assert x is not None
    team = torch.tensor(TEAMS)
    drift = torch.linalg.vector_norm(simulation.state.server.teams - x, dim=1)[team]
    torch.testing.assert_close(last.server_log.team_drift, drift)
    own = torch.linalg.vector_norm(simulation.personal(torch.arange(5)) - x, dim=1)
    torch.testing.assert_close(last.client_log.client_drift, own)
    shares = torch.tensor([3 / 4, 1 / 4, 4 / 12, 2 / 12, 6 / 12], dtype=torch.float64)
    torch.testing.assert_close(last.server_log.team_weight, shares)


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({"pull": 15.0, "team_lr": 0.0625}, r"0\.0625 \* \(15 \+ 1\) = 1"),
        ({"shared_lr": 1.5}, r"1\.5 \* 1 = 1\.5"),
        ({"lr": 0.25, "device_pull": None}, r"lr \* pull .* 0\.25 \* 5 = 1\.25"),
        ({"lr": 0.01, "device_pull": 100.0}, r"lr \* device_pull .* 0\.01 \* 100 = 1"),
        ({"team_iterations": 0}, "at least 1"),
    ],
)
def test_unstable_settings_are_refused_with_the_numbers(
    settings: dict[str, Any], numbers: str
) -> None:
    with pytest.raises(ConfigError, match=numbers):
        PFedMT(**settings)


def test_the_pull_of_the_teams_does_not_bound_the_rate_of_a_client() -> None:
    """With a pull of their own, clients never step by lr * pull."""
    assert PFedMT(lr=0.25).lr * PFedMT().pull > 1


def test_momentum_goes_on_through_the_exchanges_of_a_round_and_no_further() -> None:
    """v <- .9 v + g, theta <- theta - lr v; v is 0 when a round begins."""
    m = PFedMT(**FEW, momentum=0.9, device_pull=0.5)
    simulation = simulation_of(m)
    c, team = centres(), np.array(TEAMS)
    theta = np.tile([5.0, -3.0], (len(SIZES), 1))
    for _ in range(2):
        velocity = np.zeros_like(theta)
        for exchange in range(m.team_iterations):
            server = simulation.state.server
            near = server.teams.numpy()[team] if exchange else server.shared.numpy()
            for _ in range(m.steps or 0):
                velocity = 0.9 * velocity + A * (theta - c) + 0.5 * (theta - near)
                theta = theta - m.lr * velocity
            simulation.run_exchange()
            np.testing.assert_allclose(personal(simulation), theta, atol=1e-10)


def test_momentum_starts_anew_where_the_model_does() -> None:
    m = PFedMT(**FEW | TEXT, momentum=0.9)
    simulation = simulation_of(m)
    c, team = centres(), np.array(TEAMS)
    for exchange in range(m.team_iterations):
        server = simulation.state.server
        near = server.teams.numpy()[team] if exchange else server.shared.numpy()
        theta, velocity = np.tile(near, (len(SIZES) // len(np.atleast_2d(near)), 1)), 0
        for _ in range(m.steps or 0):
            velocity = 0.9 * velocity + A * (theta - c) + m.pull * (theta - near)
            theta = theta - m.lr * velocity
        simulation.run_exchange()
        np.testing.assert_allclose(personal(simulation), theta, atol=1e-10)


def test_a_client_that_never_trained_uses_its_teams_model() -> None:
    simulation = play(simulation_of(PFedMT(**FEW), rate=0.4), 1)
    unseen = ~simulation.clients.memory.seen
    server, team = simulation.state.server, torch.tensor(TEAMS)
    moved = (server.teams != simulation.task.start).all(1)
    assert bool((unseen & moved[team]).any())
    theta = simulation.personal(torch.arange(len(SIZES)))
    assert torch.equal(theta[unseen], server.teams[team][unseen])
    assert not torch.equal(server.teams[0], server.shared)
