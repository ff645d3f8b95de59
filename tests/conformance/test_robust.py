"""Laws of robust rules: every method that goes by sums, with a rule in their place."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from remote_runs import RemoteRun, simulated, standing_of
from torch import Tensor
from variants import (
    COUNT,
    VARIANTS,
    advance,
    assert_identical,
    assert_same,
    describe,
    history,
    set_up,
    small_federation,
    standing,
)

from fedloom.algorithms import IFCA, Ditto, FedAMP, FedAvg, FedFomo, PFedMT
from fedloom.clients.federation import Federation
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ConfigError
from fedloom.core.messages import Arrivals
from fedloom.core.records import leaves, rebuild
from fedloom.core.summed import Summed
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.robust import Attack, Robust, around
from fedloom.robust.method import RobustMethod

BY_SUMS = [
    [v for v in variants if v.needs.startswith("sums") and not v.why_not_robust]
    for variants in VARIANTS.values()
]
METHODS = [variants[0] for variants in BY_SUMS if variants]
"""Every method that can have a rule, in the first setting that lets it."""

over_robust = pytest.mark.parametrize("algorithm", METHODS, ids=describe)
MEDIAN = Robust(rule="median", attackers=0.0)


@over_robust
def test_woven_equals_loop_with_a_rule(algorithm: AnyAlgorithm) -> None:
    robust = Robust(rule="trimmed-mean", attackers=2)
    if algorithm.needs == "sums per team":  # which have two members each
        robust = MEDIAN
    woven, loop = (
        set_up(RobustMethod(algorithm, robust), runner)
        for runner in (Weave(COUNT), Loop())
    )
    assert_same(history(woven, 2), history(loop, 2))


@over_robust
def test_a_trimmed_mean_without_liars_is_the_method_with_equal_clients(
    algorithm: AnyAlgorithm,
) -> None:
    robust = Robust(rule="trimmed-mean", attackers=0.0)
    trimmed = set_up(RobustMethod(algorithm, robust), Weave(COUNT))
    equal = set_up(Summed(algorithm, most_samples=1.0), Weave(COUNT))
    for simulation in (trimmed, equal):
        advance(simulation, 2)
    assert_same(standing(trimmed), standing(equal))


class Liars:
    """A fleet three of whose clients send something of their own."""

    def __init__(self, fleet: Any, lie: float) -> None:
        self._fleet, self._lie = fleet, lie

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def receive(self) -> Arrivals:
        arrivals: Arrivals = self._fleet.receive()
        lies = torch.zeros(COUNT, dtype=torch.bool)
        lies[[0, 4, 7]] = True

        def lied(rows: Tensor) -> Tensor:
            return torch.where(lies.view(-1, *[1] * (rows.dim() - 1)), self._lie, rows)

        rows = [lied(leaf) for leaf in leaves(arrivals.uploads)]
        uploads = rebuild(arrivals.uploads, rows)
        kept = {**vars(arrivals), "uploads": uploads}
        return Arrivals(**kept)


@pytest.mark.parametrize("lie", [1e30, math.nan, -math.inf])
@pytest.mark.parametrize(
    "rule", ["norm-bound", "trimmed-mean", "median", "geometric-median", "krum"]
)
def test_liars_who_send_anything_leave_the_models_near_those_without_lies(
    rule: Any, lie: float
) -> None:
    robust = Robust(rule=rule, attackers=3)
    method = RobustMethod(Ditto(lr=0.05), robust)
    lied, honest = set_up(method, Weave(COUNT)), set_up(method, Weave(COUNT))
    lied.fleet = Liars(lied.fleet, lie)  # type: ignore[assignment]
    start = honest.task.start
    for simulation in (lied, honest):
        advance(simulation, 2)
    moved = float((honest.state.server.shared - start).norm())
    shared = lied.state.server.shared
    assert bool(shared.isfinite().all())
    assert float((shared - start).norm()) < 5 * moved


def test_liars_ruin_a_plain_sum() -> None:
    lied = set_up(Summed(FedAvg()), Weave(COUNT))
    lied.fleet = Liars(lied.fleet, 1e30)  # type: ignore[assignment]
    advance(lied, 1)
    # Weights are lies too, so that nothing of the others is left.
    assert float((lied.state.server.shared - lied.task.start - 1.0).norm()) < 1e-6


def test_a_round_that_is_too_small_changes_nothing_and_says_so() -> None:
    few = set_up(
        RobustMethod(FedAvg(), Robust(rule="bulyan", attackers=1)),
        Weave(COUNT),
        rate=0.6,
    )
    (met,) = advance(few, 1)
    assert float(met["server_log.left_out"]) == 1.0
    assert torch.equal(few.state.server.shared, few.task.start)
    enough = set_up(
        RobustMethod(FedAvg(), Robust(rule="bulyan", attackers=1)),
        Weave(COUNT),
        rate=0.7,
    )
    (met,) = advance(enough, 1)
    assert float(met["server_log.left_out"]) == 0.0
    assert not torch.equal(enough.state.server.shared, enough.task.start)


def test_teams_that_are_too_small_keep_their_models_and_others_do_not() -> None:
    clients = small_federation()
    teams = clients.teams * 0
    teams[8:] = 1
    unequal = Federation(**{**vars(clients), "teams": teams})
    simulation = set_up(
        RobustMethod(PFedMT(), Robust(rule="median", attackers=1)),
        Weave(COUNT),
        federation=unequal,
    )
    met = advance(simulation, 1)
    assert float(met[0]["server_log.left_out"]) == 1.0


def test_what_no_rule_can_take_the_place_of_is_refused_with_the_reason() -> None:
    for method in (FedAMP(), FedFomo()):
        with pytest.raises(ConfigError, match=r"median.*single models: .*ditto"):
            around(method, Robust(rule="median"), Attack())
        with pytest.raises(ConfigError, match=r"sign-flip.*label-flip or backdoor"):
            around(method, Robust(), Attack(kind="sign-flip"))
        assert around(method, Robust(), Attack(kind="label-flip")) is method
    with pytest.raises(ConfigError, match=r"ifca: each client says itself"):
        around(IFCA(), MEDIAN, Attack())


def test_without_a_rule_and_an_attack_a_method_is_itself() -> None:
    method = Ditto()
    assert around(method, Robust(), Attack()) is method


def test_a_rule_is_the_same_in_every_order_of_the_clients() -> None:
    method = RobustMethod(FedAvg(), Robust(rule="median"))
    simulation = set_up(method, Weave(COUNT))
    order = simulation.coordinator.next_order()
    simulation.fleet.send(order)
    arrivals = simulation.fleet.receive()
    cohort = simulation.coordinator.cohort(arrivals.uploaders)
    server = simulation.state.server
    back = torch.arange(COUNT).flip(0)
    turned = rebuild(arrivals.uploads, [leaf[back] for leaf in arrivals.uploads])
    first = method.aggregate(server, arrivals.uploads, cohort).record
    second = method.aggregate(server, turned, cohort.only(back)).record
    assert_identical({"shared": first.shared}, {"shared": second.shared})


def test_a_federation_of_bytes_with_a_rule_equals_the_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    method = RobustMethod(Ditto(), Robust(rule="trimmed-mean", attackers=1))
    remote, simulation = RemoteRun(method, tmp_path), simulated(method)
    for training in (remote, simulation):
        for _ in range(2):
            training.run_exchange()
    assert_same(standing_of(remote), standing_of(simulation))
