"""Summaries over clients, some of whom have no number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from fedloom.core.errors import ConfigError
from fedloom.reports.units import unit_of
from fedloom.results.gain import Gain
from fedloom.results.rows import Round
from fedloom.results.scores import Scores
from fedloom.results.table import closing_table

SIZES = np.array([10, 20, 30, 40])


def scores(metric: str, score: list[float], **more: Any) -> Scores:
    """Scores whose every number is the same, and some more by name."""
    values = np.array(score)
    pooled = more.pop("pooled", {})
    names = ["loss", metric]
    if metric == "accuracy":
        names += ["nll", "brier", "ece"]
    return Scores(
        kind="personal",
        part="test",
        metric=metric,
        samples=np.where(np.isnan(values), 0, 5),
        values=dict.fromkeys(names, values) | more,
        pooled=pooled,
    )


def test_a_client_without_a_number_is_left_out_of_that_number_alone() -> None:
    auc = np.array([0.9, np.nan, 0.7, 0.5])
    found = scores(
        "accuracy", [0.8, 0.6, 0.4, 0.2], auc=auc, pooled={"auc": 0.65}
    ).summary(SIZES)
    assert found["accuracy"] == pytest.approx(0.5, abs=1e-15)
    assert found["auc"] == pytest.approx(0.7, abs=1e-15)
    assert found["auc_clients"] == 3
    assert found["auc_worst_decile"] == 0.5
    assert found["auc_pooled"] == 0.65


def test_a_client_without_samples_is_left_out_of_everything() -> None:
    found = scores("accuracy", [0.8, np.nan, 0.4, 0.6]).summary(SIZES)
    assert found["accuracy"] == pytest.approx(0.6, abs=1e-15)
    assert found["accuracy_weighted"] == pytest.approx(0.6, abs=1e-15)
    assert not any(math.isnan(value) for value in found.values())


def test_infinite_scores_are_summed_up_without_a_word() -> None:
    """Warnings are errors in this suite."""
    summary = scores("mse", [1.0, np.inf, 1e200, 2.0]).summary(SIZES)
    assert summary["mse"] == np.inf
    assert math.isnan(summary["mse_spread"])


def test_a_number_that_nobody_has_is_nan_and_a_dash_in_the_table() -> None:
    nobody = np.full(4, np.nan)
    found = scores(
        "accuracy", [0.8, 0.6, 0.4, 0.2], auc=nobody, pooled={"auc": np.nan}
    ).summary(SIZES)
    assert math.isnan(found["auc"])
    assert math.isnan(found["auc_worst_decile"])
    assert found["auc_clients"] == 0
    table = closing_table(
        [Round(round=1, scores={"personal": {"test": found}})], "accuracy"
    )
    heading, row = table.cells()
    assert row[heading.index("AUC")] == "-"


def test_the_worst_decile_of_an_error_has_the_largest_errors() -> None:
    mae = np.array([4.0, 3.0, 2.0, 1.0])
    found = scores("mse", [1.0, 2.0, 3.0, 4.0], mae=mae).summary(SIZES)
    assert found["mse_worst_decile"] == 4
    assert found["mae_worst_decile"] == 4
    assert found["mse_largest_decile"] == 4


def test_the_standard_error_is_that_of_the_mean_over_clients() -> None:
    found = scores("accuracy", [0.8, 0.6, 0.4, 0.2]).summary(SIZES)
    expected = np.std([0.8, 0.6, 0.4, 0.2], ddof=1) / 2
    assert found["accuracy_error"] == pytest.approx(expected, abs=1e-15)
    assert math.isnan(scores("accuracy", [0.8]).summary(SIZES[:1])["accuracy_error"])


def test_a_number_is_asked_for_by_name() -> None:
    auc = np.array([0.9, np.nan, 0.7, 0.5])
    binary = scores("accuracy", [0.8, 0.6, 0.4, 0.2], auc=auc)
    assert binary.of() is binary.values["accuracy"]
    assert binary.of("auc") is auc
    assert binary.of("brier") is binary.values["brier"]
    with pytest.raises(ConfigError, match=r"number 'accurac'.*mean 'accuracy'"):
        binary.of("accurac")
    with pytest.raises(ConfigError, match="unknown number 'nll'"):
        scores("mse", [1.0]).of("nll")


def test_the_table_shows_only_columns_that_the_task_has() -> None:
    def headings(metric: str, **more: Any) -> list[str]:
        found = scores(metric, [0.5, 0.5, 0.5, 0.5], **more).summary(SIZES)
        rounds = [Round(round=1, scores={"personal": {"test": found}})]
        return closing_table(rounds, metric).cells()[0][8:]

    some = np.ones(4)
    assert headings("accuracy") == ["ECE"]
    assert headings("accuracy", auc=some, f1=some) == ["ECE", "AUC", "F1"]
    more = {"rmse": some, "mae": some, "explained_variance": some}
    assert headings("mse", **more) == ["RMSE", "MAE", "explained variance"]


def test_gain_counts_less_error_as_better_and_passes_over_nan() -> None:
    together, alone = np.array([1.0, 2.0, np.nan]), np.array([2.0, 1.5, 1.0])
    names = ("a", "a long name", "c")
    gain = Gain("rmse", names, SIZES[:3], together, alone)
    np.testing.assert_array_equal(gain.gain, [1.0, -0.5, np.nan])
    assert gain.sentence() == (
        "gain in rmse over training alone with as much work: +0.25; 1 of 2 clients "
        "gain, 1 lose, 0 stay"
    )
    large = Gain("mse", names, SIZES[:3], 1e8 * together, 1e8 * alone)
    write = unit_of("mse", large.together).gap
    assert "as much work: +25.0e6; 1 of 2" in large.sentence(write)
    share = Gain("accuracy", names, SIZES[:3], together / 4, alone / 4)
    assert "as much work: -6.2 points; 1 of 2" in share.sentence()
    lines = str(gain).splitlines()[1:]
    assert len({len(line) for line in lines}) == 1  # columns stay in line
    assert gain.columns()["metric"] == ["rmse"] * 3


def test_gain_without_any_score_says_so() -> None:
    nobody = np.full(2, np.nan)
    gain = Gain("auc", ("a", "b"), SIZES[:2], nobody, nobody)
    assert gain.sentence() == (
        "gain in auc over training alone with as much work: no score"
    )
