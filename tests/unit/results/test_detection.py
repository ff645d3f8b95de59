from __future__ import annotations

import math

import numpy as np
import pytest

from fedloom.core.errors import DataError
from fedloom.results.detection import (
    Errors,
    errors_at,
    match,
    relative,
    threshold_at,
)

# Four wake words and six other sounds.
TRUTH = np.arange(10) < 4
SCORES = np.array([0.2, 0.5, 0.7, 0.9, 0.1, 0.3, 0.4, 0.6, 0.6, 0.8])


def test_scores_at_the_threshold_are_accepted() -> None:
    # Accepted at 0.6: of the others 0.6, 0.6, 0.8; rejected wake words 0.2, 0.5.
    assert errors_at(SCORES, TRUTH, 0.6) == Errors(3, 6, 2, 4)
    assert errors_at(SCORES, TRUTH, 0.6001) == Errors(1, 6, 2, 4)
    assert errors_at(SCORES, TRUTH, -math.inf) == Errors(6, 6, 0, 4)
    assert errors_at(SCORES, TRUTH, math.inf) == Errors(0, 6, 4, 4)


@pytest.mark.parametrize(
    ("share", "threshold"),
    [
        (0.0, 0.2),
        (0.1, 0.2),
        (0.125, 0.2),  # as near to 0 as to 1/4: the smaller one
        (0.2, 0.5),
        (0.25, 0.5),
        (0.5, 0.7),
        (0.75, 0.9),
        (1.0, math.inf),
    ],
)
def test_the_threshold_is_the_highest_of_the_nearest_share(
    share: float, threshold: float
) -> None:
    assert threshold_at(SCORES, TRUTH, share) == threshold


def test_ties_are_rejected_together() -> None:
    truth, scores = np.ones(4, bool), np.array([1.0, 2.0, 2.0, 2.0])
    # Only 0, 1 or 4 of these can be rejected; half is nearest to one quarter.
    assert threshold_at(scores, truth, 0.5) == 2.0
    assert threshold_at(scores, truth, 0.7) == math.inf


def test_a_detector_is_compared_where_both_reject_equally_many() -> None:
    baseline = np.array([0.1, 0.5, 0.8, 0.9, 0.2, 0.6, 0.6, 0.7, 0.4, 0.85])
    # At 0.5 the baseline rejects one wake word and accepts 0.6, 0.6, 0.7 and 0.85. The
    # other detector rejects one at 0.5 too and accepts 0.6, 0.6 and 0.8.
    own, theirs = match(SCORES, baseline, TRUTH, 0.5)
    assert (own, theirs) == (Errors(3, 6, 1, 4), Errors(4, 6, 1, 4))
    assert relative(own, theirs) == (0.75, 1.0)
    # Another scale of scores changes nothing: only their order counts.
    assert match(100 * SCORES - 7, baseline, TRUTH, 0.5) == (own, theirs)


@pytest.mark.parametrize("threshold", [0.05, 0.25, 0.45, 0.55, 0.7])
def test_the_baseline_against_itself_is_one(threshold: float) -> None:
    # At 0.55, say, it accepts 0.6, 0.6 and 0.8 and rejects two; at 0.7 it rejects the
    # same two and accepts 0.8 alone. Both sides are judged there.
    own, theirs = match(SCORES, SCORES, TRUTH, threshold)
    assert own == theirs
    assert theirs.false_accepts > 0
    assert relative(own, theirs).false_accepts == 1.0


def test_a_baseline_without_errors_leaves_nothing_to_divide_by() -> None:
    perfect = np.where(TRUTH, 1.0, 0.0)
    ratios = relative(*match(SCORES, perfect, TRUTH, 0.5))
    assert math.isnan(ratios.false_accepts)
    assert math.isnan(ratios.false_rejects)


def test_counts_of_two_groups_add_up() -> None:
    assert Errors(1, 2, 3, 4).plus(Errors(10, 20, 30, 40)) == Errors(11, 22, 33, 44)


def test_arrays_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match=r"shapes \(9,\) and \(10,\)"):
        errors_at(SCORES[1:], TRUTH, 0.5)
    with pytest.raises(DataError, match="nan"):
        errors_at(np.full(10, np.nan), TRUTH, 0.5)
    with pytest.raises(DataError, match=r"found 0 and 0\.5"):
        threshold_at(SCORES, ~np.ones(10, bool), 0.5)
    with pytest.raises(DataError, match=r"found 4 and 1\.5"):
        threshold_at(SCORES, TRUTH, 1.5)
