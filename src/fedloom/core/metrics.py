"""The metrics: what each means, what a client sends for it, what follows from that.

To add a metric, add an object to `METRICS`. Everything else reads this registry: what
clients compute and send, scores, summaries, files and reports.

A metric goes three steps. At the client, a `Statistic` turns what the model said of a
batch of samples (an `Outcome`) into numbers of each sample. Over all samples of the
client they become the few numbers that are sent: sums, in general. From these the
server makes the client's value and, where it makes sense, the value over the samples of
all clients together. This module is read where there is no PyTorch: the first step uses
nothing but methods of the tensors that it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from fedloom.core.measures import Outcome

Numbers = NDArray[np.float64]
Clients = NDArray[np.int64]

Summary = Literal[
    "weighted",
    "worst_decile",
    "largest_decile",
    "smallest_decile",
    "spread",
    "error",
    "clients",
]
"""What can be said of all clients beside the mean: see `Scores.summary`."""

CONFIDENCE_BINS = 15
"""Bins of confidence for the expected calibration error, as is usual."""

MARGIN_BINS = 512
"""Bins of log-odds for the AUC over the samples of all clients."""

COARSE_BINS = 128
"""Bins of log-odds that a client of a federation sends, if it agrees to send any."""

Limits = Callable[[int], tuple[float, float]]
"""Of a number of samples, the least and the most that a number sent of them can be."""


def anything(samples: int) -> tuple[float, float]:
    """No limits."""
    return -math.inf, math.inf


def each_within(least: float, most: float) -> Limits:
    """The limits of a sum to which every sample adds a number between these."""
    return lambda samples: (least * samples, most * samples) if samples else (0.0, 0.0)


@dataclass(frozen=True)
class Statistic:
    """What a client sends for one metric or for several."""

    name: str
    measure: Callable[[Outcome], Tensor]
    """Numbers of each sample, (B,) or (B, k), from what a model said of them."""
    reduce: Callable[[Numbers, Clients, int], Numbers] | None = None
    """What is sent is the sum over the client's samples, or what this function makes
    where they are: of (samples, k) numbers, the client of each sample and the number of
    clients, one row per client. A client without a sample sends zeros."""
    limits: Limits = anything
    """What each of the numbers can be. Infinite means that the task does not say."""
    join: Callable[[Clients, Numbers], Numbers] | None = None
    """What several clients would have sent as one is the sum over them, or what this
    function makes: of the samples (M,) and what was sent (M, k), k numbers."""
    coarse: Callable[[Numbers], Numbers] | None = None
    """Of what may tell of single samples, the few numbers that a client of a federation
    sends in its place, of the same rows. It sends them if it agrees to; else none."""


def mean(samples: Clients, total: Numbers) -> Numbers:
    """(M,) each client's mean over its samples; nan without a sample."""
    return _ratio(total, samples)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of every client."""

    name: str
    """Name in files, tables and calls."""
    title: str
    """Name as a reader of a table knows it."""
    description: str
    """What the number says, in one sentence."""
    is_higher_better: bool = False
    """Whether a larger number is a better one."""
    is_share: bool = False
    """Whether the number is a fraction that is shown in percent."""
    applies_to: Literal["all", "classes", "two classes", "numbers"]
    """The tasks that have this metric."""
    sent: tuple[Statistic, ...]
    """What a client sends for its own value."""
    sent_for_pooled: tuple[Statistic, ...] = ()
    """What it sends beside that for the pooled value; without it there is none."""
    value: Callable[..., Numbers] = mean
    """(M,) each client's value, of the number of samples (M,) and what was sent for
    each statistic: (M,), or (M, k) where it is more than one number."""
    pooled: Callable[..., float] | None = None
    """The value over the samples of all clients together, of the same arguments and
    then what was sent for it alone; None if it is not reported. For sums, see
    `of_added`."""
    summaries: tuple[Summary, ...] = ("worst_decile", "clients")
    """What is said of all clients beside the mean."""


def of_added(value: Callable[..., Numbers]) -> Callable[..., float]:
    """The value of all clients' sums added up, as one client's."""

    def pooled(samples: Clients, *sums: Numbers) -> float:
        added = (s.sum(axis=0, keepdims=True) for s in (samples, *sums))
        return float(value(*added)[0])

    return pooled


def statistics(metrics: Iterable[Metric] | None = None) -> tuple[Statistic, ...]:
    """What clients send for some metrics, or for all; shared statistics are one."""
    metrics = METRICS.values() if metrics is None else metrics
    return tuple(
        dict.fromkeys(s for m in metrics for s in (*m.sent, *m.sent_for_pooled))
    )


def metrics_for(main: str, classes: int) -> list[Metric]:
    """The metrics that apply to a task.

    Args:
        main: the metric that the task is judged by: accuracy, or mse for numbers.
        classes: number of classes, where it is accuracy.
    """
    kinds = {"all", "numbers"} if main == "mse" else {"all", "classes"}
    if main != "mse" and classes == 2:
        kinds.add("two classes")
    return [metric for metric in METRICS.values() if metric.applies_to in kinds]


def pairs_in_order(
    margins: Numbers, is_positive: NDArray[np.bool_], owner: Clients, count: int
) -> Numbers:
    """(count,) in how many of a client's pairs the positive outranks the negative.

    R - P (P + 1) / 2 with P positives and R the sum of their ranks; equal margins share
    their mean rank, so that such a pair counts as a half.

    Args:
        margins: (samples,) what ranks them; only the order counts.
        is_positive: (samples,) whether each is of class 1.
        owner: (samples,) client of each, 0..count - 1.
        count: number of clients.
    """
    if len(margins) == 0:
        return np.zeros(count)
    order = np.lexsort((margins, owner))
    of, value, positive = owner[order], margins[order], is_positive[order]
    differs = (of[1:] != of[:-1]) | (value[1:] != value[:-1])
    starts = np.flatnonzero(np.concatenate([[True], differs]))
    ends = np.append(starts[1:], len(order))
    mean_place = np.repeat((starts + ends + 1) / 2, ends - starts)
    rank = mean_place - np.searchsorted(of, of)
    positives = np.bincount(of, positive, minlength=count)
    ranks = np.bincount(of, rank * positive, minlength=count)
    pairs: Numbers = ranks - positives * (positives + 1) / 2
    return pairs


def margin_histograms(
    margins: Numbers, is_positive: NDArray[np.bool_], owner: Clients, count: int
) -> Numbers:
    """(count, 2 * MARGIN_BINS) how many of a client's margins lie in each bin.

    First those of class 0, then those of class 1. Bins are narrow around 0 (0.005) and
    grow with the margin (to 4 % of it), so that the margins of untrained and of very
    sure models are both told apart. A client with a nan has nothing but nan.

    Args:
        margins: (samples,) log-odds of class 1.
        is_positive: (samples,) whether each is of class 1.
        owner: (samples,) client of each, 0..count - 1.
        count: number of clients.
    """
    is_known = ~np.isnan(margins)
    # From -1 to 1 for margins from -1000 to 1000.
    level = np.arcsinh(8 * margins[is_known]) / np.arcsinh(8000)
    place = np.clip((level + 1) / 2 * MARGIN_BINS, 0, MARGIN_BINS - 1).astype(np.int64)
    place += MARGIN_BINS * is_positive[is_known]
    width = 2 * MARGIN_BINS
    cells = np.bincount(owner[is_known] * width + place, minlength=count * width)
    histograms = cells.reshape(count, width).astype(np.float64)
    histograms[owner[~is_known]] = np.nan
    return histograms


def coarse_histograms(histograms: Numbers) -> Numbers:
    """(count, 2 * COARSE_BINS) the same margins in fewer bins."""
    bins: Numbers = histograms.reshape(len(histograms), 2 * COARSE_BINS, -1).sum(2)
    return bins


def _send_pairs(values: Numbers, owner: Clients, count: int) -> Numbers:
    """(count, 2) the pairs in order, and the others; nan of a client with a nan."""
    margins, is_positive = values[:, 0], values[:, 1] > 0
    positives = np.bincount(owner, is_positive, minlength=count)
    negatives = np.bincount(owner, ~is_positive, minlength=count)
    in_order = pairs_in_order(margins, is_positive, owner, count)
    pairs = np.column_stack([in_order, positives * negatives - in_order])
    pairs[owner[np.isnan(margins)]] = np.nan
    return pairs


def _send_margins(values: Numbers, owner: Clients, count: int) -> Numbers:
    return margin_histograms(values[:, 0], values[:, 1] > 0, owner, count)


def _auc(samples: Clients, pairs: Numbers) -> Numbers:
    """The share of pairs in order; nan without both classes."""
    return _ratio(pairs[:, 0], pairs.sum(1))


def _pooled_auc(samples: Clients, pairs: Numbers, histograms: Numbers) -> float:
    """The AUC over all clients' samples; margins in one bin count as equal."""
    negatives, positives = histograms.sum(0).reshape(2, -1)
    in_order = positives @ (negatives.cumsum() - negatives / 2)
    every_pair = positives.sum(keepdims=True) * negatives.sum()
    return float(_ratio(in_order[None], every_pair)[0])


def _f1(samples: Clients, right: Numbers, wrong: Numbers) -> Numbers:
    return _ratio(2 * right, 2 * right + wrong)


def _rmse(samples: Clients, squares: Numbers) -> Numbers:
    return np.sqrt(mean(samples, squares))


def _calibration_gap(outcome: Outcome) -> Tensor:
    """(B, CONFIDENCE_BINS) confidence minus being right, in the confidence's bin."""
    gap = outcome.confidence - outcome.is_right
    place = (outcome.confidence * CONFIDENCE_BINS).long()
    place = place.clamp(0, CONFIDENCE_BINS - 1)
    bins = gap.new_zeros(len(gap), CONFIDENCE_BINS)
    return bins.scatter(1, place[:, None], gap[:, None])


def _ece(samples: Clients, gaps: Numbers) -> Numbers:
    return mean(samples, np.abs(gaps).sum(1))


def target_spread(targets: Numbers, owner: Clients, count: int) -> Numbers:
    """(count, 1 + outputs) squared deviations from the client's mean, and that mean.

    Args:
        targets: (samples, outputs).
        owner: (samples,) client of each, 0..count - 1.
        count: number of clients.
    """
    # From the client's first target on, so that equal ones are exactly 0.
    clients, first = np.unique(owner, return_index=True)
    origin = np.zeros((count, targets.shape[1]))
    origin[clients] = targets[first]
    moved = targets - origin[owner]
    sums = np.zeros_like(origin)
    np.add.at(sums, owner, moved)
    middle = sums / np.maximum(np.bincount(owner, minlength=count), 1)[:, None]
    squares = np.square(moved - middle[owner]).sum(1)
    deviations = np.bincount(owner, squares, minlength=count)
    return np.column_stack([deviations, origin + middle])


def explained_variance(samples: Clients, squares: Numbers, spread: Numbers) -> Numbers:
    """(M,) 1 - squared errors / squared deviations from the mean target: R squared.

    nan for a client whose targets do not vary.

    Args:
        samples: (M,) how many samples each client has.
        squares: (M,) squared errors, the mean over outputs summed over samples.
        spread: (M, 1 + outputs) as `target_spread` gives it.
    """
    outputs = spread.shape[1] - 1
    return 1 - _ratio(squares * outputs, spread[:, 0])


def joined_spread(samples: Clients, spread: Numbers) -> Numbers:
    """(1 + outputs,) of all clients together, as `target_spread` gives it of each.

    Deviations from the mean of all are those from the own mean, and the means'.
    """
    is_there = samples > 0
    weights, means = samples[is_there], spread[is_there, 1:]
    # From the first mean on, so that equal ones are exactly 0.
    moved = means - means[:1]
    middle = weights @ moved / max(weights.sum(), 1)
    between = weights @ np.square(moved - middle).sum(1)
    return np.append(spread[:, 0].sum() + between, means[:1].sum(0) + middle)


def _pooled_explained_variance(
    samples: Clients, squares: Numbers, spread: Numbers
) -> float:
    total, of_all = squares.sum(keepdims=True), joined_spread(samples, spread)
    return float(explained_variance(samples, total, of_all[None])[0])


def _ratio(above: NDArray[Any], below: NDArray[Any]) -> Numbers:
    """Their quotient; nan where there is nothing to divide by."""
    quotient = np.full(len(below), np.nan)
    np.divide(above, below, out=quotient, where=below > 0)
    return quotient


_LOSS = Statistic("loss", lambda o: o.loss)
_RIGHT = Statistic("right", lambda o: o.is_right, limits=each_within(0, 1))
_NLL = Statistic(
    "nll",
    lambda o: -(o.log_probabilities * o.truth).sum(1),
    limits=each_within(0, math.inf),
)
_BRIER = Statistic(
    "brier",
    lambda o: (o.probabilities - o.truth).square().sum(1),
    limits=each_within(0, 2),
)
_GAP = Statistic("calibration_gap", _calibration_gap, limits=each_within(-1, 1))
_PAIRS = Statistic(
    "pairs",
    lambda o: o.columns(o.margin, o.is_positive),
    _send_pairs,
    limits=lambda samples: (0, samples * samples / 4),
)
_MARGINS = Statistic(
    "margins",
    lambda o: o.columns(o.margin, o.is_positive),
    _send_margins,
    limits=each_within(0, 1),
    coarse=coarse_histograms,
)
_TRUE_POSITIVES = Statistic(
    "true_positives", lambda o: o.is_called & o.is_positive, limits=each_within(0, 1)
)
_WRONG_CALLS = Statistic(
    "wrong_calls", lambda o: o.is_called != o.is_positive, limits=each_within(0, 1)
)
_SQUARES = Statistic(
    "squared_errors",
    lambda o: o.over_outputs(o.errors.square()),
    limits=each_within(0, math.inf),
)
_ABSOLUTES = Statistic(
    "absolute_errors",
    lambda o: o.over_outputs(o.errors.abs()),
    limits=each_within(0, math.inf),
)
_SPREAD = Statistic(
    "target_spread", lambda o: o.targets, target_spread, join=joined_spread
)

_OF_MAIN: tuple[Summary, ...] = (
    "weighted",
    "worst_decile",
    "largest_decile",
    "smallest_decile",
    "spread",
    "error",
)

_ALL = (
    Metric(
        name="loss",
        title="loss",
        description="The loss is the mean of the training loss over samples.",
        applies_to="all",
        sent=(_LOSS,),
        summaries=("weighted",),
    ),
    Metric(
        name="accuracy",
        title="accuracy",
        description="The accuracy is the share of samples given their true class.",
        is_higher_better=True,
        is_share=True,
        applies_to="classes",
        sent=(_RIGHT,),
        summaries=_OF_MAIN,
    ),
    Metric(
        name="mse",
        title="MSE",
        description="The mean squared error is the mean over samples and outputs.",
        applies_to="numbers",
        sent=(_SQUARES,),
        summaries=_OF_MAIN,
    ),
    Metric(
        name="nll",
        title="log loss (NLL)",
        description="The log loss says how surprised the models are by the truth.",
        applies_to="classes",
        sent=(_NLL,),
        summaries=(),
    ),
    Metric(
        name="brier",
        title="Brier score",
        description="The Brier score is the probabilities' distance from the truth.",
        applies_to="classes",
        sent=(_BRIER,),
        summaries=(),
    ),
    Metric(
        name="ece",
        title="ECE",
        description="The ECE says how far confidence is from how often it is right.",
        is_share=True,
        applies_to="classes",
        sent=(_GAP,),
        value=_ece,
        summaries=(),
    ),
    Metric(
        name="auc",
        title="AUC",
        description="The AUC says how often class 1 is ranked above class 0.",
        is_higher_better=True,
        is_share=True,
        applies_to="two classes",
        sent=(_PAIRS,),
        sent_for_pooled=(_MARGINS,),
        value=_auc,
        pooled=_pooled_auc,
    ),
    Metric(
        name="f1",
        title="F1",
        description="F1 is the harmonic mean of precision and recall of class 1.",
        is_higher_better=True,
        is_share=True,
        applies_to="two classes",
        sent=(_TRUE_POSITIVES, _WRONG_CALLS),
        value=_f1,
        pooled=of_added(_f1),
    ),
    Metric(
        name="rmse",
        title="RMSE",
        description="The root mean squared error is in the unit of the targets.",
        applies_to="numbers",
        sent=(_SQUARES,),
        value=_rmse,
        pooled=of_added(_rmse),
    ),
    Metric(
        name="mae",
        title="MAE",
        description="The mean absolute error is in the unit of the targets.",
        applies_to="numbers",
        sent=(_ABSOLUTES,),
        pooled=of_added(mean),
    ),
    Metric(
        name="explained_variance",
        title="explained variance",
        description="R squared says how much of the targets' variance is explained.",
        is_higher_better=True,
        applies_to="numbers",
        sent=(_SQUARES, _SPREAD),
        value=explained_variance,
        pooled=_pooled_explained_variance,
    ),
)

METRICS = {metric.name: metric for metric in _ALL}
"""Every metric by its name, in the order of columns."""
