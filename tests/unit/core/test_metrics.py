"""Metrics of what clients send, against scikit-learn and their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, r2_score, roc_auc_score

from fedloom.core.measures import Outcome
from fedloom.core.metrics import (
    COARSE_BINS,
    MARGIN_BINS,
    METRICS,
    margin_histograms,
    metrics_for,
    statistics,
    target_spread,
)

COUNT = 7
EMPTY, ONE_CLASS = 3, 5


def drawn(decimals: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Margins with many ties, labels and owners in random order."""
    draw = np.random.default_rng(4)
    owner = draw.choice([n for n in range(COUNT) if n != EMPTY], size=400)
    is_positive = draw.random(400) < 0.3
    is_positive[owner == ONE_CLASS] = True
    return draw.normal(is_positive, 1.0).round(decimals), is_positive, owner


def evaluated(
    name: str, outputs: np.ndarray, targets: np.ndarray, owner: np.ndarray, count: int
) -> tuple[np.ndarray, float]:
    """A metric by client and pooled, through what each client would send."""
    metric = METRICS[name]
    said, truth = torch.from_numpy(outputs), torch.from_numpy(targets)
    outcome = Outcome(said, truth, torch.zeros(len(said)))
    sent = []
    for statistic in metric.sent:
        values = statistic.measure(outcome).double().numpy()
        if statistic.reduce is not None:
            columns = values[:, None] if values.ndim == 1 else values
            sent.append(statistic.reduce(columns, owner, count))
        else:
            sent.append(np.bincount(owner, values, minlength=count))
    samples = np.bincount(owner, minlength=count)
    assert metric.pooled is not None
    return metric.value(samples, *sent), metric.pooled(samples, *sent)


def f1(
    margins: np.ndarray, is_positive: np.ndarray, owner: np.ndarray, count: int
) -> tuple[np.ndarray, float]:
    """F1 by client and pooled, of models with these log-odds of class 1."""
    logits = np.stack([np.zeros_like(margins), margins], 1)
    return evaluated("f1", logits, is_positive.astype(np.int64), owner, count)


def auc(
    margins: np.ndarray, is_positive: np.ndarray, owner: np.ndarray, count: int
) -> tuple[np.ndarray, float]:
    """AUC by client and pooled, of models with exactly these log-odds of class 1."""
    metric = METRICS["auc"]
    assert metric.pooled is not None
    sent = []
    for statistic in (*metric.sent, *metric.sent_for_pooled):
        assert statistic.reduce is not None
        values = np.column_stack([margins, is_positive])
        sent.append(statistic.reduce(values, owner, count))
    samples = np.bincount(owner, minlength=count)
    return metric.value(samples, sent[0]), metric.pooled(samples, *sent)


@pytest.mark.parametrize("decimals", [0, 8], ids=["ties", "no ties"])
def test_auc_is_that_of_scikit_learn_for_every_client(decimals: int) -> None:
    margins, is_positive, owner = drawn(decimals)
    areas, _ = auc(margins, is_positive, owner, COUNT)
    for client in range(COUNT):
        own = owner == client
        if client in (EMPTY, ONE_CLASS):
            assert np.isnan(areas[client])
        else:
            expected = roc_auc_score(is_positive[own], margins[own])
            assert areas[client] == pytest.approx(expected, abs=1e-12)


def test_auc_is_the_share_of_pairs_in_order_with_ties_as_halves() -> None:
    margins = np.array([0.0, 1.0, 1.0, 2.0, -1.0])
    is_positive = np.array([False, True, False, True, True])
    pairs = [1, 0.5, 1, 1, 0, 0]  # (1, 0), (1, 1), (2, 0), (2, 1), (-1, 0), (-1, 1)
    area, _ = auc(margins, is_positive, np.zeros(5, dtype=np.int64), 1)
    assert area == pytest.approx([np.mean(pairs)], abs=1e-15)


def test_auc_does_not_depend_on_the_order_of_samples_or_the_scale_of_margins() -> None:
    margins, is_positive, owner = drawn(1)
    order = np.random.default_rng(0).permutation(len(owner))
    plain, _ = auc(margins, is_positive, owner, COUNT)
    other, _ = auc(np.exp(margins)[order], is_positive[order], owner[order], COUNT)
    np.testing.assert_allclose(plain, other, rtol=1e-14)


def test_infinite_margins_rank_and_nan_makes_the_client_nan() -> None:
    margins = np.array([np.inf, -np.inf, np.nan, 0.0])
    samples = (margins, np.array([True, False, True, False]), np.array([0, 0, 1, 1]), 2)
    areas, pooled = auc(*samples)
    assert areas[0] == 1
    assert np.isnan(areas[1])
    assert np.isnan(pooled)
    counts = margin_histograms(*samples)
    assert counts[0, 0] == counts[0, -1] == 1
    assert counts[0].sum() == 2
    assert np.isnan(counts[1]).all()


REALISTIC = {
    "untrained": (-0.02, 0.02, 0.01, 0.3),
    "a few rounds": (0.1, 0.3, 0.3, 0.5),
    "trained": (-1.5, 2.0, 2.5, 0.4),
    "rare positives": (-5.0, 1.0, 1.0, 0.03),
    "very sure": (-12.0, 8.0, 20.0, 0.5),
    "hardly better than chance": (0.0, 1.0, 0.1, 0.5),
}
"""Mean and deviation of the margins of class 0, shift and share of class 1."""


@pytest.mark.parametrize("case", REALISTIC)
@pytest.mark.parametrize("is_personal", [False, True], ids=["shared", "personal"])
def test_the_pooled_auc_of_added_histograms_is_nearly_exact(
    case: str, is_personal: bool
) -> None:
    middle, deviation, shift, share = REALISTIC[case]
    draw = np.random.default_rng(1)
    owner = draw.integers(0, COUNT, 20_000)
    is_positive = draw.random(20_000) < share
    margins = draw.normal(middle + shift * is_positive, deviation)
    if is_personal:  # each client's model is sure in its own measure
        margins *= draw.uniform(0.3, 3.0, COUNT)[owner]
    _, pooled = auc(margins, is_positive, owner, COUNT)
    assert pooled == pytest.approx(roc_auc_score(is_positive, margins), abs=0.002)
    counts = margin_histograms(margins, is_positive, owner, COUNT)
    assert counts.shape == (COUNT, 2 * MARGIN_BINS)
    assert counts.sum() == len(margins)
    (statistic,) = METRICS["auc"].sent_for_pooled
    assert statistic.coarse is not None
    coarse, pooled_of = statistic.coarse(counts), METRICS["auc"].pooled
    assert coarse.shape == (COUNT, 2 * COARSE_BINS)
    assert coarse.sum() == len(margins)
    assert pooled_of is not None
    nothing = np.zeros((COUNT, 2))
    rough = pooled_of(np.zeros(COUNT), nothing, coarse)
    assert rough == pytest.approx(roc_auc_score(is_positive, margins), abs=0.013)


def test_the_pooled_auc_needs_both_classes_and_compares_clients() -> None:
    margins, owner = np.array([1.0, 2.0]), np.array([0, 1])
    areas, pooled = auc(margins, np.array([False, True]), owner, 2)
    assert np.isnan(areas).all()
    assert pooled == 1
    _, pooled = auc(margins, np.array([True, True]), owner, 2)
    assert np.isnan(pooled)


def test_f1_is_that_of_scikit_learn_and_nan_where_it_has_none() -> None:
    margins, is_positive, owner = drawn(8)
    values, pooled = f1(margins, is_positive, owner, COUNT)
    for client in set(range(COUNT)) - {EMPTY}:
        own = owner == client
        expected = f1_score(is_positive[own], margins[own] > 0)
        assert values[client] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(values[EMPTY])
    assert pooled == pytest.approx(f1_score(is_positive, margins > 0), abs=1e-12)
    no, yes = np.array([False]), np.array([True])
    here, called, not_called = np.array([0]), np.array([1.0]), np.array([-1.0])
    assert np.isnan(f1(not_called, no, here, 1)[0])
    assert f1(called, no, here, 1)[0] == 0
    assert f1(not_called, yes, here, 1)[0] == 0
    assert f1(called, yes, here, 1)[0] == 1


@pytest.mark.parametrize("origin", [50.0, 1e6])
@pytest.mark.parametrize("outputs", [1, 3])
def test_explained_variance_is_r_squared_by_client_and_pooled(
    outputs: int, origin: float
) -> None:
    draw = np.random.default_rng(1)
    owner = np.sort(draw.choice([0, 2, 3], size=90))
    targets = origin + draw.normal(size=(90, outputs)) * np.arange(1, outputs + 1)
    targets += owner[:, None]
    said = targets + draw.normal(size=targets.shape)
    values, pooled = evaluated("explained_variance", said, targets, owner, 4)
    for client in (0, 2, 3):
        own = owner == client
        expected = r2_score(targets[own], said[own], multioutput="variance_weighted")
        assert values[client] == pytest.approx(expected, abs=1e-8)
    assert np.isnan(values[1])
    expected = r2_score(targets, said, multioutput="variance_weighted")
    assert pooled == pytest.approx(expected, abs=1e-8)


def test_targets_that_do_not_vary_explain_nothing() -> None:
    targets = np.full((4, 1), 0.1)
    owner = np.array([0, 0, 0, 1])
    values, pooled = evaluated("explained_variance", targets + 1, targets, owner, 2)
    assert np.isnan(values).all()
    assert np.isnan(pooled)
    targets[3] = 0.3
    values, pooled = evaluated("explained_variance", targets, targets, owner, 2)
    assert np.isnan(values).all()
    assert pooled == 1


def test_the_spread_of_targets_is_that_about_the_clients_own_mean() -> None:
    targets = np.array([[1.0, 5.0], [3.0, 5.0], [7.0, 0.0]])
    spread = target_spread(targets, np.array([0, 0, 2]), 3)
    np.testing.assert_allclose(spread, [[2, 2, 5], [0, 0, 0], [0, 7, 0]], atol=1e-15)


def test_clients_without_any_sample_send_zeros_that_stand_for_nan() -> None:
    nobody = np.zeros(2, np.int64)
    widths = {"calibration_gap": 15, "pairs": 2, "target_spread": 3}
    widths["margins"] = 2 * MARGIN_BINS
    for metric in METRICS.values():
        own, more = (
            [np.zeros((2, w) if (w := widths.get(s.name)) else 2) for s in statistics_]
            for statistics_ in (metric.sent, metric.sent_for_pooled)
        )
        assert np.isnan(metric.value(nobody, *own)).all()
        assert metric.pooled is None or np.isnan(metric.pooled(nobody, *own, *more))


@pytest.mark.parametrize(
    ("main", "classes", "kinds"),
    [
        ("accuracy", 10, {"all", "classes"}),
        ("accuracy", 2, {"all", "classes", "two classes"}),
        ("mse", 2, {"all", "numbers"}),
    ],
)
def test_a_task_has_the_metrics_that_apply_to_it(
    main: str, classes: int, kinds: set[str]
) -> None:
    chosen = metrics_for(main, classes)
    assert chosen == [m for m in METRICS.values() if m.applies_to in kinds]
    assert {metric.applies_to for metric in chosen} == kinds
    assert main in {metric.name for metric in chosen}


def test_what_metrics_share_is_sent_once() -> None:
    names = [statistic.name for statistic in statistics(metrics_for("mse", 1))]
    assert names == ["loss", "squared_errors", "absolute_errors", "target_spread"]
    every = [statistic.name for statistic in statistics()]
    assert len(set(every)) == len(every)


def test_every_metric_has_a_title_and_a_sentence() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.title
        assert metric.description[0].isupper()
        assert metric.description.endswith(".")
