"""Odd numbers are refused before anything is measured."""

import pytest

from fedloom.bench import engine, methods, seeds
from fedloom.bench.peers import comparison
from fedloom.core.errors import ConfigError


def test_nothing_to_measure_is_refused():
    for rows in (
        engine.measure("digits", ["mlr"], repeats=0),
        methods.measure("digits", ["fedavg"], repeats=0),
        seeds.measure(["fedavg"], seeds=0),
        comparison.measure(["W1"], [], repeats=0),
        comparison.measure(["W1"], [], processes=0),
    ):
        with pytest.raises(ConfigError, match="must be at least 1, found 0"):
            next(iter(rows))


@pytest.mark.parametrize("rounds", [0, 2])
def test_rounds_too_few_to_time_are_refused_before_peers_are_installed(rounds):
    said = []
    rows = comparison.measure(["W1"], [], rounds=rounds, say=said.append)
    with pytest.raises(ConfigError, match="rounds must be at least 3"):
        next(iter(rows))
    assert not said
