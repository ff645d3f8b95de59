"""Laws of what is kept: a run can stop anywhere and go on as if it had not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from variants import (
    ALL,
    COUNT,
    assert_identical,
    describe,
    one_round,
    over_methods,
    over_variants_in_time,
    set_up,
    standing,
)

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.records import from_named, leaves, named, without_log
from fedloom.engine.weave import Weave
from fedloom.server.checkpoint import restore, save

TIERED = [algorithm for algorithm in ALL if algorithm.exchanges > 1]


def _resumed_equals_uninterrupted(
    algorithm: AnyAlgorithm, rate: float, path: Path, stop: int
) -> None:
    """Stop after so many exchanges, go on in a fresh run to the end of round 2."""
    exchanges = 2 * algorithm.exchanges
    whole = set_up(algorithm, Weave(COUNT), rate=rate)
    for _ in range(exchanges):
        whole_cost = whole.run_exchange()
    before = set_up(algorithm, Weave(COUNT), rate=rate)
    for _ in range(stop):
        before.run_exchange()
    save(before, path)
    after = set_up(algorithm, Weave(COUNT), rate=rate)
    restore(after, path)
    for _ in range(exchanges - stop):
        cost = after.run_exchange()
    assert_identical(standing(after), standing(whole))
    assert cost is not None
    assert whole_cost is not None
    assert (cost.loss, cost.steps) == (whole_cost.loss, whole_cost.steps)
    assert (cost.bytes_up, cost.bytes_down) == (
        whole_cost.bytes_up,
        whole_cost.bytes_down,
    )


@over_variants_in_time
def test_resuming_equals_never_stopping(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    _resumed_equals_uninterrupted(algorithm, 1.0, path, stop=algorithm.exchanges)


@over_methods
def test_resuming_equals_never_stopping_when_some_clients_were_never_seen(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    _resumed_equals_uninterrupted(algorithm, 0.2, path, stop=algorithm.exchanges)


@over_methods
def test_a_run_can_stop_before_its_first_round(
    algorithm: AnyAlgorithm, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    _resumed_equals_uninterrupted(algorithm, 0.5, path, stop=0)


@pytest.mark.parametrize("algorithm", TIERED, ids=describe)
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_resuming_inside_a_round_equals_never_stopping(
    algorithm: AnyAlgorithm, rate: float, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    stop = algorithm.exchanges + 1
    _resumed_equals_uninterrupted(algorithm, rate, path, stop)


@over_variants_in_time
def test_every_record_survives_being_taken_apart(algorithm: AnyAlgorithm) -> None:
    watch = one_round(algorithm)
    work, down, memory, _, _ = watch.calls["finish"][-1]
    new_memory, upload = watch.results["finish"][-1]
    server, uploads, _ = watch.calls["aggregate"][-1]
    records: list[Any] = [work, down, memory, new_memory, upload, server, uploads]
    records.append(watch.results["client_log"][-1])
    records += without_log(watch.results["download"][-1])
    records += without_log(watch.results["aggregate"][-1])
    for record in records:
        again = from_named(record, named(record), "here")
        assert type(again) is type(record)
        assert named(again).keys() == named(record).keys()
        assert all(map(torch.equal, leaves(again), leaves(record)))
