"""FedACS: the attention of three clients by hand, its edge cases, and both runners.

Three models in the plane, a = (1, 0), b = (3, 4), c = (0, 2), have the cosines

    ab 0.6    ac 0    bc 0.8

so the nine entries of S in order are 0 0 .6 .6 .8 .8 1 1 1. The 0.4-quantile lies at
place 0.4 * 8 = 3.2 of them, hence delta = 0.6 + 0.2 * 0.2 = 0.64: b and c collaborate
and a is left alone. The 0.2-quantile, at place 1.6, is 0.36: then also a and b.

By default it is not models that are compared but what training changed, models minus
the common start: the same numbers for models at START + a, START + b, START + c.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedloom.algorithms import FedACS, FedAMP, HeurFedAMP, Local
from fedloom.algorithms.fedacs import DownloadLog, Server, Upload, _quantile
from fedloom.clients import Federation, Natural, Sampling, Split, divide
from fedloom.core.algorithm import Cohort, Population
from fedloom.core.client_models import Mixture, mixed
from fedloom.core.errors import ConfigError
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.data.dataset import from_arrays
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

START = torch.tensor([10.0, -7.0], dtype=torch.float64)
ABC = torch.tensor([[1.0, 0.0], [3.0, 4.0], [0.0, 2.0]], dtype=torch.float64)
SIZES = (3, 1, 4, 2, 6)


def f64(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def cohort_of(*clients: int, count: int = 3, sizes: Any = None) -> Cohort:
    task = Task(nn.Linear(1, 1), dtype=torch.float64)
    everyone = torch.ones(count, dtype=torch.float64)
    who = torch.tensor(clients)
    return Cohort(
        clients=who,
        sizes=everyone[who] if sizes is None else f64(*sizes),
        teams=torch.zeros_like(who),
        round=0,
        exchange=0,
        population=Population(
            task=task,
            theta=lambda index: START,
            sizes=everyone,
            teams=torch.zeros(count, dtype=torch.int64),
            rate=1.0,
        ),
    )


def server_of(models: Tensor, *unknown: int) -> Server:
    """The server after everybody but some uploaded these models."""
    known = torch.ones(len(models), dtype=torch.bool)
    known[list(unknown)] = False
    return Server(models, known, models[known].mean(0) if known.any() else START)


def starts_of(method: FedACS, server: Server, cohort: Cohort) -> Tensor:
    """Where clients begin who have the models that the server has of them."""
    down = method.download(server, cohort).record
    mix = torch.func.vmap(lambda others, share, own: mixed(Mixture(others, share), own))
    starts: Tensor = mix(*down, server.models[cohort.clients])
    return starts


def attend(method: FedACS, models: Tensor, cohort: Cohort) -> DownloadLog:
    server = server_of(models)
    log = method.download(server, cohort).log
    starts = starts_of(method, server, cohort)
    if method.scope == "cohort":
        models = models[cohort.clients]
    torch.testing.assert_close(starts, log.weights @ models, rtol=0, atol=1e-12)
    torch.testing.assert_close(log.weights.sum(1), torch.ones(len(starts)).double())
    return log


@pytest.mark.parametrize(
    ("quantile", "attention"),
    [
        (0.4, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.8], [0.0, 0.8, 1.0]]),
        (0.2, [[1.0, 0.6, 0.0], [0.6, 1.0, 0.8], [0.0, 0.8, 1.0]]),
        (0.0, [[1.0, 0.6, 0.0], [0.6, 1.0, 0.8], [0.0, 0.8, 1.0]]),
        (1.0, [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    ],
)
@pytest.mark.parametrize(("similarity", "origin"), [("model", 0.0), ("change", 1.0)])
def test_three_clients_by_hand(
    quantile: float, attention: Any, similarity: Any, origin: float
) -> None:
    method = FedACS(quantile=quantile, similarity=similarity)
    found = attend(method, origin * START + ABC, cohort_of(0, 1, 2))
    scores = f64(*attention)
    expected = scores / scores.sum(1, keepdim=True)
    torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-12)
    cosines = f64([1.0, 0.6, 0.0], [0.6, 1.0, 0.8], [0.0, 0.8, 1.0])
    torch.testing.assert_close(found.similarity, cosines, rtol=0, atol=1e-12)
    others = (scores > 0).sum(1) - 1
    assert torch.equal(found.collaborators, others)


def test_equal_models_stay_where_they_are() -> None:
    """Round 1: all similarities are 1, and none of them exceeds delta = 1."""
    models = f64(1.0, -2.0).repeat(4, 1)
    starts = starts_of(FedACS(), server_of(models), cohort_of(0, 1, 2, 3, count=4))
    torch.testing.assert_close(starts, models, rtol=0, atol=1e-12)


def test_a_model_of_zeros_is_like_nobody_but_itself() -> None:
    models = torch.cat([ABC, f64([0.0, 0.0])])
    method = FedACS(quantile=0.0, similarity="model")
    found = attend(method, models, cohort_of(0, 1, 2, 3, count=4))
    assert torch.equal(found.weights[3], f64(0.0, 0.0, 0.0, 1.0))
    assert not found.weights[:3, 3].any()


def test_all_models_zero_as_in_logistic_regression_stay_zero() -> None:
    zeros = torch.zeros(3, 2, dtype=torch.float64)
    assert torch.equal(starts_of(FedACS(), server_of(zeros), cohort_of(0, 1, 2)), zeros)


def test_no_weight_is_negative() -> None:
    models = torch.cat([ABC, -ABC[:1], f64([-3.0, -4.1])])
    for quantile in (0.0, 0.05, 0.3, 0.6):
        cohort = cohort_of(0, 1, 2, 3, 4, count=5)
        found = attend(FedACS(quantile=quantile, similarity="model"), models, cohort)
        assert (found.weights >= 0).all()


def test_a_cohort_of_one_goes_on_from_its_own_model() -> None:
    for method in (FedACS(), FedACS(similarity="update"), FedACS(quantile=0.0)):
        found = starts_of(method, server_of(ABC), cohort_of(1))
        torch.testing.assert_close(found, ABC[1:2], rtol=0, atol=1e-12)


def test_updates_are_compared_after_their_mean_is_taken_away() -> None:
    """Around (10, 10), a and b point one way and c the other."""
    centre = f64(10.0, 10.0)
    offsets = f64([1.0, 0.0], [2.0, 0.0], [-3.0, 0.0])
    found = attend(
        FedACS(similarity="update", quantile=0.0), centre + offsets, cohort_of(0, 1, 2)
    )
    signs = f64([1.0, 1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 1.0])
    torch.testing.assert_close(found.similarity, signs, rtol=0, atol=1e-10)
    expected = f64([0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0])
    torch.testing.assert_close(found.weights, expected, rtol=0, atol=1e-10)
    paper = FedACS(quantile=0.0, similarity="model")
    models = attend(paper, centre + offsets, cohort_of(0, 1, 2))
    assert (models.similarity > 0.9).all()


def test_scope_all_asks_everyone_who_ever_took_part() -> None:
    method = FedACS(scope="all", quantile=0.0, similarity="model")
    cohort = cohort_of(1)
    everyone = starts_of(method, server_of(ABC), cohort)
    expected = (0.6 * ABC[0] + ABC[1] + 0.8 * ABC[2]) / 2.4
    torch.testing.assert_close(everyone[0], expected, rtol=0, atol=1e-12)
    some = starts_of(method, server_of(ABC, 0), cohort)
    expected = (ABC[1] + 0.8 * ABC[2]) / 1.8
    torch.testing.assert_close(some[0], expected, rtol=0, atol=1e-12)
    alone = starts_of(replace(method, scope="cohort"), server_of(ABC), cohort)
    torch.testing.assert_close(alone[0], ABC[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("similarity", ["change", "model", "update"])
@pytest.mark.parametrize("scope", ["cohort", "all"])
@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.9])
def test_a_client_that_never_uploaded_changes_nothing_for_the_others(
    quantile: float, scope: Any, similarity: Any
) -> None:
    """Neither S nor delta nor K_i knows it, whatever stands in its place."""
    method = FedACS(quantile=quantile, scope=scope, similarity=similarity)
    models = torch.cat([ABC, ABC[1:2] + 0.01])
    company = starts_of(method, server_of(models, 3), cohort_of(0, 1, 2, 3, count=4))
    among_themselves = starts_of(method, server_of(ABC), cohort_of(0, 1, 2))
    torch.testing.assert_close(company[:3], among_themselves, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scope", ["cohort", "all"])
def test_a_client_that_never_uploaded_begins_at_the_mean_of_all_known(
    scope: Any,
) -> None:
    method, server = FedACS(scope=scope), server_of(ABC, 2)
    down = method.download(server, cohort_of(0, 2)).record
    torch.testing.assert_close(down.others[1], ABC[:2].mean(0), rtol=0, atol=1e-12)
    assert down.own_share[1] == 1.0
    client: Any = None
    row = Mixture(down.others[1], down.own_share[1])
    first = method.initial_memory(row, client, cohort_of(0).population.task)
    assert torch.equal(first.personal, down.others[1])
    # It is also what such a client is scored with, whoever else is scored.
    asked = method.model_download(server, cohort_of(2))
    assert torch.equal(asked.others, down.others[1])
    # While nobody is known, it is the common start.
    nobody = method.download(server_of(ABC, 0, 1, 2), cohort_of(0, 2)).record
    assert torch.equal(nobody.others, START.repeat(2, 1))


def test_a_client_without_samples_is_never_known() -> None:
    ghost = cohort_of(0, 1, 2, 3, count=4, sizes=(1.0, 1.0, 1.0, 0.0))
    models = torch.cat([ABC, START[None]])
    after = FedACS().aggregate(server_of(models, 3), Upload(models + 1.0), ghost)
    assert torch.equal(after.models[3], START)
    assert torch.equal(after.models[:3], ABC + 1.0)
    assert after.known.tolist() == [True, True, True, False]
    torch.testing.assert_close(after.mean, (ABC + 1.0).mean(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.77, 1.0])
def test_the_quantile_is_that_of_torch(share: float) -> None:
    values = torch.from_numpy(np.random.default_rng(1).normal(size=(7, 7)))
    torch.testing.assert_close(
        _quantile(values, share), torch.quantile(values.flatten(), share)
    )


def small() -> Federation:
    draw = np.random.default_rng(3)
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    y = draw.integers(0, 3, len(owner))
    x = draw.normal(size=(len(owner), 3)) + np.eye(3)[y]
    data = from_arrays(x, y, clients=owner, classes=3)
    return divide(data, Natural(), Split(test=0.0), seed=0)


def simulation_of(
    method: Any, runner: Any, rate: float = 1.0, protocol: Any = "train-selected"
) -> Simulation:
    with seeded(0, "model"):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    task = Task(model, dtype=torch.float64)
    sampling = Sampling(rate=rate, protocol=protocol)
    return Simulation(method, task, small(), runner, sampling=sampling, seed=2)


def play(simulation: Simulation, rounds: int) -> Tensor:
    while simulation.state.round < rounds:
        simulation.run_exchange()
    return simulation.personal(torch.arange(len(SIZES)))


@pytest.mark.parametrize("rate", [1.0, 0.6])
@pytest.mark.parametrize(
    "method",
    [
        FedACS(batch_size=2, epochs=2),
        FedACS(batch_size=2, similarity="update", momentum=0.5),
        FedACS(steps=1, quantile=0.0, scope="all"),
    ],
)
def test_weave_equals_loop(method: FedACS, rate: float) -> None:
    slow = play(simulation_of(method, Loop(), rate), 4)
    fast = play(simulation_of(method, Weave(2), rate), 4)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", [FedACS(), FedAMP(), HeurFedAMP()])
def test_a_client_never_sampled_has_the_mean_of_all_known(method: Any) -> None:
    simulation = simulation_of(method, Loop(), rate=0.4)
    torch.testing.assert_close(
        play(simulation, 0), simulation.task.start.repeat(len(SIZES), 1)
    )
    theta = play(simulation, 1)
    known = simulation.state.server.known
    assert torch.equal(simulation.state.server.models[known], theta[known])
    counts = torch.tensor(SIZES, dtype=torch.float64)[known]
    mean = counts / counts.sum() @ theta[known]
    torch.testing.assert_close(theta[~known], mean.repeat(3, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        FedACS(epochs=1, quantile=0.0, similarity="model"),
        FedAMP(epochs=1),
        HeurFedAMP(epochs=1, pull=0.5),
    ],
)
def test_a_client_that_was_never_heard_goes_on_from_its_own_model(method: Any) -> None:
    """Under train-all it trains in every round; nothing of that is lost."""
    simulation = simulation_of(method, Loop(), rate=0.2, protocol="train-all")
    play(simulation, 2)
    unheard = (~simulation.state.server.known).nonzero()[:, 0]
    assert len(unheard)
    simulation.run_exchange()
    last = simulation.last
    assert last is not None
    assert not last.client_log.moved[unheard].any()
    heard = simulation.state.server.known.nonzero()[:, 0]
    assert last.client_log.moved[heard].any()


@pytest.mark.parametrize(
    "method",
    [FedACS(quantile=1.0), FedAMP(pull=0.0, width=1e-9), HeurFedAMP(self_weight=1.0)],
)
def test_what_was_learned_since_the_last_upload_is_kept(method: Any) -> None:
    """A client that attends to nobody trains alone, whether it is heard or not."""
    method = replace(method, lr=0.05, epochs=1)
    if isinstance(method, HeurFedAMP):
        method = replace(method, pull=0.0)
    local = simulation_of(Local(lr=0.05), Loop())
    some = simulation_of(method, Loop(), rate=0.4, protocol="train-all")
    torch.testing.assert_close(play(some, 4), play(local, 4), rtol=0, atol=1e-12)


def test_quantile_1_is_local_training() -> None:
    alone = FedACS(quantile=1.0, lr=0.05, epochs=2)
    local = Local(lr=0.05, epochs=2)
    torch.testing.assert_close(
        play(simulation_of(alone, Loop()), 3),
        play(simulation_of(local, Loop()), 3),
        rtol=0,
        atol=1e-12,
    )


def test_one_full_gradient_step_is_equation_5() -> None:
    simulation = simulation_of(FedACS(steps=1, batch_size=100, lr=0.3), Loop())
    play(simulation, 1)
    before = simulation.state.server
    cohort = simulation.coordinator.cohort(torch.arange(len(SIZES)))
    start = starts_of(simulation.algorithm, before, cohort)
    after = play(simulation, 2)
    for row, theta in enumerate(start):
        mine = simulation.federation.train[row]
        x = simulation.federation.dataset.inputs[0][mine]
        y = simulation.federation.dataset.targets[mine]
        theta = theta.clone().requires_grad_()
        params = simulation.task.unflatten(theta)
        outputs = torch.func.functional_call(simulation.task.module, params, (x,))
        nn.functional.cross_entropy(outputs, y).backward()
        assert theta.grad is not None
        expected = (theta - 0.3 * theta.grad).detach()
        torch.testing.assert_close(after[row], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "settings", [{"quantile": 1.5}, {"similarity": "data"}, {"scope": "some"}]
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        FedACS(**settings)


def test_the_order_of_the_cohort_is_irrelevant() -> None:
    method = FedACS(quantile=0.3, similarity="model")
    straight, turned = cohort_of(0, 1, 2), cohort_of(2, 0, 1)
    turned = replace(turned, population=straight.population)
    one = starts_of(method, server_of(ABC), straight)
    other = starts_of(method, server_of(ABC), turned)
    torch.testing.assert_close(other, one[[2, 0, 1]], rtol=0, atol=1e-12)
