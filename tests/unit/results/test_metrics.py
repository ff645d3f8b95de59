"""AUC, F1 and explained variance, against scikit-learn and their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import f1_score, r2_score, roc_auc_score

from fedloom.results.metrics import auc, explained_variance, f1

COUNT = 7
EMPTY, ONE_CLASS = 3, 5


def drawn(decimals: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Margins with many ties, labels and owners in random order."""
    draw = np.random.default_rng(4)
    owner = draw.choice([n for n in range(COUNT) if n != EMPTY], size=400)
    is_positive = draw.random(400) < 0.3
    is_positive[owner == ONE_CLASS] = True
    return draw.normal(is_positive, 1.0).round(decimals), is_positive, owner


@pytest.mark.parametrize("decimals", [0, 8], ids=["ties", "no ties"])
def test_auc_is_that_of_scikit_learn_for_every_client(decimals: int) -> None:
    margins, is_positive, owner = drawn(decimals)
    found = auc(margins, is_positive, owner, COUNT)
    for client in range(COUNT):
        own = owner == client
        if client in (EMPTY, ONE_CLASS):
            assert np.isnan(found[client])
        else:
            expected = roc_auc_score(is_positive[own], margins[own])
            assert found[client] == pytest.approx(expected, abs=1e-12)
    pooled = auc(margins, is_positive, np.zeros_like(owner), 1)
    expected = roc_auc_score(is_positive, margins)
    assert pooled == pytest.approx([expected], abs=1e-12)


def test_auc_is_the_share_of_pairs_in_order_with_ties_as_halves() -> None:
    margins = np.array([0.0, 1.0, 1.0, 2.0, -1.0])
    is_positive = np.array([False, True, False, True, True])
    pairs = [1, 0.5, 1, 1, 0, 0]  # (1, 0), (1, 1), (2, 0), (2, 1), (-1, 0), (-1, 1)
    found = auc(margins, is_positive, np.zeros(5, dtype=np.int64), 1)
    assert found == pytest.approx([np.mean(pairs)], abs=1e-15)


def test_auc_does_not_depend_on_the_order_of_samples_or_the_scale_of_margins() -> None:
    margins, is_positive, owner = drawn(1)
    order = np.random.default_rng(0).permutation(len(owner))
    one = auc(margins, is_positive, owner, COUNT)
    two = auc(np.exp(margins)[order], is_positive[order], owner[order], COUNT)
    np.testing.assert_allclose(one, two, rtol=1e-14)


def test_infinite_margins_rank_and_nan_makes_the_client_nan() -> None:
    margins = np.array([np.inf, -np.inf, np.nan, 0.0])
    is_positive = np.array([True, False, True, False])
    found = auc(margins, is_positive, np.array([0, 0, 1, 1]), 2)
    assert found[0] == 1
    assert np.isnan(found[1])


def test_f1_is_that_of_scikit_learn_and_nan_where_it_has_none() -> None:
    margins, is_positive, owner = drawn(8)
    found = f1(margins, is_positive, owner, COUNT)
    for client in set(range(COUNT)) - {EMPTY}:
        own = owner == client
        expected = f1_score(is_positive[own], margins[own] > 0)
        assert found[client] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(found[EMPTY])
    no, yes = np.array([False]), np.array([True])
    here, called, not_called = np.array([0]), np.array([1.0]), np.array([-1.0])
    assert np.isnan(f1(not_called, no, here, 1)[0])
    assert f1(called, no, here, 1)[0] == 0
    assert f1(not_called, yes, here, 1)[0] == 0
    assert f1(called, yes, here, 1)[0] == 1


@pytest.mark.parametrize("outputs", [1, 3])
def test_explained_variance_is_r_squared_for_every_client(outputs: int) -> None:
    draw = np.random.default_rng(1)
    owner = np.sort(draw.choice([0, 2, 3], size=90))
    targets = 50 + draw.normal(size=(90, outputs)) * np.arange(1, outputs + 1)
    said = targets + draw.normal(size=targets.shape)
    squares = np.bincount(owner, np.square(said - targets).sum(1), minlength=4)
    found = explained_variance(squares, targets, owner, 4)
    for client in (0, 2, 3):
        own = owner == client
        expected = r2_score(targets[own], said[own], multioutput="variance_weighted")
        assert found[client] == pytest.approx(expected, abs=1e-10)
    assert np.isnan(found[1])


def test_targets_that_do_not_vary_explain_nothing() -> None:
    targets = np.full((4, 1), 0.1)
    targets[3] = 0.3
    owner = np.array([0, 0, 0, 1])
    assert np.isnan(explained_variance(np.array([1.0, 2.0]), targets, owner, 2)).all()


def test_without_any_sample_every_number_is_nan() -> None:
    none, no, nobody = np.zeros(0), np.zeros(0, bool), np.zeros(0, np.int64)
    assert np.isnan(auc(none, no, nobody, 2)).all()
    assert np.isnan(f1(none, no, nobody, 2)).all()
    found = explained_variance(np.zeros(2), np.zeros((0, 1)), nobody, 2)
    assert np.isnan(found).all()
