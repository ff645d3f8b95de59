"""The experiment that audits private runs: its rows and its table."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from fedloom.audit import AuditSettings
from fedloom.experiments import audited
from fedloom.experiments.audited import Row, to_markdown

PLAIN = Row(
    *("fedavg", "", 0.0, math.inf, 2.5),
    *(0.6, 0.01, 0.7, 0.02, 250.0, 10.0, 0.9),
)
HIDDEN = PLAIN._replace(
    unit="client", noise=3.0, ledger=3.35, bound=0.27, one_sample=6.08
)


def test_the_table_says_who_is_hidden_and_leaves_out_what_a_run_lacks() -> None:
    text = to_markdown([PLAIN, HIDDEN])
    numbers = "60.0 (1.0) | 70.0 (2.0)"
    assert f"| fedavg | nobody | | | 2.50 | {numbers} | exact | 10.0 | 90.0 |" in text
    assert (
        f"| fedavg | a client | 3 | 3.35 | 0.27 | {numbers} | 6.1 | 10.0 | 90.0 |"
        in text
    )


@pytest.mark.slow
def test_rows_have_the_ledger_and_what_the_attacks_found(tmp_path: Path) -> None:
    settings = AuditSettings(references=4, canaries=20, batch=2)
    plain, hidden = audited.measure(
        tmp_path, 0, methods=["fedavg"], privacy=[("client", 10.0)], settings=settings
    )
    assert (plain.unit, hidden.unit) == ("", "client")
    assert math.isinf(plain.ledger)
    assert 0.0 <= hidden.bound <= hidden.ledger < 1.0
    assert hidden.one_sample < plain.one_sample
    assert plain.accuracy > hidden.accuracy


def test_the_table_of_the_page_is_that_of_the_stored_rows() -> None:
    root = Path(__file__).parents[3]
    file = root / "results" / "private" / "audit.csv"
    with file.open(encoding="utf-8", newline="") as stored:
        words = {"method", "unit"}
        rows = [
            Row(**{k: v if k in words else float(v) for k, v in row.items()})
            for row in csv.DictReader(stored)
        ]
    assert all(row.bound <= row.ledger for row in rows)
    page = (root / "docs" / "privacy.md").read_text(encoding="utf-8")
    assert to_markdown(rows).strip() in page
