"""FedFomo: weights and mixtures by hand, whose models are sent, what the server learns.

On parabolas, client i's loss on all of its data is a_i^2 (theta - m_i)^2 plus a number,
so that a model at distance t from where the client began gains what can be computed
from its curvature h_i = 2 a_i^2 and its optimum m_i:

    L_i(theta) - L_i(theta + t) = h_i / 2 ((theta - m_i)^2 - (theta + t - m_i)^2)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import memories
from quadratic import (
    CURVATURES,
    OPTIMA,
    SIZES,
    START,
    assert_exact,
    line,
    parabolas,
    personal,
    rounds,
    weave_of,
)
from torch import Tensor, nn

from fedloom.algorithms import FedFomo, Local
from fedloom.algorithms.fedfomo import Download, Server, Upload, Work, _weigh
from fedloom.clients.cohorts import Sampling
from fedloom.clients.ragged import Ragged
from fedloom.core.algorithm import Cohort, Population, SGDState
from fedloom.core.errors import ConfigError
from fedloom.core.task import Batch, Task
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.server.simulation import Simulation

FULL: dict[str, Any] = {"lr": 0.1, "steps": 3, "batch_size": 10}


def f64(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def cohort_of(
    *clients: int, count: int, round_: int = 0, seed: int = 0, sizes: Any = None
) -> Cohort:
    task = Task(nn.Linear(1, 1), dtype=torch.float64)
    everyone = torch.ones(count, dtype=torch.float64)
    who = torch.tensor(clients)
    return Cohort(
        clients=who,
        sizes=everyone[who] if sizes is None else f64(*sizes),
        teams=torch.zeros_like(who),
        round=round_,
        exchange=0,
        population=Population(
            task=task,
            theta=lambda index: task.start,
            sizes=everyone,
            teams=torch.zeros(count, dtype=torch.int64),
            rate=1.0,
            seed=seed,
        ),
    )


def server_of(count: int, known: Any = True) -> Server:
    """Client n's model is the number n."""
    return Server(
        models=torch.arange(float(count), dtype=torch.float64)[:, None],
        known=torch.tensor(known).expand(count),
        affinity=torch.zeros(count, count, dtype=torch.float64),
    )


def test_weights_by_hand() -> None:
    """Gains 3, -1 and 2 at distances 2, 5 and 4: slopes 1.5, none and 0.5."""
    here = torch.tensor([True, True, True])
    found = _weigh(f64(3.0, -1.0, 2.0), f64(2.0, 5.0, 4.0), here)
    assert_exact(found, f64(0.75, 0.0, 0.25))
    some = torch.tensor([False, True, True])
    found = _weigh(f64(3.0, -1.0, 2.0), f64(2.0, 5.0, 4.0), some)
    assert_exact(found, f64(0.0, 0.0, 1.0))


def test_nobody_who_helps_has_no_weights_and_no_distance_no_division() -> None:
    here = torch.tensor([True, True])
    assert torch.equal(_weigh(f64(-3.0, 0.0), f64(1.0, 1.0), here), f64(0.0, 0.0))
    assert torch.equal(_weigh(f64(0.0, 0.0), f64(0.0, 0.0), here), f64(0.0, 0.0))
    assert torch.equal(_weigh(f64(0.0, 2.0), f64(0.0, 9.0), here), f64(0.0, 1.0))


def batch_of(x: Tensor, y: Tensor) -> Batch:
    return Batch(
        inputs=(x,),
        targets=y,
        mask=torch.ones(len(x), dtype=torch.float64),
        key=torch.tensor(7),
        step=torch.tensor(0),
        ends_epoch=torch.tensor(True),
        round=torch.tensor(0),
    )


def compare(before: float, own: float, models: Tensor, present: Any = True) -> Work:
    """Weigh numbers on the data x = 1, y = 0, whose loss is theta^2."""
    method = FedFomo(momentum=0.5)
    down = Download(models[:, None], torch.tensor(present).expand(len(models)))
    rest = f64(0.0)
    work = Work(f64(before), SGDState(f64(own), rest), f64(*[0.0] * (1 + len(models))))
    return method.compare(
        work, down, batch_of(f64([1.0], [1.0]), f64(0.0, 0.0)), line()
    )


def test_three_clients_by_hand() -> None:
    """From 4, where the loss is 16, to 3, 1 and 6, where it is 9, 1 and 36.

    Slopes 7 / 1 and 15 / 3; the third gains nothing. So w = (7, 5, 0) / 12, and the
    mixture is 4 + 7/12 (-1) + 5/12 (-3) = 4 - 22/12.
    """
    found = compare(4.0, 3.0, f64(1.0, 6.0))
    assert_exact(found.weights, f64(7.0, 5.0, 0.0) / 12.0)
    assert_exact(found.before, f64(4.0 - 22.0 / 12.0))
    assert_exact(found.personal.at, found.before)
    assert torch.equal(found.personal.velocity, f64(0.0))


def test_an_empty_place_counts_for_nothing() -> None:
    found = compare(4.0, 3.0, f64(1.0, 0.0), present=[True, False])
    assert_exact(found.weights, f64(7.0, 5.0, 0.0) / 12.0)


def test_identical_models_leave_a_client_where_it_was() -> None:
    found = compare(4.0, 4.0, f64(4.0, 4.0))
    assert torch.equal(found.weights, f64(0.0, 0.0, 0.0))
    assert torch.equal(found.personal.at, f64(4.0))


def test_a_training_that_made_it_worse_is_taken_back() -> None:
    found = compare(1.0, 5.0, f64(-2.0, 3.0))
    assert torch.equal(found.weights, f64(0.0, 0.0, 0.0))
    assert torch.equal(found.personal.at, f64(1.0))


def gains(i: int, before: Tensor, models: Tensor) -> Tensor:
    there = models - OPTIMA[i]
    return CURVATURES[i] / 2 * ((before[i] - OPTIMA[i]).square() - there.square())


def test_two_rounds_on_parabolas_by_hand() -> None:
    """In the first round nobody is known; in the second all weigh all."""
    shrink = (1.0 - 0.1 * CURVATURES) ** 3
    start = f64(*[START] * 4)
    first = OPTIMA + shrink * (start - OPTIMA)
    simulation = rounds(weave_of(FedFomo(models=9, **FULL)), 1)
    assert_exact(personal(simulation), first)
    mixed = []
    for i in range(4):
        slopes = gains(i, start, first).clamp(min=0) / (first - start).abs()
        w = slopes / slopes.sum()
        mixed.append(start[i] + w @ (first - start[i]))
    begun = torch.stack(mixed)
    rounds(simulation, 1)
    assert_exact(personal(simulation), OPTIMA + shrink * (begun - OPTIMA))
    assert simulation.last is not None
    assert simulation.last.download_log.sent.shape == (4, 3)
    assert_exact(
        simulation.last.client_log.own_weight
        + simulation.last.server_log.weights.sum(1),
        torch.ones(4).double(),
    )
    # The third round sets out from where the second began, not from where it ended.
    assert_exact(memories(simulation).before[:, 0], begun)


def test_who_gets_what_is_a_function_of_round_client_and_server_alone() -> None:
    method, server = FedFomo(models=4), server_of(30)
    together = method._choose(server, cohort_of(3, 11, 7, count=30))[0]
    turned = method._choose(server, cohort_of(7, 3, 11, count=30))[0]
    alone = method._choose(server, cohort_of(11, count=30))[0]
    assert torch.equal(turned, together[[2, 0, 1]])
    assert torch.equal(alone[0], together[1])
    later = method._choose(server, cohort_of(11, count=30, round_=1))[0]
    elsewhere = method._choose(server, cohort_of(11, count=30, seed=1))[0]
    assert not torch.equal(later, alone)
    assert not torch.equal(elsewhere, alone)


@pytest.mark.parametrize("exploration", [0.0, 0.4, 1.0])
def test_nobody_gets_its_own_model_or_one_twice_or_an_unknown_one(
    exploration: float,
) -> None:
    known = [n % 3 != 0 for n in range(12)]
    server = server_of(12, known)
    method = FedFomo(models=6, exploration=exploration, exploration_decay=0.0)
    for round_ in range(5):
        cohort = cohort_of(*range(12), count=12, round_=round_)
        chosen, present = method._choose(server, cohort)
        assert chosen.shape == (12, 6)
        assert present.all()
        assert (chosen != torch.arange(12)[:, None]).all()
        assert (chosen % 3 != 0).all()
        assert all(len(set(row)) == 6 for row in chosen.tolist())
        down, log = method.download(server, cohort)
        assert torch.equal(log.sent, chosen)
        assert torch.equal(down.models[..., 0], chosen.double())


def test_too_few_models_leave_places_empty() -> None:
    server = server_of(5, [True, False, True, False, False])
    found, present = FedFomo(models=3)._choose(server, cohort_of(0, 1, count=5))
    assert present.tolist() == [[True, False, False], [True, True, False]]
    assert found[0, 0] == 2
    assert set(found[1, :2].tolist()) == {0, 2}


def test_without_exploration_the_highest_affinity_is_sent() -> None:
    server = server_of(8)
    liking = torch.tensor([9.0, 1.0, 5.0, 7.0, 0.0, 3.0, 8.0, 2.0]).double()
    server = server._replace(affinity=liking.repeat(8, 1))
    method = FedFomo(models=3, exploration=0.0)
    found = method._choose(server, cohort_of(0, 3, count=8))[0]
    assert found.tolist() == [[6, 3, 2], [0, 6, 2]]
    # From round 6 on, what exploration there was is used up.
    late = FedFomo(models=3)._choose(server, cohort_of(0, 3, count=8, round_=6))[0]
    assert torch.equal(late, found)


def test_exploration_gives_everybody_the_same_chance() -> None:
    server = server_of(6)
    server = server._replace(affinity=torch.arange(6.0).double().repeat(6, 1))
    method = FedFomo(models=2, exploration=1.0, exploration_decay=0.0)
    counts = np.zeros(6)
    for round_ in range(500):
        chosen = method._choose(server, cohort_of(0, count=6, round_=round_))[0]
        counts[chosen[0].numpy()] += 1
    # 1000 places for 5 clients: 200 each, give or take 4 standard deviations of 11.
    assert counts[0] == 0
    assert np.abs(counts[1:] - 200).max() < 44


def test_exploring_places_are_as_many_as_epsilon_says() -> None:
    """Two places: 2, 1 or 0 of them greedy with chance 9/16, 6/16 and 1/16.

    A greedy place has one of the best two of 39 others; a random one has a best that is
    left with chance 1/38 or 2/39: 9/16 2 + 6/16 (1 + 1/38) + 1/16 4/39 = 1.516 in all.
    """
    server = server_of(40)
    server = server._replace(affinity=torch.arange(40.0).double().repeat(40, 1))
    method = FedFomo(models=2, exploration=0.25, exploration_decay=0.0)
    best = 0
    for round_ in range(100):
        cohort = cohort_of(*range(20), count=40, round_=round_)
        best += int((method._choose(server, cohort)[0] >= 38).sum())
    # For 2000 choices; a standard deviation is 27.
    assert abs(best - 3033) < 110


def test_the_server_adds_up_the_weights_and_keeps_the_models() -> None:
    server = server_of(4)
    server = server._replace(affinity=torch.full((4, 4), 0.5).double())
    method = FedFomo(models=2)
    cohort = cohort_of(2, 0, 1, count=4, sizes=(1.0, 3.0, 0.0))
    chosen, _ = method._choose(server, cohort)
    uploads = Upload(f64([20.0], [10.0], [99.0]), f64([0.25, 0.5], [0.0, 1.0], [9, 9]))
    found, log = method.aggregate(server, uploads, cohort)
    assert_exact(found.models[:, 0], f64(10.0, 1.0, 20.0, 3.0))
    expected = server.affinity.clone()
    expected[2, chosen[0, 0]] += 0.25
    expected[2, chosen[0, 1]] += 0.5
    expected[0, chosen[1, 1]] += 1.0
    assert_exact(found.affinity, expected)
    assert torch.equal(log.weights, uploads.weights)


@pytest.mark.parametrize("runner", [Loop(), Weave(3)], ids=["loop", "weave"])
def test_comparing_is_no_gradient_step(runner: Any) -> None:
    """A look at others' models is neither a step nor part of the mean loss."""
    settings: dict[str, Any] = {"lr": 1e-9, "steps": 4, "batch_size": 10}
    fomo = rounds(weave_of(FedFomo(**settings), runner), 1)
    local = rounds(weave_of(Local(**settings), runner), 1)
    assert fomo.last is not None
    assert local.last is not None
    assert fomo.last.reports.steps.tolist() == [4, 4, 4, 4]
    assert_exact(fomo.last.reports.loss, local.last.reports.loss)


def test_the_first_round_is_local_training() -> None:
    settings: dict[str, Any] = {"lr": 0.1, "batch_size": 10, "epochs": 2}
    fomo = rounds(weave_of(FedFomo(momentum=0.5, **settings), Weave(3)), 1)
    local = rounds(weave_of(Local(momentum=0.5, **settings)), 1)
    assert_exact(personal(fomo), personal(local))


def test_one_client_alone_trains_locally() -> None:
    """With nobody to ask, and each round better than the last, it takes its own."""
    whole = parabolas()
    alone = replace(
        whole,
        train=Ragged.of([whole.train[1]]),
        validation=Ragged.of([np.arange(0)]),
        test=Ragged.of([np.arange(0)]),
        names=("b",),
        teams=np.zeros(1, dtype=np.int64),
    )

    def play(method: Any) -> Tensor:
        simulation = Simulation(method, line(), alone, Loop(), sampling=Sampling())
        return rounds(simulation, 3).personal(torch.arange(1))

    assert_exact(play(FedFomo(**FULL)), play(Local(**FULL)))


def test_a_client_never_sampled_has_the_common_start() -> None:
    simulation = rounds(weave_of(FedFomo(), rate=0.25), 1)
    absent = ~simulation.state.server.known
    assert int(absent.sum()) == len(SIZES) - 1
    assert_exact(personal(simulation)[absent], f64(*[START] * 3))


@pytest.mark.parametrize(
    "settings", [{"models": 0}, {"exploration": 1.1}, {"exploration_decay": -0.1}]
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        FedFomo(**settings)


def test_a_choice_made_for_some_at_a_time_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, cohort = server_of(9), cohort_of(0, 2, 3, 7, 8, count=9, round_=2)
    method = FedFomo(models=4, exploration=0.5)
    together = method._choose(server, cohort)
    monkeypatch.setattr("fedloom.algorithms.fedfomo._PAIRS", 18)
    parts = method._choose(server, cohort)
    assert torch.equal(parts[0], together[0])
    assert torch.equal(parts[1], together[1])
