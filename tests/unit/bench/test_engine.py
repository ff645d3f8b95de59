"""What the benchmark of the engine counts, and the clients that it makes."""

import pytest
import torch

from fedloom.bench.engine import _Unequal, measure
from fedloom.bench.evaluation import evaluations
from fedloom.bench.floor import Rates, Work
from fedloom.clients import Split, divide
from fedloom.core.errors import ConfigError
from fedloom.core.task import Task
from fedloom.data import Digits
from fedloom.models import MLR

DIGITS = Digits().load(None, 0)


def test_the_floor_is_the_longer_of_both_times():
    rates = Rates(flops_s=100.0, bytes_s=10.0)
    assert rates.floor_s(Work(200.0, 10.0)) == 2.0
    assert rates.floor_s(Work(200.0, 30.0)) == 3.0


def test_rates_are_measured():
    rates = Rates.measure(torch.device("cpu"), 1 << 20)
    assert 1e8 < rates.flops_s < 1e15
    assert 1e7 < rates.bytes_s < 1e14


def test_unequal_clients_hold_all_samples_and_differ_by_an_order_of_magnitude():
    holders = divide(DIGITS, _Unequal(clients=20), Split(test=0.0), seed=0)
    assert holders.sizes.sum() == len(DIGITS)
    assert holders.sizes.max() > 8 * holders.sizes.min()
    again = divide(DIGITS, _Unequal(clients=20), Split(test=0.0), seed=0)
    assert holders.hash == again.hash


def test_both_ways_to_evaluate_come_to_the_same():
    task = Task(MLR().build(DIGITS.input_shape, 10), scale=DIGITS.scale)
    for kind, both in evaluations(DIGITS, task, 5, 5).items():
        (scores,) = [s for s in both.ours().scores if s.kind == kind]
        losses, accuracies = zip(*both.plain(), strict=True)
        assert scores.of("loss") == pytest.approx(losses, rel=1e-5)
        assert scores.of() == pytest.approx(accuracies)


def test_a_shared_model_need_see_a_sample_once():
    task = Task(MLR().build(DIGITS.input_shape, 10), scale=DIGITS.scale)
    both = evaluations(DIGITS, task, 5, 5)
    assert both["shared"].samples == both["personal"].samples
    # Of all clients the same 256, so five times fewer are seen.
    assert both["personal"].least.flops == 5 * both["shared"].least.flops


def test_evaluation_can_be_left_out():
    rows = list(
        measure("digits", ["mlr"], repeats=1, modes=["plain"], evaluation=False)
    )
    assert [row.work for row in rows] == ["training"]


def test_a_device_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="device must be"):
        next(iter(measure("digits", ["mlr"], device="tpu")))
