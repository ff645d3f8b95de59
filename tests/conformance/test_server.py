"""Laws of the server's half: whose uploads count, in what order, and how much."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from variants import (
    COUNT,
    Watch,
    advance,
    assert_identical,
    assert_same,
    history,
    last_aggregation,
    one_round,
    over_methods,
    over_variants,
    over_variants_in_time,
    set_up,
    small_federation,
    tensors_of,
)

from fedloom.core.algorithm import AnyAlgorithm, Cohort
from fedloom.core.records import Empty, named, take, without_log
from fedloom.engine.weave import Weave


def close_round(
    algorithm: AnyAlgorithm, server: Any, uploads: Any, cohort: Cohort
) -> dict[str, Tensor]:
    """What the server keeps at the end of a round."""
    new, _ = without_log(algorithm.aggregate(server, uploads, cohort))
    return named(algorithm.end_round(new, cohort))


@over_variants
def test_the_order_of_clients_is_irrelevant_to_aggregation(
    algorithm: AnyAlgorithm,
) -> None:
    server, uploads, cohort = last_aggregation(algorithm)
    other = torch.tensor([6, 2, 9, 0, 4, 1, 8, 3, 7, 5])
    found = close_round(algorithm, server, take(uploads, other), cohort.only(other))
    assert_same(found, close_round(algorithm, server, uploads, cohort))


@over_variants
@pytest.mark.parametrize("absent", [0, 6])
def test_a_client_without_samples_is_invisible(
    algorithm: AnyAlgorithm, absent: int
) -> None:
    """The server is as if the client had never been there.

    What the server keeps about that client itself, a row of the (M, ...) tensors, is
    nobody else's business and not compared.
    """
    server, uploads, cohort = last_aggregation(algorithm)
    present = cohort.clients != absent
    sizes = torch.where(present, cohort.sizes, 0.0)
    population = replace(cohort.population, sizes=sizes)
    cohort = replace(cohort, sizes=sizes, population=population)
    found = close_round(algorithm, server, uploads, cohort)
    chosen = present.nonzero()[:, 0]
    expected = close_round(
        algorithm, server, take(uploads, chosen), cohort.only(chosen)
    )
    about_clients = [n for n, t in found.items() if t.dim() and len(t) == COUNT]
    for name in about_clients:
        found[name], expected[name] = found[name][chosen], expected[name][chosen]
    assert_same(found, expected)


@over_variants
def test_no_call_changes_what_it_is_given(algorithm: AnyAlgorithm) -> None:
    watch = one_round(algorithm)
    exchanges = algorithm.exchanges
    assert len(watch.calls["begin"]) == COUNT * exchanges
    assert len(watch.calls["finish"]) == COUNT * exchanges
    assert len(watch.calls["aggregate"]) == exchanges
    assert len(watch.calls["personal"]) == COUNT


@over_methods
def test_a_first_memory_leaves_the_download_as_it_is(algorithm: AnyAlgorithm) -> None:
    _, down, _, client, task = one_round(algorithm).calls["finish"][-1]
    before = [t.clone() for t in tensors_of((down, client, task))]
    algorithm.initial_memory(down, client, task)
    assert all(map(torch.equal, before, tensors_of((down, client, task))))


@over_methods
def test_train_all_trains_everybody_and_hears_the_sampled(
    algorithm: AnyAlgorithm,
) -> None:
    simulation = set_up(algorithm, Weave(COUNT), rate=0.3, protocol="train-all")
    sampled = torch.from_numpy(
        simulation.coordinator.sampling.draw(COUNT, simulation.seed, 0)
    )
    met = advance(simulation, 1)
    assert simulation.last is not None
    assert torch.equal(simulation.last.clients, torch.arange(COUNT))
    assert torch.equal(simulation.last.uploaders, sampled)
    assert bool(simulation.clients.memory.seen.all())
    assert len(sampled) == 3
    assert all(bool((exchange["report.steps"] > 0).all()) for exchange in met)


@over_methods
def test_under_train_all_only_sampled_clients_move_the_server(
    algorithm: AnyAlgorithm,
) -> None:
    def server(relabelled: int | None) -> dict[str, Tensor]:
        federation = small_federation(relabelled=relabelled)
        simulation = set_up(
            algorithm,
            Weave(COUNT),
            rate=0.3,
            protocol="train-all",
            federation=federation,
        )
        advance(simulation, 1)
        return named(simulation.state.server)

    sampled = (
        set_up(algorithm, rate=0.3).coordinator.sampling.draw(COUNT, 3, 0).tolist()
    )
    unheard = next(n for n in range(COUNT) if n not in sampled)
    plain = server(None)
    assert_identical(server(unheard), plain)
    if algorithm.records[0] is Empty:
        return
    heard = server(sampled[0])
    assert any(not torch.equal(heard[name], plain[name]) for name in plain)


@over_methods
def test_a_client_never_seen_has_the_model_that_a_first_meeting_gives(
    algorithm: AnyAlgorithm,
) -> None:
    watch = Watch(algorithm)
    simulation = set_up(watch, rate=0.2)
    history(simulation, 2)
    assert bool(simulation.clients.memory.seen.all()) == algorithm.trains_everyone
    watch.calls.clear()
    watch.results.clear()
    theta = simulation.personal(torch.arange(COUNT))
    for n in (~simulation.clients.memory.seen).nonzero()[:, 0].tolist():
        # Called for each client in turn, in the order of the rows.
        down, memory, client, task = watch.calls["personal"][n]
        first = algorithm.initial_memory(down, client, task)
        assert_identical(named(memory), named(first))
        own = algorithm.personal(down, first, client, task)
        assert own.shape == (task.d,)
        assert torch.isfinite(own).all()
        if not algorithm.adaptation:
            assert torch.equal(theta[n], own)
    assert torch.isfinite(theta).all()


@over_variants_in_time
@pytest.mark.parametrize("protocol", ["train-selected", "train-all"])
def test_a_model_does_not_depend_on_who_is_asked_beside_the_client(
    algorithm: AnyAlgorithm, protocol: str
) -> None:
    """Clients that were never met, or never heard, included."""
    simulation = set_up(algorithm, Weave(COUNT), rate=0.3, protocol=protocol)
    advance(simulation, 2)
    assert not bool((simulation.state.taken >= 0).all())
    everyone = torch.arange(COUNT)
    together = simulation.personal(everyone)
    for asked in (everyone[:4], everyone[4:5], everyone[5:]):
        found = {"personal": simulation.personal(asked)}
        assert_same(found, {"personal": together[asked]}, 1e-12)
