from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs

import fedloom
from fedloom.audit import Subject
from fedloom.audit.membership import (
    auc,
    hits,
    infer_membership,
    likelihood_ratio,
    scores_of,
    summarise,
)
from fedloom.audit.references import Pool, reference_federations
from fedloom.audit.subject import train_bundle


def test_auc_counts_pairs_and_equals_half() -> None:
    ratio = np.array([3.0, 1.0, 2.0, 1.0])
    is_member = np.array([True, True, False, False])
    # Pairs: 3 over 2, 3 over 1, 1 under 2, 1 beside 1.
    assert auc(ratio, is_member) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert np.isnan(auc(ratio[:2], is_member[:2]))


def test_hits_are_members_above_nearly_all_others() -> None:
    ratio = np.concatenate([[5.0, 0.5], np.linspace(0, 1, 200), [9.0]])
    is_member = np.arange(len(ratio)) < 2
    # Of 201 others two may be above: 9 and 1.
    assert hits(ratio, is_member) == pytest.approx(0.5)


def test_a_likely_member_has_a_positive_ratio() -> None:
    seen = np.array([[4.0, 4.0], [4.2, 4.1], [1.0, 1.0], [1.1, 0.9]])
    is_in = np.array([[True] * 2, [True] * 2, [False] * 2, [False] * 2])
    ratio = likelihood_ratio(np.array([4.1, 1.0]), seen, is_in)
    assert ratio[0] > 0 > ratio[1]


def test_a_sample_that_all_references_have_is_left_out() -> None:
    seen, own = np.ones((3, 2)), np.ones(2)
    is_in = np.array([[True, True], [True, False], [True, True]])
    assert np.isfinite(likelihood_ratio(own, seen, is_in)).tolist() == [False, True]


def test_references_hold_out_as_many_and_each_sample_as_often() -> None:
    federation = small_runs.clients(count=3, each=20)
    pool = Pool.of(federation)
    references = reference_federations(federation, pool, 8, seed=0)
    for reference in references:
        assert (reference.sizes == federation.sizes).all()
        for client in range(3):
            own = np.concatenate([federation.train[client], federation.test[client]])
            assert set(reference.train[client]) <= set(own)
    held = np.stack([~pool.trained_by(reference) for reference in references])
    assert (held.sum(0) == 4).all()


def test_references_keep_groups_together() -> None:
    groups = np.arange(160) // 4
    federation = small_runs.clients(groups=groups)
    pool = Pool.of(federation)
    for reference in reference_federations(federation, pool, 4, seed=1):
        for train in reference.train:
            sizes = np.bincount(groups[train])
            assert set(sizes[sizes > 0].tolist()) == {4}


def test_an_overfitted_model_gives_its_samples_away_and_exchanged_ones_are_not_found(
    tmp_path: Path,
) -> None:
    method = fedloom.Ditto(lr=0.5, epochs=10)
    federation = small_runs.clients(is_noise=True)
    subject = small_runs.trained(tmp_path, method, federation)
    shared, personal = infer_membership(subject, 8, seed=0)
    assert (shared.kind, personal.kind) == ("shared", "personal")
    assert personal.auc.low > 0.75
    assert shared.auc.low > 0.5
    assert personal.hits.mean > 0.02
    assert personal.members == personal.others == 80
    pool = Pool.of(federation)
    scores = scores_of_all(subject, pool, 8)
    assert summarise("personal", *scores, pool, 0) == personal
    # Members and others of each client exchanged at random: nothing is to be found.
    is_member = pool.is_member.reshape(8, 20)
    exchanged = np.random.default_rng(0).permuted(is_member, axis=1).reshape(-1)
    nothing = summarise("personal", *scores, Pool(pool.samples, exchanged), 0)
    for auc_ in (nothing.auc, nothing.control, personal.control):
        assert auc_.low - 0.02 < 0.5 < auc_.high + 0.02


def scores_of_all(subject: Subject, pool: Pool, count: int) -> tuple[Any, Any, Any]:
    """What `infer_membership` sums up of personal models."""
    own = scores_of(subject.simulation, pool, "personal")
    seen, is_in = [], []
    clients = reference_federations(subject.federation, pool, count, seed=0)
    for bundle in subject.again(clients, 0, "audit-reference"):
        train_bundle(bundle, subject.rounds)
        for simulation in bundle.simulations:
            seen.append(scores_of(simulation, pool, "personal"))
            is_in.append(pool.trained_by(simulation.federation))
    return own, np.stack(seen), np.stack(is_in)


def test_numbers_to_predict_are_audited_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(120, 12)), draw.normal(size=120)
    federation = fedloom.federation(
        x, y, clients=np.repeat(np.arange(6), 20), test=0.5, standardise=True
    )
    subject = small_runs.trained(tmp_path, fedloom.Local(lr=0.1, epochs=20), federation)
    (personal,) = infer_membership(subject, 8, seed=0)
    assert personal.kind == "personal"
    assert personal.auc.low > 0.6


def test_clients_that_hold_nothing_out_leave_nothing_to_tell(tmp_path: Path) -> None:
    federation = fedloom.federation(
        np.random.default_rng(0).normal(size=(40, 4)),
        np.arange(40) % 2,
        clients=np.arange(40) % 4,
        test=0.0,
    )
    subject = small_runs.trained(tmp_path, fedloom.FedAvg(), federation, rounds=1)
    assert infer_membership(subject, 4, seed=0) == ()
