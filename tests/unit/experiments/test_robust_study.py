"""The experiment on robust rules: its table, and what it calls unusual."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedloom.experiments import robust
from fedloom.experiments.robust import ATTACKS, KINDS, RULES, Row, to_markdown


def test_costs_are_differences_by_seed_to_no_rule() -> None:
    rows = [
        Row(attack, rule, seed, kind, score - 0.1 * (rule == "krum"), 0.5, 0.7, 0.2)
        for seed, score in enumerate((0.8, 0.9))
        for attack in ATTACKS
        for rule in RULES
        for kind in KINDS
    ]
    text = to_markdown(rows)
    (cost,) = (line for line in text.splitlines() if line.startswith("| krum | -10.0"))
    assert cost.startswith("| krum | -10.0 (0.0) | 0.0 (0.0) | 0.0 (0.0) | -10.0")
    assert "| krum | 75.0 (5.0) |" in text
    assert "| krum | 20.0 (0.0) | 20.0 (0.0) |" in text


def test_the_most_unusual_clients_have_the_rarest_mix_of_classes() -> None:
    (run,) = (
        run
        for (attack, rule), run in robust.simulations(0, 20).items()
        if (attack, rule) == ("none", "none")
    )
    counts = run.federation.label_counts() + run.federation.label_counts("test")
    shares = counts / counts.sum(1, keepdims=True)
    far = np.abs(shares - shares.mean(0)).sum(1)
    assert sorted(far[robust.unusual_decile(run)]) == sorted(far)[-2:]


@pytest.mark.slow
def test_every_attack_meets_every_rule() -> None:
    rows = list(robust.measure(0, rounds=2, clients=20))
    assert len(rows) == len(ATTACKS) * len(RULES) * len(KINDS)
    for row in rows:
        assert 0.0 <= row.mean <= 1.0
        assert math.isnan(row.backdoor) == (row.attack != "backdoor")
