"""Robust rules and attacks give what ByzFL gives (make_byzfl_numbers.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from make_byzfl_numbers import rows
from torch import Tensor

from fedloom.robust import attacks, rules

STORED = json.loads(Path(__file__).with_name("byzfl.json").read_text(encoding="utf-8"))
OURS = {
    "median": rules.median,
    "trimmed-mean 2": lambda x: rules.trimmed_mean(x, 2),
    "geometric-median 0.1 3": lambda x: rules.geometric_median(x, 3, 0.1),
    "geometric-median 1e-6 16": lambda x: rules.geometric_median(x, 16, 1e-6),
    # ByzFL counts the n - f - 1 nearest, which are the paper's for one liar less.
    "krum 2": lambda x: rules.krum(x, 1),
    "multi-krum 2": lambda x: rules.multi_krum(x, 1, kept=len(x) - 2),
    "norm-bound 5": lambda x: rules.norm_bound(x, 5.0),
    "little-is-enough 1.5": lambda x: attacks.little_is_enough(x, 1.5),
    "inner-product 2": lambda x: attacks.inner_product(x, 2.0),
}


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("who", ["honest", "with liars"])
def test_a_rule_gives_what_byzfl_gives(name: str, who: str) -> None:
    drawn: Tensor = torch.from_numpy(rows(has_liars=who == "with liars"))
    expected = torch.tensor(STORED[who][name], dtype=torch.float64)
    torch.testing.assert_close(OURS[name](drawn), expected, rtol=1e-6, atol=1e-6)
