from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import small_runs
from typer.testing import CliRunner

import fedloom
from fedloom.audit import AuditSettings, audit, foreseen, open_subject
from fedloom.cli import app
from fedloom.core.errors import DataError, FedloomError, MessageError
from fedloom.privacy.accounting import gaussian_epsilon
from fedloom.results.audit import Audit
from fedloom.results.directory import RunDirectory

DIGITS = """
rounds = {rounds}
[algorithm]
name = "{method}"
[data]
name = "digits"
[model]
name = "mlr"
[partition]
name = "iid"
clients = 6
"""


def run_digits(folder: Path, method: str = "fedavg", rounds: int = 1) -> Path:
    file, out = folder / "run.toml", folder / method
    file.write_text(DIGITS.format(method=method, rounds=rounds), encoding="utf-8")
    result = CliRunner().invoke(app, ["run", str(file), "--out", str(out), "--quiet"])
    assert result.exit_code == 0, result.output
    return out


def test_command_writes_prints_and_reports_what_was_found(tmp_path: Path) -> None:
    run = run_digits(tmp_path)
    options = ["--references", "4", "--canaries", "3", "--batch", "2", "--quiet"]
    result = CliRunner().invoke(app, ["audit", str(run), *options, "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["command"] == "audit"
    assert [m["kind"] for m in document["membership"]] == ["shared", "personal"]
    assert document["planted"]["clients"] == 3
    assert document["inversions"]["cases"][0]["psnr"] == 100.0
    directory = RunDirectory.open(run)
    found = directory.read_audit()
    assert found is not None
    assert Audit.from_table(json.loads(json.dumps(found.to_table()))) == found
    page = fedloom.report(run).read_text(encoding="utf-8")
    assert 'id="audit"' in page
    assert page.count("data:image/png;base64,") == 2 + (1 + 2 + 2) + (1 + 2)
    for who, what in (
        ("all clients", "shared model after 6 clients, batch of 2"),
        ("the server", "one upload, batch of 1"),
    ):
        assert re.search(f"<td[^>]*>{who}</td>\\s*<td[^>]*>{what}</td>", page)
    assert "A failed attack" in page or "a failed attack" in page
    assert not re.search(r"<img[^>]+style=", page)


def test_an_audit_of_a_run_with_attackers_says_that_its_own_runs_have_none(
    tmp_path: Path,
) -> None:
    remarks = []
    for attack in (None, fedloom.Attack(kind="sign-flip", attackers=1)):
        subject = small_runs.trained(
            tmp_path / str(attack),
            fedloom.FedAvg(),
            small_runs.clients(),
            attack=attack,
        )
        found = audit(subject, AuditSettings(references=0, canaries=2, batch=0))
        remarks.append(any("has attackers" in remark for remark in found.remarks))
    assert remarks == [False, True]


def test_a_run_whose_noise_is_secret_is_audited_whole(tmp_path: Path) -> None:
    """Other runs with its secret have other noise, and give nothing away."""
    file, out = tmp_path / "run.toml", tmp_path / "out"
    privacy = '[privacy]\ndelta = 0.01\nsecret = "key"\n'
    file.write_text(DIGITS.format(method="fedavg", rounds=1) + privacy, "utf-8")
    secret = f'privacy.secret="{(tmp_path / "key").as_posix()}"'
    command = ["run", str(file), "--out", str(out), "--set", secret, "--quiet"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    found = audit(open_subject(out), AuditSettings(references=4, canaries=3, batch=1))
    assert found.membership
    assert found.planted is not None
    assert found.planted.ledger == pytest.approx(gaussian_epsilon(1.0, 0.01))
    assert found.inversions is not None


def test_an_audit_goes_away_with_its_run(tmp_path: Path) -> None:
    subject = small_runs.trained(
        tmp_path, fedloom.FedAvg(), small_runs.clients(), rounds=1
    )
    audit(subject, AuditSettings(references=0, canaries=0))
    directory = subject.directory
    assert directory.audit.is_file()
    with RunDirectory.create(directory.path, fresh=True):
        assert not directory.audit.exists()


def test_a_damaged_audit_is_named_and_not_believed(tmp_path: Path) -> None:
    subject = small_runs.trained(
        tmp_path, fedloom.FedAvg(), small_runs.clients(), rounds=1
    )
    found = audit(subject, AuditSettings(references=0, canaries=0))
    file = subject.directory.audit
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"seconds": ', '"seconds": 1'), encoding="utf-8")
    with pytest.raises(MessageError, match="audit"):
        subject.directory.read_audit()
    fedloom.report(subject.directory.path)  # without the audit
    subject.directory.write_audit(found)
    assert subject.directory.read_audit() == found


def test_same_seed_same_audit(tmp_path: Path) -> None:
    subject = small_runs.trained(
        tmp_path, fedloom.Ditto(), small_runs.clients(), rounds=1
    )
    settings = AuditSettings(references=4, canaries=4, batch=1)
    first, second = audit(subject, settings), audit(subject, settings)
    assert first.membership == second.membership
    assert first.planted == second.planted
    assert first.inversions == second.inversions


def test_a_method_without_shared_model_has_parts_left_out(tmp_path: Path) -> None:
    subject = small_runs.trained(
        tmp_path, fedloom.Local(), small_runs.clients(), rounds=1
    )
    found = audit(subject, AuditSettings(references=4))
    assert [own.kind for own in found.membership] == ["personal"]
    assert found.planted is None
    assert found.inversions is None
    assert sum("left out" in remark for remark in found.remarks) == 2


def test_cost_is_foreseen(tmp_path: Path) -> None:
    subject = small_runs.trained(
        tmp_path, fedloom.FedAvg(), small_runs.clients(), rounds=1
    )
    text = foreseen(subject, AuditSettings(references=4, canaries=8))
    assert text.startswith("6 runs like this one will be trained")
    assert "without other runs" in foreseen(
        subject, AuditSettings(references=0, canaries=0)
    )


def test_no_run_and_unfinished_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no run"):
        open_subject(tmp_path / "nothing")
    federation = small_runs.clients()
    subject = small_runs.trained(tmp_path, fedloom.FedAvg(), federation, rounds=1)
    subject.directory.checkpoint.unlink()
    with pytest.raises(DataError, match="not finished: it is at round 0 of 1"):
        open_subject(subject.directory.path, "mlr", federation)


def test_other_data_are_refused(tmp_path: Path) -> None:
    subject = small_runs.trained(
        tmp_path, fedloom.FedAvg(), small_runs.clients(), rounds=1
    )
    with pytest.raises(FedloomError, match=r"data|split"):
        open_subject(subject.directory.path, "mlr", small_runs.clients(seed=1))
