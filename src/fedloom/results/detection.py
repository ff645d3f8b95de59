"""Detection: false accepts and false rejects, and one model's against another's.

A detector gives each sample a score and accepts those at or above a threshold. A false
accept is a negative that is accepted, a false reject a positive that is not; moving the
threshold trades one for the other. So a detector is compared with a baseline at equal
false rejects: at the threshold where it rejects as many positives as the baseline does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedloom.core.errors import DataError

Values = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]


class Errors(NamedTuple):
    """What a detector got wrong; counts, so that groups and seeds can be added up."""

    false_accepts: int
    negatives: int
    false_rejects: int
    positives: int

    def plus(self, other: Errors) -> Errors:
        """Both together."""
        return Errors(*(a + b for a, b in zip(self, other, strict=True)))


class Relative(NamedTuple):
    """A detector's errors divided by a baseline's."""

    false_accepts: float
    """Below 1 is better than the baseline; nan if the baseline has none."""
    false_rejects: float
    """Near 1 where the thresholds were matched; nan if the baseline has none."""


def errors_at(scores: Values, is_positive: Flags, threshold: float) -> Errors:
    """Both kinds of error of a detector that accepts scores at or above a threshold.

    Raises:
        DataError: The arrays differ in shape, or a score is nan.
    """
    _check(scores, is_positive)
    accepted = scores >= threshold
    return Errors(
        false_accepts=int(accepted[~is_positive].sum()),
        negatives=int((~is_positive).sum()),
        false_rejects=int((~accepted[is_positive]).sum()),
        positives=int(is_positive.sum()),
    )


def threshold_at(scores: Values, is_positive: Flags, false_rejects: float) -> float:
    """The threshold whose share of false rejects is nearest to the one asked for.

    Of all thresholds with that share it is the highest, with fewest false accepts. Of
    two shares equally near the smaller one is taken.

    Raises:
        DataError: There is no positive sample, or the share is not between 0 and 1.
    """
    _check(scores, is_positive)
    if not is_positive.any() or not 0.0 <= false_rejects <= 1.0:
        raise DataError(
            f"detection: expected positive samples and a share from 0 to 1, found "
            f"{int(is_positive.sum())} and {false_rejects}."
        )
    values, counts = np.unique(scores[is_positive], return_counts=True)
    # At a positive's score all smaller ones are rejected; above the last one, all are.
    candidates = np.append(values, np.inf)
    shares = np.append(0, np.cumsum(counts)) / counts.sum()
    return float(candidates[np.argmin(np.abs(shares - false_rejects))])


def match(
    scores: Values, baseline: Values, is_positive: Flags, threshold: float
) -> tuple[Errors, Errors]:
    """A detector and a baseline where both reject equally many positives.

    The baseline's threshold says how many that are. Then both are judged alike, at the
    highest threshold that rejects no more: judging the baseline at its own threshold
    would charge it with false accepts between that and its next positive.

    Args:
        scores: (N,) the detector's scores.
        baseline: (N,) the baseline's scores of the same samples.
        is_positive: (N,) the truth.
        threshold: Where the baseline works.

    Returns:
        The detector's errors and the baseline's.

    Raises:
        DataError: The arrays differ in shape, or there is no positive sample.
    """
    works = errors_at(baseline, is_positive, threshold)
    share = works.false_rejects / max(works.positives, 1)
    own, theirs = (
        errors_at(values, is_positive, threshold_at(values, is_positive, share))
        for values in (scores, baseline)
    )
    return own, theirs


def relative(own: Errors, baseline: Errors) -> Relative:
    """Errors of a detector divided by a baseline's on the same samples."""
    return Relative(
        _ratio(own.false_accepts, baseline.false_accepts),
        _ratio(own.false_rejects, baseline.false_rejects),
    )


def _ratio(own: int, theirs: int) -> float:
    return own / theirs if theirs else float("nan")


def _check(scores: Values, is_positive: Flags) -> None:
    if scores.shape != is_positive.shape or scores.ndim != 1:
        raise DataError(
            f"detection: expected one score and one flag per sample, found shapes "
            f"{scores.shape} and {is_positive.shape}."
        )
    if np.isnan(scores).any():
        raise DataError("detection: some scores are nan, which no threshold divides.")
