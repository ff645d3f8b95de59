"""Audits of private runs: what the attack shows beside what the ledger says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_runs

import fedloom
from fedloom.audit import AuditSettings, Subject, audit
from fedloom.audit.promise import Promise


def private_run(
    path: Path, method: Any, noise: float, *, is_noise: bool = False
) -> Subject:
    wrapped = fedloom.private(method, clip=0.5, noise=noise, delta=1e-5)
    # Few samples and many parameters, so that a model can learn them by heart.
    clients = small_runs.clients(12, 8 if is_noise else 20, is_noise=is_noise)
    return small_runs.trained(path, wrapped, clients, rounds=3)


@pytest.mark.parametrize("noise", [8.0, 1.0, 0.2])
@pytest.mark.parametrize(
    "method", [fedloom.FedAvg(lr=0.5), fedloom.Ditto(lr=0.5)], ids=lambda m: m.name
)
def test_the_bound_stays_below_the_ledger(
    tmp_path: Path, method: Any, noise: float
) -> None:
    subject = private_run(tmp_path, method, noise)
    found = audit(subject, AuditSettings(references=0, canaries=24, batch=0))
    assert found.planted is not None
    assert found.planted.ledger is not None
    assert 0.0 <= found.planted.epsilon <= found.planted.ledger
    assert not any("ledger" in remark for remark in found.remarks)


def test_a_ledger_that_counts_too_little_is_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = private_run(tmp_path, fedloom.FedAvg(lr=0.5), 0.02)
    true = Promise.of(subject)
    assert true is not None
    monkeypatch.setattr(Promise, "of", lambda subject: replace(true, epsilon=0.1))
    found = audit(subject, AuditSettings(references=0, canaries=24, batch=0))
    assert found.planted is not None
    assert found.planted.refutes_ledger
    (remark,) = [r for r in found.remarks if "ledger" in r]
    assert "and 0.10 by the run's ledger" in remark
    assert "another --seed" in remark


@pytest.mark.slow
def test_noise_hides_samples_from_membership_inference(tmp_path: Path) -> None:
    """Before and after, where labels are noise and a model learns by heart."""
    settings = AuditSettings(references=16, canaries=0, batch=0)
    method = fedloom.FedAvg(lr=0.5, epochs=10)
    clients = small_runs.clients(12, 8, is_noise=True)
    plain = audit(small_runs.trained(tmp_path / "a", method, clients), settings)
    hidden = audit(private_run(tmp_path / "b", method, 3.0, is_noise=True), settings)
    before, after = (
        {m.kind: m for m in found.membership}["shared"].auc for found in (plain, hidden)
    )
    assert before.low > 0.6
    assert after.low < 0.5
    assert after.high < before.mean
