"""Laws of sums: what a method adds up gives what it makes of single uploads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from variants import (
    ALL,
    COUNT,
    PRIVATE,
    VARIANTS,
    Watch,
    advance,
    assert_same,
    describe,
    set_up,
    small_federation,
    small_task,
    specification,
    standing,
)

from fedloom.algorithms import Ditto, FedAMP, FedNova, PFedVEM
from fedloom.clients import Sampling
from fedloom.core.algorithm import AnyAlgorithm, Client, Cohort
from fedloom.core.errors import ConfigError
from fedloom.core.messages import CohortDownload
from fedloom.core.records import named, rebuild, without_log
from fedloom.core.summed import Leaving, Summed, Total
from fedloom.core.sums import add, add_by_team, bounds
from fedloom.core.task import Task
from fedloom.engine.weave import Weave
from fedloom.privacy import private
from fedloom.privacy.private import Private
from fedloom.server.simulation import Simulation

NEEDS = {
    "local": "nothing",
    "fedavg": "sums",
    "fedprox": "sums",
    "scaffold": "sums",
    "fednova": "sums",
    "fedavgm": "sums",
    "fedadam": "sums",
    "ditto": "sums",
    "fedper": "sums",
    "fedrep": "sums",
    "lg-fedavg": "sums",
    "fedbabu": "sums",
    "fedbn": "sums",
    "per-fedavg": "sums",
    "pfedme": "sums",
    "apfl": "sums",
    "fedamp": "single models",
    "heurfedamp": "single models",
    "fedfomo": "single models",
    "pfedhn": "single models",
    "pfedbayes": "sums",
    "pfedvem": "sums",
    "fedacs": "single models",
    "pfedmt": "sums per team",
    "ifca": "sums",
    "self-fl": "single models",
    "self-fl-augmented": "single models",
    "self-fl-cluster": "single models",
}
"""What the server of each method needs, as its paper has it."""

SUMMED = [algorithm for algorithm in ALL if algorithm.needs != "single models"]
over_summed = pytest.mark.parametrize("algorithm", SUMMED, ids=describe)
over_summed_methods = pytest.mark.parametrize(
    "algorithm",
    [
        next(v for v in variants if v.needs != "single models")
        for variants in VARIANTS.values()
        if any(v.needs != "single models" for v in variants)
    ],
    ids=describe,
)


over_server_noise = pytest.mark.parametrize(
    "algorithm",
    [a for a in PRIVATE if isinstance(a, Private) and a.settings.at == "server"],
    ids=describe,
)


@cache
def last_exchange(algorithm: AnyAlgorithm) -> tuple[Any, Any, Any, Cohort, Task]:
    """That of the second round: server, uploads, download, cohort, task."""
    watch = Watch(algorithm, server_only=True)
    simulation = set_up(watch, Weave(COUNT))
    advance(simulation, 2)
    server, uploads, cohort = watch.calls["aggregate"][-1]
    down, _ = without_log(watch.results["download"][-1])
    return server, uploads, down, cohort, simulation.task


def summands(algorithm: AnyAlgorithm) -> tuple[Any, Any, Any, Cohort]:
    """The same with what each client adds to the sums: server, uploads, summands."""
    server, uploads, down, cohort, task = last_exchange(algorithm)
    return server, uploads, rows_of(algorithm, uploads, down, cohort, task), cohort


def rows_of(
    algorithm: AnyAlgorithm, uploads: Any, down: Any, cohort: Cohort, task: Task
) -> Any:
    zero = torch.zeros_like(cohort.clients)
    at = zero + cohort.round, zero + cohort.exchange
    client = Client(cohort.sizes, *at, zero == 0, zero, zero)
    each = CohortDownload.of(down).over(
        lambda d, upload, c: algorithm.summand(upload, d, c, task)
    )
    return each(uploads, client) if named(uploads) else uploads


def total_of(algorithm: AnyAlgorithm, rows: Any, cohort: Cohort) -> Any:
    if algorithm.needs == "sums per team":
        return add_by_team(rows, cohort.teams, cohort.population.team_count)
    return add(rows)


def test_what_each_method_needs_is_as_it_was_reviewed() -> None:
    assert {name: variants[0].needs for name, variants in VARIANTS.items()} == NEEDS


@over_summed
def test_the_sum_of_summands_gives_what_uploads_give(algorithm: AnyAlgorithm) -> None:
    server, uploads, rows, cohort = summands(algorithm)
    expected, _ = without_log(algorithm.aggregate(server, uploads, cohort))
    total = total_of(algorithm, rows, cohort)
    found = algorithm.from_sum(server, total, cohort)
    assert_same(named(found), named(expected))


@over_summed
def test_a_client_without_samples_adds_nothing(algorithm: AnyAlgorithm) -> None:
    _, uploads, down, cohort, task = last_exchange(algorithm)
    nobody = replace(cohort, sizes=torch.zeros_like(cohort.sizes))
    rows = rows_of(algorithm, uploads, down, nobody, task)
    assert all(not bool(tensor.any()) for tensor in named(rows).values())


@over_summed_methods
def test_a_method_by_its_sums_is_the_method(algorithm: AnyAlgorithm) -> None:
    summed = set_up(Summed(algorithm), Weave(COUNT))
    advance(summed, 3)
    expected = specification(algorithm)
    found = standing(summed)
    assert_same(found, {name: expected[name] for name in found})


@over_summed_methods
def test_a_total_needs_no_rows(algorithm: AnyAlgorithm) -> None:
    server, uploads, rows, cohort = summands(algorithm)
    expected, _ = without_log(algorithm.aggregate(server, uploads, cohort))
    total = Total(total_of(algorithm, rows, cohort))
    found = Summed(algorithm).aggregate(server, total, cohort)
    assert_same(named(found), named(expected))


@over_summed
def test_every_field_of_a_summand_says_how_it_is_bounded(
    algorithm: AnyAlgorithm,
) -> None:
    record = algorithm.summand_record
    assert list(bounds(record)) == list(record._fields)
    for bound in bounds(record).values():
        assert bound.setting is None or hasattr(algorithm, bound.setting)


@pytest.mark.parametrize(
    ("plain", "capped", "field"),
    [
        (FedNova(), FedNova(most_length=2.0), "length"),
        (PFedVEM(), PFedVEM(most_confidence=1e-3), "confidence"),
    ],
    ids=["fednova", "pfedvem"],
)
def test_a_bound_of_the_method_makes_a_number_a_share(
    plain: AnyAlgorithm, capped: AnyAlgorithm, field: str
) -> None:
    """Of the weight of its client, which is 1 at most where sizes are capped."""
    server, uploads, rows, cohort = summands(capped)
    shares = getattr(rows, field) / cohort.sizes
    if field == "confidence":
        shares = getattr(rows, field)
    assert float(shares.max()) == pytest.approx(1.0)
    expected, _ = without_log(capped.aggregate(server, uploads, cohort))
    found = capped.from_sum(server, add(rows), cohort)
    assert_same(named(found), named(expected))
    unbounded, _ = without_log(plain.aggregate(server, uploads, cohort))
    assert any(
        not torch.allclose(a, b)
        for a, b in zip(
            named(unbounded).values(), named(expected).values(), strict=True
        )
    )


def test_sizes_count_up_to_the_cap_and_as_shares_of_it() -> None:
    summed = Summed(Ditto(), most_samples=8.0)
    watch = Watch(summed, server_only=True)
    simulation = set_up(watch, Weave(COUNT))
    advance(simulation, 1)
    _, rows, cohort = watch.calls["aggregate"][-1]
    assert torch.equal(rows.weight, (cohort.sizes / 8.0).clamp(max=1.0))


def test_what_a_client_sends_can_be_bounded_on_its_way_out() -> None:
    def halve(summand: Any, client: Client) -> Leaving:
        half = rebuild(summand, [tensor / 2 for tensor in summand])
        return Leaving(half, half)

    plain, halved = (
        set_up(Summed(Ditto(), leave=leave), Weave(COUNT)) for leave in (None, halve)
    )
    for simulation in (plain, halved):
        advance(simulation, 1)
    # Changes and weights are halved alike, and their quotient stays.
    assert_same(standing(halved), standing(plain))


def test_a_method_that_needs_single_models_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"fedamp: .*`personal`.*ditto"):
        Summed(FedAMP())


@over_server_noise
def test_rounds_in_which_nobody_is_there_are_noise_and_nothing_else(
    algorithm: Private,
) -> None:
    task = small_task()
    sampling = Sampling(rate=1e-9, kind="poisson")
    simulation = Simulation(
        algorithm, task, small_federation(), Weave(COUNT), sampling=sampling, seed=3
    )
    advance(simulation, 2)
    server = named(simulation.state.server)
    assert all(bool(torch.isfinite(t).all()) for t in server.values())
    assert not bool(simulation.clients.memory.seen.any())


class Once:
    """A release that stays what it was the first time."""

    def __init__(self, release: Any) -> None:
        self.release = release
        self.total: Any = None
        self.released: Any = None

    def __call__(self, total: Any, cohort: Cohort) -> Any:
        if self.released is None:
            self.total, self.released = total, self.release(total, cohort)
        return self.released


@over_server_noise
def test_what_is_made_of_a_total_does_not_tell_who_was_there(
    algorithm: Private,
) -> None:
    """Of the same noisy total comes the same, for one client and for everybody."""
    simulation = set_up(algorithm, Weave(COUNT), rate=0.4)
    advance(simulation, 3)
    server, coordinator = simulation.state.server, simulation.coordinator
    watched = private(algorithm.algorithm, algorithm.settings)
    once = vars(watched)["release"] = Once(algorithm.release)
    watched.aggregate(server, None, coordinator.cohort(coordinator.everyone[:0]))
    found = []
    for clients in ([4], [0, 2, 3, 4, 7], list(range(COUNT))):
        cohort = coordinator.cohort(torch.tensor(clients))
        last = replace(cohort, exchange=algorithm.exchanges - 1)
        after, _ = without_log(watched.aggregate(server, Total(once.total), last))
        after = watched.end_round(after, last)
        down, _ = without_log(
            watched.download(after, replace(cohort, round=cohort.round + 1))
        )
        own = CohortDownload.of(down).take(clients.index(4)).record
        shared = watched.shared(after, simulation.task)
        teams = watched.team_models(after, simulation.task)
        found.append(
            named(own)
            | ({} if shared is None else {"the shared model": shared})
            | ({} if teams is None else {"team models": teams})
        )
    assert found[0]
    for other in found[1:]:
        assert_same(other, found[0])
