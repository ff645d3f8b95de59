from __future__ import annotations

from pathlib import Path

import pytest

import fedloom
from fedloom.audit import audit, open_subject
from fedloom.config import parse
from fedloom.runs import run_config

TABLES = {
    "rounds": 20,
    "algorithm": {"name": "ditto", "lr": 0.1, "epochs": 10, "batch_size": 5},
    "data": {"name": "digits"},
    "model": {"name": "mlp"},
    "partition": {"name": "iid", "clients": 20},
    "split": {"test": 0.5},
}


@pytest.mark.slow
def test_an_audit_of_the_digits_from_run_to_report(tmp_path: Path) -> None:
    run_config(parse(TABLES, "digits"), out=tmp_path / "run")
    subject = open_subject(tmp_path / "run")
    found = audit(subject)
    shared, personal = found.membership
    assert personal.auc.low > 0.55
    assert shared.auc.mean > 0.5
    for own in found.membership:
        assert own.control.mean == pytest.approx(0.5, abs=0.03)
    assert found.planted is not None
    assert found.planted.epsilon > 0.5
    assert found.inversions is not None
    one, batch, total, *_ = found.inversions.cases
    assert one.psnr > 60.0
    assert one.psnr >= batch.psnr > total.psnr
    page = fedloom.report(tmp_path / "run").read_text(encoding="utf-8")
    assert 'id="audit"' in page
    assert "data:image/png;base64," in page
