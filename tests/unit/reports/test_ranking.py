"""Order, tests and recommendations, on numbers worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from made_runs import SAMPLES, steady, write_comparison, write_run

from fedloom.reports import collect
from fedloom.reports.findings import headline, summary, work_out
from fedloom.reports.gains import advise, drivers, gains
from fedloom.reports.ranking import rank
from fedloom.results.directory import RunDirectory
from fedloom.results.gain import Gain
from fedloom.results.statistics import holm, paired

LOCAL = steady([0.50, 0.60], [0.52, 0.64], [0.48, 0.62])
BETTER = steady([0.70, 0.80], [0.74, 0.82], [0.70, 0.82])
MIXED = steady([0.80, 0.50], [0.82, 0.52], [0.78, 0.50])
METHODS = {"local": LOCAL, "better": BETTER, "mixed": MIXED}


def test_methods_are_ordered_by_the_mean_over_clients_then_seeds(
    tmp_path: Path,
) -> None:
    ranking = rank(collect([write_comparison(tmp_path / "c", METHODS)]))
    assert [s.method for s in ranking.standings] == ["better", "mixed", "local"]
    best = ranking.standings[0]
    assert best.last.mean == pytest.approx(np.mean([0.75, 0.78, 0.76]))
    assert best.worst.mean == pytest.approx(np.mean([0.70, 0.74, 0.70]))
    assert best.last.count == 3


def test_of_errors_the_least_comes_first(tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "c", METHODS, metric="mse")
    ranking = rank(collect([path]))
    assert [s.method for s in ranking.standings] == ["local", "mixed", "better"]


def test_pairs_are_tested_over_seeds_and_adjusted_by_question(tmp_path: Path) -> None:
    """Two pairs with training alone are one family, the third pair is another."""
    ranking = rank(collect([write_comparison(tmp_path / "c", METHODS)]))
    local, better, mixed = [0.55, 0.58, 0.55], [0.75, 0.78, 0.76], [0.65, 0.67, 0.64]
    alone = holm([paired(better, local).p, paired(mixed, local).p])
    for n, method in enumerate(("better", "mixed")):
        tested = ranking.pair(method, "local")
        assert tested is not None
        assert tested[1] == pytest.approx(alone[n])
    tested = ranking.pair("mixed", "better")
    assert tested is not None
    assert tested[1] == pytest.approx(paired(mixed, better).p)
    assert tested[0].difference.mean == pytest.approx(np.mean(mixed) - np.mean(better))


def test_a_method_with_a_failed_seed_is_counted_and_comes_last(tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "c", METHODS)
    (path / "better" / "seed-1" / "failure.json").write_text('{"why": "loss is nan"}')
    ranking = rank(collect([path]))
    assert [s.method for s in ranking.standings] == ["mixed", "local", "better"]
    last = ranking.standings[-1]
    assert (last.counts["finished"], last.counts["failed"]) == (2, 1)
    assert last.last.mean == pytest.approx(np.mean([0.75, 0.76]))
    assert ranking.pick == "mixed"
    tested = ranking.pair("better", "mixed")
    assert tested is not None
    assert tested[0].difference.count == 2


def test_the_method_to_use_is_chosen_on_validation_data(tmp_path: Path) -> None:
    """On test data `better` is ahead, on validation data `mixed`."""
    swapped = {"local": LOCAL, "better": MIXED, "mixed": BETTER}
    path = write_comparison(tmp_path / "c", METHODS, validation=swapped)
    findings = work_out(collect([path]))
    assert findings.ranking.pick == "mixed"
    assert findings.ranking.is_picked_on_validation
    assert findings.ranking.standings[0].method == "better"
    assert "Use mixed" in headline(findings)
    assert "on test data better comes first" in " ".join(summary(findings))


def test_without_validation_data_the_choice_is_flagged(tmp_path: Path) -> None:
    findings = work_out(collect([write_comparison(tmp_path / "c", METHODS)]))
    assert not findings.ranking.is_picked_on_validation
    assert "for want of validation data" in " ".join(summary(findings))


def test_last_and_chosen_rounds_stand_side_by_side(tmp_path: Path) -> None:
    test = [[[0.1], [0.8], [0.6]], [[0.1], [0.6], [0.7]]]
    validation = [[[0.1], [0.9], [0.5]], [[0.1], [0.4], [0.5]]]
    path = write_comparison(tmp_path / "c", {"a": test}, validation={"a": validation})
    standing = rank(collect([path])).standings[0]
    assert standing.chosen_rounds == (1, 2)
    assert standing.last.mean == pytest.approx(0.65)
    assert standing.chosen.mean == pytest.approx(0.75)


def test_one_seed_gives_intervals_over_clients_and_no_test(tmp_path: Path) -> None:
    methods = {"local": LOCAL[:1], "better": BETTER[:1]}
    findings = work_out(collect([write_comparison(tmp_path / "c", methods)]))
    standing = findings.ranking.standings[0]
    assert (standing.last.low, standing.last.high) == pytest.approx((0.70, 0.80))
    assert math.isnan(findings.ranking.pairs[0].last.p)
    assert "one seed" in " ".join(findings.collection.remarks)


def test_gains_are_paired_by_client_and_averaged_over_seeds(tmp_path: Path) -> None:
    gained = gains(collect([write_comparison(tmp_path / "c", METHODS)]))
    assert gained is not None
    assert gained.has_same_clients
    assert [who.name for who in gained.who] == ["c0", "c1"]
    mixed = gained.of("mixed")
    assert mixed is not None
    assert mixed.gain == pytest.approx([0.30, -0.34 / 3])
    spread = np.std([-0.10, -0.12, -0.12], ddof=1) / math.sqrt(3)
    assert mixed.error[1] == pytest.approx(spread)
    assert (mixed.gaining, mixed.losing) == (1, 1)
    assert mixed.mean.mean == pytest.approx(np.mean([0.1, 0.09, 0.09]))
    assert mixed.work == pytest.approx(1.0)


def test_clients_that_differ_by_seed_keep_their_own_rows(tmp_path: Path) -> None:
    """Then a client's error comes from its number of test samples."""
    path = write_comparison(tmp_path / "c", METHODS, is_same=False)
    gained = gains(collect([path]))
    assert gained is not None
    assert len(gained.who) == 6
    assert {who.seed for who in gained.who} == {0, 1, 2}
    better = gained.of("better")
    assert better is not None
    place = next(n for n, w in enumerate(gained.who) if (w.seed, w.name) == (1, "c1"))
    assert better.gain[place] == pytest.approx(0.82 - 0.64)
    shares = [
        (0.82 * SAMPLES + 2) / (SAMPLES + 4),
        (0.64 * SAMPLES + 2) / (SAMPLES + 4),
    ]
    variance = sum(p * (1 - p) / (SAMPLES + 4) for p in shares)
    assert better.error[place] == pytest.approx(math.sqrt(variance))


def test_a_gain_in_an_error_is_a_decrease(tmp_path: Path) -> None:
    gained = gains(collect([write_comparison(tmp_path / "c", METHODS, metric="mse")]))
    assert gained is not None
    better = gained.of("better")
    assert better is not None
    assert (better.gain < 0).all()
    assert better.losing == 2


def test_without_training_alone_there_is_no_gain_and_a_way_to_get_it(
    tmp_path: Path,
) -> None:
    path = write_comparison(tmp_path / "c", {"a": BETTER, "b": MIXED})
    findings = work_out(collect([path]))
    assert findings.gains is None
    assert "add local to the comparison" in " ".join(summary(findings))


def test_each_client_is_advised_what_its_validation_data_prefer(tmp_path: Path) -> None:
    """c0 does best with `mixed`, c1 with `better`; test scores equal validation's."""
    path = write_comparison(tmp_path / "c", METHODS, validation=METHODS)
    collection = collect([path])
    advice = advise(collection, rank(collection))
    assert advice is not None
    assert advice.is_on_validation
    assert advice.method == ("mixed", "better")
    assert advice.lead == pytest.approx([0.8 - 2.14 / 3, 2.44 / 3 - 1.86 / 3])
    assert advice.gain == pytest.approx([0.30, 2.44 / 3 - 1.86 / 3])
    followed = [np.mean([0.80, 0.80]), np.mean([0.82, 0.82]), np.mean([0.78, 0.82])]
    assert advice.followed.mean == pytest.approx(np.mean(followed))
    expected = paired(followed, [0.75, 0.78, 0.76])
    assert advice.against_pick.p == pytest.approx(expected.p)
    assert advice.word(1) == "clear"


def test_advice_can_be_to_train_alone(tmp_path: Path) -> None:
    collection = collect(
        [write_comparison(tmp_path / "c", {"local": BETTER, "a": MIXED})]
    )
    advice = advise(collection, rank(collection))
    assert advice is not None
    assert advice.method == ("a", "local")
    assert not advice.is_on_validation


def test_clients_without_test_samples_are_left_out(tmp_path: Path) -> None:
    methods = {
        "local": steady([0.5, math.nan], [0.6, math.nan]),
        "a": steady([0.7, math.nan], [0.7, math.nan]),
    }
    findings = work_out(collect([write_comparison(tmp_path / "c", methods)]))
    assert findings.gains is not None
    gain = findings.gains.of("a")
    assert gain is not None
    assert gain.known == 1
    assert gain.mean.mean == pytest.approx(0.15)


def test_recorded_columns_are_related_to_the_gain(tmp_path: Path) -> None:
    """`moved` grows with the client's number, and so does the gain."""
    alone = steady([0.5] * 6, [0.5] * 6)
    rising = steady([0.5, 0.6, 0.7, 0.8, 0.9, 0.95], [0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    path = write_comparison(tmp_path / "c", {"local": alone, "a": rising})
    collection = collect([path])
    gained = gains(collection)
    assert gained is not None
    rho, count = drivers(collection, gained, "a")["moved"]
    assert (rho, count) == (pytest.approx(1.0), 5)
    assert "steps" not in drivers(collection, gained, "a")  # constant


def test_the_answer_when_every_run_failed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", LOCAL[0], failure="round 1: loss is nan")
    findings = work_out(collect([path]))
    assert headline(findings) == "No answer: the run failed."
    assert summary(findings) == []


def test_a_run_with_a_gain_of_its_own_needs_no_other(tmp_path: Path) -> None:
    """What `fedloom run --gain` leaves is read where no arm trained alone."""
    path = write_run(tmp_path / "a", LOCAL[0])
    RunDirectory(path).write_gain(
        Gain(
            metric="accuracy",
            names=("c0", "c1"),
            samples=np.array([20, 20]),
            together=np.array([0.5, 0.6]),
            alone=np.array([0.4, 0.7]),
        )
    )
    findings = work_out(collect([path]))
    assert findings.gains is not None
    gain = findings.gains.of("ditto")
    assert gain is not None
    assert gain.gain == pytest.approx([0.1, -0.1])
    assert (gain.gaining, gain.losing) == (1, 1)


def test_the_answer_says_what_is_less_and_who_loses(tmp_path: Path) -> None:
    findings = work_out(
        collect([write_comparison(tmp_path / "c", METHODS, metric="mse")])
    )
    assert headline(findings).startswith("Train alone: its mse is 0.5600 on")
    assert "On average no method gains" in " ".join(summary(findings))
