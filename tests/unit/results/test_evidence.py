"""Evidence from held-out samples: by hand, and on worlds whose truth is known."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from scipy import stats
from synthetic_outcomes import World

from fedloom.results.evidence import Evidence, contrast, in_units, weigh
from fedloom.results.observations import Design, Observations, Spread, spread


def observed(
    values: list[list[float]],
    *,
    rows: list[int] | None = None,
    clients: list[int] | None = None,
    seeds: list[int] | None = None,
    alone: list[list[float]] | None = None,
    groups: list[int] | None = None,
) -> Observations:
    """Observations of one seed and client unless said otherwise."""
    scores = np.array(values, dtype=float)
    count = scores.shape[1]
    return Observations(
        methods=tuple("abcdefgh"[: len(scores)]),
        seeds=np.array(seeds or [0] * count),
        rows=np.array(rows or range(count)),
        clients=np.array(clients or [0] * count),
        is_test=np.ones(count, dtype=bool),
        values=scores,
        alone=np.full_like(scores, np.nan) if alone is None else np.array(alone),
        groups=None if groups is None else np.array(groups),
    )


def test_a_score_is_the_mean_over_clients_of_their_means() -> None:
    """Client 0 has 1 of 1 right, client 1 has 1 of 4: (1 + 1/4) / 2."""
    evidence = weigh(observed([[1, 1, 0, 0, 0]], clients=[0, 1, 1, 1, 1]), "accuracy")
    assert evidence.scores["a"].mean == pytest.approx(0.625)
    assert (evidence.clients, evidence.seeds, evidence.samples) == (2, 1, 5)


def test_clients_of_a_seed_come_before_seeds_where_every_seed_has_its_own() -> None:
    """Seed 0: one client with 1; seed 1: clients with 0 and 0.5; (1 + 1/4) / 2."""
    seen = observed([[1, 0, 0, 1]], clients=[0, 1, 2, 2], seeds=[0, 1, 1, 1])
    assert weigh(seen, "accuracy").scores["a"].mean == pytest.approx(0.625)


def test_the_variance_of_one_client_is_the_squared_error_of_its_mean() -> None:
    values = [3.0, 5.0, 4.0, 8.0]
    seen = observed([values])
    design = Design.of(seen)
    about = spread(design.mean(seen.values[0]), design)
    assert about.variance == pytest.approx(stats.sem(values) ** 2)
    assert about.df == pytest.approx(3)
    assert about.units == pytest.approx(4)


def test_clients_are_strata() -> None:
    """Two clients: the variance is that of half the sum of two means."""
    first, second = [1.0, 2.0, 4.0], [10.0, 13.0]
    seen = observed([first + second], clients=[0, 0, 0, 1, 1])
    design = Design.of(seen)
    about = spread(design.mean(seen.values[0]), design)
    parts = np.array([stats.sem(first) ** 2, stats.sem(second) ** 2]) / 4
    assert about.variance == pytest.approx(parts.sum())
    welch = parts.sum() ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 1)
    assert about.df == pytest.approx(welch)


def test_a_sample_that_returns_in_every_seed_counts_once() -> None:
    """Five seeds that test the same rows with the same models say no more than one."""
    values, count = [1.0, 0, 1, 1, 0, 1], 6
    alone = observed([values])
    again = observed(
        [values * 5],
        rows=list(range(count)) * 5,
        seeds=np.repeat(range(5), count).tolist(),
    )
    one, five = (weigh(seen, "accuracy").scores["a"] for seen in (alone, again))
    assert five.mean == pytest.approx(one.mean)
    assert (five.low, five.high) == pytest.approx((one.low, one.high))


def test_what_seeds_differ_by_widens_the_interval() -> None:
    """Same rows, but all models of a seed are good or bad together."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(1, 400))
    rows, seeds = np.tile(range(80), 5).tolist(), np.repeat(range(5), 80).tolist()
    shift = np.repeat([3.0, -3.0, 2.0, -2.0, 0.0], 80)
    steady = observed((base + 9).tolist(), rows=rows, seeds=seeds)
    shaken = observed((base + 9 + shift).tolist(), rows=rows, seeds=seeds)
    designs = [Design.of(seen) for seen in (steady, shaken)]
    calm, moved = (
        spread(design.mean(seen.values[0]), design)
        for design, seen in zip(designs, (steady, shaken), strict=True)
    )
    assert moved.variance > 10 * calm.variance
    assert moved.df < 10
    assert moved.variance == pytest.approx(
        np.var([3, -3, 2, -2, 0], ddof=1) / 5, rel=0.3
    )


def test_clients_with_a_single_sample_are_one_crowd() -> None:
    """Without samples of its own, a client is a draw from all of them."""
    values = [0.2, 0.4, 0.9, 0.5]
    seen = observed([values], clients=[0, 1, 2, 3])
    design = Design.of(seen)
    about = spread(design.mean(seen.values[0]), design)
    assert about.variance == pytest.approx(stats.sem(values) ** 2)
    assert about.df == pytest.approx(3)


def spread_of(seen: Observations) -> Spread:
    design = Design.of(seen)
    return spread(design.mean(seen.values[0]), design)


def test_the_variance_of_groups_is_the_squared_error_of_the_mean_of_their_means() -> (
    None
):
    groups = [[3.0, 5.0], [4.0, 8.0], [1.0, 0.0]]
    seen = observed([np.concatenate(groups).tolist()], groups=[0, 0, 1, 1, 2, 2])
    about = spread_of(seen)
    assert about.variance == pytest.approx(stats.sem([np.mean(g) for g in groups]) ** 2)
    assert about.df == pytest.approx(2)
    assert about.units == pytest.approx(3)


def test_groups_of_one_sample_each_are_samples() -> None:
    values, clients = [3.0, 5.0, 4.0, 8.0, 1.0], [0, 0, 0, 1, 1]
    alone = spread_of(observed([values], clients=clients))
    grouped = spread_of(observed([values], clients=clients, groups=[7, 3, 5, 1, 9]))
    assert dataclasses.astuple(grouped) == pytest.approx(dataclasses.astuple(alone))


def test_large_and_small_groups_are_unbiased_where_their_means_scatter_alike() -> None:
    """Of a mean of groups of 1, 16, 2 and 8 equal rows, over many draws."""
    sizes = [1, 16, 2, 8]
    groups = np.repeat(np.arange(4), sizes)
    rng = np.random.default_rng(3)
    shares = np.array(sizes) / sum(sizes)
    variances = [
        spread_of(observed([y[groups].tolist()], groups=groups.tolist())).variance
        for y in rng.normal(size=(1000, 4))
    ]
    assert np.mean(variances) == pytest.approx((shares**2).sum(), rel=0.1)


def test_a_group_that_returns_in_every_seed_counts_once() -> None:
    values, groups = [1.0, 0, 1, 1, 0, 1, 1, 1], [0, 0, 1, 1, 2, 2, 3, 3]
    single = observed([values], groups=groups)
    again = observed(
        [values * 5],
        rows=list(range(8)) * 5,
        groups=groups * 5,
        seeds=np.repeat(range(5), 8).tolist(),
    )
    first, five = (weigh(seen, "accuracy").scores["a"] for seen in (single, again))
    assert (five.low, five.high) == pytest.approx((first.low, first.high))
    assert again.repeats_samples
    assert not single.repeats_samples


def test_what_groups_explain_is_not_called_a_difference_of_seeds() -> None:
    """Two folds that differ because a visit each is easy or hard, not by training."""
    values = [1.0] * 4 + [0.0] * 4 + [1.0] * 4 + [0.0] * 4
    folds = [0] * 4 + [1] * 8 + [0] * 4
    groups = np.repeat(range(4), 4).tolist()
    about = spread_of(observed([values], seeds=folds, groups=groups))
    assert about.variance == pytest.approx(stats.sem([1, 0, 1, 0]) ** 2)


def test_a_single_group_has_no_interval_and_shows_nothing() -> None:
    """49 rows, whose weights do not add up to 1 to the last bit."""
    ours, alone, count = [1.0] * 49, [0.0] * 49, 49
    seen = observed([ours], alone=[alone], groups=[0] * count)
    evidence = weigh(seen, "accuracy")
    assert not evidence.scores["a"].has_interval
    assert not evidence.gains["a"].is_shown
    assert (evidence.samples, evidence.groups) == (49, 1)


def test_a_client_with_a_single_group_is_a_draw_from_all_of_them() -> None:
    """It has no error of its own, and its distance from the mean counts all the same:
    squared, twice for being the only one, times its weight of a half."""
    values = [1.0, 1, 0, 0, 1, 1, 1, 1]
    seen = observed([values], clients=[0] * 4 + [1] * 4, groups=[0, 0, 1, 1] + [2] * 4)
    about = spread_of(seen)
    first = stats.sem([1.0, 0.0]) ** 2 / 4
    assert about.variance == pytest.approx(first + 2 * (0.25 / 2) ** 2)
    errors = Design.of(seen).by_client(seen.values[0]).error
    assert np.isfinite(errors).tolist() == [True, False]


@pytest.mark.parametrize(("groups", "is_shown"), [(2, False), (4, False), (5, True)])
def test_so_few_groups_that_coins_would_fall_alike_show_nothing(
    groups: int, is_shown: bool
) -> None:
    """All groups gain as much, so that their scatter is nil."""
    codes = np.repeat(range(groups), 8).tolist()
    ours, alone = [1.0] * len(codes), [0.0] * len(codes)
    gain = weigh(observed([ours], alone=[alone], groups=codes), "accuracy").gains["a"]
    assert gain.p == pytest.approx(0.5**groups)
    assert gain.is_shown == is_shown


@pytest.mark.parametrize("right", [0, 1, 19, 20])
def test_an_accuracy_has_an_interval_inside_0_and_1(right: int) -> None:
    score = weigh(observed([[1.0] * right + [0.0] * (20 - right)]), "accuracy")
    estimate = score.scores["a"]
    assert 0 <= estimate.low <= estimate.mean <= estimate.high <= 1
    assert estimate.high - estimate.low > 0.1


def test_an_error_has_an_interval_above_0() -> None:
    estimate = weigh(observed([[0.01, 0.02, 9.0]]), "mse").scores["a"]
    assert 0 < estimate.low < estimate.mean < estimate.high
    ratio = estimate.high / estimate.mean
    assert estimate.mean / estimate.low == pytest.approx(ratio)


def test_a_gain_is_a_paired_test_by_sample() -> None:
    ours, alone = [1.0, 1, 0, 1, 1, 1, 0, 1], [1.0, 0, 0, 1, 0, 1, 1, 1]
    gain = weigh(observed([ours], alone=[alone]), "accuracy").gains["a"]
    expected = stats.ttest_rel(ours, alone, alternative="greater")
    assert gain.estimate.mean == pytest.approx(0.125)
    assert gain.p == gain.adjusted == pytest.approx(expected.pvalue)


def test_a_gain_in_errors_is_a_ratio() -> None:
    """Half of alone's error, whatever its units: log 2, and the same p."""
    rng = np.random.default_rng(1)
    alone = rng.exponential(size=60)
    ours = alone / 2 * rng.uniform(0.5, 1.5, 60)
    for scale in (1.0, 1e6):
        seen = observed([(scale * ours).tolist()], alone=[(scale * alone).tolist()])
        evidence = weigh(seen, "mse")
        gain = evidence.gains["a"]
        assert gain.estimate.mean == pytest.approx(math.log(alone.mean() / ours.mean()))
        assert gain.is_shown
        in_own = evidence.over_alone("a")
        assert in_own is not None
        assert in_own.mean == pytest.approx(scale * (alone.mean() - ours.mean()))


def test_a_ratio_in_units_keeps_its_sign() -> None:
    gain = weigh(observed([[1.0, 2, 3]], alone=[[1.0, 2.5, 5]]), "mse").gains["a"]
    units = in_units(gain.estimate, 2.0)
    assert np.sign(units.low) == np.sign(gain.estimate.low)
    assert np.sign(units.high) == np.sign(gain.estimate.high)


def test_equal_methods_do_not_differ() -> None:
    values = [[1.0, 0, 1, 1], [1.0, 0, 1, 1]]
    evidence = weigh(observed(values, alone=values), "accuracy")
    assert evidence.gains["a"].adjusted == 1.0
    assert evidence.pairs["a", "b"].estimate.mean == 0.0
    assert not evidence.gains["b"].is_shown


def test_several_tests_are_adjusted_less_the_more_they_are_alike() -> None:
    """Five copies of one test are one test; five strange ones nearly Bonferroni."""
    rng = np.random.default_rng(2)
    alone = (rng.random(300) < 0.7).astype(float)
    better = np.maximum(alone, rng.random(300) < 0.06).astype(float)
    copies = weigh(
        observed([better.tolist()] * 5, alone=[alone.tolist()] * 5), "accuracy"
    )
    assert copies.gains["a"].adjusted == pytest.approx(copies.gains["a"].p, abs=0.005)
    strange = [better.tolist(), *(rng.random((4, 300)) < 0.7).astype(float).tolist()]
    own = [alone.tolist(), *(rng.random((4, 300)) < 0.7).astype(float).tolist()]
    apart = weigh(observed(strange, alone=own), "accuracy").gains["a"]
    assert 3 * apart.p < apart.adjusted <= 5 * apart.p


def test_a_method_without_a_seed_is_compared_on_the_others() -> None:
    values = [[1.0, 1, 0, 1, 0, 1], [1.0, 0, 0, np.nan, np.nan, np.nan]]
    seeds, rows = [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]
    evidence = weigh(observed(values, seeds=seeds, rows=rows), "accuracy")
    assert evidence.scores["b"].count == 1
    assert evidence.pairs["a", "b"].estimate.mean == pytest.approx(1 / 3)


def test_validation_data_help_to_choose_and_are_not_reported() -> None:
    values = [[1.0, 1, 1, 0, 0, 0], [0.0, 1, 1, 1, 1, 1]]
    seen = observed(values)
    seen = replace(seen, is_test=np.arange(6) < 3)
    evidence = weigh(seen, "accuracy")
    assert evidence.leader == "b"
    assert evidence.scores["a"].mean == 1.0
    assert evidence.scores["b"].mean == pytest.approx(2 / 3)


@pytest.mark.parametrize(("is_alike", "gain"), [(False, 0.5), (True, 0.25)])
def test_gains_are_read_from_validation_data_only_if_they_are_alike(
    is_alike: bool, gain: float
) -> None:
    """On test data the method is right once more of two, on the others never."""
    seen = observed([[1, 1, 1, 0]], alone=[[1, 0, 1, 0]])
    is_test = np.array([True, True, False, False])
    evidence = weigh(replace(seen, is_test=is_test, is_alike=is_alike), "accuracy")
    assert evidence.gains["a"].estimate.mean == pytest.approx(gain)
    assert evidence.alone["a"].mean == pytest.approx(0.5)
    assert evidence.scores["a"].mean == pytest.approx(1.0)


def test_a_single_contrast_is_not_adjusted() -> None:
    seen = observed([[1.0, 1, 0, 1], [0.0, 1, 0, 0]])
    test = contrast(seen, seen.values[0], seen.values[1], "accuracy")
    assert test.p == test.adjusted


def tally(world: World, count: int) -> dict[str, float]:
    """Shares and biases over many worlds of a kind."""
    gains, scores, shown, bias, raw = [], [], [], [], []
    for number in range(count):
        seen, truth, alone = world.draw(number)
        evidence = weigh(seen, "accuracy")
        gains += [
            e.low <= t <= e.high
            for m, t in zip(seen.methods, truth - alone, strict=True)
            if (e := evidence.gains[m].estimate)
        ]
        scores += [
            e.low <= t <= e.high
            for m, t in zip(seen.methods, truth, strict=True)
            if (e := evidence.scores[m])
        ]
        shown.append(any(gain.is_shown for gain in evidence.gains.values()))
        leader = seen.methods.index(evidence.leader or "")
        bias.append(corrected(evidence) - truth[leader])
        raw.append(evidence.scores[seen.methods[leader]].mean - truth[leader])
    return {
        "gains": float(np.mean(gains)),
        "scores": float(np.mean(scores)),
        "shown": float(np.mean(shown)),
        "bias": float(np.mean(bias)),
        "raw": float(np.mean(raw)),
    }


def corrected(evidence: Evidence) -> float:
    return evidence.score_once_chosen(evidence.leader or "").mean


@pytest.mark.parametrize("tests", ["drawn", "folds"])
def test_intervals_hold_the_truth_and_nothing_is_shown_where_nothing_is(
    tests: Literal["drawn", "folds"],
) -> None:
    shares = tally(World(tests=tests), 60)
    assert shares["gains"] >= 0.92
    assert shares["scores"] >= 0.92
    assert shares["shown"] <= 0.08
    assert abs(shares["bias"]) < shares["raw"]


@pytest.mark.slow
@pytest.mark.parametrize("tests", ["drawn", "folds"])
@pytest.mark.parametrize(
    "world",
    [
        World(),
        World(own=0.1, level=0.93),
        World(clients=20, smallest=12, largest=80, gains=(0.0,) * 6),
        World(clients=10, smallest=5, largest=20, level=0.65),
        World(seed_skill=0.0),
    ],
)
def test_nothing_to_gain_is_rarely_called_a_gain(
    world: World, tests: Literal["drawn", "folds"]
) -> None:
    shares = tally(replace(world, tests=tests), 300)
    assert shares["gains"] >= 0.93
    assert shares["scores"] >= 0.93
    assert shares["shown"] <= 0.05
    assert abs(shares["bias"]) <= 0.005


@pytest.mark.parametrize(
    ("world", "numbers"),
    [
        (World(), (-0.0357052669553, 0.0336061433604, 0.85140448546, 0.0134761255300)),
        (
            World(tests="folds", smallest=1),
            (-0.00897601780143, 0.0498546651672, 0.56325479843, 0.0280360696248),
        ),
    ],
)
def test_without_groups_numbers_are_those_from_before_there_were_any(
    world: World, numbers: tuple[float, ...]
) -> None:
    evidence = weigh(world.draw(0)[0], "accuracy")
    gain = evidence.gains["m0"]
    known = gain.estimate.mean, gain.estimate.error, gain.p, evidence.optimism
    assert known == pytest.approx(numbers, rel=1e-9)


GROUPED = {
    "visits of 8": World(smallest=40, largest=320, group_sizes=(8,)),
    "of 1 to 16": World(smallest=40, largest=320, group_sizes=(1, 16, 2, 8, 5)),
    "few": World(clients=10, smallest=16, largest=48, group_sizes=(8,)),
    "1 or 2 each": World(smallest=8, largest=16, group_sizes=(8,)),
    "1 each": World(smallest=8, largest=8, group_sizes=(8,)),
    "less alike": World(
        clients=20,
        smallest=40,
        largest=160,
        group_sizes=(8,),
        common=0.3,
        gains=(0.0,) * 6,
        seed_skill=0.0,
    ),
}
"""Clients whose samples come in groups; no method gains."""


def test_chance_is_not_shown_as_a_gain_where_samples_come_in_groups() -> None:
    """Counted singly, the same samples show one in every fifth world or so."""
    world = replace(GROUPED["few"], tests="last", gains=(0.0, 0.0))
    draws = [world.draw(n)[0] for n in range(40)]

    def is_shown(seen: Observations) -> bool:
        return any(g.is_shown for g in weigh(seen, "accuracy").gains.values())

    assert np.mean([is_shown(seen) for seen in draws]) <= 0.05
    assert np.mean([is_shown(replace(seen, groups=None)) for seen in draws]) > 0.12


@pytest.mark.slow
@pytest.mark.parametrize("tests", ["drawn", "folds", "last"])
@pytest.mark.parametrize("kind", GROUPED)
def test_nothing_to_gain_is_rarely_called_a_gain_in_groups(
    kind: str, tests: Literal["drawn", "folds", "last"]
) -> None:
    shares = tally(replace(GROUPED[kind], tests=tests), 300)
    assert shares["gains"] >= 0.93
    assert shares["scores"] >= 0.9
    assert shares["shown"] <= 0.05


@pytest.mark.slow
def test_a_gain_of_five_points_is_shown_with_enough_groups() -> None:
    """20 clients of 20 to 40 groups; no other method gains."""
    world = World(
        clients=20,
        smallest=160,
        largest=320,
        group_sizes=(8,),
        gains=(0.24, 0.0, 0.0, 0.0),
        seed_skill=0.0,
        tests="folds",
    )
    _, truth, alone = world.draw(0)
    assert truth[0] - alone[0] == pytest.approx(0.05, abs=0.01)
    assert tally(world, 60)["shown"] >= 0.9


@pytest.mark.slow
def test_a_large_gain_is_shown() -> None:
    """About ten points, five standard errors, with 20 clients of 12 to 80 samples."""
    world = World(
        clients=20,
        smallest=12,
        largest=80,
        gains=(0.5, 0.0, 0.1, 0.2),
        tests="folds",
    )
    shares = tally(world, 100)
    assert shares["shown"] >= 0.9
    assert abs(shares["bias"]) <= 0.006
