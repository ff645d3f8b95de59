"""Robust rules: closed forms, symmetries, and liars who send anything at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from torch import Tensor

from fedloom.robust import rules

Rule = Callable[[Tensor, int], Tensor]
RULES: dict[str, Rule] = {
    "norm-bound": lambda x, f: rules.norm_bound(x),
    "trimmed-mean": rules.trimmed_mean,
    "median": lambda x, f: rules.median(x),
    "geometric-median": lambda x, f: rules.geometric_median(x),
    "krum": rules.krum,
    "multi-krum": rules.multi_krum,
    "bulyan": rules.bulyan,
}
WITHIN = [n for n in RULES if n not in ("norm-bound", "geometric-median")]
"""Rules whose result lies between the honest rows, coordinate by coordinate."""


def drawn(n: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=source, dtype=dtype) + 2.0


def of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_closed_forms_on_a_line() -> None:
    rows = of(0.0, 1.0, 2.0, 3.0, 100.0)
    assert float(rules.median(rows)) == 2.0
    assert float(rules.median(rows[:4])) == 1.5
    assert float(rules.trimmed_mean(rows, 1)) == 2.0
    # Two nearest others each: 0 has 1 + 4, 1 and 2 have 1 + 1, 3 has 1 + 4; the next
    # neighbours of 1 and 2 are as near, and of 2 the last one is nearer.
    assert float(rules.krum(rows, 1)) == 2.0
    # Without the one with the highest score.
    assert float(rules.multi_krum(rows, 1)) == 1.5
    # The median of the norms is 2: 0, 1, 2, 2, 2.
    assert float(rules.norm_bound(rows)) == pytest.approx(7 / 5)
    assert float(rules.norm_bound(rows, 1.0)) == pytest.approx(4 / 5)


def test_the_geometric_median_of_a_square_with_its_middle_is_the_middle() -> None:
    rows = torch.tensor([[1.0, 1.0], [3.0, 1.0], [1.0, 3.0], [3.0, 3.0], [2.0, 2.0]])
    found = rules.geometric_median(rows.double(), moves=200)
    torch.testing.assert_close(found, torch.full((2,), 2.0, dtype=torch.float64))


def test_a_geometric_median_that_moves_long_enough_balances_unit_pulls() -> None:
    rows = drawn(9, 4)
    point = rules.geometric_median(rows, moves=2000)
    away = point - rows
    pull = (away / away.norm(dim=1, keepdim=True)).sum(0)
    assert float(pull.norm()) < 1e-6


def slow_bulyan(rows: Tensor, f: int) -> Tensor:
    """As the paper says it, number by number; equal scores by the next neighbours."""
    left, chosen = [row.tolist() for row in rows], []
    for _ in range(len(rows) - 2 * f):
        scores = []
        for i, own in enumerate(left):
            squares = sorted(
                sum((a - b) ** 2 for a, b in zip(own, other, strict=True))
                for j, other in enumerate(left)
                if j != i
            )
            counted = max(len(left) - f - 2, 1)
            scores.append((sum(squares[:counted]), *squares[counted:]))
        chosen.append(left.pop(scores.index(min(scores))))
    beta = len(chosen) - 2 * f
    made = []
    for column in zip(*chosen, strict=True):
        off = {m: sum(abs(z - m) for z in column) for m in column}
        least = min(off.values())
        middle = min(m for m in column if math.isclose(off[m], least))
        best = min(
            combinations(column, beta),
            key=lambda some: sum(abs(x - middle) for x in some),
        )
        made.append(sum(best) / beta)
    return torch.tensor(made, dtype=rows.dtype)


@pytest.mark.parametrize(("n", "f"), [(7, 1), (8, 1), (11, 2), (12, 2), (5, 0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_bulyan_is_what_its_paper_says(n: int, f: int, seed: int) -> None:
    rows = drawn(n, 3, seed)
    torch.testing.assert_close(rules.bulyan(rows, f), slow_bulyan(rows, f))


@pytest.mark.parametrize("name", ["trimmed-mean", "multi-krum", "bulyan"])
def test_without_liars_a_rule_that_averages_is_the_mean(name: str) -> None:
    rows = drawn(8, 5)
    torch.testing.assert_close(RULES[name](rows, 0), rows.mean(0))


def test_a_bound_that_nobody_reaches_gives_the_mean() -> None:
    rows = drawn(6, 5)
    torch.testing.assert_close(rules.norm_bound(rows, 1e6), rows.mean(0))


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_the_rows_does_not_matter(name: str) -> None:
    rows = drawn(13, 6)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(RULES[name](rows[order], 2), RULES[name](rows, 2))


@pytest.mark.parametrize("name", RULES)
def test_moving_all_rows_by_as_much_scales_or_moves_the_result(name: str) -> None:
    rows = drawn(13, 6)
    torch.testing.assert_close(RULES[name](3.0 * rows, 2), 3.0 * RULES[name](rows, 2))
    if name in WITHIN:
        moved = RULES[name](rows - 5.0, 2)
        torch.testing.assert_close(moved, RULES[name](rows, 2) - 5.0)


LIES = [1e30, -1e30, 3e38, math.nan, math.inf, -math.inf, 0.0]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "f"), [(11, 2), (7, 1)])
def test_liars_who_send_anything_move_the_result_little(
    name: str, lie: float, dtype: torch.dtype, n: int, f: int
) -> None:
    rows = drawn(n, 5, dtype=dtype)
    rows[1 : 1 + f] = lie
    honest = torch.cat([rows[:1], rows[1 + f :]])
    result = RULES[name](rows, f)
    assert result.dtype == dtype
    longest = float(honest.norm(dim=1).max())
    if name in WITHIN:
        assert bool((result >= honest.min(0).values).all())
        assert bool((result <= honest.max(0).values).all())
    elif name == "norm-bound":
        assert float(result.norm()) <= longest * 1.001
    else:  # Minsker 2015: no further from zero than 2 (n - f) / (n - 2 f) times all
        assert float(result.norm()) <= 2 * (n - f) / (n - 2 * f) * longest


@pytest.mark.parametrize("name", WITHIN)
def test_liars_who_each_say_something_else_do_not_help_each_other(name: str) -> None:
    rows = drawn(11, 5)
    rows[0], rows[7] = math.nan, 1e30
    rows[0, 2] = -math.inf
    honest = torch.cat([rows[1:7], rows[8:]])
    result = RULES[name](rows, 2)
    assert bool((result >= honest.min(0).values).all())
    assert bool((result <= honest.max(0).values).all())


@pytest.mark.parametrize("name", RULES)
def test_rows_that_are_all_the_same_give_that_row(name: str) -> None:
    rows = drawn(1, 4).expand(11, 4).clone()
    torch.testing.assert_close(RULES[name](rows, 2), rows[0])


@pytest.mark.parametrize("name", RULES)
def test_a_rule_changes_none_of_its_rows(name: str) -> None:
    rows = drawn(11, 4)
    rows[2] = math.nan
    before = rows.clone()
    RULES[name](rows, 2)
    torch.testing.assert_close(rows, before, rtol=0, atol=0, equal_nan=True)


def test_one_row_less_than_a_rule_needs_lets_liars_in() -> None:
    """With n = 2 f the trimmed mean has nothing left."""
    assert rules.least_rows("trimmed-mean", 2) == 5
    assert rules.least_rows("krum", 2) == 7
    assert rules.least_rows("bulyan", 2) == 11
    assert rules.least_rows("norm-bound", 2) == 1
    assert not bool(rules.trimmed_mean(drawn(4, 2), 2).isfinite().any())
