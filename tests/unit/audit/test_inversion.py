from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_runs
import torch
from torch import nn

import fedloom
from fedloom.audit import AuditSettings, audit, inversion
from fedloom.audit.inversion import invert, refusal, sees_totals_alone
from fedloom.audit.subject import open_subject
from fedloom.config import parse
from fedloom.results.audit import (
    EXACT,
    SHARED,
    UPLOADS,
    Audit,
    Inversion,
    Inversions,
)
from fedloom.runs import run_config


def by_shared(found: Inversions) -> list[Inversion]:
    """What was made of what rounds moved the shared model by."""
    return [case for case in found.cases if case.seen == SHARED]


def by_uploads(found: Inversions) -> list[Inversion]:
    """What was made of what the server is sent."""
    return [case for case in found.cases if case.seen == UPLOADS]


@pytest.mark.parametrize("standardise", [False, True])
def test_one_sample_is_read_off_a_linear_layer(
    tmp_path: Path, standardise: bool
) -> None:
    federation = small_runs.clients(standardise=standardise)
    subject = small_runs.trained(tmp_path, fedloom.FedAvg(), federation, rounds=1)
    found = invert(subject, 2, seed=0)
    alone, batch, total = by_shared(found)
    assert (alone.clients, alone.batch, alone.how) == (1, 1, "closed form")
    assert alone.psnr > 60.0
    assert found.guess < batch.psnr < alone.psnr
    assert (total.clients, total.batch) == (8, 2)
    assert total.psnr < batch.psnr
    np.testing.assert_allclose(alone.guesses[0], found.truth[0], atol=1e-3)


def test_a_hidden_layer_gives_whole_batches_away(tmp_path: Path) -> None:
    model = fedloom.models.MLP(hidden=(64,))
    subject = small_runs.trained(
        tmp_path, fedloom.Ditto(), small_runs.clients(), rounds=1, model=model
    )
    found = invert(subject, 4, seed=0)
    assert found.cases[1].best > 60.0
    assert found.cases[0].psnr <= EXACT


def test_pictures_are_sought_by_the_direction_of_their_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inversion, "_STEPS", 120)
    draw = torch.Generator().manual_seed(0)
    # Two levels: what is dark on the left or on the right.
    y = torch.randint(0, 2, (24,), generator=draw)
    x = torch.rand(24, 1, 6, 6, generator=draw) * 0.1
    x[y == 0, :, :, :3] += 0.9
    x[y == 1, :, :, 3:] += 0.9
    federation = fedloom.federation(x, y, clients=np.arange(24) % 3)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 6, 3, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(216, 2)
        )
    subject = small_runs.trained(
        tmp_path, fedloom.FedAvg(), federation, rounds=1, model=net
    )
    found = invert(subject, 1, seed=0)
    assert found.shape == (1, 6, 6)
    assert found.is_picture
    assert found.cases[0].how == "cosine"
    assert found.cases[0].psnr > found.guess + 3.0


def test_tokens_and_methods_without_a_shared_model_are_left_out(tmp_path: Path) -> None:
    subject = small_runs.trained(
        tmp_path, fedloom.Local(), small_runs.clients(), rounds=1
    )
    assert "no shared model" in str(refusal(subject))


HIDDEN = {"clip": 0.5, "noise": 1.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (fedloom.private(fedloom.FedAvg(), **HIDDEN), {}),
        (fedloom.private(fedloom.Ditto(), **HIDDEN), {}),
        (fedloom.FedAvg(), {"robust": fedloom.Robust(rule="krum", attackers=2)}),
        (fedloom.FedAdam(), {}),
    ],
    ids=["fedavg", "ditto", "krum", "fedadam"],
)
def test_the_server_sees_uploads_before_it_does_anything_of_its_own(
    tmp_path: Path, method: Any, options: dict[str, Any]
) -> None:
    """Before its noise, its rule and its optimiser, which others look through."""
    federation = small_runs.clients()
    subject = small_runs.trained(tmp_path, method, federation, rounds=1, **options)
    found = invert(subject, 2, seed=0)
    plain = small_runs.trained(tmp_path / "plain", fedloom.FedAvg(), federation)
    clear = by_shared(invert(plain, 2, seed=0))
    one, two = by_uploads(found)
    assert (one.clients, one.batch, two.clients, two.batch) == (1, 1, 1, 2)
    assert one.psnr > 60.0
    assert two.psnr == pytest.approx(clear[1].psnr, abs=0.1)
    for own, others in zip((one, two), by_shared(found), strict=False):
        assert others.psnr < own.psnr - 0.1


@pytest.mark.parametrize("where", [{"at": "local"}, {"unit": "sample"}])
def test_the_server_sees_uploads_with_the_noise_that_clients_add(
    tmp_path: Path, where: dict[str, Any]
) -> None:
    method = fedloom.private(fedloom.FedAvg(), **HIDDEN, **where)
    subject = small_runs.trained(tmp_path, method, small_runs.clients(), rounds=1)
    found = invert(subject, 2, seed=0)
    for own, others in zip(by_uploads(found), by_shared(found), strict=False):
        assert own.psnr == pytest.approx(others.psnr)
        assert own.psnr < found.guess + 2.0


def test_with_parts_of_the_noise_nobody_sees_less_than_enough_clients(
    tmp_path: Path,
) -> None:
    method = fedloom.private(fedloom.FedAvg(), **HIDDEN, at="clients")
    subject = small_runs.trained(tmp_path, method, small_runs.clients(12), rounds=1)
    assert sees_totals_alone(subject)
    found = invert(subject, 2, seed=0)
    assert [(c.seen, c.clients, c.batch) for c in found.cases] == [
        (SHARED, 12, 2),
        (UPLOADS, 12, 2),
    ]
    assert all(case.psnr < found.guess for case in found.cases)


def test_with_secure_sums_the_server_sees_sums_alone(tmp_path: Path) -> None:
    tables = {
        "rounds": 1,
        "data": {"name": "digits"},
        "model": {"name": "mlr"},
        "partition": {"name": "iid", "clients": 6},
        "robust": {"rule": "norm-bound", "bound": 0.5},
        "secure": {},
    }
    run_config(parse(tables), out=tmp_path / "run")
    subject = open_subject(tmp_path / "run")
    found = audit(subject, AuditSettings(references=0, canaries=0, batch=2))
    assert found.inversions is not None
    (total,) = by_uploads(found.inversions)
    assert (total.clients, total.batch) == (6, 2)
    assert total.psnr == by_shared(found.inversions)[2].psnr
    assert any("sees no single upload" in remark for remark in found.remarks)


def test_an_audit_of_before_is_read_as_what_the_shared_model_gave_away(
    tmp_path: Path,
) -> None:
    subject = small_runs.trained(tmp_path, fedloom.FedAvg(), small_runs.clients())
    found = audit(subject, AuditSettings(references=0, canaries=0, batch=2))
    table = found.to_table()
    for case in table["inversions"]["cases"]:
        del case["seen"]
    again = Audit.from_table(table).inversions
    assert again is not None
    assert {case.seen for case in again.cases} == {SHARED}
